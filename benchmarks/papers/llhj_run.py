"""A handshake join run as a stream, without Arrow: nodes, a driver and a collector, each a thread over the kernels.

The driver sends a tuple when the machine's clock (its cycle counter) says it is due, or as fast as the chain takes it.
A result is stamped when the collector has it, and its latency counts from when the later of its tuples was due: what
waits in the driver's batch, or because the machine fell behind, waits. Nodes of a paced run sleep like those of
`sj.live`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.papers.llhj_streams import Stream
from streamjoin.handshake.chain import SLEEPS_LEAVING_US, SLEEPS_US, Chain, Copies
from streamjoin.handshake.kernels.collect import (
    COLLECT,
    COLLECTED_WORDS,
    HEAP_ROW,
    MOST_HELD,
    OVERFLOWED,
    PUNCTUATE,
    PUNCTUATIONS,
    SORT,
    WRITTEN,
    collect,
)
from streamjoin.handshake.kernels.handshake import handshake_node
from streamjoin.handshake.kernels.links import (
    COMPARED,
    DUE,
    EXPIRED,
    FULL,
    IN,
    OUT,
    PLACES,
    SEQ,
    SLEEPS,
    START,
    UPTO,
    drive,
    finish,
)
from streamjoin.handshake.kernels.low_latency import llhj_node
from streamjoin.handshake.low_latency import NodeIndexes
from streamjoin.indexes.base import ticks_per_ns
from streamjoin.jit.crew import stopped
from streamjoin.kernels.trees.task import read_cycles
from streamjoin.windows.crew import Crew

I64 = npt.NDArray[np.int64]

HANDSHAKE, LOW_LATENCY = "handshake", "low_latency_handshake"
MODES = {"collect": COLLECT, "punctuate": PUNCTUATE, "sort": SORT}


@dataclass(frozen=True)
class Outcome:
    """What a run gave: results as places of both sides, when each was delivered, and how nodes and collector fared."""

    pairs: I64
    latency: npt.NDArray[np.float64]
    """Seconds from when the later tuple was due, a result."""
    due: npt.NDArray[np.float64]
    """When the later tuple was due, in seconds from the start."""
    punctuations: I64
    most_held: int
    seconds: float
    comparisons: I64
    """By node."""


class ChainRun:
    """One run of one system over one stream."""

    def __init__(
        self,
        system: str,
        nodes: int,
        stream: Stream,
        *,
        batch: int = 64,
        output: str = "collect",
        index: str | None = None,
    ) -> None:
        self._system, self._stream, self._mode = system, stream, MODES[output]
        passes, punctuates = system == LOW_LATENCY, output != "collect"
        self._chain = Chain(nodes, stream.dtype, stream.terms, batch=batch, punctuates=punctuates, passes=passes)
        stream.fill(self._chain.logs)
        self._sleeps = SLEEPS_LEAVING_US if system == HANDSHAKE else SLEEPS_US
        self._copies = Copies(self._chain, stream.dtype) if system == LOW_LATENCY and index is None else None
        self._indexes = NodeIndexes(self._chain, index, stream.windows, {}) if index else None
        self._crew = Crew(nodes + 2, PLACES)
        self._fill()

    def run(self, *, paced: bool, most: int = 1 << 20) -> Outcome:
        """Send the stream through; `most` results are kept."""
        chain, stream, nodes = self._chain, self._stream, self._chain.nodes
        facts_r, facts_s = (log.facts[: log.count] for log in chain.logs)
        out, told = np.zeros((most, 3), np.int64), np.zeros(COLLECTED_WORDS, np.int64)
        punctuations, heap = np.zeros((most, 2), np.int64), np.zeros((most, HEAP_ROW), np.int64)
        ended = np.zeros(nodes, np.int64)

        def step(k: int) -> None:
            if k == nodes:
                begin = stream.filled
                drive(self._crew.words, k, chain.mem, stream.is_right, facts_r, facts_s, begin, begin, paced, True)
            elif k > nodes:
                collect(
                    self._crew.words,
                    k,
                    chain.mem,
                    self._mode,
                    chain.results,
                    facts_r,
                    facts_s,
                    out,
                    punctuations,
                    heap,
                    told,
                )
            else:
                while self._node(k) == FULL and not stopped(self._crew.words):
                    time.sleep(0)
                ended[k] = read_cycles()
                finish(chain.mem)

        # As in a live join; what runs at full rate has no time to sleep.
        chain.mem[SLEEPS] = self._sleeps if paced else 0
        chain.open()
        try:
            self._crew.run(step)
        finally:
            self._crew.close()
        if told[OVERFLOWED]:
            raise RuntimeError(f"{told[OVERFLOWED]} results more than the {most} that the collector has room for")
        return self._outcome(out[: told[WRITTEN]], punctuations[: told[PUNCTUATIONS]], told, int(ended.max()))

    def _node(self, k: int) -> int:
        chain = self._chain
        if self._indexes is not None:
            return self._indexes.run(self._crew.words, k)
        if self._copies is not None:
            return llhj_node(
                self._crew.words, k, chain.mem, *chain.columns(), *self._copies.of(k), chain.results[k], chain.tests(k)
            )
        return handshake_node(self._crew.words, k, chain.mem, *chain.columns(), chain.results[k], chain.tests(k))

    def _outcome(self, rows: I64, punctuations: I64, told: I64, ended: int) -> Outcome:
        left, right = (log.facts for log in self._chain.logs)
        r, s = left[rows[:, 0]], right[rows[:, 1]]
        due = np.where(r[:, SEQ] < s[:, UPTO], s[:, DUE], r[:, DUE])
        start, second = int(self._chain.mem[START]), ticks_per_ns() * 1e9
        return Outcome(
            rows[:, :2],
            (rows[:, 2] - start - due) / second,
            due / second,
            punctuations,
            int(told[MOST_HELD]),
            (ended - start) / second,
            self._chain.node_words(COMPARED).copy(),
        )

    def _fill(self) -> None:
        """Put the first tuples where a long run would have left them: evenly along the chain, or at home."""
        chain, filled = self._chain, self._stream.filled
        if self._copies is not None:
            self._copies.make_room()
        if not filled:
            return
        nodes = np.arange(chain.nodes)
        for side, log in enumerate(chain.logs):
            chain.node_words(EXPIRED + side)[:] = 0
            if self._system == HANDSHAKE:
                before = nodes if side == 0 else chain.nodes - 1 - nodes
                chain.node_words(IN + side)[:] = filled * (chain.nodes - before) // chain.nodes
                chain.node_words(OUT + 8 * side)[:] = filled * (chain.nodes - before - 1) // chain.nodes
                continue
            chain.node_words(IN + side)[:] = filled
            for k in range(chain.nodes):
                home = np.arange(k, filled, chain.nodes)
                if self._indexes is not None:
                    words = (log.words[0, home] ^ np.uint64(1 << 63)).view(np.int64)
                    self._indexes.indexes[k][side].insert(words, home)
                elif self._copies is not None:
                    self._copies.of(k)[side][:, : home.size] = log.words[:2, home]
