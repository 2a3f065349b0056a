"""A shared step made ready to run: its terms fitted to the streams' types, its windows and conditions as masks of bits.

The invariant: a pair keeps the bit of a path iff it satisfies every window and condition that this path has at the
step. A window is a row of a table: how far two tuples are apart says, by one search, which paths still hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streamjoin.adhoc.canonical import renamed
from streamjoin.adhoc.join_key import role
from streamjoin.adhoc.plan import Stream
from streamjoin.adhoc.probe_plan import Node, PathKey
from streamjoin.adhoc.query_sets import Layout, Selected, Wanted
from streamjoin.adhoc.terms import Term
from streamjoin.model.expression import Column, Expression
from streamjoin.model.keys import KeyTerm, fit
from streamjoin.model.window import CountWindow, Window

Array = np.ndarray[Any, np.dtype[Any]]
UNBOUNDED: Final = (1 << 63) - 1


@dataclass(frozen=True)
class FittedTerm:
    """A term between an earlier role, which probes, and the new one."""

    role: int
    term: KeyTerm
    exact: Expression | None
    """What decides where words only find candidates."""


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
class Step:
    """A node as the executor runs it; masks are in the layout of its root."""

    key: PathKey
    layout: Layout
    mask: Array
    wanted: Wanted
    """Whose bit the new role's tuples may have, by layout."""
    terms: tuple[FittedTerm, ...]
    anchor: int
    """The earlier role whose time is compared with while candidates are read."""
    reach: int
    windows: tuple[WindowTable, ...]
    apart: tuple[tuple[int, Array], ...]
    """Earlier roles of the same stream, and the bits of the paths that allow one tuple in both."""
    conditions: tuple[ConditionMask, ...]
    enders: tuple[str, ...]
    children: tuple[Step, ...]

    @property
    def inclusive(self) -> bool:
        """Whether the new tuple may be the driver."""
        return self.key.steps[-1].inclusive

    @property
    def stream(self) -> str:
        """The stream of the new role."""
        return self.key.steps[-1].stream

    def walk(self) -> list[Step]:
        """This step and all below it."""
        return [self, *(found for child in self.children for found in child.walk())]


@dataclass(frozen=True)
class Root:
    """A first step with what the drivers need."""

    step: Step
    wanted: Wanted
    layout: Layout

    @property
    def driver(self) -> str:
        """The stream whose new tuples drive it."""
        return self.step.key.driver

    @property
    def asked(self) -> list[Wanted]:
        """All query-sets that running it takes."""
        return [self.wanted, *(step.wanted for step in self.step.walk())]


class Compiler:
    """Makes nodes ready; fitted terms are kept from plan to plan."""

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self._streams = streams
        self._fitted: dict[tuple[str, str, Term], FittedTerm] = {}
        self._wants: dict[tuple[Selected | None, ...], Wanted] = {}

    def roots(self, nodes: Sequence[Node], selected: Mapping[tuple[str, str], Selected]) -> tuple[Root, ...]:
        """All first steps; `selected` says what a tuple must be for (query, alias).

        What asks the same of tuples as in the plan before stays the same object, and its query-sets are found again.
        """
        found = tuple(self.root(node, selected) for node in nodes)
        asked = {wanted for root in found for wanted in root.asked}
        self._wants = {bits: wanted for bits, wanted in self._wants.items() if wanted in asked}
        return found

    def root(self, node: Node, selected: Mapping[tuple[str, str], Selected]) -> Root:
        """A first step; `selected` says what a tuple must be for (query, alias)."""
        layout = Layout(tuple(sorted(node.paths)))
        step = self._step(node, layout, selected)
        return Root(step, self._wanted(node, layout, 0, selected), layout)

    def _step(self, node: Node, layout: Layout, selected: Mapping[tuple[str, str], Selected]) -> Step:
        terms = tuple(self._fit(node.key, term) for term in node.key.steps[-1].terms)
        windows = self._windows(node, layout)
        anchor, reach = _reach(node, terms)
        new = node.role
        streams = node.key.streams
        apart = []
        for earlier in range(1, new):
            if streams[earlier] == streams[new]:
                related = [n for n, p in node.paths.items() if any(r == earlier for r, _ in p.tests[new - 1].windows)]
                if related:
                    apart.append((earlier, ~layout.of(related)))
        return Step(
            node.key,
            layout,
            layout.of(node.paths),
            self._wanted(node, layout, new, selected),
            terms,
            anchor,
            reach,
            windows,
            tuple(apart),
            self._conditions(node, layout, terms),
            tuple(sorted(node.enders)),
            tuple(self._step(child, layout, selected) for child in node.children.values()),
        )

    def _wanted(self, node: Node, layout: Layout, number: int, selected: Mapping[tuple[str, str], Selected]) -> Wanted:
        paths = [node.paths.get(name) for name in layout.queries]
        bits = tuple(None if path is None else selected[path.query, path.order[number]] for path in paths)
        return self._wants.setdefault(bits, Wanted(bits))

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

    def _windows(self, node: Node, layout: Layout) -> tuple[WindowTable, ...]:
        found: dict[tuple[int, bool], dict[int, list[str]]] = {}
        for name, path in node.paths.items():
            for earlier, window in path.tests[node.role - 1].windows:
                sizes = found.setdefault((earlier, isinstance(window, CountWindow)), {})
                sizes.setdefault(_size(window), []).append(name)
        return tuple(_table(layout, *where, sizes) for where, sizes in sorted(found.items()))

    def _conditions(self, node: Node, layout: Layout, terms: Sequence[FittedTerm]) -> tuple[ConditionMask, ...]:
        asking: dict[Expression, list[str]] = {}
        for term in terms:
            if term.exact is not None:
                asking[term.exact] = list(node.paths)
        for name, path in node.paths.items():
            for condition in path.tests[node.role - 1].conditions:
                asking.setdefault(condition, []).append(name)
        return tuple(ConditionMask(condition, ~layout.of(names)) for condition, names in asking.items())


def _size(window: Window) -> int:
    # A pair is within n rows if fewer than n tuples came after: at most n - 1.
    return window.n - 1 if isinstance(window, CountWindow) else window.length


def _table(layout: Layout, earlier: int, counted: bool, sizes: Mapping[int, Sequence[str]]) -> WindowTable:
    limits = sorted(sizes)
    bound = layout.of(name for names in sizes.values() for name in names)
    keeps = [
        ~bound | layout.of(n for limit in limits[first:] for n in sizes[limit]) for first in range(len(limits) + 1)
    ]
    return WindowTable(earlier, counted, np.array(limits, np.uint64), np.stack(keeps))


def _reach(node: Node, terms: Sequence[FittedTerm]) -> tuple[int, int]:
    """The earlier role to compare times with, and the longest window against it; unbounded where one has none."""
    first = terms[0].role if terms else None
    best = (first or 0, UNBOUNDED)
    for earlier in range(node.role) if first is None else (first,):
        longest = 0
        for path in node.paths.values():
            window = dict(path.tests[node.role - 1].windows).get(earlier)
            timed = window is not None and not isinstance(window, CountWindow)
            longest = max(longest, _size(window) if timed and window is not None else UNBOUNDED)
        if longest < best[1]:
            best = (earlier, longest)
    return best


def columns_by_role(expression: Expression) -> dict[Column, int]:
    """The columns of a condition by role, with the number of the role."""
    return {column: int(column.qualifier.removeprefix(role(0)[0])) for column in expression.columns}
