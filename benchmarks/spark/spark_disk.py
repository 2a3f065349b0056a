"""What the window log takes on disk, over the rows that are alive, by window and by the size of batches.

`window_bytes` of Spark's progress reports is the size of the log's rows before each batch; after the last batch the
files themselves are counted, with merges that wait to be swapped in. The worse of the two counts. Batches are a share
of the window from a multiple to a fiftieth: the shares between one and a half are the hard ones, because the oldest
batch then stays for the sake of its last rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import streamjoin as sj
from benchmarks.harness import Cell, Context, Finding, Row, judge_aim
from benchmarks.spark.spark_runs import ROW_BYTES, Files, SparkExperiment, speed, state_bytes, steady
from benchmarks.workload import BandWorkload
from streamjoin.spark.stages.figures import metric_name

_STEP_US, _AIM = 1_000, 1.25
_PERCENT = (400, 100, 90, 75, 62, 45, 40, 10, 5, 2)


class SparkDisk(SparkExperiment):
    """Live rows per byte on disk."""

    title = "spark_disk: the window log on disk, over the rows that are alive"
    measure = "rows_per_s"
    across, lines, log, drawn = "batch_percent", ("window",), True, "rows_on_disk"

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every share of the window as a batch."""
        if quick:
            return [{"window": 20_000, "batch_percent": percent} for percent in (100, 75)]
        small: list[Cell] = [{"window": 100_000, "batch_percent": percent} for percent in _PERCENT]
        return [*small, *({"window": 1_000_000, "batch_percent": percent} for percent in (100, 75, 40, 10, 5))]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Fill the window, turn it over, and take the worst size of that time."""
        window, rows = cell["window"], cell["window"] * cell["batch_percent"] // 100
        full = -(-window // rows)
        batches = 2 * full + 4
        data = BandWorkload(window, seed=context.seed)
        files = Files(context, f"{window}-{rows}").write(
            lambda side: [data.timed_table(side, i * rows, rows, _STEP_US) for i in range(batches)]
        )
        span = sj.TimeWindow(timedelta(microseconds=window * _STEP_US))
        spec = sj.JoinSpec(sj.Band("key", "key", data.band), span, time="ts", order="event_time")
        ran = self.timed(lambda left, right: sj.spark.join(left, right, spec), files, context.scratch / "checkpoint")
        alive = 2 * window * ROW_BYTES
        figures = [batch.observed[metric_name("join")] for batch in steady(ran, full + 1)]
        return {
            "rows_per_s": speed(steady(ran, full + 1)),
            "rows_on_disk": max(figure["window_bytes"] for figure in figures) / alive,
            "state": state_bytes(self.spark, self.checkpoint) / alive,
            "runs": max(figure["runs"] for figure in figures),
        }

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Each cell against the aim."""
        return [_judged(row) for row in rows]


def _judged(row: Row) -> Finding:
    size = max(row["rows_on_disk"], row["state"])
    said = f"{size:.2f} times the live rows of {ROW_BYTES} bytes, in at most {row['runs']:.0f} runs"
    claim = f"window of {row['window']:,} rows a side, batches of {row['batch_percent']} % of it"
    return judge_aim(claim, said, f"at most {_AIM}", size <= _AIM)


EXPERIMENT = SparkDisk()
