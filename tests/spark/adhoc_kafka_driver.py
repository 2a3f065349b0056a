"""A program that runs ad-hoc engines from a Kafka topic and files to Kafka topics, until all rows are out.

In the first one the driver joins, and in the second one tasks do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from streamjoin.adhoc import Engine, KafkaSink, Settings
from streamjoin.spark import session
from streamjoin.spark.runtime import jars
from tests.conftest import QUICK_START
from tests.spark.adhoc_streams import PAIRS, FileStream


def main(directory: Path, servers: str) -> None:
    config = {**QUICK_START, **jars.classpath_setting({}, jars.fetch())}
    spark = session("adhoc kafka", "local[2]", memory="512m", config=config)
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    values = read.option("subscribe", "adhoc-left").option("startingOffsets", "earliest").load()
    left = values.selectExpr("from_json(CAST(value AS STRING), 'k BIGINT, p BIGINT, ts TIMESTAMP_NTZ') AS row")
    engine = Engine(spark, directory / "checkpoint")
    engine.register("l", left.select("row.*"), lateness="1 minute")
    engine.register("r", FileStream(directory / "r").frame(spark), lateness="1 minute")
    engine.create(PAIRS, name="all", sink=KafkaSink(servers, "adhoc-all", key="a"))
    engine.create(PAIRS + " WHERE y.p > 20", name="some", sink=KafkaSink(servers, "adhoc-some"))
    # Nobody listens there.
    options = {"kafka.max.block.ms": "2000", "kafka.sasl.jaas.config": "password=hunter2"}
    engine.create(PAIRS, name="nowhere", sink=KafkaSink("127.0.0.1:9", "adhoc-all", options=options))
    with engine:
        engine.process_all_available()
        states = {info.name: [info.state, info.rows, info.error, info.sink] for info in engine.queries()}
    # With patience no row goes into the spool, for which the driver would read it.
    settings = Settings(newest_rows=1, sink_patience=100.0)
    engine = Engine(spark, directory / "tasks", settings, executor="distributed")
    engine.register("l", left.select("row.*"), lateness="1 minute")
    engine.register("r", FileStream(directory / "r").frame(spark), lateness="1 minute")
    for name, key in (("all", "a"), ("some", None)):
        engine.create(PAIRS, name=name, sink=KafkaSink(servers, f"adhoc-{name}-tasks", key=key))
    with engine:
        engine.process_all_available()
        states["tasks"] = [engine.query("all").rows, engine.metrics().driver_rows]
    (directory / "states.json").write_text(json.dumps(states))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
