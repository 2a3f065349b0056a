"""Sinks as a checkpoint keeps them, and back.

The invariant: no secret is in a checkpoint. A sink that has one is kept by its name, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from streamjoin.formats.delta import DeltaSink
from streamjoin.formats.iceberg import IcebergSink
from streamjoin.model.errors import CheckpointError, SpecError, StateError, StreamJoinError
from streamjoin.queries.sinks.base import MemorySink, Sink, SinkCapabilities, Target, Writer, capabilities
from streamjoin.queries.sinks.files import ParquetSink
from streamjoin.queries.sinks.spark import KafkaSink, TableSink

KINDS: dict[str, Any] = {
    sink.kind: sink for sink in (MemorySink, ParquetSink, KafkaSink, TableSink, DeltaSink, IcebergSink)
}
"""The sinks that can be kept."""


NamedSinks = Callable[[str, str], Sink]
"""The sink of a name for a query; an error where there is none."""
_LOST: Final = (
    "a restart can't bring back the sink of query {query!r}, because it is a function or has secrets in its options: "
    "give it one with Engine.attach and resume the query"
)


@dataclass(frozen=True)
class NamedSink:
    """A sink that whoever runs the engine knows by a name, and gives again after a restart (`Engine(sinks=...)`).

    The checkpoint keeps the name alone: passwords are not in it, and another address counts from the next start on.
    """

    name: str
    sink: Sink
    kind: ClassVar[str] = "named"

    def open(self, target: Target) -> Writer:
        """The sink's own writer."""
        return self.sink.open(target)

    @property
    def capabilities(self) -> SinkCapabilities:
        """Those of the sink."""
        return capabilities(self.sink)

    def spec(self) -> dict[str, Any]:
        """The name."""
        return {"kind": self.kind, "name": self.name}

    def __str__(self) -> str:
        return str(self.sink)


@dataclass(frozen=True)
class LostSink:
    """Stands for a sink that a restart can't bring back; rows that come are kept until there is another.

    `kept` is what the checkpoint has of it, so that a later start may find it again.
    """

    query: str
    why: str
    kept: Mapping[str, Any] | None = None
    kind: ClassVar[str] = "lost"

    @property
    def lost(self) -> str:
        """Why."""
        return self.why

    def open(self, target: Target) -> LostSink:  # noqa: ARG002
        """Itself."""
        return self

    def write(self, batch: int, rows: pa.Table) -> None:  # noqa: ARG002
        """Refuse the rows."""
        raise StateError(self.why)

    def close(self) -> None:
        """Nothing to do."""

    def spec(self) -> dict[str, Any] | None:
        """What the checkpoint has."""
        return None if self.kept is None else dict(self.kept)

    def __str__(self) -> str:
        return "to be attached again" if self.kept is None else f"{self.kept['name']}, which is gone"


class OpenedLater:
    """A writer whose sink is opened when it is first written to, so that one that can't be fails its own query."""

    def __init__(self, sink: Sink, target: Target) -> None:
        self._sink, self._target = sink, target
        self._writer: Writer | None = None

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


def sink_of(spec: dict[str, Any] | None, query: str, named: NamedSinks | None = None) -> Sink:
    """The sink of a query by what `Sink.spec` gave.

    Raises:
        CheckpointError: there is no such kind of sink.
    """
    if spec is None:
        return LostSink(query, _LOST.format(query=query))
    options = dict(spec)
    kind = options.pop("kind", None)
    if kind == NamedSink.kind:
        return _named(spec, query, named)
    if kind not in KINDS:
        raise CheckpointError(f"query {query!r} writes to a sink of kind {kind!r}, which this version does not know")
    sink: Sink = KINDS[kind](**options)
    return sink


def _named(spec: dict[str, Any], query: str, named: NamedSinks | None) -> Sink:
    name = str(spec["name"])
    try:
        if named is None:
            raise SpecError(
                f"query {query!r} writes to the sink {name!r}: give Engine(sinks=...) a function that knows it"
            )
        return NamedSink(name, named(name, query))
    except StreamJoinError as error:
        return LostSink(query, str(error), spec)
