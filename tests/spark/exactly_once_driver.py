"""A program that joins the files under a directory into Parquet and ends; the test kills it while it runs."""

from __future__ import annotations

import sys
from pathlib import Path

from streamjoin.spark import session
from streamjoin.spark.plan import Options, build
from tests.conftest import QUICK_START
from tests.spark.joining import CASES, EAGER, streams


def main(directory: Path, name: str, partitions: int) -> None:
    case = next(case for case in CASES if case.name == name)
    spark = session("exactly once", "local[2]", memory="512m", config=QUICK_START)
    left, right = streams(spark, directory, case.left, case.right)
    query = (
        build(left, right, case.bound_spec(), Options(partitions), EAGER)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "out"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
