"""A program that joins the files under a directory on a cluster and ends; the test kills executors while it runs."""

from __future__ import annotations

import sys
from pathlib import Path

from streamjoin.spark import join, session
from tests.conftest import QUICK_START
from tests.spark.joining import CASES, run_to_parquet, streams

EXECUTORS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": 1,
    "spark.task.maxFailures": 4,
}


def main(directory: Path, name: str, master: str) -> None:
    case = next(case for case in CASES if case.name == name)
    spark = session("cluster", master, memory="512m", config={**QUICK_START, **EXECUTORS})
    try:
        left, right = streams(spark, directory, case.left, case.right)
        run_to_parquet(join(left, right, case.bound_spec(), partitions=3), directory)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
