"""Joins on Spark Structured Streaming beside what Spark itself offers."""
