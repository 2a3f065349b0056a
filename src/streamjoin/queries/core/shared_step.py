"""A shared step made ready to run: its terms fitted to the streams' types, its windows and conditions as masks of bits.

The invariant: a pair keeps the bit of a path iff it satisfies every window and condition that this path has at the
step. A window is a row of a table: how far two tuples are apart says, by one search, which paths still hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.expression.canonical import renamed
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.keys import KeyTerm, fit
from streamjoin.model.predicates import Equi
from streamjoin.model.terms import Term
from streamjoin.model.window import LONGEST, CountWindow, Window
from streamjoin.queries.core.buckets import KeyAttribute
from streamjoin.queries.core.intervals import FittedInterval, fit_interval
from streamjoin.queries.core.probe_plan import PathKey, StepKey, StepTests
from streamjoin.queries.core.selection_tables import BitLayout, Owner
from streamjoin.queries.language.join_key import role
from streamjoin.queries.language.plan import Stream

By = Mapping[Owner, StepTests]
"""What each path tests at a step."""


@dataclass(frozen=True)
class FittedTerm:
    """A term between an earlier role, which probes, and the new one."""

    role: int
    term: KeyTerm
    exact: Expression | None
    """What decides where words only find candidates."""

    @cached_property
    def left(self) -> KeyAttribute:
        """The earlier role's attribute."""
        return KeyAttribute(self.term, "left")

    @cached_property
    def right(self) -> KeyAttribute:
        """The new role's attribute."""
        return KeyAttribute(self.term, "right")


@dataclass(frozen=True)
class WindowTable:
    """The windows against one earlier role: pairs `limits[i - 1]` < distance <= `limits[i]` apart keep `keeps[i]`."""

    role: int
    counted: bool
    limits: Array
    keeps: Array


@dataclass(frozen=True)
class ConditionMask:
    """A condition by role, and the bits of the paths that do not ask for it."""

    condition: Expression
    without: Array


@dataclass(frozen=True)
class Tests:
    """What a pair must satisfy at a step; masks are in the layout of the step's first join."""

    streams: tuple[str, ...]
    """The stream of each role, the new one last."""
    terms: tuple[FittedTerm, ...]
    anchor: int
    """The earlier role whose time is compared with while candidates are read."""
    reach: int
    near: WindowTable
    """The windows against the anchor, tested there too."""
    windows: tuple[WindowTable, ...]
    """All others."""
    apart: tuple[tuple[int, Array], ...]
    """Earlier roles of the same stream, and the bits of the paths that allow one tuple in both."""
    conditions: tuple[ConditionMask, ...]
    inclusive: bool
    """Whether the new tuple may be the driver."""
    interval: FittedInterval | None = None
    """Without terms: intervals that all paths compare, by which candidates may be found."""

    @cached_property
    def lookups(self) -> tuple[FittedTerm | FittedInterval, ...]:
        """What candidates may be found by: every equality, the first band, or intervals; nothing where all are."""
        equalities = tuple(term for term in self.terms if isinstance(term.term.term, Equi))
        return equalities or self.terms[:1] or self.fitted

    @property
    def fitted(self) -> tuple[FittedTerm | FittedInterval, ...]:
        """All that indexes and words are made for."""
        return self.terms if self.interval is None else (*self.terms, self.interval)

    @property
    def settled(self) -> bool:
        """Whether finding candidates has tested all there is."""
        return len(self.terms) < 2 and not self.windows and not self.apart and not self.conditions


class Compiler:
    """Makes tests ready; fitted terms are kept from plan to plan."""

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self._streams = streams
        self._fitted: dict[tuple[str, str, Term], FittedTerm] = {}

    def tests(self, key: PathKey, by: By, layout: BitLayout) -> Tests:
        """The tests of the last step of a key, for the paths given; a key without steps has none."""
        last = key.steps[-1] if key.steps else StepKey(key.driver, (), False)
        terms = tuple(self._fit(key, term) for term in last.terms)
        anchor, reach = _reach(len(key.steps), by, terms)
        tables = _windows(by, layout)
        near = tables.pop((anchor, False), None)
        if near is None:
            near = WindowTable(anchor, False, np.empty(0, np.uint64), np.full((1, layout.words), ~np.uint64(0)))
        return Tests(
            key.streams,
            terms,
            anchor,
            reach,
            near,
            tuple(tables.values()),
            tuple(_apart(key.streams, by, layout)),
            _conditions(by, layout, terms),
            last.inclusive,
            None if terms or not by else self._interval(key, by),
        )

    def _interval(self, key: PathKey, by: By) -> FittedInterval | None:
        """The intervals that the conditions of all paths have in common."""
        first, *rest = (tests.conditions for tests in by.values())
        common = [condition for condition in first if all(condition in others for others in rest)]

        def type_of(column: Column) -> pa.DataType:
            stream = key.streams[int(column.qualifier.removeprefix(role(0)[0]))]
            return self._streams[stream].schema.field(column.name).type

        fitted = fit_interval(common, role(len(key.steps)), type_of)
        return None if fitted is None else FittedInterval(int(fitted[0].removeprefix(role(0)[0])), *fitted[1:])

    def _fit(self, key: PathKey, term: Term) -> FittedTerm:
        earlier = int(term.left.qualifier[1:])
        streams = (key.streams[earlier], key.steps[-1].stream)
        held = (*streams, term)
        if held not in self._fitted:
            types = [
                self._streams[stream].schema.field(column.name).type
                for stream, column in zip(streams, (term.left, term.right), strict=True)
            ]
            fitted = fit(term.term, *types)
            exact = None
            if fitted.residual is not None:
                exact = renamed(fitted.residual, {"l": term.left.qualifier, "r": term.right.qualifier})
            self._fitted[held] = FittedTerm(earlier, fitted, exact)
        return self._fitted[held]


def _windows(by: By, layout: BitLayout) -> dict[tuple[int, bool], WindowTable]:
    by_role: dict[tuple[int, bool], dict[int, list[Owner]]] = {}
    for owner, tests in by.items():
        for earlier, window in tests.windows:
            sizes = by_role.setdefault((earlier, isinstance(window, CountWindow)), {})
            sizes.setdefault(_size(window), []).append(owner)
    return {where: _table(layout, *where, sizes) for where, sizes in sorted(by_role.items())}


def _apart(streams: Sequence[str], by: By, layout: BitLayout) -> list[tuple[int, Array]]:
    masks = []
    new = len(streams) - 1
    for earlier in range(1, new):
        if streams[earlier] == streams[new]:
            related = [owner for owner, tests in by.items() if any(r == earlier for r, _ in tests.windows)]
            if related:
                masks.append((earlier, ~layout.of(related)))
    return masks


def _conditions(by: By, layout: BitLayout, terms: Sequence[FittedTerm]) -> tuple[ConditionMask, ...]:
    asking: dict[Expression, list[Owner]] = {}
    for term in terms:
        if term.exact is not None:
            asking[term.exact] = list(by)
    for owner, tests in by.items():
        for condition in tests.conditions:
            asking.setdefault(condition, []).append(owner)
    return tuple(ConditionMask(condition, ~layout.of(owners)) for condition, owners in asking.items())


def _size(window: Window) -> int:
    # A pair is within n rows if fewer than n tuples came after: at most n - 1.
    return window.n - 1 if isinstance(window, CountWindow) else window.length


def _table(layout: BitLayout, earlier: int, counted: bool, sizes: Mapping[int, Sequence[Owner]]) -> WindowTable:
    limits = sorted(sizes)
    having = [layout.of(sizes[limit]) for limit in limits]
    # From the longest down: whoever has this window or a longer one.
    within = [np.zeros(layout.words, np.uint64)]
    for bits in reversed(having):
        within.append(within[-1] | bits)
    bound = within[-1]
    keeps = [~bound | bits for bits in reversed(within)]
    return WindowTable(earlier, counted, np.array(limits, np.uint64), np.stack(keeps))


def _reach(new: int, by: By, terms: Sequence[FittedTerm]) -> tuple[int, int]:
    """The earlier role to compare times with, and the longest window against it; unbounded where one has none."""
    first = terms[0].role if terms else None
    best = (first or 0, LONGEST)
    for earlier in range(new) if first is None else (first,):
        longest = 0
        for tests in by.values():
            window = dict(tests.windows).get(earlier)
            timed = window is not None and not isinstance(window, CountWindow)
            longest = max(longest, _size(window) if timed and window is not None else LONGEST)
        if longest < best[1]:
            best = (earlier, longest)
    return best


def columns_by_role(expression: Expression) -> dict[Column, int]:
    """The columns of a condition by role, with the number of the role."""
    return {column: int(column.qualifier.removeprefix(role(0)[0])) for column in expression.columns}
