"""The sources of a pipeline as streaming DataFrames, and their malformed records.

Every record is joined or is malformed; no record is dropped without being counted. `open_source` returns two frames:
malformed records are counted in the query's progress, and another query writes them if the file has a path for them.
`open_marked` returns both in one frame, for a reader that sets malformed records aside itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from streamjoin.config.pipeline import KAFKA_COLUMNS, PipelineSource, SourceFile, without_secrets
from streamjoin.formats.registry_values import RegistryFormat
from streamjoin.model.errors import PipelineFileError, SetupError
from streamjoin.spark.columns import quoted
from streamjoin.spark.runtime.internals import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

MALFORMED = "streamjoin_malformed_"
"""The prefix of the name of a side's count in Spark's observed metrics; the side follows."""

_CORRUPT = "__streamjoin_corrupt"
_DECIDING: Final = frozenset(
    ["maxoffsetspertrigger", "minoffsetspertrigger", "maxfilespertrigger", "maxbytespertrigger", "latestfirst"]
)
"""Options with which a file says itself what one batch takes; the newest files first must all be in one."""
_MOST_RECORDS: Final = "1000000"
_MOST_BYTES: Final = str(256 << 20)

MARK = "__streamjoin_malformed"
"""The column of a marked frame with the content of a malformed record; NULL for other records."""


@dataclass(frozen=True)
class SourceFrames:
    """One source: the rows to join, and the malformed records, if the source can have any."""

    rows: DataFrame
    malformed: DataFrame | None = None


@dataclass(frozen=True)
class Marked:
    """One source as one frame; `mark` is the column of malformed records, None if the source can't have any."""

    frame: DataFrame
    mark: str | None = None


@dataclass(frozen=True)
class _Decoded:
    """All records, which of them are malformed, the columns of a row, and those of a malformed record."""

    frame: DataFrame
    columns: tuple[Column, ...]
    bad: Column | None = None
    about: tuple[Column, ...] = ()


def open_source(spark: SparkSession, pipeline: SourceFile, side: str) -> SourceFrames:
    """The streams of one side.

    Raises:
        PipelineFileError: the schema, `select` or `where` is not what Spark takes; the message names the line.
        SetupError: Spark has no Kafka connector.
    """
    records = _decoded(spark, pipeline, side)
    if records.bad is None:
        return SourceFrames(_chosen(records.frame.select(*records.columns), pipeline, side))
    with at_line(pipeline, f"{side}.schema", pipeline.sides[side]):
        good = _counted(records.frame, side, records.bad).where(~records.bad).select(*records.columns)
        malformed = records.frame.where(records.bad).select(*records.about)
    return SourceFrames(_chosen(good, pipeline, side), malformed)


def open_marked(spark: SparkSession, pipeline: SourceFile, side: str) -> Marked:
    """The stream with its malformed records, so that one reader gets every record exactly once.

    Raises:
        PipelineFileError: the schema, `select` or `where` is not what Spark takes; the message names the line.
        SetupError: Spark has no Kafka connector.
    """
    from pyspark.sql import functions as F  # noqa: N812

    records = _decoded(spark, pipeline, side)
    if records.bad is None:
        return Marked(_chosen(records.frame.select(*records.columns), pipeline, side))
    with at_line(pipeline, f"{side}.schema", pipeline.sides[side]):
        mark = F.when(records.bad, F.struct(*records.about)).alias(MARK)
        frame = records.frame.select(*records.columns, mark)
    rows = _chosen(frame.where(F.col(MARK).isNull()).drop(MARK), pipeline, side)
    return Marked(_guarded(frame, rows, pipeline.sides[side]) or _both(frame, rows), MARK)


def checked_source(spark: SparkSession, pipeline: SourceFile, side: str) -> DataFrame:
    """A stream with the columns of one side that reads nothing and needs no file or broker.

    Raises:
        PipelineFileError: the schema, `select` or `where` is not what Spark takes; the message names the line.
    """
    records = _decoded(spark, pipeline, side, _unread)
    return _chosen(records.frame.select(*records.columns), pipeline, side)


def bounded_options(source: PipelineSource) -> Mapping[str, str]:
    """The source's options, with a bound on what one batch takes of a backlog unless they say it themselves."""
    if not _DECIDING.isdisjoint(key.lower() for key in source.options):
        return source.options
    if source.format == "kafka":
        return {**source.options, "maxOffsetsPerTrigger": _MOST_RECORDS}
    return source.options if source.path is None else {**source.options, "maxBytesPerTrigger": _MOST_BYTES}


Load = Callable[["SparkSession", PipelineSource, "StructType | None", Mapping[str, str]], "DataFrame"]
"""A source's records, from its schema where it has one, and further options."""


def _read(
    spark: SparkSession, source: PipelineSource, schema: StructType | None, options: Mapping[str, str]
) -> DataFrame:
    reader = spark.readStream.format(source.format).options(**bounded_options(source)).options(**options)
    reader = reader if schema is None else reader.schema(schema)
    return reader.load() if source.path is None else reader.load(source.path)


def _unread(spark: SparkSession, source: PipelineSource, schema: StructType | None, _: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    own = _RECORDS.get(source.format, {})
    types = own if schema is None else {field.name: field.dataType for field in schema.fields}
    nothing = spark.readStream.format("rate").load()
    return nothing.select(*(F.lit(None).cast(kind).alias(name) for name, kind in types.items()))


_RECORDS: Mapping[str, Mapping[str, str]] = {
    "rate": {"timestamp": "timestamp", "value": "bigint"},
    "kafka": {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
    },
}
"""The columns of formats with a fixed schema."""


def _decoded(spark: SparkSession, pipeline: SourceFile, side: str, load: Load = _read) -> _Decoded:
    from pyspark.sql import functions as F  # noqa: N812

    source = pipeline.sides[side]
    if source.format == "kafka":
        return _kafka(spark, pipeline, side, load)
    if source.format == "rate":
        with at_line(pipeline, side, source):
            return _Decoded(load(spark, source, None, {}), (F.col("*"),))
    return _files(spark, pipeline, side, load)


def _chosen(rows: DataFrame, pipeline: SourceFile, side: str) -> DataFrame:
    """The rows after the file's `where`, with the columns of its `select`."""
    source = pipeline.sides[side]
    if source.where is not None:
        with at_line(pipeline, f"{side}.where", source):
            rows = rows.where(source.where)
    if source.select:
        with at_line(pipeline, f"{side}.select", source):
            rows = rows.selectExpr(*source.select)
    return rows


def _guarded(frame: DataFrame, rows: DataFrame, source: PipelineSource) -> DataFrame | None:
    """`rows` and the malformed records in one pass; None where `select` does not give one column an expression.

    What the file says is never computed of a malformed record: it could fail on what there is not.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    good = F.col(MARK).isNull()
    if source.where is not None:
        frame = frame.where(F.when(good, F.expr(source.where)).otherwise(True))
    if not source.select:
        return frame
    if len(source.select) != len(rows.columns):
        return None
    expressions = zip(source.select, rows.columns, strict=True)
    try:
        guarded = frame.select(*(F.when(good, F.expr(text)).alias(name) for text, name in expressions), MARK)
    except AnalysisException:
        # For example explode, which can't be nested in another expression.
        return None
    same = [field.dataType for field in guarded.schema][:-1] == [field.dataType for field in rows.schema]
    return guarded if same else None


def _both(frame: DataFrame, rows: DataFrame) -> DataFrame:
    """The same result as `_guarded`, by reading everything twice."""
    from pyspark.sql import functions as F  # noqa: N812

    kind = frame.schema[MARK].dataType
    empty = (F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema)
    bad = frame.where(F.col(MARK).isNotNull()).select(*empty, MARK)
    return rows.select("*", F.lit(None).cast(kind).alias(MARK)).unionAll(bad)


@contextlib.contextmanager
def at_line(pipeline: SourceFile, part: str, source: PipelineSource | None = None) -> Iterator[None]:
    """Turn an error of Spark about a part of the file into an error with its line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        message = without_secrets(_first_line(error), pipeline.conf, source.options if source else {})
        if "kafka" in message.lower() and "data source" in message.lower():
            raise SetupError("Spark has no Kafka connector: `streamjoin doctor` says how to get it") from error
        raise PipelineFileError(f"{pipeline.file}, line {pipeline.lines.get(part, 1)}: {message}") from error


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).strip().splitlines() if line.strip()), type(error).__name__)


def _kafka(spark: SparkSession, pipeline: SourceFile, side: str, load: Load) -> _Decoded:
    from pyspark.sql import functions as F  # noqa: N812

    source = pipeline.sides[side]
    with at_line(pipeline, side, source):
        records = load(spark, source, None, {})
    extra = [F.col(name).alias(as_name) for name, as_name in source.metadata.items()]
    if not source.can_be_malformed:
        kind = "string" if source.decode == "text" else "binary"
        columns = extra or [F.col(name) for name in KAFKA_COLUMNS]
        return _Decoded(records, (F.col("value").cast(kind).alias("value"), *columns))
    schema = _schema(pipeline, side)
    about = tuple(F.col(name) for name in (*KAFKA_COLUMNS, "value"))
    rows = [F.col("__row").getField(name).alias(name) for name in schema.names]
    if source.registry is not None:
        with at_line(pipeline, f"{side}.schema", source):
            parsed = _by_registry(records.select(*about), schema, source)
        return _Decoded(parsed, (*rows, *extra), F.col("__row").isNull(), about)
    text = F.col("value").cast("string")
    options = {**source.decode_options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    with at_line(pipeline, f"{side}.schema", source):
        whole = _with_corrupt(schema)
        decoded = F.from_json(text, whole, options) if source.decode == "json" else _from_csv(text, whole, options)
        parsed = records.withColumn("__row", decoded)
    bad = F.col("__row").isNull() | F.col(f"__row.{_CORRUPT}").isNotNull() | (F.trim(text) == "") | text.isNull()
    return _Decoded(parsed.withColumn("__bad", bad), (*rows, *extra), F.col("__bad"), about)


def _by_registry(records: DataFrame, schema: StructType, source: PipelineSource) -> DataFrame:
    """Records with the rows of their values as `__row`, which is NULL for a malformed one; tasks ask the registry."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    columns = to_arrow_schema(schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    form = RegistryFormat(source.decode, source.registry or "", source.decode_options)
    # What is missing or wrong is said now, and not by a task.
    form.decoder(columns)
    with_rows = StructType([*records.schema.fields, StructField("__row", schema)])
    return map_in_arrow(records, partial(_decode_values, form, columns), with_rows, "streamjoin_decode")


def _decode_values(
    form: RegistryFormat, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    decode = form.decoder(columns)
    for batch in batches:
        rows, good = decode(batch.column("value").to_pylist())
        places = np.where(good, np.cumsum(good) - 1, -1)
        indexes = pa.array(places, pa.int64(), mask=~good)
        fields = [column.combine_chunks().take(indexes) for column in rows.columns]
        structs = pa.StructArray.from_arrays(fields, fields=list(columns), mask=pa.array(~good))
        yield pa.RecordBatch.from_arrays([*batch.columns, structs], [*batch.schema.names, "__row"])


def _from_csv(text: Column, schema: StructType, options: dict[str, str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    # from_csv accepts the schema only as text.
    return F.from_csv(text, schema.toDDL(), options)


def _files(spark: SparkSession, pipeline: SourceFile, side: str, load: Load) -> _Decoded:
    from pyspark.sql import functions as F  # noqa: N812

    source = pipeline.sides[side]
    schema = _schema(pipeline, side)
    if not source.can_be_malformed:
        with at_line(pipeline, side, source):
            return _Decoded(load(spark, source, schema, {}), (F.col("*"),))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "columnPruning": "false"}
    with at_line(pipeline, side, source):
        read = load(spark, source, _with_corrupt(schema), options)
    columns = [F.col(quoted(name)) for name in schema.names]
    place = F.col("_metadata.file_path").alias("file")
    # The columns that could be read are kept too: Spark rejects a query of the malformed column alone.
    read_of_it = F.to_json(F.struct(*columns)).alias("read")
    about = (place, F.col(_CORRUPT).alias("value"), read_of_it)
    return _Decoded(read, tuple(columns), F.col(_CORRUPT).isNotNull(), about)


def _counted(frame: DataFrame, side: str, bad: Column) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    # The count uses all columns: a reader of some columns would not notice errors in the others.
    columns = [quoted(name) for name in frame.columns]
    return frame.observe(MALFORMED + side, F.count(F.when(bad, F.struct(*columns))).alias("rows"))


def _schema(pipeline: SourceFile, side: str) -> StructType:
    from pyspark.sql.types import StructType

    with at_line(pipeline, f"{side}.schema"):
        schema = StructType.fromDDL(pipeline.sides[side].schema or "")
    if not isinstance(schema, StructType):
        place = f"{pipeline.file}, line {pipeline.lines[f'{side}.schema']}"
        raise PipelineFileError(f"{place}: the schema is one type, not columns: write 'ts TIMESTAMP, px DOUBLE'")
    return schema


def _with_corrupt(schema: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(_CORRUPT, StringType())])
