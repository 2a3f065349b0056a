"""A key and a band together, over values of different sizes: the index's word must be as fine as the band.

Tuples have one of 500 keys and a value uniform over a range in which each finds two partners on average. The same
numbers are given as floats around 0, which is the baseline, as microseconds of today, as integers around 10^12 and as
seconds of today in floats: values that differ in their leading bits, and values that do so only in the last ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Row
from benchmarks.report import plot_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KEYS, _MATCHES, _BAND = 500, 2, 500
_BATCH = 1 << 16
_NOW = 1_777_901_400
_AIM = 1.2

VALUES: dict[str, tuple[Any, Any]] = {
    "floats around 0": (lambda x: pa.array(x.astype(float) - x.max() / 2), float(_BAND)),
    "microseconds of today": (lambda x: pa.array(x + _NOW * 10**6, pa.timestamp("us")), f"{_BAND} microseconds"),
    "integers around 10^12": (lambda x: pa.array(x + 10**12), _BAND),
    "seconds of today": (lambda x: pa.array(x * 1e-6 + _NOW), _BAND * 1e-6),
}
_BASELINE = "floats around 0"


class KeyBand(Experiment):
    """Tuples per second of the sweep by key and band, by the size of the values."""

    title = "sweep: a key and a band over values of real size"
    measure = "tuples_per_s"
    unit = "tuples/s"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each kind of value at one window."""
        return [{"window": 1 << (17 if quick else 20), "values": name} for name in VALUES]

    def baseline(self, cell: Cell) -> Cell | None:
        """The floats around 0."""
        return None if cell["values"] == _BASELINE else {**cell, "values": _BASELINE}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows, then push a few batches."""
        rng = np.random.default_rng(context.seed)
        convert, distance = VALUES[cell["values"]]
        window = cell["window"]
        spread = window * 2 * _BAND // (_KEYS * _MATCHES)

        def batch() -> pa.Table:
            return pa.table({"k": rng.integers(0, _KEYS, _BATCH), "v": convert(rng.integers(0, spread, _BATCH))})

        spec = sj.JoinSpec(on=sj.Equi("k") & sj.Band("v", "v", distance), window=sj.CountWindow(window))
        pushes = [(batch(), batch()) for _ in range(window // _BATCH + 4)]
        with sj.open(spec, "sweep") as join:
            for left, right in pushes[:-4]:
                join.push(left, right)
            before, begin, rows = join.metrics()["compared"], time.perf_counter(), 0
            for left, right in pushes[-4:]:
                rows += join.push(left, right).num_rows
            took = time.perf_counter() - begin
            compared = join.metrics()["compared"] - before
        return {
            "tuples_per_s": 8 * _BATCH / took,
            "rows_per_tuple": rows / (8 * _BATCH),
            "candidates_per_row": compared / rows,
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Tuples per second by kind of value."""
        plot_lines(figure, rows, x="window", y=self.measure, by=["values"], ylabel=self.unit)

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """How much longer each kind of value takes than the floats around 0."""
        speeds = {row["values"]: row[self.measure] for row in rows}
        return [
            f"{name}: {(ratio := speeds[_BASELINE] / speed):.2f} times the time of {_BASELINE}; "
            f"aim {_AIM}: {'met' if ratio <= _AIM else 'missed'}"
            for name, speed in speeds.items()
            if name != _BASELINE
        ]


EXPERIMENT = KeyBand()
