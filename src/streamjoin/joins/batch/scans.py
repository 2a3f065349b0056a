"""Scans of stored tuples for the tuples of a chunk, all of them side by side, without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, Refine, SidePart
from streamjoin.joins.batch.stored_words import StoredWords
from streamjoin.kernels.batch.nested import scan_window
from streamjoin.kernels.calls import KernelCalls, Own, Row
from streamjoin.windows.words import unsigned_words
from streamjoin.windows.workers import Workers

Pieces = list[tuple[Array, Array]]

# The pairs of a scan in one round, unless those of a single tuple are more, and of all scans together.
_ROOM = 1 << 14
_MOST_ROOM = 1 << 22
_ALL = np.empty(0, np.bool_)


@dataclass(frozen=True)
class ScanProbes:
    """One side's tuples: for each tested term words, low ends and widths; their places; which can match at all."""

    terms: list[tuple[Array, Array, Array]]
    at: Array
    usable: Array

    @staticmethod
    def of(part: SidePart, decides: frozenset[int], narrow: bool) -> ScanProbes:
        """Those of a chunk's side."""
        terms = [part.encoded.terms[t] for t in sorted(decides)]
        usable = _ALL if part.encoded.valid is None else part.encoded.valid
        for term in terms:
            empty = term.lo > term.hi
            if empty.any():
                usable = (usable if usable.size else np.ones(part.n, np.bool_)) & ~empty
        return ScanProbes([unsigned_words(term, narrow) for term in terms], part.at, usable)

    @property
    def words(self) -> list[Array]:
        """The words of each term."""
        return [word for word, _, _ in self.terms]


class WindowScan:
    """The tuples from `begin` to `end` of one side, to be compared with what is stored of the other."""

    def __init__(self, probes: ScanProbes, store: StoredWords, begin: int, end: int) -> None:
        self.probes, self.store = probes, store
        self.state = np.array([begin, end, 0])
        self.room = min(_ROOM, max(1, (end - begin) * store.seqs.values.size))

    @property
    def is_over(self) -> bool:
        """Whether all tuples were compared."""
        return bool(self.state[0] >= self.state[1])

    def advance(self, state: Array) -> None:
        """Go on from `state`; if that is where it was, the pairs of one tuple need more room."""
        if state[0] == self.state[0]:
            self.room = max(2 * self.room, self.store.seqs.values.size)
        self.state = state

    @property
    def compared(self) -> int:
        """Comparisons so far."""
        return int(self.state[2])


def run_scans(scans: Sequence[WindowScan], chunk: Chunk, refine: Refine, workers: Workers) -> Pieces:
    """The pairs of all scans that pass the other tests, in pieces; scans with the same probes follow each other."""
    pieces: Pieces = []
    while unfinished := [scan for scan in scans if not scan.is_over]:
        room = max(scan.room for scan in unfinished)
        del unfinished[max(1, _MOST_ROOM // room) :]
        pairs = workers.memory.take(2 * room * len(unfinished)).reshape(2, -1, room)
        states = np.stack([scan.state for scan in unfinished])
        groups, at = [], 0
        for _, group in groupby(unfinished, key=lambda scan: id(scan.probes)):
            members = list(group)
            end = at + len(members)
            groups.append(_calls(members, chunk, states[at:end], pairs[:, at:end]))
            at = end
        sizes = workers.call(scan_window, *groups)
        for scan, state in zip(unfinished, states, strict=True):
            scan.advance(state)
        found = [(pairs[0, k, :size], pairs[1, k, :size]) for k, size in enumerate(sizes) if size]
        pieces += _tested(found, refine, workers)
    return pieces


def _calls(scans: Sequence[WindowScan], chunk: Chunk, states: Array, pairs: Array) -> KernelCalls:
    probes, stores = scans[0].probes, [scan.store for scan in scans]
    words = [Own([store.words[t].values for store in stores]) for t in (0, -1)]
    (_, lo, span), (_, lo2, span2) = probes.terms[0], probes.terms[-1]
    return KernelCalls(
        len(scans), len(probes.terms), *words, Own([store.seqs.values for store in stores]), lo, span, lo2, span2,
        probes.usable, probes.at, chunk.min_seq, chunk.upto, Row(states), Row(pairs[0]), Row(pairs[1]),
    )  # fmt: skip


def _tested(found: Pieces, refine: Refine, workers: Workers) -> Pieces:
    if refine.tests:
        return workers.map(lambda pair: refine(*pair), found)
    refine.count(sum(probes.size for probes, _ in found))
    return found
