"""Joins on Spark Structured Streaming: the layer that imports pyspark, besides the executor of ad-hoc queries."""

from streamjoin.spark.late import late
from streamjoin.spark.plan import join
from streamjoin.spark.progress import JoinProgress, Progress
from streamjoin.spark.punctuation import punctuations
from streamjoin.spark.rescaling import rescale
from streamjoin.spark.session import session
from streamjoin.spark.sources import Source

__all__ = ["JoinProgress", "Progress", "Source", "join", "late", "punctuations", "rescale", "session"]
