"""Sinks as a checkpoint keeps them, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from streamjoin.adhoc.sinks import MemorySink, Sink, Target, Writer
from streamjoin.adhoc.sinks_files import ParquetSink
from streamjoin.adhoc.sinks_spark import KafkaSink, TableSink
from streamjoin.model.errors import CheckpointError, StateError

KINDS: dict[str, Any] = {sink.kind: sink for sink in (MemorySink, ParquetSink, KafkaSink, TableSink)}
"""The sinks that can be kept."""


@dataclass(frozen=True)
class LostSink:
    """Stands for a sink that a restart can't bring back; rows that come are kept until there is another."""

    query: str
    kind: ClassVar[str] = "lost"

    def open(self, target: Target) -> LostSink:  # noqa: ARG002
        """Itself."""
        return self

    def write(self, batch: int, rows: pa.Table) -> None:  # noqa: ARG002
        """Refuse the rows."""
        raise StateError(
            f"the sink of query {self.query!r} is a function, which a restart can't bring back: give it one with "
            "Engine.attach and resume the query"
        )

    def close(self) -> None:
        """Nothing to do."""

    def spec(self) -> None:
        """There is none."""

    def __str__(self) -> str:
        return "callback, to be attached again"


class OpenedLater:
    """A writer whose sink is opened when it is first written to, so that one that can't be fails its own query."""

    def __init__(self, sink: Sink, target: Target) -> None:
        self._sink, self._target = sink, target
        self._writer: Writer | None = None

    @property
    def together(self) -> Any:
        """What a common job must have in common; None where there is none."""
        return getattr(self.opened, "together", None)

    @property
    def opened(self) -> Writer:
        """The sink's own writer."""
        if self._writer is None:
            self._writer = self._sink.open(self._target)
        return self._writer

    def write(self, batch: int, rows: pa.Table) -> None:
        """Take the rows of a batch."""
        self.opened.write(batch, rows)

    def close(self) -> None:
        """Close it if it was opened."""
        if self._writer is not None:
            self._writer.close()


def sink_of(spec: dict[str, Any] | None, query: str) -> Sink:
    """The sink of a query by what `Sink.spec` gave.

    Raises:
        CheckpointError: there is no such kind of sink.
    """
    if spec is None:
        return LostSink(query)
    options = dict(spec)
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise CheckpointError(f"query {query!r} writes to a sink of kind {kind!r}, which this version does not know")
    found: Sink = KINDS[kind](**options)
    return found
