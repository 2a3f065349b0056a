"""Finds the part of a pipeline file that a join rejects, so that the error can name its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from streamjoin.config.pipeline import Pipeline
from streamjoin.model.binding import bind
from streamjoin.model.errors import InputError, StreamJoinError
from streamjoin.model.predicates import JoinPredicate, Theta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def refused_part(pipeline: Pipeline, rows: Mapping[str, DataFrame]) -> str:
    """The part that does not match the columns of the sources, as a key of `Pipeline.lines`; else `join`."""
    for name, source in pipeline.sides.items():
        for key, column in (("by", source.by), ("position", source.position)):
            if column is not None and column not in rows[name].columns:
                return f"{name}.{key}"
    try:
        left, right = (_schema(rows[name]) for name in ("left", "right" if "right" in rows else "left"))
    except StreamJoinError:
        return "join"
    if any(column not in schema.names for column, schema in zip(_times(pipeline), (left, right), strict=False)):
        return "join.time"
    # The join fails with any condition, for example because of the window's unit.
    if not _binds(pipeline, Theta("1 = 1"), left, right):
        return "join"
    for number, term in enumerate(pipeline.spec.predicate.terms()):
        if not _binds(pipeline, term, left, right):
            return f"on.{number}"
    return "join.columns" if pipeline.join.columns is not None else "join"


def _times(pipeline: Pipeline) -> tuple[str, ...]:
    return tuple(pipeline.spec.time_columns or ())


def _schema(frame: DataFrame) -> pa.Schema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    except PySparkException as error:
        raise InputError(str(error)) from error


def _binds(pipeline: Pipeline, condition: JoinPredicate, left: pa.Schema, right: pa.Schema) -> bool:
    try:
        bind(replace(pipeline.spec, on=condition), left, right)
    except StreamJoinError:
        return False
    return True
