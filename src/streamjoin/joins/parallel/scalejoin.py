"""`scalejoin`: n threads read every tuple; each stores every n-th and looks up all of them in its share.

ScaleJoin (section IV): no thread waits for another. Each processes the chunk at its own pace, and its matches go
through a ScaleGate with one source per thread, ordered by (later tuple, earlier tuple). The result is therefore the
same sequence for any interleaving and any number of threads. Threads join and leave between two pieces of a chunk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.gate.scalegate import ScaleGate
from streamjoin.joins.base import Chunk, Pairs, Refine
from streamjoin.joins.parallel.scalejoin_shares import IndexShares, ScanShares, Shares
from streamjoin.kernels.crew import idle, stand, stopped
from streamjoin.kernels.scalegate.gate import add, read
from streamjoin.kernels.scalegate.scalejoin import (
    CONTROL_WORDS,
    begin_run,
    open_piece,
    pieces_opened,
    want,
    wanted,
)
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.crew import Crew

INDEXES = ("btree", "hashed", "pim_tree")
"""What a share may be looked up in; the other kinds of `indexes/` would work, and be slower."""

_ROOM = 1
_PLACES = {_ROOM: "waits for room in the output gate"}
_PIECE = 1 << 12
_RING = 1 << 10
_BLOCK = 1 << 14


class OutputGate:
    """The second gate: merges the threads' matches into one order. A thread that needs room empties it."""

    def __init__(self, chunk: Chunk, threads: int) -> None:
        self._base = max(0, int(chunk.min_seq.min()))
        # A pair as one number: the later tuple's place above the earlier one's position.
        self._bits = int(max(1, chunk.upto.max() - self._base)).bit_length()
        self._gate = ScaleGate(threads, ring=_RING)
        self._slots = [self._gate.add_source(k) for k in range(threads)]
        self._taken: list[Array] = []
        self._emptying = threading.Lock()
        self._columns = tuple(np.empty(_BLOCK, np.int64) for _ in range(3))

    def put(self, k: int, pairs: Pairs, upto: int, crew: Crew) -> None:
        """Add the pairs of thread k, complete for all tuples before `upto`."""
        keys = (pairs.probe << self._bits) | (pairs.seq - self._base)
        at = add(self._gate.mem, self._slots[k], keys, keys, 0, keys.size)
        tries = 0
        while at < keys.size:
            self._empty()
            end = add(self._gate.mem, self._slots[k], keys, keys, at, keys.size)
            tries = 0 if end > at else tries + 1
            at = end
            stand(crew.words, k, _ROOM)
            if tries and not idle(crew.words, tries):
                return
        stand(crew.words, k, 0)
        self._gate.advance(self._slots[k], upto << self._bits)

    def _empty(self) -> None:
        """Read the ready pairs, unless another thread does so."""
        if self._emptying.acquire(blocking=False):
            try:
                self._take()
            finally:
                self._emptying.release()

    def _take(self) -> None:
        slots, payload, keys = self._columns
        while n := read(self._gate.mem, 0, slots, payload, keys):
            self._taken.append(keys[:n].copy())

    def pairs(self) -> Pairs:
        """All pairs, once every thread has put its last."""
        for slot in self._slots:
            self._gate.finish(slot)
        self._take()
        keys = np.concatenate([np.empty(0, np.int64), *self._taken])
        return Pairs(keys >> self._bits, (keys & ((1 << self._bits) - 1)) + self._base)


class ScaleJoin:
    """The join over shares of the windows."""

    name: ClassVar[str] = "scalejoin"

    def __init__(self, bound: BoundSpec, workers: int, index: str | None, settings: Mapping[str, float]) -> None:
        self.shares: Shares
        if index is None:
            self.shares = ScanShares(bound, workers)
        else:
            self.shares = IndexShares(bound, workers, index, settings)
        self.decides = self.shares.decides
        self.crew = Crew(workers, _PLACES)
        self._control = np.zeros(CONTROL_WORDS, np.int64)
        want(self._control, workers)
        self._redeals = 0

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Every thread processes the chunk; a change of the number of threads starts a new run."""
        done, parts = 0, []
        while done < chunk.n:
            self._resize()
            count, pairs = self._run(chunk, refine, done)
            parts.append(pairs)
            done += count
        if len(parts) == 1:
            return parts[0]
        empty = np.empty(0, np.int64)
        return Pairs(*(np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in ("probe", "seq")))

    def _resize(self) -> None:
        n = wanted(self._control)
        if n != self.shares.n:
            self.shares.deal_again(n)
            self.crew.resize(n)
            self._redeals += 1

    def _run(self, chunk: Chunk, refine: Refine, begin: int) -> tuple[int, Pairs]:
        """One run, up to the end of the chunk or to a change of the number of threads."""
        shares, threads, crew = self.shares, self.shares.n, self.crew
        deal = shares.deal(chunk, begin)
        output = OutputGate(chunk, threads)
        begin_run(self._control)
        pieces = -(-(chunk.n - begin) // _PIECE)

        def step(k: int) -> None:
            piece = 0
            while piece < pieces and open_piece(self._control, piece, threads) and not stopped(crew.words):
                first = begin + piece * _PIECE
                last = min(first + _PIECE, chunk.n)
                output.put(k, shares.take(k, deal, first, last, refine), last, crew)
                piece += 1

        if threads > 1 or stopped(crew.words):
            crew.run(step)
        else:
            self._alone(step)
        end = min(begin + pieces_opened(self._control) * _PIECE, chunk.n)
        shares.dealt(chunk, begin, end)
        return end - begin, output.pairs()

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

    @property
    def nbytes(self) -> int:
        """Bytes held by all shares."""
        return self.shares.nbytes
