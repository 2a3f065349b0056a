"""A program that joins the files under a directory into Parquet and ends; the test kills it while it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from streamjoin.spark import Source, session
from streamjoin.spark.merging import MergePolicy
from streamjoin.spark.plan import Options, build
from tests.conftest import QUICK_START
from tests.spark.joining import CASES, streams
from tests.spark.three_sources import SPEC, read_source

TIME_CASE = next(case for case in CASES if case.name == "key, two bands and a condition")
# Batches fold only what is tiny, so that merges run in the background.
BACKGROUND = MergePolicy(slack=150, floor=0, runs=3, inline=0)


def joined(spark: Any, directory: Path, kind: str, partitions: int) -> Any:
    if kind == "time":
        sides = streams(spark, directory, TIME_CASE.left, TIME_CASE.right)
        return build(*sides, TIME_CASE.bound_spec(), Options(partitions, most_partitions=4), BACKGROUND)
    a, b, c = (Source(read_source(spark, directory / name), position="id") for name in "abc")
    options = Options(partitions, most_partitions=4, ordered=True, positions=True)
    return build([a, b], c, SPEC, options, BACKGROUND)


def main(directory: Path, kind: str, partitions: int) -> None:
    # A task whose worker is killed is run again, up to three times.
    spark = session("exactly once", "local[2,4]", memory="512m", config=QUICK_START)
    query = (
        joined(spark, directory, kind, partitions)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "out"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
