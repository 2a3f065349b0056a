"""Joins on Spark Structured Streaming: the only layer that imports pyspark."""
