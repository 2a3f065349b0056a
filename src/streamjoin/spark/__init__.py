"""Joins on Spark Structured Streaming: the layer that imports pyspark, besides the executor of ad-hoc queries."""

from streamjoin.spark.progress import JoinProgress, Progress
from streamjoin.spark.runtime.session import session
from streamjoin.spark.sources import Source
from streamjoin.spark.stages.late import late
from streamjoin.spark.stages.punctuation import punctuations
from streamjoin.spark.stages.scaling import rescale
from streamjoin.spark.stream_join import join

__all__ = ["JoinProgress", "Progress", "Source", "join", "late", "punctuations", "rescale", "session"]
