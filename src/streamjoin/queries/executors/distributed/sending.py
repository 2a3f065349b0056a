"""What the driver sends to cells: queries with their places, as a whole now and then, and what changed since."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, Final

from streamjoin.model.window import CountWindow
from streamjoin.queries.core.changes import LiveQuery
from streamjoin.queries.core.probe_plan import Choice
from streamjoin.queries.executors.distributed.cell import CellDelta, PlacedQuery
from streamjoin.queries.executors.distributed.outputs import OutputTarget
from streamjoin.queries.executors.distributed.placement import (
    CellRoute,
    Placement,
    divisible_streams,
    least_share,
    place,
    spread_placement,
)
from streamjoin.queries.language.plan import Stream

_DELTAS: Final = 16
"""Changes that are sent along before the whole state is sent anew."""
_MOST_HEAVY: Final = 16
_NO_FEEDS: Final[Mapping[str, Mapping[str, LiveQuery]]] = {}
_RoutesKey = tuple[tuple[str, tuple[CellRoute, ...]], ...]
_HeavyGroup = tuple[_RoutesKey, tuple[str, ...]]
"""Queries by the routes of their one key; those with other than inner joins also by the streams that can be divided."""
_WORTH_MOVING: Final = 1.5
"""How many times the tuples a cell must hold before queries move to another placement; they stay there beyond that."""


class Placements:
    """Gives each query a placement, and lets queries with the same routes share one.

    Queries that join the same streams by many attributes have a placement for each, and every one stores its share of
    all tuples. As soon as it takes less to divide one stream by position and to have the others in every cell, they
    share a placement of this kind. A query moves only for that: cells read its tuples again.
    """

    def __init__(self, cells: int) -> None:
        self.current: dict[int, Placement] = {}
        self._cells = cells
        self._of: dict[int, int] = {}
        self._wanted: dict[int, Placement] = {}
        self._spread: dict[frozenset[str], str] = {}
        """For queries over these streams that share one placement: the stream that is divided."""
        self._heavy: dict[_HeavyGroup, tuple[str, tuple[int, ...]]] = {}
        """For queries by one key: the stream whose tuples of heavy keys are divided, and the words of these keys."""
        self._words: dict[str, Mapping[str, Mapping[int, float]]] = {}
        """The shares of common words by stream and column."""
        self.notes: list[str] = []
        """What was decided since the last look."""
        self._numbers = count()

    def resize(self, cells: int) -> None:
        """Change the number of cells."""
        self._cells = cells

    def update(self, queries: Mapping[str, LiveQuery], rates: Mapping[str, float] | None = None) -> dict[str, int]:
        """The placement of each query by its number; `rates` are the streams' shares of all tuples."""
        entries = {entry.serial: entry for entry in queries.values()}
        self._of = {serial: number for serial, number in self._of.items() if serial in entries}
        self._wanted = {serial: found for serial, found in self._wanted.items() if serial in entries}
        for serial, entry in entries.items():
            if serial not in self._wanted:
                self._wanted[serial] = place(entry.query, -1, _is_counted(entry))
        self._decide(entries, rates or {})
        self._decide_heavy(entries, rates or {})
        for serial, entry in sorted(entries.items()):
            wanted = self._spread_of(entry) or self._split_of(entry) or self._wanted[serial]
            number = self._of.get(serial)
            if number is None or not self.current[number].covers(wanted):
                self._of[serial] = self._place(wanted)
        self.current = {number: found for number, found in self.current.items() if number in self._of.values()}
        return {name: self._of[entry.serial] for name, entry in queries.items()}

    def _decide(self, entries: Mapping[int, LiveQuery], rates: Mapping[str, float]) -> None:
        """Choose which queries share a placement with one stream divided."""
        groups: dict[frozenset[str], list[LiveQuery]] = {}
        for entry in entries.values():
            if divisible_streams(entry.query) and not entry.query.kind_steps:
                groups.setdefault(_streams(entry), []).append(entry)
        before, self._spread = self._spread, {}
        for streams, members in groups.items():
            chosen = _divisible(members)
            divided = before.get(streams) or max(sorted(chosen), key=lambda name: rates.get(name, 1.0), default=None)
            if divided is None or divided not in chosen:
                continue
            routes = {tuple(sorted(found.routes.items())): found for found in map(self._wanted_by, members)}
            apart = sum(self._held(found, streams, rates) for found in routes.values())
            together = self._held(spread_placement(members[0].query, divided, -1, False), streams, rates)
            if len(routes) > 1 and apart > together * (1.0 if streams in before else _WORTH_MOVING):
                self._spread[streams] = divided

    def note_words(self, words: Mapping[str, Mapping[str, Mapping[int, float]]]) -> None:
        """Take over which words many new tuples have, by stream and column: their shares of the tuples."""
        self._words |= words

    def _decide_heavy(self, entries: Mapping[int, LiveQuery], rates: Mapping[str, float]) -> None:
        """Choose the keys that are divided among cells: with half a cell's tuples, until they have below a quarter."""
        before, self._heavy = self._heavy, {}
        groups: dict[_HeavyGroup, list[LiveQuery]] = {}
        for entry in entries.values():
            group = self._heavy_group(entry)
            if group is not None and self._cells > 1:
                groups.setdefault(group, []).append(entry)
        for group, members in groups.items():
            once = _divisible(members)
            known = before.get(group, ("", ()))
            shares = {name: self._words.get(name, {}).get(str(route.key_column), {}) for name, (route,) in group[0]}
            common = {word for found in shares.values() for word in found}
            most = {word: max(found.get(word, 0.0) for found in shares.values()) for word in common}
            least = least_share(self._cells)
            heavy = [word for word, share in most.items() if share >= (least if word in known[1] else 2 * least)]
            words = tuple(sorted(sorted(heavy, key=lambda word: -most[word])[:_MOST_HEAVY]))
            if not words or not once:
                continue
            # The stream with most tuples of them: the others have copies.
            weights = {name: rates.get(name, 1.0) * sum(shares[name].get(word, 0.0) for word in words) for name in once}
            divided = known[0] if known[0] in once else max(sorted(once), key=lambda name: weights[name])
            self._heavy[group] = divided, words
        for group in before.keys() | self._heavy.keys():
            if before.get(group) != self._heavy.get(group):
                _, words = self._heavy.get(group, ("", ()))
                columns = ", ".join(f"{name}.{route.key_column}" for name, (route,) in group[0])
                keys = "1 heavy key" if len(words) == 1 else f"{len(words)} heavy keys"
                self.notes.append(f"{keys} of {columns} divided among cells")

    def _heavy_group(self, entry: LiveQuery) -> _HeavyGroup | None:
        """Which queries have their heavy keys divided together; None if this one is not placed by one key."""
        placement = self._wanted[entry.serial]
        if placement.dimensions != 1 or any(route.kind != "key" for (route,) in placement.routes.values()):
            return None
        # Of inner joins a query may spare a stream, so that it shares tuples with the others.
        divisible = tuple(divisible_streams(entry.query)) if placement.waits else ()
        return tuple(sorted(placement.routes.items())), divisible

    def _split_of(self, entry: LiveQuery) -> Placement | None:
        wanted, group = self._wanted[entry.serial], self._heavy_group(entry)
        if group not in self._heavy:
            return None
        divided, words = self._heavy[group]
        routes = {
            name: (replace(route, heavy=words, divided=name == divided),) for name, (route,) in wanted.routes.items()
        }
        return replace(wanted, routes=routes)

    def _wanted_by(self, entry: LiveQuery) -> Placement:
        return self._wanted[entry.serial]

    def _held(self, placement: Placement, streams: frozenset[str], rates: Mapping[str, float]) -> float:
        return sum(rates.get(name, 1.0) * placement.share(name, self._cells) for name in streams)

    def _spread_of(self, entry: LiveQuery) -> Placement | None:
        divided = self._spread.get(_streams(entry))
        # What waits must lie where all its partners do, and not only where a result does.
        if divided is None or divided not in divisible_streams(entry.query) or entry.query.kind_steps:
            return None
        return spread_placement(entry.query, divided, -1, _is_counted(entry))

    def _place(self, wanted: Placement) -> int:
        for number, placement in self.current.items():
            extended = placement.extended(wanted)
            if extended is not None:
                self.current = {**self.current, number: extended}
                return number
        number = next(self._numbers)
        # Another mapping each time: threads that read streams look at it.
        self.current = {**self.current, number: replace(wanted, number=number)}
        return number


def _divisible(queries: Iterable[LiveQuery]) -> set[str]:
    """The streams that can be divided by position in all of these queries."""
    return set.intersection(*(set(divisible_streams(entry.query)) for entry in queries))


def _is_counted(entry: LiveQuery) -> bool:
    return any(isinstance(pair.window, CountWindow) for pair in entry.query.pairs)


def _streams(entry: LiveQuery) -> frozenset[str]:
    return frozenset(source.stream.name for source in entry.query.sources)


def _are_same(before: Mapping[str, LiveQuery], now: Mapping[str, LiveQuery]) -> bool:
    return before.keys() == now.keys() and all(before[name] is entry for name, entry in now.items())


class SentState:
    """What cells were sent; `publish` makes the whole state available to tasks, such as by a broadcast."""

    def __init__(self, publish: Callable[[bytes], Any], cells: int) -> None:
        self.run = uuid.uuid4().hex
        self.base = -1
        self.deltas: tuple[CellDelta, ...] = ()
        self.whole: Any = None
        self.placements = Placements(cells)
        self._publish = publish
        self._streams: dict[str, Stream] = {}
        self._placed: dict[str, PlacedQuery] = {}

    def note(
        self,
        streams: Mapping[str, Stream],
        queries: Mapping[str, LiveQuery],
        choices: Mapping[str, Choice],
        targets: Mapping[str, OutputTarget],
        rates: Mapping[str, float] | None = None,
        members: Mapping[str, Mapping[str, LiveQuery]] = _NO_FEEDS,
    ) -> None:
        """Take over the state of a batch; `rates` are the streams' shares of all tuples, `members` those of feeds."""
        new = tuple(stream for name, stream in streams.items() if name not in self._streams)
        gone = tuple(name for name in self._placed if name not in queries)
        numbers = self.placements.update(queries, rates)
        came = {}
        for name, entry in queries.items():
            placed = PlacedQuery(entry, {}, numbers[name], targets[name], members.get(name, {}))
            if placed.needs_rows and not entry.paused:
                # What is paused has no part in the plan, nor has what makes groups without rows.
                placed = replace(placed, choices={part: choices[part] for part in entry.parts})
            before = self._placed.get(name)
            if (
                before is None
                or before.entry is not entry
                or before.choices != placed.choices
                or before.target != placed.target
                or before.placement != placed.placement
                or not _are_same(before.members, placed.members)
            ):
                came[name] = placed
        first = self.whole is None
        if not (new or gone or came or first):
            return
        version = (self.deltas[-1].version if self.deltas else self.base) + 1
        self._streams |= {stream.name: stream for stream in new}
        self._placed = {name: came.get(name) or self._placed[name] for name in queries}
        placements = dict(self.placements.current)
        self.deltas = (*self.deltas, CellDelta(version, new, placements, came, gone))
        if first or len(self.deltas) > _DELTAS:
            whole = CellDelta(version, tuple(self._streams.values()), placements, dict(self._placed), ())
            self.whole = self._publish(pickle.dumps(whole))
            self.base, self.deltas = version, ()
