"""Joins on Spark Structured Streaming: the layer that imports pyspark, besides the executor of ad-hoc queries."""

from streamjoin.formats.delta import DeltaSink
from streamjoin.formats.iceberg import IcebergSink
from streamjoin.spark.progress import JoinProgress, Progress
from streamjoin.spark.runtime.session import session
from streamjoin.spark.sources import Source
from streamjoin.spark.stages.late import late
from streamjoin.spark.stages.punctuation import punctuations
from streamjoin.spark.stages.scaling import rescale
from streamjoin.spark.stream_join import join
from streamjoin.spark.tables import table_writer
from streamjoin.storage.settings import StorageSettings

__all__ = [
    "DeltaSink",
    "IcebergSink",
    "JoinProgress",
    "Progress",
    "Source",
    "StorageSettings",
    "join",
    "late",
    "punctuations",
    "rescale",
    "session",
    "table_writer",
]
