"""`scalejoin`: n threads read every tuple; each stores every n-th and looks up all of them in its share.

ScaleJoin (section IV): no thread waits for another. Over indexes each thread processes the chunk at its own pace; scans
are calls of one kernel, a share and side each (`joins/batch/scans.py`). Once all matches of a chunk are there, all
workers order them by (later tuple, earlier tuple); the live join has a second gate for that. The result is therefore
the same sequence for any interleaving and any number of threads. Threads join and leave between two pieces of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Pairs, Refine
from streamjoin.joins.batch.packed_pairs import ordered_pieces
from streamjoin.joins.parallel.scalejoin_shares import IndexShares, ScanShares, Shares
from streamjoin.kernels.crew import stopped
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
from streamjoin.windows.workers import Workers

INDEXES = ("btree", "hashed", "pim_tree")
"""What a share may be looked up in; the other kinds of `indexes/` would work, and be slower."""

_PIECE = 1 << 14

Pieces = list[tuple[Array, Array]]


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
        deal = shares.deal(chunk, begin)
        begin_run(self._control)
        pieces = -(-(chunk.n - begin) // _PIECE)

        def step(k: int) -> None:
            piece = 0
            while piece < pieces and open_piece(self._control, piece, threads) and not stopped(crew.words):
                first = begin + piece * _PIECE
                last = min(first + _PIECE, chunk.n)
                if isinstance(shares, ScanShares):
                    matches.extend(shares.take_all(deal, first, last, refine, self._scanners))
                else:
                    pairs = shares.take(k, deal, first, last, refine)
                    matches.append((pairs.probe, pairs.seq))
                piece += 1

        if (threads > 1 and not shares.scans) or stopped(crew.words):
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
