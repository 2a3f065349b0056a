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
    OVERFLOWED,
    PUNCTUATE,
    PUNCTUATIONS,
    WRITTEN,
    collect,
    gate_of,
    take_results,
)
from streamjoin.handshake.kernels.handshake import handshake_node
from streamjoin.handshake.kernels.links import (
    COMPARED,
    DUE,
    EXPIRED,
    FINISHED,
    FULL,
    GATE,
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
from streamjoin.joins.live.flow import HeldPairs, TakenPairs
from streamjoin.kernels.trees.entries import LARGEST
from streamjoin.kernels.trees.task import read_cycles
from streamjoin.windows.crew import Crew

I64 = npt.NDArray[np.int64]

HANDSHAKE, LOW_LATENCY = "handshake", "low_latency_handshake"
MODES = {"collect": COLLECT, "punctuate": PUNCTUATE}
_MOST_TAKEN = 1 << 14


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
        self._system, self._stream, self._output = system, stream, output
        passes, punctuates = system == LOW_LATENCY, output != "collect"
        self._chain = Chain(nodes, stream.dtype, stream.terms, batch=batch, punctuates=punctuates, passes=passes)
        stream.fill(self._chain.logs)
        self._sleeps = SLEEPS_LEAVING_US if system == HANDSHAKE else SLEEPS_US
        self._copies = Copies(self._chain, stream.dtype) if system == LOW_LATENCY and index is None else None
        self._indexes = NodeIndexes(self._chain, index, stream.windows, {}) if index else None
        self._crew = Crew(nodes + 2, PLACES)
        self._most_held = 0
        self._fill()

    def run(self, *, paced: bool, most: int = 1 << 20) -> Outcome:
        """Send the stream through; `most` results are kept."""
        chain, stream, nodes = self._chain, self._stream, self._chain.nodes
        facts_r, facts_s = (log.facts[: log.count] for log in chain.logs)
        out, told = np.zeros((most, 3), np.int64), np.zeros(COLLECTED_WORDS, np.int64)
        punctuations = np.zeros((most, 2), np.int64)
        ended = np.zeros(nodes, np.int64)

        def step(k: int) -> None:
            if k == nodes:
                begin = stream.filled
                drive(self._crew.words, k, chain.mem, stream.is_right, facts_r, facts_s, begin, begin, paced, True)
            elif k > nodes and self._output == "sort":
                self._most_held = self._sort(out, punctuations, told)
            elif k > nodes:
                mode = MODES[self._output]
                collect(self._crew.words, k, chain.mem, mode, chain.results, facts_r, facts_s, out, punctuations, told)
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
        return self._outcome(out[: told[WRITTEN]], punctuations[: told[PUNCTUATIONS]], int(ended.max()))

    def _sort(self, out: I64, punctuations: I64, told: I64) -> int:
        """Collect as sj.live does for ordered output; returns the most results that waited for a punctuation."""
        chain, held = self._chain, HeldPairs(self_join=False)
        facts_r, facts_s = (log.facts[: log.count] for log in chain.logs)
        taken, marks = np.empty((_MOST_TAKEN, 2), np.int64), np.zeros(2, np.int64)
        bound, everything = 0, False
        while not everything and not stopped(self._crew.words):
            ended = chain.mem[FINISHED] == chain.nodes
            count = take_results(chain.mem, chain.results, taken, marks, False)
            held.add(TakenPairs(*chain.as_pairs(taken[:count])))
            everything = ended and not count
            reached = min(gate_of(marks[0], chain.mem, 0, facts_r), gate_of(marks[1], chain.mem, 1, facts_s))
            if everything or reached > bound:
                self._write(held.take(LARGEST if everything else reached), out, told)
                punctuations[told[PUNCTUATIONS]] = told[WRITTEN], reached
                told[PUNCTUATIONS] += 1
                bound = reached
            elif not count:
                time.sleep(0)
        return held.most

    def _write(self, pairs: TakenPairs, out: I64, told: I64) -> None:
        """Write sorted results as places of both sides, and when."""
        left, right = self._chain.logs
        gates = [log.facts[: log.count, GATE] for log in (left, right)]
        places = [np.searchsorted(own, pairs.later) for own in gates]
        left_later = np.isin(pairs.later, gates[0])
        begin = int(told[WRITTEN])
        end = min(begin + pairs.later.size, len(out))
        told[OVERFLOWED] += begin + pairs.later.size - end
        n = end - begin
        out[begin:end, 0] = np.where(left_later, places[0], left.place_of(pairs.seqs))[:n]
        out[begin:end, 1] = np.where(left_later, right.place_of(pairs.seqs), places[1])[:n]
        out[begin:end, 2] = read_cycles()
        told[WRITTEN] = end

    def _node(self, k: int) -> int:
        chain = self._chain
        if self._indexes is not None:
            return self._indexes.run(self._crew.words, k)
        if self._copies is not None:
            return llhj_node(
                self._crew.words, k, chain.mem, *chain.columns(), *self._copies.of(k), chain.results[k], chain.tests(k)
            )
        return handshake_node(self._crew.words, k, chain.mem, *chain.columns(), chain.results[k], chain.tests(k))

    def _outcome(self, rows: I64, punctuations: I64, ended: int) -> Outcome:
        left, right = (log.facts for log in self._chain.logs)
        r, s = left[rows[:, 0]], right[rows[:, 1]]
        due = np.where(r[:, SEQ] < s[:, UPTO], s[:, DUE], r[:, DUE])
        start, second = int(self._chain.mem[START]), ticks_per_ns() * 1e9
        return Outcome(
            rows[:, :2],
            (rows[:, 2] - start - due) / second,
            due / second,
            punctuations,
            self._most_held,
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
