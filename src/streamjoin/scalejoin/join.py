"""The shares of a ScaleJoin: each thread stores one share of both windows, assigned round-robin.

Every thread looks each tuple up only in its own share, so each comparison is made once, by the thread that holds the
earlier tuple (ScaleJoin, algorithm 1). A share is a nested loop's store or a pair of indexes. When the number of
threads changes, all stored tuples are redistributed. Invariant: between runs, a live tuple is in exactly one share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Pairs, Refine, SidePart
from streamjoin.joins.batch.nested_loop import NestedLoop, scan_all
from streamjoin.joins.batch.packed_pairs import ordered_pieces
from streamjoin.joins.batch.scans import Pieces, ScanProbes
from streamjoin.joins.indexed import Indexed
from streamjoin.kernels.trees.task import INSERTS
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.workers import Workers

_ALONE = Workers(1)


@dataclass(frozen=True)
class Deal:
    """A chunk whose tuples are assigned to shares: by place, or in the columns of a task."""

    chunk: Chunk
    own: tuple[list[Array], ...] = ()
    columns: tuple[Array, ...] = ()
    sides: tuple[ScanProbes, ScanProbes] | None = None
    """Of scans: what all shares look up."""


class Shares(Protocol):
    """All shares of one join; share k is used by thread k."""

    decides: frozenset[int]
    scans: ClassVar[bool]
    """Whether the shares are scanned; otherwise they have an index."""

    @property
    def n(self) -> int:
        """The number of shares."""

    def deal(self, chunk: Chunk, begin: int) -> Deal:
        """Assign the chunk's tuples from place `begin` on to shares."""

    def take(self, k: int, deal: Deal, begin: int, end: int, refine: Refine) -> Pairs:
        """Look up the tuples from `begin` to `end` of an assigned chunk in share k, and store its own of them."""

    def dealt(self, chunk: Chunk, begin: int, end: int) -> None:
        """Record that the tuples from `begin` to `end` are assigned for good; the next deal follows them."""

    def deal_again(self, n: int) -> None:
        """Redistribute the stored tuples over `n` shares."""

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""

    def forget_in(self, k: int, left_min: int, right_min: int) -> None:
        """`forget` for share k alone, while the others' threads work."""

    def counters(self) -> dict[str, int]:
        """The counters of all shares."""

    @property
    def nbytes(self) -> int:
        """Bytes held by all shares."""


def _in_turn(part: SidePart, begin: int, turn: int, n: int) -> list[Array]:
    """For each share, its places among the part's valid tuples from place `begin` of the chunk on."""
    places = part.valid_places()
    places = places[np.searchsorted(part.at[places], begin) :]
    return [places[(k - turn) % n :: n] for k in range(n)]


def _valid_between(part: SidePart, begin: int, end: int) -> int:
    low, high = np.searchsorted(part.at, (begin, end))
    return int(high - low) if part.encoded.valid is None else int(part.encoded.valid[low:high].sum())


def _add_up(counters: list[dict[str, int]]) -> dict[str, int]:
    return {name: sum(each.get(name, 0) for each in counters) for name in counters[0]}


class ScanShares:
    """Nested-loop shares: for any condition."""

    scans: ClassVar[bool] = True

    def __init__(self, bound: BoundSpec, n: int) -> None:
        self._bound = bound
        self._turn = [0, 0]
        self._shares = [NestedLoop(bound, _ALONE) for _ in range(n)]
        self._before: dict[str, int] = {}
        self.decides = self._shares[0].decides

    @property
    def n(self) -> int:
        """The number of shares."""
        return len(self._shares)

    def deal(self, chunk: Chunk, begin: int) -> Deal:
        """Assign the tuples to shares."""
        own = tuple(
            _in_turn(part, begin, self._turn[side], self.n) for side, part in enumerate((chunk.left, chunk.right))
        )
        return Deal(chunk, own=own, sides=self._shares[0].probes(chunk))

    def take(self, k: int, deal: Deal, begin: int, end: int, refine: Refine) -> Pairs:
        """Scan one share."""
        return ordered_pieces(deal.chunk, self._scanned([k], deal, (begin, end), refine, _ALONE), _ALONE)

    def take_all(self, deal: Deal, begin: int, end: int, refine: Refine, workers: Workers) -> Pieces:
        """Scan all shares side by side."""
        return self._scanned(range(self.n), deal, (begin, end), refine, workers)

    def _scanned(
        self, shares: Sequence[int], deal: Deal, between: tuple[int, int], refine: Refine, workers: Workers
    ) -> Pieces:
        chunk, sides = deal.chunk, deal.sides
        if sides is None:
            raise AssertionError("scans need words")
        ranges = [np.searchsorted(part.at, between) for part in (chunk.left, chunk.right)]
        for k in shares:
            own = [places[k] for places in deal.own]
            left, right = (mine[slice(*np.searchsorted(mine, cut))] for mine, cut in zip(own, ranges, strict=True))
            self._shares[k].store(chunk, sides, (left, right))
        return scan_all([self._shares[k] for k in shares], chunk, sides, between, refine, workers)

    def dealt(self, chunk: Chunk, begin: int, end: int) -> None:
        """Record which share comes next."""
        for side, part in enumerate((chunk.left, chunk.right)):
            self._turn[side] = (self._turn[side] + _valid_between(part, begin, end)) % self.n

    def deal_again(self, n: int) -> None:
        """Merge the tuples of all shares by position, and redistribute them round-robin."""
        old, self._shares = self._shares, [NestedLoop(self._bound, _ALONE) for _ in range(n)]
        self._before = _add_up([share.counters() for share in old] + ([self._before] if self._before else []))
        for side in (0, 1):
            columns = [np.concatenate(column) for column in zip(*(share.held(side) for share in old), strict=True)]
            order = np.argsort(columns[0], kind="stable")
            for k, share in enumerate(self._shares):
                share.refill(side, [column[order[k::n]] for column in columns])
            self._turn[side] = order.size % n

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop tuples that are outside every window."""
        for share in self._shares:
            share.forget(left_min, right_min)

    def forget_in(self, k: int, left_min: int, right_min: int) -> None:
        """Drop the tuples of one share."""
        self._shares[k].forget(left_min, right_min)

    def counters(self) -> dict[str, int]:
        """Pairs compared."""
        return _add_up([share.counters() for share in self._shares] + ([self._before] if self._before else []))

    @property
    def nbytes(self) -> int:
        """Bytes held by all shares."""
        return sum(share.nbytes for share in self._shares)


class IndexShares:
    """Shares with an index of each side, or one for both roles of a self-join: for keys and bands."""

    scans: ClassVar[bool] = False

    def __init__(self, bound: BoundSpec, n: int, index: str, settings: Mapping[str, float]) -> None:
        self._bound, self._index, self._settings = bound, index, settings
        self._turn = [0, 0]
        self._mins = (0, 0)
        self._shares = self._make(n)
        # An index for both roles of a self-join takes a tuple as a right one.
        self._sides = (1,) if self._shares[0].shared else (0, 1)
        self._before: dict[str, int] = {}
        self.decides = bound.settled

    def _make(self, n: int) -> list[Indexed]:
        return [Indexed(self._bound, self._index, self._settings, shares=n) for _ in range(n)]

    @property
    def n(self) -> int:
        """The number of shares."""
        return len(self._shares)

    def deal(self, chunk: Chunk, begin: int) -> Deal:
        """Prepare every share to look up all tuples and insert its own."""
        ops, *columns = self._shares[0].columns(chunk)
        own_ops = [ops & ~np.int64(INSERTS) for _ in range(self.n)]
        for side in self._sides:
            part = chunk.right if side else chunk.left
            for own, places in zip(own_ops, _in_turn(part, begin, self._turn[side], self.n), strict=True):
                own[part.at[places]] |= INSERTS
        return Deal(chunk, own=(own_ops,), columns=tuple(columns))

    def take(self, k: int, deal: Deal, begin: int, end: int, refine: Refine) -> Pairs:
        """Look up in one share's indexes."""
        pairs = self._shares[k].take(deal.chunk.upto, (deal.own[0][k], *deal.columns), refine, begin, end)
        return Pairs(pairs.probe.copy(), pairs.seq.copy())

    def dealt(self, chunk: Chunk, begin: int, end: int) -> None:
        """Record which share comes next."""
        for side, part in enumerate((chunk.left, chunk.right)):
            self._turn[side] = (self._turn[side] + _valid_between(part, begin, end)) % self.n

    def deal_again(self, n: int) -> None:
        """Merge the entries of all shares by position, and load them round-robin into new indexes."""
        old, self._shares = self._shares, self._make(n)
        self._before = _add_up([share.counters() for share in old] + ([self._before] if self._before else []))
        for side in self._sides:
            snapshots = [share.indexes[side].snapshot() for share in old]
            words, seqs = (np.concatenate([each[name] for each in snapshots]) for name in ("words", "seqs"))
            order = np.argsort(seqs, kind="stable")
            least = np.array([min(int(each["min_seq"][0]) for each in snapshots)])
            for k, share in enumerate(self._shares):
                own = order[k::n]
                share.indexes[side].restore({"words": words[own], "seqs": seqs[own], "min_seq": least})
            self._turn[side] = order.size % n
        self.forget(*self._mins)

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop tuples that are outside every window."""
        self._mins = (max(left_min, self._mins[0]), max(right_min, self._mins[1]))
        for share in self._shares:
            share.forget(left_min, right_min)

    def forget_in(self, k: int, left_min: int, right_min: int) -> None:
        """Drop the tuples of one share."""
        self._shares[k].forget(left_min, right_min)

    def counters(self) -> dict[str, int]:
        """Steps of all indexes, per kind."""
        return _add_up([share.counters() for share in self._shares] + ([self._before] if self._before else []))

    @property
    def nbytes(self) -> int:
        """Bytes held by all indexes."""
        return sum(share.nbytes for share in self._shares)
