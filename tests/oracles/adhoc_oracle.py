"""The semantics of an ad-hoc query, by backtracking in plain Python: the reference for every plan and runtime.

It imports nothing from the engine and does not use Arrow. A query is a `Meaning`: its aliases, the pairs of aliases
that have a window, and its conditions as functions of rows. Tuples are passed in gate order with their batch, without
late ones. It is slow on purpose: each rule is written where it applies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Rows = Mapping[str, Row]
"""A row for each alias."""
Places = tuple[int, ...]
"""Positions in gate order, one for each alias in the order of the query."""


@dataclass(frozen=True)
class Arrival:
    """A tuple as it arrives: its stream, its values, its time and its batch."""

    stream: str
    row: Row
    ts: int
    batch: int = 0


@dataclass(frozen=True)
class Condition:
    """A test of the rows of some aliases; it holds if the condition is true, not if it is false or NULL."""

    aliases: frozenset[str]
    holds: Callable[[Rows], bool]


@dataclass(frozen=True)
class JointWindow:
    """Two related aliases and their window: ("time", largest difference) or ("rows", n)."""

    left: str
    right: str
    kind: str
    size: int


@dataclass(frozen=True)
class Meaning:
    """A query as the oracle reads it; `sources` are (alias, stream)."""

    sources: tuple[tuple[str, str], ...]
    windows: tuple[JointWindow, ...]
    conditions: tuple[Condition, ...]
    output: Callable[[Rows], tuple[Any, ...]]


@dataclass(frozen=True)
class Life:
    """The batches that a query sees: from `created` to before `dropped`."""

    created: int = 0
    dropped: int | None = None

    def sees(self, batch: int) -> bool:
        """Whether a tuple of this batch is seen."""
        return self.created <= batch and (self.dropped is None or batch < self.dropped)


def gate_order(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The arrivals by batch, time, stream name, and position in the argument."""
    return sorted(arrivals, key=lambda a: (a.batch, a.ts, a.stream))


def results(arrivals: Sequence[Arrival], meaning: Meaning, life: Life | None = None) -> list[Places]:
    """The results of a query over tuples in gate order, by the position of each alias's tuple."""
    return sorted(_Search(arrivals, meaning, life or Life()).places())


def rows(arrivals: Sequence[Arrival], meaning: Meaning, life: Life | None = None) -> Counter[tuple[Any, ...]]:
    """The output rows of a query, with the number of occurrences."""
    aliases = [alias for alias, _ in meaning.sources]
    counts: Counter[tuple[Any, ...]] = Counter()
    for places in results(arrivals, meaning, life):
        rows_by_alias = {alias: arrivals[place].row for alias, place in zip(aliases, places, strict=True)}
        counts[meaning.output(rows_by_alias)] += 1
    return counts


def rows_by_batch(
    arrivals: Sequence[Arrival], meaning: Meaning, life: Life | None = None
) -> dict[int, Counter[tuple[Any, ...]]]:
    """The output rows by the batch in which the last of their tuples arrived."""
    aliases = [alias for alias, _ in meaning.sources]
    counts: dict[int, Counter[tuple[Any, ...]]] = {}
    for places in results(arrivals, meaning, life):
        rows_by_alias = {alias: arrivals[place].row for alias, place in zip(aliases, places, strict=True)}
        batch = max(arrivals[place].batch for place in places)
        counts.setdefault(batch, Counter())[meaning.output(rows_by_alias)] += 1
    return counts


class _Search:
    def __init__(self, arrivals: Sequence[Arrival], meaning: Meaning, life: Life) -> None:
        self._arrivals = arrivals
        self._meaning = meaning
        self._seen = [place for place, arrival in enumerate(arrivals) if life.sees(arrival.batch)]

    def places(self) -> Iterator[Places]:
        yield from self._extend({})

    def _extend(self, chosen: dict[str, int]) -> Iterator[Places]:
        """Every way to choose tuples for the aliases that have none yet."""
        sources = self._meaning.sources
        if len(chosen) == len(sources):
            yield tuple(chosen[alias] for alias, _ in sources)
            return
        alias, stream = sources[len(chosen)]
        for place in self._seen:
            if self._arrivals[place].stream == stream:
                longer = {**chosen, alias: place}
                if self._windows_hold(longer, alias) and self._conditions_hold(longer, alias):
                    yield from self._extend(longer)

    def _windows_hold(self, chosen: Mapping[str, int], new: str) -> bool:
        for window in self._meaning.windows:
            if new in (window.left, window.right) and window.left in chosen and window.right in chosen:
                first, second = sorted((chosen[window.left], chosen[window.right]))
                if first == second or not self._within(window, first, second):
                    return False
        return True

    def _within(self, window: JointWindow, earlier: int, later: int) -> bool:
        one, two = self._arrivals[earlier], self._arrivals[later]
        if window.kind == "time":
            return abs(two.ts - one.ts) <= window.size
        # The arriving tuple counts if it belongs to the same stream.
        after = sum(1 for a in self._arrivals[earlier + 1 : later + 1] if a.stream == one.stream)
        return after < window.size

    def _conditions_hold(self, chosen: Mapping[str, int], new: str) -> bool:
        rows = {alias: self._arrivals[place].row for alias, place in chosen.items()}
        first = len(chosen) == 1
        return all(
            condition.holds(rows)
            for condition in self._meaning.conditions
            if condition.aliases <= chosen.keys() and (new in condition.aliases or (first and not condition.aliases))
        )
