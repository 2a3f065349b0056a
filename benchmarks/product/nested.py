"""`nested_loop` on ScaleJoin's benchmark: comparisons a second of a band over two attributes.

Tuples carry an int32 and a float32, both uniform over 1 to 10,000; a pair matches when both differ by at most 10,
about one comparison in 250,000. The baseline is the same comparison written with NumPy, in one thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.hardware import explained
from benchmarks.harness import Cell, Context, Experiment, Row, human, met

_BAND = 10
_BATCH = 2048
_SECONDS = 1.0


def _tuples(rng: np.random.Generator, n: int, names: tuple[str, str]) -> pa.Table:
    values = rng.integers(1, 10_001, n).astype(np.int32), rng.uniform(1, 10_000, n).astype(np.float32)
    return pa.table(dict(zip(names, values, strict=True)))


def _numpy_comparisons(left: pa.Table, right: pa.Table) -> int:
    x, y = (right.column(name).to_numpy() for name in ("a", "b"))
    matches = 0
    for px, py in zip(left["x"].to_numpy(), left["y"].to_numpy(), strict=True):
        matches += int(np.count_nonzero((np.abs(x - px) <= _BAND) & (np.abs(y - py) <= _BAND)))
    return matches


class Nested(Experiment):
    """Comparisons a second against the window, one and two workers."""

    title = "nested_loop: 2-D band of ScaleJoin's benchmark"
    claim = "ScaleJoin, figure 5: about 4 G comparisons/s on 48 cores"
    measure = "comparisons_per_s"
    unit = "comparisons/s"
    against: ClassVar = {"system": "numpy", "workers": 1}
    across, lines, log = "window", ("system", "workers"), True

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Three window sizes, as in the paper."""
        windows = (1 << 14,) if quick else (1 << 14, 1 << 17, 1 << 20)
        systems = (("numpy", 1), ("nested_loop", 1), ("nested_loop", 2))
        return [{"window": w, "system": system, "workers": n} for w in windows for system, n in systems]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows, then push batches for about a second and count."""
        rng = np.random.default_rng(context.seed)
        window = cell["window"]
        left, right = _tuples(rng, window, ("x", "y")), _tuples(rng, window, ("a", "b"))
        if cell["system"] == "numpy":
            probes = _tuples(rng, max(8, (1 << 26) // window), ("x", "y"))
            begin = time.perf_counter()
            _numpy_comparisons(probes, right)
            return {"comparisons_per_s": probes.num_rows * window / (time.perf_counter() - begin)}
        on = sj.Band("x", "a", _BAND) & sj.Band("y", "b", float(_BAND))
        spec = sj.JoinSpec(on=on, window=sj.CountWindow(window))
        with sj.open(spec, "nested_loop", cell["workers"]) as join:
            # One side first: nothing to compare with yet, so filling costs nothing.
            join.push(left, right.slice(0, 0))
            pool = [(_tuples(rng, _BATCH, ("x", "y")), _tuples(rng, _BATCH, ("a", "b"))) for _ in range(8)]
            join.push(right=right.slice(0, 64))
            before, begin, pushes = join.metrics()["compared"], time.perf_counter(), 0
            while time.perf_counter() - begin < _SECONDS or pushes == 0:
                join.push(*pool[pushes % len(pool)])
                pushes += 1
            took = time.perf_counter() - begin
            compared = join.metrics()["compared"] - before
        return {"comparisons_per_s": compared / took, "tuples_per_s": 2 * _BATCH * pushes / took}

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aim a core, the second worker, the paper."""
        ours = {(r["window"], r["workers"]): r[self.measure] for r in rows if r["system"] == "nested_loop"}
        best = max(speed for (_, workers), speed in ours.items() if workers == 1)
        lines = [f"one worker: {human(best)} comparisons/s; aim 10 G: {met(best >= 1e10)}"]
        lines += [
            f"window {window:,}: two workers are {(gain := ours[window, 2] / ours[window, 1]):.2f} times one; "
            f"aim 1.8: {explained(gain, 1.8)}"
            for window in sorted({w for w, _ in ours})
        ]
        lines.append(f"one core here is {best / 4e9:.1f} times the paper's 48: 16 words a vector instruction")
        return lines


EXPERIMENT = Nested()
