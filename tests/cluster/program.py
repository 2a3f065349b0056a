"""The driver's program: joins of every kind on a cluster, checkpoints in a store, Python brought by an archive."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from streamjoin.spark import session
from tests.spark.exactly_once_driver import KINDS, joined


def main(directory: Path, master: str, checkpoints: str, config: dict[str, Any], storage: dict[str, Any]) -> None:
    spark = session("cluster", master, memory="768m", config=config, storage=storage)
    queries = []
    for kind in KINDS:
        frame = joined(spark, directory, kind, 3, late=directory / kind / "late")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{checkpoints}/{kind}")
        writer = writer.option("path", str(directory / kind / "out")).trigger(availableNow=True)
        queries.append(writer.start())
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4]), json.loads(sys.argv[5]))
