"""Physical sources of a join on Spark: the DataFrames of a side, and the sources within each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from streamjoin.model.errors import InputError, SchemaError, SpecError
from streamjoin.storage.blueprint import SourcePlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Source:
    """A streaming DataFrame as one or several physical sources of a side.

    The gate waits for every source it knows and orders equal times by the sources' names, and where the sources are the
    values of a column, by these values: partition 2 of a Kafka topic comes before partition 10.

    Args:
        frame: the streaming DataFrame.
        name: its name; default: its position in the side's list.
        by: a column whose values are the sources, such as a Kafka topic's `partition`.
        position: an integer column that increases along each source, such as Kafka's `offset`. It orders rows with
            equal times and determines exactly which rows are late. Without it, rows have the order in which Spark
            reads them, and rows of one batch are never late relative to each other.
        values: the values of `by` that the gate waits for from the start; others count from their first row on.
    """

    frame: DataFrame
    name: str | None = None
    by: str | None = None
    position: str | None = None
    values: Sequence[object] = ()

    def __post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name or "/" in self.name):
            raise SpecError(f"name={self.name!r}: a source's name is non-empty text without a slash")
        if self.values and self.by is None:
            raise SpecError("values= names sources by the values of a column: say which with by='...'")


def sources_of(side: object) -> list[Source]:
    """A side as a list of sources."""
    entries = list(side) if isinstance(side, (list, tuple)) else [side]
    if not entries:
        raise InputError("a side is a streaming DataFrame or a list of them; this list is empty")
    return [entry if isinstance(entry, Source) else Source(entry) for entry in entries]  # type: ignore[arg-type]


def source_plans(side: str, sources: Sequence[Source], schema: pa.Schema) -> tuple[SourcePlan, ...]:
    """The plans of a side's sources for the gate, checked against the side's columns."""
    plans = []
    for i, source in enumerate(sources):
        for column in (source.by, source.position):
            if column is not None and column not in schema.names:
                raise SchemaError(
                    f"the {side} side has no column {column!r} to identify sources; it has: {', '.join(schema.names)}"
                )
        if source.position is not None and not pa.types.is_integer(schema.field(source.position).type):
            raise SchemaError(
                f"position={source.position!r} is {schema.field(source.position).type}; a position is a whole number"
            )
        name = source.name if source.name is not None else f"{i:04}"
        values = tuple(str(value) for value in source.values)
        if source.by is not None:
            _check_values(values, source.by, schema.field(source.by).type)
        plans.append(SourcePlan(name, source.by, source.position, values))
    names = [plan.name for plan in plans]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"the {side} side has two sources called {name!r}; give each its own name")
    return tuple(plans)


def _check_values(values: tuple[str, ...], by: str, type_: pa.DataType) -> None:
    """Reject values that the column can't have, which the gate would await for ever, and types without an order."""
    try:
        pa.array(values, pa.string()).cast(type_)
    except pa.ArrowInvalid as error:
        raise SpecError(f"values={list(values)}: {by!r} is {type_} and can't have them: {error}") from error
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(f"by={by!r} is {type_}; sources are numbers, texts, booleans or times") from error


def needs_gate(sources: Sequence[Source]) -> bool:
    """Whether a side has several sources, or one with an order of its own."""
    return len(sources) > 1 or any(source.by is not None or source.position is not None for source in sources)
