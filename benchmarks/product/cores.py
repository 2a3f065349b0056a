"""What more workers bring at the door: `join.push` with its rows gathered, and the time of every step.

Amdahl's account: a step that takes as long with n workers as with one limits all the others. Each algorithm runs with
one worker, two, four and so on up to the number of cores. Keys and bands are uniform, two partners to a tuple in
windows of 2^20, tuples of 16 bytes; the scans join ScaleJoin's band over two attributes in windows of 2^17. The shared
tree also runs in the experiments' harness, which has words and positions only: no tables, no rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.hardware import allowed
from benchmarks.harness import Cell, Context, Experiment, Figure, Row, human, met
from benchmarks.papers.parallel_join import ParallelJoin
from benchmarks.workload import BandWorkload

_SECONDS = 0.8
_POOL = 8
_FILL = 1 << 17
_BAND = 10
_HARNESS = "pim_parallel, harness"
_STEPS = ("encode", "store", "sort", "sweep", "merge", "order_pairs", "pair", "gather")
# The algorithm of each system, its index, the tuples of a side in a push and in a window as powers of two.
SYSTEMS: dict[str, tuple[str, str | None, int, int]] = {
    "sweep": ("sweep", None, 18, 20),
    "sweep, 2 x 65,536": ("sweep", None, 16, 20),
    "pim_parallel": ("pim_parallel", None, 16, 20),
    "scalejoin over pim_tree": ("scalejoin", "pim_tree", 16, 20),
    "low_latency_handshake over pim_tree": ("low_latency_handshake", "pim_tree", 16, 20),
    "nested_loop, 2-D band": ("nested_loop", None, 12, 17),
    "scalejoin, 2-D band": ("scalejoin", None, 12, 17),
}
_AIMS = {"sweep": 8.0, "nested_loop, 2-D band": 10.0, "scalejoin, 2-D band": 10.0}
_QUICK_LESS = 4


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _is_scan(system: str) -> bool:
    return "2-D" in system


class _Feed:
    """A join with full windows, and the pushes that follow."""

    def __init__(self, system: str, workers: int, seed: int, quick: bool) -> None:
        algorithm, index, batch, window = SYSTEMS[system]
        less = _QUICK_LESS if quick else 0
        self.batch, self.window = 1 << (batch - less), 1 << (window - less)
        self._rng = np.random.default_rng(seed)
        self._load = BandWorkload(self.window, seed=seed)
        on: Any = sj.Band("key", "key", self._load.band)
        if _is_scan(system):
            on = sj.Band("x", "a", _BAND) & sj.Band("y", "b", float(_BAND))
        self._draw = self._scanned if _is_scan(system) else self._banded
        spec = sj.JoinSpec(on=on, window=sj.CountWindow(self.window))
        self.join = sj.open(spec, algorithm, workers, index=index, max_rows=None)
        step = min(_FILL, self.window)
        for at in range(0, self.window, step):
            left, right = self._draw(at, step)
            # Where everything is compared, one side alone: it has nothing to compare with yet.
            self.join.push(left, right if not _is_scan(system) else right.slice(0, 0))
        self.pool = [self._draw(self.window + i * self.batch, self.batch) for i in range(_POOL)]
        for pair in self.pool[:2]:
            self.join.push(*pair)

    def _banded(self, at: int, n: int) -> tuple[pa.Table, pa.Table]:
        return self._load.table("left", at, n), self._load.table("right", at, n)

    def _scanned(self, at: int, n: int) -> tuple[pa.Table, pa.Table]:  # noqa: ARG002
        tables = []
        for names in (("x", "y"), ("a", "b")):
            values = self._rng.integers(1, 10_001, n).astype(np.int32), self._rng.uniform(1, 10_000, n)
            tables.append(pa.table({names[0]: values[0], names[1]: values[1].astype(np.float32)}))
        return tables[0], tables[1]


def _spent(figures: Mapping[str, Any]) -> dict[str, float]:
    """The seconds of each step; those of a sweep take the place of its pairing."""
    seconds = dict(figures["seconds"])
    inner = {name: figures[f"{name}_ns"] / 1e9 for name in _STEPS if f"{name}_ns" in figures}
    return inner | {name: s for name, s in seconds.items() if name in _STEPS and not (inner and name == "pair")}


class Cores(Experiment):
    """Throughput and the time of each step by the number of workers."""

    title = "what more workers bring: tuples (2-D band: comparisons) per second at push, rows gathered"
    measure = "per_s"
    unit = "tuples/s (2-D band: comparisons/s)"
    repeats = 2
    warmups = 0
    against: ClassVar = {"workers": 1}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every system with 1, 2, 4, ... workers, and with one for each core."""
        most = min(2, cores()) if quick else cores()
        counts = sorted({n for n in (1, 2, 4, 8, 16, 32, 64) if n < most} | {most})
        return [{"system": system, "workers": n} for system in (*SYSTEMS, _HARNESS) for n in counts]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows, push twice, then push for about a second."""
        if cell["system"] == _HARNESS:
            return _in_the_harness(cell["workers"], context)
        feed = _Feed(cell["system"], cell["workers"], context.seed, context.quick)
        with feed.join as join:
            before, pushes, rows = join.metrics(), 0, 0
            begin = time.perf_counter()
            while time.perf_counter() - begin < _SECONDS or pushes < 2:
                rows += join.push(*feed.pool[pushes % _POOL]).num_rows
                pushes += 1
            took = time.perf_counter() - begin
            after = join.metrics()
        tuples = 2 * feed.batch * pushes
        spent, at_first = _spent(after), _spent(before)
        steps = {f"{name}_ns": (spent[name] - at_first.get(name, 0.0)) / tuples * 1e9 for name in spent}
        # The right window of a scan is still filling, so that tuples cost more and more.
        work = after["compared"] - before["compared"] if _is_scan(cell["system"]) else tuples
        found = {"per_s": work / took, "rows_per_tuple": rows / tuples, "ns": took / tuples * 1e9}
        return {**found, **steps, "other_ns": found["ns"] - sum(steps.values())}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Speed over one worker's for every system, and the sweep's time by step."""
        left, right = figure.subplots(1, 2)
        for color, system in enumerate(dict.fromkeys(row["system"] for row in rows)):
            points = sorted((row["workers"], row.get("ratio", 1.0)) for row in rows if row["system"] == system)
            left.plot(*zip(*points, strict=True), marker="o", color=f"C{color}", label=system)
        counts = sorted({row["workers"] for row in rows})
        left.plot(counts, counts, color="grey", linewidth=0.5)
        left.set(xlabel="workers", ylabel="times one worker")
        left.set_xscale("log", base=2)
        left.set_yscale("log", base=2)
        left.grid(True, alpha=0.3)
        left.legend(fontsize="x-small")
        below = np.zeros(len(counts))
        by_workers = {row["workers"]: row for row in rows if row["system"] == "sweep"}
        for name in (*_STEPS, "other"):
            times = np.array([max(0.0, by_workers.get(n, {}).get(f"{name}_ns") or 0.0) for n in counts])
            if times.any():
                right.bar([str(n) for n in counts], times, bottom=below, label=name)
                below += times
        right.set(xlabel="workers", ylabel="ns per tuple, sweep")
        right.legend(fontsize="x-small")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aims with all cores, and which step limits each system."""
        most = max(row["workers"] for row in rows)
        by_cell = {(row["system"], row["workers"]): row for row in rows}
        lines = [allowed(most)] if most > 1 else []
        for system in dict.fromkeys(row["system"] for row in rows):
            one, all_ = by_cell.get((system, 1)), by_cell.get((system, most))
            if one is None or all_ is None:
                continue
            gained = all_["per_s"] / one["per_s"]
            aim = _AIMS.get(system, 1.0)
            speed = f"{human(all_['per_s'])} {'comparisons' if _is_scan(system) else 'tuples'}/s"
            lines.append(
                f"{system}: {most} workers {speed}, {gained:.2f} times one; aim {aim:g}: "
                f"{met(gained >= aim)}; {_account(one, all_)}"
            )
        door, harness = by_cell.get(("pim_parallel", most)), by_cell.get((_HARNESS, most))
        if door is not None and harness is not None:
            share = door["per_s"] / harness["per_s"]
            lines.append(f"pim_parallel at push: {share:.2f} of the harness; aim 0.8: {met(share >= 0.8)}")
        return lines


def _account(one: Row, all_: Row) -> str:
    """The time of each step with one worker and with all, the largest first."""
    names = [name for name in (*_STEPS, "other") if all_.get(f"{name}_ns") is not None]
    names.sort(key=lambda name: -all_[f"{name}_ns"])
    return ", ".join(f"{name} {one.get(f'{name}_ns', 0.0):.0f} -> {all_[f'{name}_ns']:.0f} ns" for name in names)


def _in_the_harness(workers: int, context: Context) -> dict[str, Any]:
    window = 1 << (20 - (_QUICK_LESS if context.quick else 0))
    join = ParallelJoin((window, window), BandWorkload(window, seed=context.seed), workers)
    try:
        join.settle()
        measured = join.run(join.whole_periods(2 * window))
    finally:
        join.close()
    answer = measured.answer()
    return {"per_s": answer["tuples_per_s"], "rows_per_tuple": answer["match_rate"]}


EXPERIMENT = Cores()
