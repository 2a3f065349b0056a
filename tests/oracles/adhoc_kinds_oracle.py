"""The semantics of outer, semi, anti and as-of joins in ad-hoc queries, in plain Python: over the whole input at once.

A query is its inner joins (the core) and the steps after them. The core's results, and those of the core with the alias
of a step, come from `adhoc_oracle`. Since a tuple that comes later never changes a row, whether a tuple is matched
can be read off the whole input; only *when* its row is due needs the bounds of the streams after each batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tests.oracles.adhoc_oracle import Arrival, Condition, JointWindow, Life, Meaning, Places, Row, Rows, results

NEVER: Final = 1 << 40
"""No batch."""


@dataclass(frozen=True)
class NearestPartner:
    """Of an as-of join: the alias whose time counts, where partners are, and whether equal times count.

    The direction is "backward", "forward" or "nearest".
    """

    anchor: str
    direction: str
    exact: bool


@dataclass(frozen=True)
class KindStep:
    """A join after the inner ones: "left", "right", "full", "semi", "anti", and with `nearest` "inner" to "anti"."""

    kind: str
    source: tuple[str, str]
    windows: tuple[JointWindow, ...]
    conditions: tuple[Condition, ...]
    nearest: NearestPartner | None = None


@dataclass(frozen=True)
class KindMeaning:
    """A query as this oracle reads it; `core` has the sources, windows and conditions of the inner joins."""

    core: Meaning
    steps: tuple[KindStep, ...]
    filters: tuple[Condition, ...]
    output: Callable[[Rows], tuple[Any, ...]]


@dataclass(frozen=True)
class Outcome:
    """A row, the batch in which it is due, and the first in which it may come.

    These differ where a NULL or a condition on the tuple itself can decide early that there is no partner.
    """

    row: tuple[Any, ...]
    earliest: int
    due: int


class MissingRow(dict[str, Any]):
    """The row of an alias that has no tuple: every column is NULL."""

    def __missing__(self, name: str) -> None:
        return None


def outcomes(
    arrivals: Sequence[Arrival], meaning: KindMeaning, lateness: int, life: Life | None = None
) -> list[Outcome]:
    """All rows of a query over tuples in gate order, those that are due after the last batch left out."""
    return list(_Reading(arrivals, meaning, lateness, life or Life()).outcomes())


def check_rows(wanted: Iterable[Outcome], found: Mapping[int, Counter[tuple[Any, ...]]], batches: int) -> None:
    """Assert that rows by batch are those that were wanted: none too late, none too early, none besides."""
    expected, so_far = list(wanted), Counter[tuple[Any, ...]]()
    for batch in range(batches):
        so_far += found.get(batch, Counter())
        due = Counter(outcome.row for outcome in expected if outcome.due <= batch)
        possible = Counter(outcome.row for outcome in expected if outcome.earliest <= batch)
        if not due <= so_far:
            raise AssertionError(f"missing up to batch {batch}: {due - so_far}")
        if not so_far <= possible:
            raise AssertionError(f"too many or too early up to batch {batch}: {so_far - possible}")


class _Reading:
    def __init__(self, arrivals: Sequence[Arrival], meaning: KindMeaning, lateness: int, life: Life) -> None:
        self._arrivals, self._meaning, self._lateness, self._life = arrivals, meaning, lateness, life
        self._last = max((arrival.batch for arrival in arrivals), default=-1)
        self._streams = dict([*meaning.core.sources, *(step.source for step in meaning.steps)])
        self._aliases = [alias for alias, _ in meaning.core.sources]

    def outcomes(self) -> Iterable[Outcome]:
        for outcome in self._rows():
            if outcome.due <= self._last and self._life.sees(outcome.due):
                yield outcome
            elif outcome.earliest <= self._last:
                yield replace(outcome, due=NEVER)

    def _rows(self) -> Iterable[Outcome]:
        cores = results(self._arrivals, self._meaning.core, self._life)
        steps = self._meaning.steps
        if steps[0].nearest is None and steps[0].kind in ("left", "right", "full"):
            return self._outer(steps[0], cores)
        return self._lookups(cores)

    def _partners(self, step: KindStep) -> dict[Places, list[int]]:
        core = self._meaning.core
        joined = Meaning(
            (*core.sources, step.source),
            (*core.windows, *step.windows),
            (*core.conditions, *step.conditions),
            core.output,
        )
        partners: dict[Places, list[int]] = {}
        for *places, partner in results(self._arrivals, joined, self._life):
            partners.setdefault(tuple(places), []).append(partner)
        return partners

    def _batch(self, places: Iterable[int]) -> int:
        return max(self._arrivals[place].batch for place in places)

    def _outcome(self, places: Mapping[str, int], earliest: int, due: int) -> Iterable[Outcome]:
        rows: dict[str, Row] = {alias: MissingRow() for alias in self._streams}
        rows |= {alias: self._arrivals[place].row for alias, place in places.items()}
        if all(condition.holds(rows) for condition in self._meaning.filters):
            yield Outcome(self._meaning.output(rows), earliest, due)

    # Outer joins --------------------------------------------------------------------------------------------------

    def _outer(self, step: KindStep, cores: Sequence[Places]) -> Iterable[Outcome]:
        partners = self._partners(step)
        alias, stream = step.source
        for core, matches in partners.items():
            for match in matches:
                batch = self._batch([*core, match])
                yield from self._outcome({**dict(zip(self._aliases, core, strict=True)), alias: match}, batch, batch)
        if step.kind in ("left", "full"):
            for core in cores:
                if core not in partners:
                    yield from self._unmatched(step, dict(zip(self._aliases, core, strict=True)), self._passed)
        if step.kind in ("right", "full"):
            matched = {match for matches in partners.values() for match in matches}
            for place, arrival in enumerate(self._arrivals):
                if arrival.stream == stream and self._life.sees(arrival.batch) and place not in matched:
                    yield from self._unmatched(step, {alias: place}, self._right_passed)

    def _unmatched(
        self, step: KindStep, places: dict[str, int], passed: Callable[[KindStep, dict[str, int], int], bool]
    ) -> Iterable[Outcome]:
        came, due = self._batch(places.values()), self._first(partial(passed, step, places), places)
        yield from self._outcome(places, came if self._may_be_hopeless(step, places) else due, due)

    def _first(self, holds: Callable[[int], bool], places: Mapping[str, int]) -> int:
        came = self._batch(places.values())
        return next((batch for batch in range(came, self._last + 1) if holds(batch)), NEVER)

    def _may_be_hopeless(self, step: KindStep, places: Mapping[str, int]) -> bool:
        rows = {alias: self._arrivals[place].row for alias, place in places.items()}
        values = [value for row in rows.values() for value in row.values()]
        if any(value is None or (isinstance(value, float) and math.isnan(value)) for value in values):
            return True
        return any(not condition.holds(rows) for condition in step.conditions if condition.aliases <= rows.keys())

    # When nothing more can come -----------------------------------------------------------------------------------

    def _bound(self, stream: str, batch: int) -> float:
        times = [a.ts for a in self._arrivals if a.stream == stream and a.batch <= batch]
        return max(times) - self._lateness if times else -math.inf

    def _later(self, place: int, batch: int) -> int:
        """How many tuples of its stream came after a tuple up to a batch."""
        stream = self._arrivals[place].stream
        return sum(a.stream == stream and a.batch <= batch for a in self._arrivals[place + 1 :])

    def _passed(self, step: KindStep, places: dict[str, int], batch: int) -> bool:
        """Whether the window of one of the tuples has passed for everything that can still come."""
        stream = step.source[1]
        for window in step.windows:
            place = places[window.left if window.right == step.source[0] else window.right]
            arrival = self._arrivals[place]
            if window.kind == "rows":
                if self._later(place, batch) + (arrival.stream == stream) >= window.size:
                    return True
            elif arrival.ts + window.size < self._bound(stream, batch):
                return True
        return False

    def _right_passed(self, step: KindStep, places: dict[str, int], batch: int) -> bool:
        place = places[step.source[0]]
        if step.windows[0].kind == "rows":
            same = self._arrivals[place].stream == self._streams[self._aliases[0]]
            return self._later(place, batch) + same >= step.windows[0].size
        reach = {step.source[0]: 0}
        windows = [*self._meaning.core.windows, *step.windows]
        for _ in self._streams:
            for window in windows:
                for one, two in ((window.left, window.right), (window.right, window.left)):
                    if one in reach:
                        reach[two] = min(reach.get(two, 1 << 80), reach[one] + window.size)
        time = self._arrivals[place].ts
        return all(time + reach[alias] < self._bound(self._streams[alias], batch) for alias in self._aliases)

    # Semi, anti and as-of joins -----------------------------------------------------------------------------------

    def _lookups(self, cores: Sequence[Places]) -> Iterable[Outcome]:
        partners = [self._partners(step) for step in self._meaning.steps]
        for core in cores:
            places = dict(zip(self._aliases, core, strict=True))
            came = self._batch(core)
            earliest, due, chosen, passes = came, came, dict(places), True
            for step, found in zip(self._meaning.steps, partners, strict=True):
                matches = found.get(core, [])
                if step.nearest is not None:
                    partner = self._nearest(step.nearest, places, matches)
                    decided = self._first(partial(self._decided, step, places, partner), places)
                    passes &= (partner is None) if step.kind == "anti" else (partner is not None or step.kind == "left")
                    if partner is not None:
                        chosen[step.source[0]] = partner
                elif step.kind == "semi":
                    passes &= bool(matches)
                    decided = min((max(came, self._arrivals[m].batch) for m in matches), default=NEVER)
                else:
                    passes &= not matches
                    decided = self._first(partial(self._passed, step, places), places)
                due = max(due, decided)
                if step.kind == "semi" or not self._may_be_hopeless(step, places):
                    earliest = max(earliest, decided)
            if passes:
                yield from self._outcome(chosen, earliest, due)

    def _nearest(self, rule: NearestPartner, places: Mapping[str, int], matches: Sequence[int]) -> int | None:
        time = self._arrivals[places[rule.anchor]].ts
        behind = [m for m in matches if self._arrivals[m].ts < time + rule.exact and rule.direction != "forward"]
        ahead = [m for m in matches if self._arrivals[m].ts > time - rule.exact and rule.direction != "backward"]
        key = lambda place: (self._arrivals[place].ts, place)  # noqa: E731
        before, after = max(behind, key=key, default=None), min(ahead, key=key, default=None)
        if before is None or after is None:
            return after if before is None else before
        return after if self._arrivals[after].ts - time < time - self._arrivals[before].ts else before

    def _decided(self, step: KindStep, places: Mapping[str, int], partner: int | None, batch: int) -> bool:
        """Whether no nearer partner than this, which is the best of the whole input, can come after a batch."""
        rule = step.nearest
        if rule is None:
            raise AssertionError("no as-of join")
        time, bound = self._arrivals[places[rule.anchor]].ts, self._bound(step.source[1], batch)
        if rule.direction == "backward":
            return time < bound if rule.exact else time <= bound
        if partner is not None and self._arrivals[partner].batch <= batch:
            other = self._arrivals[partner].ts
            if other <= bound if rule.direction == "forward" else time < bound and abs(other - time) <= bound - time:
                return True
        return time + step.windows[0].size < bound
