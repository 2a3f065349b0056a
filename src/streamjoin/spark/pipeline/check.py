"""`streamjoin run --check`: checks a pipeline file with Spark and the join; nothing is read or written.

The sources are replaced by streams with the same columns that read nothing, so no files, brokers or cluster are needed.
A local Spark parses types and expressions, and the join is bound to the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamjoin.config.pipeline import Pipeline
from streamjoin.spark.pipeline.run import join_streams, sent
from streamjoin.spark.pipeline.sources import checked_source
from streamjoin.spark.runtime.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SQL = "spark.sql."
_ELSEWHERE = ("spark.sql.catalog", "spark.sql.extensions", "spark.sql.warehouse", "spark.sql.hive")
"""Settings that a check ignores, because they need classes or locations."""


def check_pipeline(pipeline: Pipeline, spark: SparkSession | None = None) -> str:
    """The columns of the result. Uses `spark`, or starts a session and stops it.

    Raises:
        PipelineFileError: Spark or the join rejects part of the file; the message names the line.
        SetupError: there is no pyspark or no Java.
    """
    started = _session(pipeline) if spark is None else spark
    try:
        rows = {name: checked_source(started, pipeline, name) for name in pipeline.sides}
        joined = join_streams(pipeline, rows)
        sent(joined, pipeline)
        return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in joined.schema)
    finally:
        if spark is None:
            started.stop()


def _session(pipeline: Pipeline) -> SparkSession:
    conf = {
        key: value for key, value in pipeline.conf.items() if key.startswith(_SQL) and not key.startswith(_ELSEWHERE)
    }
    return session(f"{pipeline.name}: check", "local[1]", config=conf)
