"""A program that joins files into Parquet with its checkpoint in a store, and ends; tests kill it meanwhile."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from streamjoin.spark import session
from streamjoin.spark.stream_join import Options, build
from streamjoin.storage.merging import MergePolicy
from tests.conftest import QUICK_START
from tests.spark.joining import CASES, streams

CASE = next(case for case in CASES if case.name == "key, two bands and a condition")
BACKGROUND = MergePolicy(slack=150, floor=0, runs=3, inline=0)


def main(directory: Path, checkpoint: str, storage: str, jars: str) -> None:
    config = {**QUICK_START, "spark.jars": jars, "spark.sql.streaming.fileSink.log.compactInterval": 1000}
    spark = session("store", "local[2]", memory="512m", config=config, storage=json.loads(storage))
    sides = streams(spark, directory, CASE.left, CASE.right, 1)
    frame = build(*sides, CASE.bound_spec(), Options(partitions=2), BACKGROUND)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    writer.option("path", str(directory / "out")).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
