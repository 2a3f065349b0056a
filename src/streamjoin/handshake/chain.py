"""The arrays of a chain of handshake nodes: logs, the arena of links, results, copies.

A side's log holds the tuples that can match, by place: places count them from 0 and never change, so the nodes' bounds
stay valid across chunks. Nothing here runs threads or uses Arrow: joins and experiments do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamjoin._arrays import Array
from streamjoin.handshake.kernels.collect import pairs_of
from streamjoin.handshake.kernels.links import (
    BASES,
    BATCH,
    COLUMNS,
    DRAINS,
    EXPIRED,
    FACTS,
    GATE,
    IN,
    MIN_SEQ,
    OUT,
    PUNCTUATES,
    RESULTS_HEAD,
    RESULTS_TAIL,
    SEQ,
    TERMS,
    UNDECIDED,
    UPTO,
    chain_words,
    lay_chain,
    node_at,
    start_flow,
)
from streamjoin.handshake.kernels.meet import RESULT, WORD_ROWS, NodeTests
from streamjoin.kernels.conditions import registers_of
from streamjoin.windows.conditions import Condition

I64 = npt.NDArray[np.int64]

_LEAST = 1024
# A reserved log has room for `_MOST_TURNS` more windows, but for at most `_SPARE` more tuples unless more are needed.
_MOST_TURNS = 4
_SPARE = 1 << 17
_LEAST_COPIES = 256
# Tuples that pass each other between two nodes are compared one by one, so full links would cost more than lookups.
_BETWEEN = 256
RING = 1 << 14
SLEEPS_US = 50_000
"""How long a node of a live join without messages sleeps, if no other thread wakes it."""
SLEEPS_LEAVING_US = 2_000
"""Likewise in the original handshake join, whose tuples move on without messages."""
_LINE = 8
_NO_PROGRAM = np.zeros((0, 0), np.int64)


def aligned(words: int) -> I64:
    """Zeroed words that begin at a cache line."""
    raw = np.zeros(words + _LINE, np.int64)
    skip = (-raw.ctypes.data // raw.itemsize) % _LINE
    return raw[skip : skip + words]


class SideLog:
    """One side's tuples from `base` to `count`: row p - base holds place p; those before `first` are not needed."""

    def __init__(self, dtype: Any, n_columns: int = 0) -> None:
        """`n_columns` are those of the rows that the residual's program reads."""
        self.base = self.first = self.count = 0
        self.rows: I64 = np.zeros((0, n_columns), np.int64)
        self.words: Array = np.zeros((WORD_ROWS, 0), dtype)
        self.facts: I64 = np.zeros((0, FACTS), np.int64)

    def append(self, words: Array, facts: I64) -> None:
        """Add tuples at the end; each has a column of `words` and a row of `facts`."""
        n = facts.shape[0]
        self.make_room(n)
        size = self.count - self.base
        self.words[:, size : size + n] = words
        self.facts[size : size + n] = facts
        self.count += n

    @property
    def room(self) -> int:
        """How many more tuples fit."""
        return int(self.facts.shape[0]) - (self.count - self.base)

    def make_room(self, n: int) -> None:
        """Have room for `n` more tuples."""
        if n > self.room:
            self._move(max(_LEAST, 2 * (self.count - self.first + n)))

    def _move(self, capacity: int) -> None:
        """Have room for `capacity` tuples in all, without those that are not needed."""
        skip, size = self.first - self.base, self.count - self.first
        words, facts = np.zeros((WORD_ROWS, capacity), self.words.dtype), np.zeros((capacity, FACTS), np.int64)
        rows = np.zeros((capacity, self.rows.shape[1]), np.int64)
        words[:, :size], facts[:size] = self.words[:, skip : skip + size], self.facts[skip : skip + size]
        rows[:size] = self.rows[skip : skip + size]
        self.words, self.facts, self.rows, self.base = words, facts, rows, self.first

    @property
    def seqs(self) -> I64:
        """Stream positions, ascending."""
        return self.facts[: self.count - self.base, SEQ]

    def place_of(self, seqs: npt.ArrayLike) -> I64:
        """The first place at or after each stream position."""
        places: I64 = self.base + np.searchsorted(self.seqs, seqs)
        return places

    def forget(self, place: int) -> None:
        """Drop the tuples before a place; rows are moved once half of the capacity, or all tuples, can be dropped."""
        self.first = max(self.first, place)
        dropped, size = self.first - self.base, self.count - self.base
        if dropped == 0 or (dropped < size and 2 * dropped < self.facts.shape[0]):
            return
        self.words[:, : size - dropped] = self.words[:, dropped:size].copy()
        self.facts[: size - dropped] = self.facts[dropped:size].copy()
        self.rows[: size - dropped] = self.rows[dropped:size].copy()
        self.base = self.first

    def reserve(self, n: int) -> None:
        """Between flows: have room for `n` more tuples, or for as many as are needed now if those are more.

        Ending a flow takes about a millisecond, so windows that pass quickly get room for several of them.
        """
        size = self.count - self.first
        least = max(n, size, _LEAST)
        if least > self.room:
            self._move(size + max(least, min(_MOST_TURNS * size, _SPARE)))

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.words.nbytes + self.facts.nbytes + self.rows.nbytes


class Chain:
    """Nodes, links and results; `logs` are the two sides'."""

    def __init__(
        self,
        nodes: int,
        dtype: Any,
        terms: int,
        *,
        batch: int,
        drains: bool = False,
        punctuates: bool = False,
        links: int = 64,
        passes: bool = False,
        ring: int = RING,
        condition: Condition | None = None,
    ) -> None:
        """`passes`: tuples pass quickly through, as in the low-latency join. Few may be between two nodes then.

        `condition`: what the nodes test of the pairs that they find.
        """
        self.nodes, self.links = nodes, links
        self.mem = aligned(chain_words(nodes, links))
        # A power of two, like `links`.
        few = max(4, min(links, 1 << (_BETWEEN // batch).bit_length() >> 1))
        lay_chain(self.mem, nodes, links, few if passes else links)
        self.mem[[BATCH, TERMS, DRAINS, PUNCTUATES]] = batch, terms, drains, punctuates
        self._programs = (_NO_PROGRAM, _NO_PROGRAM) if condition is None else condition.programs
        left, right = (0, 0) if condition is None else map(len, condition.parts)
        self.logs = (SideLog(dtype, left), SideLog(dtype, right))
        self._registers = [
            tuple(registers_of(program) if program.size else _NO_PROGRAM for program in self._programs)
            for _ in range(nodes)
        ]
        self.results = np.zeros((nodes, ring, RESULT), np.int64)

    def open(self) -> None:
        """Begin a flow: the logs hold its tuples already."""
        self.mem[BASES : BASES + 2] = [log.base for log in self.logs]
        start_flow(self.mem)

    def columns(self) -> tuple[Array, I64, Array, I64]:
        """Both logs, which every node's kernel reads."""
        left, right = self.logs
        return left.words, left.facts, right.words, right.facts

    def tests(self, k: int) -> NodeTests:
        """How node k tests the residual; until rows are moved."""
        left, right = self._registers[k]
        return NodeTests(self._programs, (self.logs[0].rows, self.logs[1].rows), (left, right))

    @property
    def is_undecided(self) -> bool:
        """Whether some results were taken without the test; asked after they were."""
        return bool(self.mem[UNDECIDED])

    def taken(self, k: int) -> I64:
        """Remove and return node k's results so far: places of side 0, of side 1, and stamps."""
        at = int(node_at(k))
        head, tail = int(self.mem[at + RESULTS_HEAD]), int(self.mem[at + RESULTS_TAIL])
        ring = self.results[k]
        rows: I64 = ring[np.arange(head, tail) & (ring.shape[0] - 1)]
        self.mem[at + RESULTS_HEAD] = tail
        return rows

    def as_pairs(self, rows: I64) -> tuple[I64, I64]:
        """Results as (place of the later tuple in gate order, stream position of the earlier)."""
        later, seqs = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        pairs_of(self.mem, rows, self.logs[0].facts, self.logs[1].facts, later, seqs)
        return later, seqs

    def node_words(self, word: int) -> I64:
        """One word of every node, as a view."""
        at = int(node_at(0)) + word
        step = int(node_at(1)) - int(node_at(0))
        words: I64 = self.mem[at : at + step * self.nodes : step]
        return words

    def forget(self, side: int, place: int) -> None:
        """Between flows: drop tuples before a place, which are outside every window."""
        for word in (IN + side, OUT + 8 * side, EXPIRED + side):
            np.maximum(self.node_words(word), place, out=self.node_words(word))
        self.logs[side].forget(place)

    @property
    def nbytes(self) -> int:
        """Bytes held by logs, links and rings."""
        return self.mem.nbytes + sum(log.nbytes for log in self.logs) + self.results.nbytes


def facts_of(seq: I64, min_seq: I64, upto: I64, gate: I64) -> I64:
    """Rows of a log's facts, without expiries."""
    facts = np.zeros((seq.size, FACTS), np.int64)
    facts[:, SEQ], facts[:, MIN_SEQ], facts[:, UPTO], facts[:, GATE] = seq, min_seq, upto, gate
    return facts


class Copies:
    """Both sides' copies at all nodes of a chain: two rows of words per node and side.

    Place p is stored at its home, node p % nodes, in column p // nodes minus the number of the first column. Invariant:
    between flows there is a column for every place that is still in a window.
    """

    def __init__(self, chain: Chain, dtype: Any) -> None:
        self._chain = chain
        self._rows = [np.zeros((chain.nodes, 2, 0), dtype) for _ in (0, 1)]

    def of(self, k: int) -> tuple[Array, Array]:
        """Node k's copies of side 0 and side 1."""
        return self._rows[0][k], self._rows[1][k]

    def make_room(self, spare: int = 0) -> None:
        """Allocate a column for every logged tuple and `spare` more; expired ones are dropped."""
        nodes = self._chain.nodes
        for side, log in enumerate(self._chain.logs):
            rows, first = self._rows[side], int(self._chain.mem[COLUMNS + side])
            needed = -(-(log.count + spare) // nodes) + 1
            if needed - first <= rows.shape[2]:
                continue
            least = int(self._chain.node_words(EXPIRED + side).min()) // nodes
            size = max(0, rows.shape[2] - (least - first))
            capacity = max(_LEAST_COPIES, 2 * (needed - least))
            copy = np.zeros((nodes, 2, capacity), rows.dtype)
            if size:
                copy[:, :, :size] = rows[:, :, least - first :]
            self._rows[side] = copy
            self._chain.mem[COLUMNS + side] = least

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(rows.nbytes for rows in self._rows)
