"""Joins on Spark Structured Streaming: the only layer that imports pyspark."""

from streamjoin.spark.late import late
from streamjoin.spark.plan import join
from streamjoin.spark.session import session

__all__ = ["join", "late", "session"]
