"""Windows of up to 10^8 tuples per side, through `push`: what they take in memory, and what a push costs then.

A window is filled in pushes of a million tuples per side; the last tenth of them is measured. Values are spread so that
a tuple has about one partner, whatever the window. The largest cell holds about 19 GiB at the most.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, human, judge_aim
from benchmarks.report_lines import draw_lines

_PUSH = 1_000_000
_LEAST_RATE = 0.25


class LargeWindow(Experiment):
    """Tuples per second and bytes against the window."""

    title = "large_window: windows of up to 10^8 tuples per side, pushes of 2 x 1,000,000"
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 1
    warmups = 0

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Windows of a few pushes to a hundred."""
        return [{"window": window} for window in ((_PUSH,) if quick else (10 * _PUSH, 30 * _PUSH, 100 * _PUSH))]

    def baseline(self, cell: Cell) -> Cell | None:
        """The smallest window."""
        return None if cell["window"] <= 10 * _PUSH else {"window": 10 * _PUSH}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the windows, then turn a tenth of them over."""
        rng = np.random.default_rng(context.seed)
        window = cell["window"]

        def batch() -> pa.Table:
            return pa.table({"k": rng.integers(0, window, _PUSH), "v": rng.random(_PUSH)})

        spec = sj.JoinSpec(on=sj.Band("k", "k", 0), window=sj.CountWindow(window))
        pushes = max(1, window // _PUSH)
        measured = max(1, pushes // 10)
        seconds, rows = 0.0, 0
        with sj.open(spec, workers=2, max_rows=None) as join:
            for number in range(pushes + measured):
                left, right = batch(), batch()
                begin = time.perf_counter()
                found = join.push(left, right).num_rows
                if number >= pushes:
                    seconds += time.perf_counter() - begin
                    rows += found
            figures = join.metrics()
        return {
            "tuples_per_s": 2 * _PUSH * measured / seconds,
            "rows_per_tuple": rows / (2 * _PUSH * measured),
            "bytes_per_tuple": (figures["index_bytes"] + figures["window_bytes"]) / (2 * window),
            # The most that this process ever held.
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Rate against the window."""
        named = [{**row, "join": "sj.open(spec, workers=2)"} for row in rows]
        draw_lines(figure.subplots(), named, x="window", y=self.measure, by=("join",), log=True)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Whether the largest window is joined at a rate of the same order as the smallest."""
        least, most = (pick(rows, key=lambda row: row["window"]) for pick in (min, max))
        ratio = most["tuples_per_s"] / least["tuples_per_s"]
        return [
            judge_aim(
                f"a window of {most['window']:,} tuples per side works",
                f"{human(most['tuples_per_s'])} tuples/s, {ratio:.2f} times those at {least['window']:,}; "
                f"{most['bytes_per_tuple']:.0f} bytes per tuple, {most['peak_gib']:.1f} GiB at the most",
                f"at least {_LEAST_RATE} times the rate",
                ratio >= _LEAST_RATE,
            )
        ]


EXPERIMENT = LargeWindow()
