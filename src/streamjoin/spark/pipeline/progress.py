"""The join's figures of a running pipeline: the cost of its start, and each batch as a line of JSON in a file.

A line has the fields of `JoinProgress`. Lines are appended batch by batch and flushed, so that a file can be followed;
a batch that runs again after a restart has a second line.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rich.console import Console

from streamjoin.model.errors import PipelineFileError
from streamjoin.spark.progress import JoinProgress, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WORTH_A_WORD = 0.5
_KEEP = 10_000


class PipelineFigures:
    """Watches the joins of a session while it is open; open it before the query starts."""

    def __init__(self, spark: SparkSession, path: str | None, console: Console) -> None:
        self._spark = spark
        self._path = path
        self._console = console
        self._file: IO[str] | None = None
        self._taken = -1

    def __enter__(self) -> PipelineFigures:
        self._open = ExitStack()
        if self._path is not None:
            try:
                Path(self._path).parent.mkdir(parents=True, exist_ok=True)
                self._file = self._open.enter_context(Path(self._path).open("a", encoding="utf-8"))
            except OSError as error:
                raise PipelineFileError(f"progress = {self._path!r} can't be written: {error}") from error
        self._progress = Progress(self._spark, keep=_KEEP)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.close()
        self._open.close()

    def take(self, query: StreamingQuery, *, last: bool = False) -> None:
        """Write the new batches of a query; the last call waits for those that Spark is about to report."""
        if last:
            self._progress.settle()
        for figures in self._progress.of(query):
            if figures.batch > self._taken:
                self._taken = figures.batch
                self._write(figures)

    def _write(self, figures: JoinProgress) -> None:
        if self._file is not None:
            self._file.write(json.dumps(asdict(figures)) + "\n")
            self._file.flush()
        if message := beginning(figures):
            self._console.print(message, markup=False, highlight=False, soft_wrap=True)


def beginning(figures: JoinProgress) -> str | None:
    """A message about the time that a batch spent on starting and compiling; None if it was short."""
    parts = []
    if figures.start_seconds >= _WORTH_A_WORD:
        parts.append(f"{figures.start_seconds:.1f} s on starting Python")
    if figures.compile_seconds >= _WORTH_A_WORD:
        parts.append(f"{figures.compile_seconds:.1f} s on compiling kernels (`streamjoin warmup` avoids this)")
    return f"batch {figures.batch} spent {' and '.join(parts)}" if parts else None
