"""The sources of a pipeline as streaming DataFrames, and what of them could not be decoded.

Every record goes one of two ways: into the join, or to the malformed ones, which are counted in the query's own
progress and, where the file names a path, written there by a query of their own. None is dropped without a count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamjoin.model.errors import PipelineFileError, SetupError
from streamjoin.spark.pipeline_config import KAFKA_COLUMNS, Source, SourceFile, without_secrets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

MALFORMED = "streamjoin_malformed_"
"""The name of a side's count in Spark's observed metrics; the side follows."""

_CORRUPT = "__streamjoin_corrupt"


@dataclass(frozen=True)
class Streams:
    """One source: the rows to join, and the malformed records where there can be any."""

    rows: DataFrame
    malformed: DataFrame | None = None


def open_source(spark: SparkSession, pipeline: SourceFile, side: str) -> Streams:
    """The streams of one side, or of one stream of a service.

    Raises:
        PipelineFileError: the schema, `select` or `where` is not what Spark takes; the message names the line.
        SetupError: Spark has no Kafka connector.
    """
    source = pipeline.sides[side]
    if source.format == "kafka":
        streams = _kafka(spark, pipeline, side)
    elif source.format == "rate":
        with at_line(pipeline, side, source):
            streams = Streams(spark.readStream.format("rate").options(**source.options).load())
    else:
        streams = _files(spark, pipeline, side)
    rows = streams.rows
    if source.where is not None:
        with at_line(pipeline, f"{side}.where", source):
            rows = rows.where(source.where)
    if source.select:
        with at_line(pipeline, f"{side}.select", source):
            rows = rows.selectExpr(*source.select)
    return Streams(rows, streams.malformed)


@contextlib.contextmanager
def at_line(pipeline: SourceFile, part: str, source: Source | None = None) -> Iterator[None]:
    """Make Spark's refusal of what the file says an error of that line."""
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


def _kafka(spark: SparkSession, pipeline: SourceFile, side: str) -> Streams:
    from pyspark.sql import functions as F  # noqa: N812

    source = pipeline.sides[side]
    with at_line(pipeline, side, source):
        records = spark.readStream.format("kafka").options(**source.options).load()
    extra = [F.col(name).alias(as_name) for name, as_name in source.metadata.items()]
    if not source.can_be_malformed:
        kind = "string" if source.decode == "text" else "binary"
        columns = extra or [F.col(name) for name in KAFKA_COLUMNS]
        return Streams(records.select(F.col("value").cast(kind).alias("value"), *columns))
    schema = _schema(pipeline, side)
    text = F.col("value").cast("string")
    options = {**source.decode_options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    with at_line(pipeline, f"{side}.schema", source):
        whole = _with_corrupt(schema)
        decoded = F.from_json(text, whole, options) if source.decode == "json" else _from_csv(text, whole, options)
        parsed = records.withColumn("__row", decoded)
    bad = F.col("__row").isNull() | F.col(f"__row.{_CORRUPT}").isNotNull() | (F.trim(text) == "") | text.isNull()
    counted = parsed.withColumn("__bad", bad)
    rows = [F.col("__row").getField(name).alias(name) for name in schema.names]
    with at_line(pipeline, f"{side}.schema", source):
        good = _counted(counted, side, F.col("__bad")).where(~F.col("__bad")).select(*rows, *extra)
    kept = [F.col(name) for name in (*KAFKA_COLUMNS, "value")]
    return Streams(good, counted.where(F.col("__bad")).select(*kept))


def _from_csv(text: Column, schema: StructType, options: dict[str, str]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    # from_csv takes the schema as text only.
    return F.from_csv(text, schema.toDDL(), options)


def _files(spark: SparkSession, pipeline: SourceFile, side: str) -> Streams:
    from pyspark.sql import functions as F  # noqa: N812

    source = pipeline.sides[side]
    schema = _schema(pipeline, side)
    reader = spark.readStream.format(source.format).options(**source.options)
    if not source.can_be_malformed:
        with at_line(pipeline, side, source):
            return Streams(reader.schema(schema).load(source.path))
    reader = reader.options(mode="PERMISSIVE", columnNameOfCorruptRecord=_CORRUPT, columnPruning="false")
    with at_line(pipeline, side, source):
        read = reader.schema(_with_corrupt(schema)).load(source.path)
        bad = F.col(_CORRUPT).isNotNull()
        good = _counted(read, side, bad).where(~bad).drop(_CORRUPT)
        places = F.col("_metadata.file_path").alias("file")
        # What could be read of it is kept too; without it Spark would refuse to read the malformed alone.
        read_of_it = F.to_json(F.struct(*schema.names)).alias("read")
        malformed = read.where(bad).select(places, F.col(_CORRUPT).alias("value"), read_of_it)
    return Streams(good, malformed)


def _counted(frame: DataFrame, side: str, bad: Column) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    # All columns are named in the count: a reader that is asked for some of them would not see what is wrong elsewhere.
    return frame.observe(MALFORMED + side, F.count(F.when(bad, F.struct(*frame.columns))).alias("rows"))


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
