"""SIGMOD paper, figure 8a: round-robin partitioning, by nested loop and by index, against the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Row
from benchmarks.index_experiment import agrees, pick, power, values
from benchmarks.index_keys import keys_for
from benchmarks.parallel_experiment import LEAST, PARALLEL, ParallelExperiment, answer, thread_counts
from benchmarks.parallel_join import RoundRobinJoin

_NESTED, _INDEXED = "round robin, nested loop", "round robin, btree"
_KINDS = {_NESTED: "scan", _INDEXED: "btree"}
_COMPARED = 1 << 31  # pairs that a nested loop compares in one run, about


class RoundRobinPartitioning(ParallelExperiment):
    """Both partitioned joins with one thread and with all, beside the shared tree."""

    title = "figure 8a: round-robin partitioning against window and threads, match rate 2"
    claim = (
        "figure 8a, 16 threads: round robin makes the nested loop 8 times as fast and the join over B+-trees only 2.5 "
        "times, since every thread searches for every tuple"
    )

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Windows from small to the paper's usual one."""
        windows = (1 << 12,) if quick else (1 << 14, 1 << 17, 1 << 20)
        most = thread_counts()[-1]
        threads = sorted({1, most})
        return [
            {"window": window, "system": system, "threads": n}
            for window in windows
            for system in (_NESTED, _INDEXED, PARALLEL)
            for n in threads
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """One thread of the same system."""
        return None if cell["threads"] == 1 else {**cell, "threads": 1}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Measure a stretch; the nested loop one that compares a bounded number of pairs."""
        if cell["system"] == PARALLEL:
            return super().run(cell, context)
        window = cell["window"]
        keys = keys_for("uniform", window, seed=context.seed)
        join = RoundRobinJoin(_KINDS[cell["system"]], window, keys, cell["threads"])
        join.settle()
        tuples = LEAST[context.quick] // 4
        if cell["system"] == _NESTED:
            tuples = max(256, min(tuples, _COMPARED // window))
        return answer(join.run(tuples))

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """What each system gains by threads."""
        lines = []
        most = max(row["threads"] for row in rows)
        if most == 1:
            return ["one processor: nothing to compare"]
        for window in values(rows, "window"):
            gains = {
                system: pick(rows, window=window, system=system, threads=most)[0]["ratio"]
                for system in (_NESTED, _INDEXED, PARALLEL)
            }
            told = ", ".join(f"{system} {gain:.2f}" for system, gain in gains.items())
            shape = gains[_NESTED] > gains[_INDEXED] and gains[PARALLEL] > gains[_INDEXED]
            lines.append(f"w = {power(window)}: {most} threads over one: {told}: {agrees(shape)}")
        return lines


EXPERIMENT = RoundRobinPartitioning()
