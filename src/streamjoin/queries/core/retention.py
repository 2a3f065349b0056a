"""Which buckets a future result can still need.

A tuple is needed while some tuple that is still to come can be in a result with it. Their windows may lie a few aliases
apart: in a JOIN b ON a.x = b.x JOIN c ON a.y = c.y an old b waits for an old a that waits for a new c. So a bucket
of an alias is needed if a tuple to come can be in its window, or a needed bucket of a neighbour is, along a path of
aliases without repetition. Buckets go from the oldest on, so that the kept ones are consecutive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.window import CountWindow, Window
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.language.plan import Query
from streamjoin.windows.clock import plus


@dataclass(frozen=True)
class Shape:
    """What retention needs of a query: streams by alias, and the windows between aliases."""

    streams: tuple[str, ...]
    windows: tuple[tuple[int, int, Window], ...]

    def neighbours(self, alias: int) -> list[tuple[int, Window]]:
        """The related aliases with their windows."""
        return [
            (right if left == alias else left, window) for left, right, window in self.windows if alias in (left, right)
        ]


def shape_of(query: Query) -> Shape:
    """The shape of a query; the names of aliases are gone, so that many queries have the same."""
    place = {alias: number for number, alias in enumerate(query.aliases)}
    windows = {(*sorted((place[p.left], place[p.right])), p.window) for p in query.pairs}
    ordered = sorted(windows, key=lambda w: (w[0], w[1], str(w[2])))
    return Shape(tuple(source.stream.name for source in query.sources), tuple(ordered))  # type: ignore[arg-type]


def shape_of_windows(query: Query) -> Shape:
    """The shape of a query of window joins: left tuples to come need what is summarised, and so do those that wait.

    The latter are held by their numbers: they wait until each stream has passed the end of its window. So a tuple is
    needed while it is less than `before` behind the left stream, or that and `after` of a join behind that one's.
    """
    joins = [(query.source(s.right).stream.name, s.summary) for s in query.kind_steps if s.summary is not None]
    streams = [query.sources[0].stream.name]
    windows: list[tuple[int, int, Window]] = []
    for own, rule in joins:
        windows.append((0, len(streams), rule.reach(rule.before)))
        streams.append(own)
        for other, late in joins:
            windows.append((len(streams), len(streams) + 1, rule.reach(rule.before + late.after)))
            streams += [own, other]
    return Shape(tuple(streams), tuple(windows))


@dataclass(frozen=True)
class StreamProgress:
    """How far each stream is: no tuple before `bounds` will come, and `counts` tuples came."""

    bounds: Mapping[str, int]
    counts: Mapping[str, int]


def count_expired(
    shapes: Mapping[Shape, int], buckets: Mapping[str, Sequence[Bucket]], progress: StreamProgress
) -> dict[str, int]:
    """How many of the oldest buckets of each stream can go; `shapes` has the earliest create of each shape."""
    first = {stream: len(held) for stream, held in buckets.items()}
    for shape, created in shapes.items():
        search = _Reach(shape, created, buckets, progress)
        for alias, stream in enumerate(shape.streams):
            needed = search.needed(alias, frozenset())
            if needed.any():
                first[stream] = min(first[stream], int(np.argmax(needed)))
    return first


class _Reach:
    def __init__(
        self, shape: Shape, created: int, buckets: Mapping[str, Sequence[Bucket]], progress: StreamProgress
    ) -> None:
        self._shape = shape
        self._progress = progress
        by_stream = {stream: buckets.get(stream, ()) for stream in shape.streams}
        held = {stream: _Held(buckets) for stream, buckets in by_stream.items()}
        self._held = [held[stream] for stream in shape.streams]
        self._seen = [np.array([b.batch >= created and b.n > 0 for b in by_stream[s]], np.bool_) for s in shape.streams]

    def needed(self, alias: int, passed: frozenset[int]) -> Array:
        """Which buckets of an alias a tuple to come can reach without the aliases passed."""
        needed = np.zeros(self._held[alias].end.size, np.bool_)
        for other, window in self._shape.neighbours(alias):
            if other in passed:
                continue
            needed |= self._awaited(alias, other, window)
            if not needed.all():
                behind = self.needed(other, passed | {alias})
                if behind.any():
                    needed |= (self._near(alias, other, window) & behind[np.newaxis, :]).any(axis=1)
        return needed & self._seen[alias]

    def _awaited(self, alias: int, other: int, window: Window) -> Array:
        """Which buckets a tuple of `other` that is to come can be in the window of."""
        held, stream = self._held[alias], self._shape.streams[alias]
        if isinstance(window, CountWindow):
            return np.asarray(self._progress.counts[stream] - held.end < window.n)
        return np.asarray(held.until(window.length) >= self._progress.bounds[self._shape.streams[other]])

    def _near(self, alias: int, other: int, window: Window) -> Array:
        """Which buckets of two aliases can have tuples in each other's window; rows are those of `alias`."""
        a, b = self._held[alias], self._held[other]
        if not isinstance(window, CountWindow):
            reach = window.length
            return (a.low[:, np.newaxis] <= b.until(reach)) & (b.low <= a.until(reach)[:, np.newaxis])
        streams = self._shape.streams
        # Of the tuples of the earlier one's stream, those between the two batches came after it for certain.
        after_a = b.seen(streams[alias]) - a.end[:, np.newaxis]
        after_b = a.seen(streams[other])[:, np.newaxis] - b.end
        earlier = a.batch[:, np.newaxis] - b.batch
        return np.where(earlier < 0, after_a < window.n, np.where(earlier > 0, after_b < window.n, True))


class _Held:
    """What is asked of buckets, as arrays."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        self.low = np.array([bucket.span[0] for bucket in buckets], np.int64)
        self.high = np.array([bucket.span[1] for bucket in buckets], np.int64)
        self.end = np.array([bucket.end for bucket in buckets], np.int64)
        self.batch = np.array([bucket.batch for bucket in buckets], np.int64)

    def until(self, reach: int) -> Array:
        """The latest time within reach."""
        return plus(self.high, reach)

    def seen(self, stream: str) -> Array:
        """How many tuples of a stream came in the batches before each bucket's."""
        return np.array([bucket.seen.get(stream, 0) for bucket in self._buckets], np.int64)
