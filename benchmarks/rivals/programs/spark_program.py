"""Runs streaming SQL over files in Spark: reads tasks, one per line, and prints how long each took.

Each statement of a task is a streaming query; all start together and end with the files. A task may ask for
`sj.spark.join` instead of SQL, or only for what Spark says to a statement (`refusals`).
"""

import json
import sys
import time

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import streamjoin as sj

# What `benchmarks/spark/spark_workaround.py` measured as the best for Spark's own join.
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    "spark.sql.streaming.join.stateFormatVersion": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
}


def main() -> None:
    spark = None
    for line in sys.stdin:
        task = json.loads(line)
        if spark is None:
            config = {**SETTINGS, "spark.sql.shuffle.partitions": str(task["workers"])}
            spark = sj.spark.session("rivals", f"local[{task['workers']}]", memory="6g", config=config)
        if "refusals" in task:
            answer = {"refusals": refusals(spark, task)}
        else:
            seconds = []
            for number, part in enumerate(("warm", "warm", "whole")):
                began = time.perf_counter()
                run(spark, task, part, f"{task['out']}/{part if part == 'whole' else number}")
                seconds.append(time.perf_counter() - began)
            answer = {"start_up": seconds[1], "seconds": seconds[2], "version": pyspark.__version__}
        print("answer " + json.dumps(answer), flush=True)


def run(spark: SparkSession, task: dict, part: str, out: str) -> None:
    frames = {stream["name"]: read(spark, stream, stream[part]) for stream in task["streams"]}
    queries = []
    for number, query in enumerate(task["queries"]):
        joined = join(frames, query["join"]) if "join" in query else spark.sql(query["sql"])
        writer = joined.writeStream.format("parquet").option("path", f"{out}-{number}")
        writer = writer.option("checkpointLocation", f"{task['out']}/checkpoints/{out.rsplit('/', 1)[1]}-{number}")
        queries.append(writer.trigger(availableNow=True).start())
    for query in queries:
        query.awaitTermination()


def read(spark: SparkSession, stream: dict, path: str) -> "pyspark.sql.DataFrame":
    """A stream of one file per batch, also as a view of its name with a watermark."""
    schema = ", ".join(f"{name} {kind}" for name, kind in stream["columns"])
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)
    frame = frame.selectExpr("*", f"timestamp_millis({stream['time']}) AS {stream['time']}_at")
    frame.withWatermark(f"{stream['time']}_at", "0 seconds").createOrReplaceTempView(stream["name"])
    return frame


def join(frames: dict, wanted: dict) -> "pyspark.sql.DataFrame":
    """The same join by `sj.spark.join`."""
    window = f"{wanted['window']} ms"
    on = sj.Band("px", "rpx", wanted["band"]) if wanted["work"] == "band" else sj.Equi("sym", "rsym")
    match = {"match": sj.AsOf("backward", tolerance=window)} if wanted["work"] == "asof" else {}
    if not match:
        match = {"window": sj.TimeWindow(window)}
    spec = sj.JoinSpec(on=on, time=("ts_at", "rts_at"), order="event_time", **match)
    return sj.spark.join(frames["l"], frames["r"], spec).select("lid", "rid")


def refusals(spark: SparkSession, task: dict) -> dict:
    """What Spark says to each statement when it starts; None where it runs."""
    for stream in task["streams"]:
        columns = ", ".join(f"CAST(value AS {kind}) AS {name}" for name, kind in stream["columns"])
        frame = spark.readStream.format("rate").load().selectExpr(*columns.split(", "))
        frame = frame.selectExpr("*", f"timestamp_millis({stream['time']}) AS {stream['time']}_at")
        frame.withWatermark(f"{stream['time']}_at", "0 seconds").createOrReplaceTempView(stream["name"])
    answers = {}
    for name, sql in task["refusals"].items():
        try:
            spark.sql(sql).writeStream.format("noop").outputMode("append").start().stop()
            answers[name] = None
        except PySparkException as error:
            answers[name] = str(error).splitlines()[0]
    return answers


if __name__ == "__main__":
    main()
