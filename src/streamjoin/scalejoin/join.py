"""`scalejoin`: n threads read every tuple; each stores every n-th and looks up all of them in its share.

ScaleJoin (section IV): no thread waits for another. Over indexes each thread processes the chunk at its own pace; scans
are calls of one kernel, a share and side each (`joins/batch/nested_loop.py`). Once all matches of a chunk are there,
all workers order them by (later tuple, earlier tuple); the live join has a second gate for that. The result is
therefore the same sequence for any interleaving and any number of threads. Threads join and leave between two pieces of
a chunk.

Each thread stores one share of both windows, assigned round-robin (algorithm 1). Every thread looks each tuple up only
in its own share, so each comparison is made once, by the thread that holds the earlier tuple. A share is a nested
loop's store or a pair of indexes. When the number of threads changes, all stored tuples are redistributed. Invariant:
between runs, a live tuple is in exactly one share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.indexes.base import Index
from streamjoin.jit.crew import stopped
from streamjoin.joins.base import Chunk, Pairs, Refine, SidePart
from streamjoin.joins.batch.nested_loop import NestedLoop, Pieces, ScanProbes, scan_all
from streamjoin.joins.batch.packed_pairs import ordered_pieces
from streamjoin.joins.indexed import Indexed
from streamjoin.joins.registry import register_algorithm
from streamjoin.kernels.trees.task import INSERTS
from streamjoin.model.binding import BoundSpec
from streamjoin.scalejoin.kernels.pieces import CONTROL_WORDS, begin_run, open_piece, pieces_opened, want, wanted
from streamjoin.windows.buffer import Restore
from streamjoin.windows.crew import Crew
from streamjoin.windows.workers import Workers

if TYPE_CHECKING:
    from streamjoin.joins.live.runner import Runner, Setup

_ALONE = Workers(1)


@dataclass(frozen=True)
class Deal:
    """A chunk whose tuples are assigned to shares: by place, or in the columns of a task."""

    chunk: Chunk
    own: tuple[list[Array], ...] = ()
    columns: tuple[Array, ...] = ()
    sides: tuple[ScanProbes, ScanProbes] | None = None
    """Of scans: what all shares look up."""


class Shares(ABC):
    """All shares of one join; share k is used by thread k."""

    decides: frozenset[int]
    index: str | None = None
    """What the shares are looked up in; None if they are scanned."""

    def __init__(self, shares: Sequence[NestedLoop] | Sequence[Indexed]) -> None:
        self._shares = shares
        self._turn = [0, 0]
        self._before: dict[str, int] = {}
        """The counters of shares that are gone."""

    @property
    def n(self) -> int:
        """The number of shares."""
        return len(self._shares)

    @abstractmethod
    def deal(self, chunk: Chunk, begin: int, refine: Refine) -> Deal:
        """Assign the chunk's tuples from place `begin` on to shares."""

    def dealt(self, chunk: Chunk, begin: int, end: int) -> None:
        """Record that the tuples from `begin` to `end` are assigned for good; the next deal follows them."""
        for side, part in enumerate((chunk.left, chunk.right)):
            self._turn[side] = (self._turn[side] + _valid_between(part, begin, end)) % self.n

    @abstractmethod
    def deal_again(self, n: int) -> None:
        """Redistribute the stored tuples over `n` shares, by position."""

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        for share in self._shares:
            share.forget(left_min, right_min)

    def indexes(self, k: int) -> tuple[Index, Index] | None:  # noqa: ARG002 - for indexes
        """The indexes of both sides of share k."""
        return None

    def counters(self) -> dict[str, int]:
        """The counters of all shares."""
        counters = [share.counters() for share in self._shares] + ([self._before] if self._before else [])
        return {name: sum(each.get(name, 0) for each in counters) for name in counters[0]}

    @property
    def nbytes(self) -> int:
        """Bytes held by all shares."""
        return sum(share.nbytes for share in self._shares)


def _in_turn(part: SidePart, begin: int, turn: int, n: int) -> list[Array]:
    """For each share, its places among the part's valid tuples from place `begin` of the chunk on."""
    places = part.valid_places()
    places = places[np.searchsorted(part.at[places], begin) :]
    return [places[(k - turn) % n :: n] for k in range(n)]


def _valid_between(part: SidePart, begin: int, end: int) -> int:
    low, high = np.searchsorted(part.at, (begin, end))
    return int(high - low) if part.encoded.valid is None else int(part.encoded.valid[low:high].sum())


class ScanShares(Shares):
    """Nested-loop shares: for any condition."""

    def __init__(self, bound: BoundSpec, n: int) -> None:
        self._bound = bound
        self._shares: list[NestedLoop]
        super().__init__([NestedLoop(bound, _ALONE) for _ in range(n)])
        self.decides = self._shares[0].decides

    def deal(self, chunk: Chunk, begin: int, refine: Refine) -> Deal:
        """Assign the tuples to shares."""
        own = tuple(
            _in_turn(part, begin, self._turn[side], self.n) for side, part in enumerate((chunk.left, chunk.right))
        )
        return Deal(chunk, own=own, sides=self._shares[0].probes(chunk, refine))

    def take(self, deal: Deal, begin: int, end: int, refine: Refine, workers: Workers) -> Pieces:
        """Have all shares store their own of the tuples from `begin` to `end` of an assigned chunk, and scan them."""
        chunk, sides = deal.chunk, deal.sides
        if sides is None:
            raise AssertionError("scans need words")
        ranges = [np.searchsorted(part.at, (begin, end)) for part in (chunk.left, chunk.right)]
        for k, share in enumerate(self._shares):
            own = [places[k] for places in deal.own]
            left, right = (mine[slice(*np.searchsorted(mine, cut))] for mine, cut in zip(own, ranges, strict=True))
            share.store(chunk, sides, (left, right))
        return scan_all(self._shares, chunk, sides, (begin, end), refine, workers)

    def deal_again(self, n: int) -> None:
        """Merge the tuples of all shares by position, and redistribute them round-robin."""
        self._before = self.counters()
        old, self._shares = self._shares, [NestedLoop(self._bound, _ALONE) for _ in range(n)]
        for side in (0, 1):
            columns = [np.concatenate(column) for column in zip(*(share.held(side) for share in old), strict=True)]
            order = np.argsort(columns[0], kind="stable")
            for k, share in enumerate(self._shares):
                share.refill(side, [column[order[k::n]] for column in columns])
            self._turn[side] = order.size % n


class IndexShares(Shares):
    """Shares with an index of each side, or one for both roles of a self-join: for keys and bands."""

    def __init__(self, bound: BoundSpec, n: int, index: str, settings: Mapping[str, float]) -> None:
        self._bound, self._kind, self._settings = bound, index, settings
        self.index = index
        self._mins = (0, 0)
        self._shares: list[Indexed]
        super().__init__(self._make(n))
        # An index for both roles of a self-join takes a tuple as a right one.
        self._sides = (1,) if self._shares[0].shared else (0, 1)
        self.decides = bound.settled

    def _make(self, n: int) -> list[Indexed]:
        return [Indexed(self._bound, self._kind, self._settings, shares=n) for _ in range(n)]

    def deal(self, chunk: Chunk, begin: int, refine: Refine) -> Deal:  # noqa: ARG002 - for scans
        """Prepare every share to look up all tuples and insert its own."""
        ops, *columns = self._shares[0].columns(chunk)
        own_ops = [ops & ~np.int64(INSERTS) for _ in range(self.n)]
        for side in self._sides:
            part = chunk.right if side else chunk.left
            for own, places in zip(own_ops, _in_turn(part, begin, self._turn[side], self.n), strict=True):
                own[part.at[places]] |= INSERTS
        return Deal(chunk, own=(own_ops,), columns=tuple(columns))

    def take(self, k: int, deal: Deal, begin: int, end: int, refine: Refine) -> Pairs:
        """Look up the tuples from `begin` to `end` of an assigned chunk in share k, and store its own of them."""
        pairs = self._shares[k].take(deal.chunk.upto, (deal.own[0][k], *deal.columns), refine, begin, end)
        return Pairs(pairs.probe.copy(), pairs.seq.copy())

    def indexes(self, k: int) -> tuple[Index, Index] | None:
        """The indexes of both sides of share k: one for both roles of a self-join that have the same words."""
        return self._shares[k].indexes

    def deal_again(self, n: int) -> None:
        """Merge the entries of all shares by position, and load them round-robin into new indexes."""
        self._before = self.counters()
        old, self._shares = self._shares, self._make(n)
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
        """Drop positions below these, of which every new index is told too."""
        self._mins = (max(left_min, self._mins[0]), max(right_min, self._mins[1]))
        super().forget(left_min, right_min)


INDEXES = ("btree", "hashed", "pim_tree")
"""What a share may be looked up in; the other kinds of `indexes/` would work, and be slower."""

_PIECE = 1 << 14


class ScaleJoin:
    """The join over shares of the windows."""

    name: ClassVar[str] = "scalejoin"

    def __init__(self, bound: BoundSpec, workers: Workers, index: str | None, settings: Mapping[str, float]) -> None:
        self.shares: Shares
        if index is None:
            self.shares = ScanShares(bound, workers.n)
        else:
            self.shares = IndexShares(bound, workers.n, index, settings)
        self.decides = self.shares.decides
        self.crew = Crew(workers.n)
        self._workers = self._scanners = workers
        self._control = np.zeros(CONTROL_WORDS, np.int64)
        want(self._control, workers.n)
        self._redeals = 0

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Every thread processes the chunk; a change of the number of threads starts a new run."""
        done = 0
        pieces: Pieces = []
        while done < chunk.n:
            self._resize()
            done += self._run(chunk, refine, done, pieces)
        return ordered_pieces(chunk, pieces, self._workers)

    def _resize(self) -> None:
        n = wanted(self._control)
        if n != self.shares.n:
            self.shares.deal_again(n)
            self.crew.resize(n)
            self._use_scanners(n)
            self._redeals += 1

    def _use_scanners(self, n: int) -> None:
        """Have `n` threads for scans: the join's own workers, if they are as many."""
        if self._scanners is not self._workers:
            self._scanners.close()
        self._scanners = self._workers if n == self._workers.n else Workers(n, reuses=True)

    def _run(self, chunk: Chunk, refine: Refine, begin: int, matches: Pieces) -> int:
        """One run, up to the end of the chunk or to a change of the number of threads; returns how many tuples."""
        shares, threads, crew = self.shares, self.shares.n, self.crew
        deal = shares.deal(chunk, begin, refine)
        begin_run(self._control)
        pieces = -(-(chunk.n - begin) // _PIECE)

        def step(k: int) -> None:
            piece = 0
            while piece < pieces and open_piece(self._control, piece, threads) and not stopped(crew.words):
                first = begin + piece * _PIECE
                last = min(first + _PIECE, chunk.n)
                if isinstance(shares, ScanShares):
                    matches.extend(shares.take(deal, first, last, refine, self._scanners))
                elif isinstance(shares, IndexShares):
                    pairs = shares.take(k, deal, first, last, refine)
                    matches.append((pairs.probe, pairs.seq))
                piece += 1

        if (threads > 1 and shares.index is not None) or stopped(crew.words):
            crew.run(step)
        else:
            self._alone(step)
        end = min(begin + pieces_opened(self._control) * _PIECE, chunk.n)
        shares.dealt(chunk, begin, end)
        return end - begin

    def _alone(self, step: Callable[[int], None]) -> None:
        """Run a single share in the caller's thread; an error leaves it half done and ends the join."""
        try:
            step(0)
        except BaseException as error:
            self.crew.stop(error)
            raise

    @property
    def workers(self) -> int:
        """The requested number of threads."""
        return wanted(self._control)

    def set_workers(self, n: int) -> None:
        """Use `n` threads, starting with the next piece."""
        want(self._control, n)

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        self.shares.forget(left_min, right_min)

    def counters(self) -> dict[str, int]:
        """The shares' counters, their number, and how often tuples were redistributed."""
        return {**self.shares.counters(), "threads": self.shares.n, "redeals": self._redeals}

    def saved(self) -> Restore | None:
        """Return None: stopped threads cannot be restarted."""
        return None

    def close(self) -> None:
        """End the threads."""
        self.crew.close()
        self._use_scanners(self._workers.n)

    @property
    def nbytes(self) -> int:
        """Bytes held by all shares."""
        return self.shares.nbytes


def _live(setup: Setup) -> Runner | None:
    from streamjoin.scalejoin.live_gate import run_gated

    return run_gated(setup)


register_algorithm(
    ScaleJoin.name,
    lambda bound, choice, workers: ScaleJoin(bound, workers, choice.index, choice.index_options),
    indexes=INDEXES,
    own_threads=True,
    live=_live,
)
