"""The figures of a join in Spark's progress reports, as an observed metric.

Figures are in a column next to the parts, of which a batch has few, and are aggregated before the shuffle, so they cost
nothing per result row. Rows are counted in the batch, the window before it, and a gate of one task after it; one in
every range, as all that ranges decide by facts, before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamjoin.spark.stages.parts import COPIES, DDL, SCHEMA, Part, Spool, markers, to_all
from streamjoin.spark.stages.spending import untold
from streamjoin.storage.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from streamjoin.spark.stages.punctuation import Punctuation

ROWS = ("left_rows", "right_rows", "copies")
"""Figures that are summed: rows that ranges store, and copies that only probe."""
WINDOW = ("window_left", "window_right", "window_bytes", "runs", "merged_runs", "ranges", "late", "overflowed")
GATE = ("bound", "position", "waiting", "gate_lag")
RECEIVED = ("left_in", "right_in")
"""Figures of joins with a gate that are summed: the new rows."""
WORK = ("skew", "start_ms", "compile_ms")
"""How uneven the ranges of the batch before were, in thousandths, and what starting a worker took."""
NAMES = (*ROWS, *WINDOW, *GATE, *RECEIVED, *WORK)

_PREFIX = "streamjoin_"

OBSERVED_DDL = f"{DDL}, figures array<bigint>"
_SCHEMA = SCHEMA.append(pa.field("figures", pa.list_(pa.int64())))


def metric_name(join: str) -> str:
    """The name of the figures in a progress report's `observedMetrics`.

    >>> metric_name("join")
    'streamjoin_join'
    """
    return f"{_PREFIX}{join}"


def join_name(metric: str) -> str | None:
    """The join whose figures a metric has; None for a metric of someone else.

    >>> join_name("streamjoin_join"), join_name("rows")
    ('join', None)
    """
    return metric.removeprefix(_PREFIX) if metric.startswith(_PREFIX) else None


def rows_metric(join: str) -> str:
    """The name of the number of result rows, which is observed where batches are shown."""
    return f"{metric_name(join)}.rows"


@dataclass(frozen=True)
class BatchFigures:
    """What is shown of a join in a batch: rows in of each side, tuples in its window, its own included, and waiting."""

    rows_in: tuple[int, int]
    window: tuple[int, int]
    waiting: int | None

    @classmethod
    def of(cls, observed_metrics: Mapping[str, Any], join: str) -> BatchFigures | None:
        """The figures in a report of Spark's; None if it has none of this join."""
        row = observed_metrics.get(metric_name(join))
        values = {} if row is None else row.asDict()
        if values.get("ranges") is None:
            return None
        left, right = ("left_rows", "right_rows") if values["left_in"] is None else ("left_in", "right_in")
        window = values["window_left"] + values["left_rows"], values["window_right"] + values["right_rows"]
        return cls((values[left], values[right]), window, values["waiting"])

    def text(self, rows_out: int | None, seconds: float, *, self_join: bool) -> str:
        """The figures on one line."""
        (left, right), window = self.rows_in, self.window
        parts = [
            f"{left:,} rows in" if self_join else f"{left:,} left and {right:,} right rows in",
            *([] if rows_out is None else [f"{rows_out:,} out"]),
            f"window {window[0]:,}" + ("" if self_join else f" and {window[1]:,}"),
            *([] if self.waiting is None else [f"{self.waiting:,} waiting"]),
            f"{seconds:.2f} s",
        ]
        return ", ".join(parts)


def observed(parts: DataFrame, join: str) -> DataFrame:
    """`parts`, with their figures observed."""
    from pyspark.sql import functions as f

    figures = parts["figures"]
    aggregates = [
        (f.sum if name in (*ROWS, *RECEIVED) else f.max)(f.get(figures, f.lit(i))).alias(name)
        for i, name in enumerate(NAMES)
    ]
    return parts.observe(metric_name(join), *aggregates).drop("figures")


def packed(part: Part, spool: Spool | None = None) -> Iterator[pa.RecordBatch]:
    """A part as record batches, with its number of rows."""
    rows = [0, 0, 0]
    rows[2 if part.side >= COPIES else part.side] = part.rows.num_rows
    for number, row in enumerate(part.packed(spool)):
        yield _with_figures(row, None if number else rows)


def told(partitions: int, side: int, source: int, body: pa.Buffer, spool: Spool | None) -> Iterator[pa.RecordBatch]:
    """What a routing task tells all ranges (`to_all`), as record batches with no figures."""
    return (_with_figures(row, None) for row in to_all(partitions, side, source, body, spool))


def standing(
    partitions: int,
    before: Manifest,
    ranges: int,
    mark: int,
    gate: Punctuation | None = None,
    received: tuple[int, int] | None = None,
    facts: bytes | None = None,
) -> pa.RecordBatch:
    """The empty parts of a routing task, with its facts and the figures of the window and the gate.

    In a join with a gate, the task `received` rows of both sides; else None, where there are figures of `gate`.
    """
    blocks = [block for run in before.runs for piece in run.pieces for side in piece.blocks for block in side]
    window = [
        *(sum(run.statistics[side].rows for run in before.runs) for side in (0, 1)),
        sum(block.length for block in blocks),
        len(before.runs),
        before.merged_runs,
        ranges,
        sum(before.late.values()),
        before.overflowed,
    ]
    gated = [None] * len(GATE) if gate is None else [gate.bound, gate.position, gate.waiting, gate.lag]
    gated += list(received or (None, None))
    began = untold()
    work = [before.skew, round(1000 * began.starting), round(1000 * began.compiling)]
    return _with_figures(markers(partitions, mark, facts), [0, 0, 0, *window, *gated, *work])


def _with_figures(rows: pa.RecordBatch, first: Sequence[int | None] | None) -> pa.RecordBatch:
    figures = pa.array([first, *([None] * (rows.num_rows - 1))], pa.list_(pa.int64()))
    return pa.record_batch([*rows.columns, figures], schema=_SCHEMA)
