"""A band join by several threads over shared PIM-Trees, brought to its steady state; no tables, no `Join`.

It draws the same tuples as `IndexJoin`, the single-threaded baseline, and runs the same kernels as `pim_parallel`.
Tuples are made in batches outside the measured time; a batch is one run of the crew. Time is that of the clock,
since threads wait for each other. `on_cpu` is the share of it that the threads were on a processor: how quiet the
machine was.

Arrivals are all there at once, or paced by the real clock: tuple i arrives `gap` after tuple i-1, whether or not
anybody is ready for it, so a late start counts as latency.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.papers.compiled_caller import count_in_tasks
from benchmarks.papers.index_join import TASK, IndexJoin
from benchmarks.papers.index_keys import I64, Keys
from streamjoin.indexes.base import Matches, ticks_per_ns
from streamjoin.indexes.registry import make_index
from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT, PROBES, read_cycles
from streamjoin.pim_tree.crew import SharedJoin, Tuples
from streamjoin.pim_tree.kernels import work_queue as q
from streamjoin.pim_tree.shared import SharedPimTree

_BATCH = 1 << 20
_PAGE = 512
_OUT = 1 << 14


@dataclass
class Run:
    """What a sample took and gave."""

    tuples: int = 0
    matches: int = 0
    clock_ns: int = 0
    cpu_ns: int = 0
    merges: int = 0
    threads: int = 1
    latencies: list[I64] = field(default_factory=list)

    def answer(self) -> dict[str, float]:
        """The figures as a row of a table; latencies in microseconds."""
        found = {
            "tuples_per_s": self.tuples / self.clock_ns * 1e9,
            "match_rate": self.matches / self.tuples,
            "on_cpu": min(1.0, self.cpu_ns / self.clock_ns / self.threads),
            "merges": self.merges,
        }
        if self.latencies:
            waited = np.concatenate(self.latencies) / ticks_per_ns() / 1e3
            found["mean_us"] = float(waited.mean())
            for name, share in (("p50_us", 50), ("p99_us", 99), ("p999_us", 99.9)):
                found[name] = float(np.percentile(waited, share))
        return found


class ParallelJoin:
    """Two streams, two windows, two shared trees; a self-join has one of each."""

    def __init__(
        self,
        windows: tuple[int, int],
        keys: Keys,
        threads: int,
        settings: Mapping[str, float] | None = None,
        *,
        task: int = 64,
        merge: str = "nonblocking",
        self_join: bool = False,
        locks: bool = True,
        rates: tuple[int, int] = (1, 1),
    ) -> None:
        self.threads, self.task, self.merge = threads, task, merge
        # For its columns; its indexes stay empty.
        self._stream = IndexJoin("scan", windows, keys, rates=rates, self_join=self_join)
        self.windows, self.self_join = windows, self_join
        chosen: dict[str, Any] = dict(settings or {})
        self.sides = [SharedPimTree(window, task, locks=locks, **chosen) for window in windows]
        if self_join:
            self.sides[1] = self.sides[0]
        self._tuples = Tuples()
        self.join = self._joined()

    @property
    def arrived(self) -> int:
        """Tuples of both sides since the windows were filled."""
        return self._stream.arrived

    def _joined(self) -> SharedJoin:
        return SharedJoin(self.sides[0], self.sides[1], self.threads, task=self.task, merge=self.merge, out=_OUT)

    @property
    def nbytes(self) -> int:
        """Bytes of the trees, the queue and the tuples of a batch."""
        return self.join.nbytes + self._tuples.words.nbytes

    def use(self, threads: int, task: int, merge: str = "nonblocking") -> None:
        """Go on with another crew."""
        self.join.close()
        self.threads, self.task, self.merge = threads, task, merge
        self.join = self._joined()

    def period(self) -> int:
        """Tuples of both sides between two merges of the side that merges more rarely."""
        rates, ratio = self._stream.rates, self.sides[0].merge_ratio
        each = [window * sum(rates) / rate for window, rate in zip(self.windows, rates, strict=True) if rate]
        return max(1, round(ratio * max(each)))

    def whole_periods(self, least: int) -> int:
        """The smallest number of whole periods, in tuples, that is at least `least`."""
        return -(-least // self.period()) * self.period()

    def settle(self) -> None:
        """Fill both windows, touch every page, and go through two periods; the steady state begins here."""
        for side, tree in enumerate(self.sides[: 1 if self.self_join else 2]):
            keys = self._stream.keys.keys("right" if side else "left", 0, self.windows[side])
            tree.load(keys, np.arange(self.windows[side]))
            for mem in tree.trees:
                mem[::_PAGE] += 0
        self.join.renew_limits()
        self.run(2 * self.period(), op=INSERTS)
        self.run(min(1 << 14, self.windows[0]))

    def run(self, tuples: int, op: int = PROBES | INSERTS, gap_ns: float | None = None, band: int | None = None) -> Run:
        """Join the next `tuples`; `gap_ns` paces their arrival, and latency counts from there."""
        measured = Run(threads=self.threads)
        for begin in range(0, tuples, _BATCH):
            self._lay(min(_BATCH, tuples - begin), op, band)
            self._run_stretch(measured, gap_ns)
        return measured

    def _lay(self, count: int, op: int, band: int | None) -> None:
        before, rates = self._stream.arrived, self._stream.rates
        ops, word, lo, hi, seq, least, _ = self._stream.columns(count, op, band)
        is_right = (ops & ON_RIGHT) == 1
        rights = int(is_right.sum())
        lefts = count - rights
        passed_rights = before * rates[1] // sum(rates)
        first = [before - passed_rights + self.windows[0], 0 if self.self_join else passed_rights + self.windows[1]]
        self._tuples.lay(count, first, (lefts, rights))
        upto = seq
        if not self.self_join:
            passed = np.cumsum(is_right)
            upto = np.where(is_right, np.arange(count) + 1 - passed + first[0], passed + first[1])
        rows = ((q.OPS, ops), (q.WORD, word), (q.LO, lo), (q.HI, hi), (q.SEQ, seq), (q.MIN_SEQ, least), (q.UPTO, upto))
        for row, values in rows:
            self._tuples.row(row)[:] = values
        for side, chosen in enumerate((~is_right, is_right)):
            self._tuples.lines[side][:] = word[chosen]
            self._tuples.counted[side][:] = 1

    def _run_stretch(self, measured: Run, gap_ns: float | None) -> None:
        queue = self.join.queue
        queue[q.TIMED] = gap_ns is not None
        queue[q.GAP] = 0 if gap_ns is None else round(1024 * gap_ns * ticks_per_ns())
        matches = [0]

        def take(probes: I64, _: I64) -> None:
            matches[0] += probes.size

        merges, clock, cpu = int(queue[q.MERGES]), time.perf_counter_ns(), time.process_time_ns()
        queue[q.START] = start = read_cycles()
        self.join.run(self._tuples, take)
        measured.clock_ns += time.perf_counter_ns() - clock
        measured.cpu_ns += time.process_time_ns() - cpu
        measured.tuples += self._tuples.n
        measured.matches += matches[0]
        measured.merges += int(queue[q.MERGES]) - merges
        if gap_ns is not None:
            due = start + (np.arange(1, self._tuples.n + 1) * int(queue[q.GAP]) >> 10)
            measured.latencies.append(self._tuples.row(q.STAMP) - due)

    def close(self) -> None:
        """End the threads."""
        self.join.close()


class RoundRobinJoin:
    """The window dealt out to threads by arrival, each with its own indexes: `round_robin` without tables."""

    def __init__(self, index: str, window: int, keys: Keys, threads: int) -> None:
        self._stream = IndexJoin("scan", (window, window), keys)
        self._window, self.threads = window, threads
        share = max(1, window // threads)
        self._shares = [(make_index(index, share), make_index(index, share)) for _ in range(threads)]
        self._out = [Matches(1 << 12) for _ in range(threads)]

    def settle(self) -> None:
        """Fill every share."""
        for side, name in enumerate(("left", "right")):
            words = self._stream.keys.keys("right" if name == "right" else "left", 0, self._window)
            for k, share in enumerate(self._shares):
                seqs = np.arange(k, self._window, self.threads)
                share[side].insert(words[seqs], seqs)
        self.run(1 << 12)

    def run(self, tuples: int, task: int = TASK) -> Run:
        """Join the next `tuples`: every thread looks all of them up and stores every n-th."""
        ops, *rest = self._stream.columns(tuples, PROBES | INSERTS)
        measured = Run(tuples=tuples, threads=self.threads)
        found = [0] * self.threads

        def work(k: int) -> None:
            mine = np.where(rest[3] % self.threads != k, ops & ~np.int64(INSERTS), ops)
            found[k] = count_in_tasks(*self._shares[k], (mine, *rest), self._out[k], task)

        running = [threading.Thread(target=work, args=(k,)) for k in range(self.threads)]
        clock, cpu = time.perf_counter_ns(), time.process_time_ns()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        measured.clock_ns = time.perf_counter_ns() - clock
        measured.cpu_ns = time.process_time_ns() - cpu
        measured.matches = sum(found)
        return measured
