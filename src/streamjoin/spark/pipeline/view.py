"""The output of a running pipeline: one line that is redrawn on a terminal, one line per batch elsewhere.

The figures come from Spark's own progress reports; the rows out and the malformed ones are counted inside the query by
observed metrics, so that they are the same for every sink.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from streamjoin.config.pipeline import Pipeline, PipelineSink, PipelineSource
from streamjoin.config.pipeline import shown as shown_options
from streamjoin.spark.pipeline.sources import MALFORMED, bounded_options
from streamjoin.spark.stages.figures import BatchFigures

ROWS_OUT = "streamjoin_rows_out"


@dataclass(frozen=True)
class ReportedBatch:
    """One batch that had rows, as Spark reported it."""

    number: int
    rows_in: int
    rows_out: int
    seconds: float
    malformed: Mapping[str, int] = field(default_factory=dict)
    figures: BatchFigures | None = None
    self_join: bool = False

    def __str__(self) -> str:
        bad = "".join(f", {count:,} malformed on the {side}" for side, count in self.malformed.items() if count)
        rate = f"{self.rows_in / self.seconds:,.0f} rows/s" if self.seconds > 0 else "-"
        if self.figures is None:
            text = f"{self.rows_in:,} rows in, {self.rows_out:,} out"
        else:
            text = self.figures.text(self.rows_out, self.seconds, self_join=self.self_join)
        return f"batch {self.number}: {text}, {rate}{bad}"


@dataclass
class Totals:
    """The batches of this start so far; each is counted once."""

    self_join: bool = False
    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    malformed: dict[str, int] = field(default_factory=dict)
    last: ReportedBatch | None = None

    def take(self, progress: Iterable[Mapping[str, Any]]) -> list[ReportedBatch]:
        """Add new batches; Spark also reports idle triggers, with the number of the next batch."""
        fresh = []
        for report in progress:
            batch = batch_of(report, self_join=self.self_join)
            if batch is None or (self.last is not None and batch.number <= self.last.number):
                continue
            self.last = batch
            self.batches += 1
            self.rows_in += batch.rows_in
            self.rows_out += batch.rows_out
            for side, count in batch.malformed.items():
                self.malformed[side] = self.malformed.get(side, 0) + count
            fresh.append(batch)
        return fresh

    def __str__(self) -> str:
        bad = f", {sum(self.malformed.values()):,} malformed" if self.malformed else ""
        batches = f"{self.batches:,} batch{'' if self.batches == 1 else 'es'}"
        return f"{batches}, {self.rows_in:,} rows in, {self.rows_out:,} out{bad}"


def batch_of(report: Mapping[str, Any], *, self_join: bool = False) -> ReportedBatch | None:
    """The batch in one of Spark's progress reports; None for an idle trigger.

    The batch that is the end of input has no rows in; Spark's own batches without rows give none out either.
    """
    observed = report["observedMetrics"] or {}
    if not report["numInputRows"] and not _observed(observed.get(ROWS_OUT)):
        return None
    return ReportedBatch(
        number=report["batchId"],
        rows_in=report["numInputRows"],
        rows_out=_observed(observed.get(ROWS_OUT)),
        seconds=(report["durationMs"] or {}).get("triggerExecution", 0) / 1000,
        malformed={
            name.removeprefix(MALFORMED): _observed(metric)
            for name, metric in sorted(observed.items())
            if name.startswith(MALFORMED)
        },
        figures=BatchFigures.of(observed, "join"),
        self_join=self_join,
    )


def _observed(metric: Any) -> int:
    return 0 if metric is None else int(metric["rows"] or 0)


@contextlib.contextmanager
def shown(console: Console, totals: Totals, *, wanted: bool) -> Iterator[Callable[[list[ReportedBatch]], None]]:
    """A function that shows new batches, if they are wanted."""
    if not wanted:
        yield lambda _: None
        return
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda fresh: _print(console, fresh)
        return
    with Live(Text("waiting for rows ..."), console=console, auto_refresh=False, transient=True) as live:

        def redraw(fresh: list[ReportedBatch]) -> None:
            if fresh:
                live.update(Text(f"{fresh[-1]}\n{totals}"), refresh=True)

        yield redraw


def _print(console: Console, fresh: list[ReportedBatch]) -> None:
    for batch in fresh:
        console.print(str(batch), markup=False, highlight=False, soft_wrap=True)


def describe(pipeline: Pipeline) -> str:
    """A description of a pipeline file, without its secrets."""
    spec = pipeline.spec
    left, right = spec.windows
    lines = [f"{name}: {_origin(source)}" for name, source in pipeline.sides.items()]
    windows = f"window {left}" if left == right else f"window {left} on the left, {right} on the right"
    how = "" if spec.how == "inner" else f"{spec.how} "
    about = windows if spec.match is None else f"as of {spec.match}"
    lines.append(f"{how}join: {spec.predicate}, {about}{', one stream with itself' if spec.self_join else ''}")
    settings = {key: value for key, value in asdict(pipeline.join).items() if value not in (None, False)}
    if settings:
        lines.append("run with: " + ", ".join(f"{key} = {value}" for key, value in settings.items()))
    lines.append(f"sink: {_goal(pipeline.sink)}")
    lines.append(f"checkpoint: {pipeline.checkpoint or 'none: everything is forgotten at the end'}")
    lines.append(f"trigger: {pipeline.trigger}")
    if pipeline.progress is not None:
        lines.append(f"progress: {pipeline.progress}")
    return "\n".join(lines)


def _origin(source: PipelineSource) -> str:
    what = f"{source.format} {source.path}" if source.path else source.format
    return f"{what}{_options(bounded_options(source))}"


def _goal(sink: PipelineSink) -> str:
    return f"{sink.format} {sink.path or sink.name or ''}".rstrip() + _options(sink.options)


def _options(options: Mapping[str, str]) -> str:
    return f" ({shown_options(options)})" if options else ""
