"""Streams of files for the tests of the ad-hoc engine: what a test writes is what the next batch reads."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.adhoc import Engine, Settings

SCHEMA = pa.schema({"k": pa.int64(), "p": pa.int64(), "ts": pa.timestamp("us")})
DDL = "k BIGINT, p BIGINT, ts TIMESTAMP_NTZ"
PAIRS = "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 SECONDS ON x.k = y.k"
EPOCH_US = 1_750_000_000_000_000


class FileStream:
    """A directory of Parquet files read as a stream, one file a micro-batch."""

    def __init__(self, directory: Path, ddl: str = DDL) -> None:
        self.directory = directory
        self.ddl = ddl
        directory.mkdir(parents=True, exist_ok=True)
        self._number = len(list(directory.glob("*.parquet")))

    def frame(self, spark: Any) -> Any:
        reader = spark.readStream.schema(self.ddl).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.directory))

    def write(self, table: pa.Table) -> None:
        """Write the next file. Spark reads files by modification time, and those of one millisecond in any order."""
        draft = self.directory / f".{self._number:06}"
        pq.write_table(table, draft)
        modified = time.time() + self._number / 100
        os.utime(draft, (modified, modified))
        draft.rename(self.directory / f"{self._number:06}.parquet")
        self._number += 1

    def spoil(self, name: str) -> None:
        """Write a file that is no Parquet, in one step: Spark passes over one that is still empty for good.

        It is longer than the file that comes in its place: Spark reads no rows behind the length that it has listed.
        """
        draft = self.directory / f".{name}"
        draft.write_bytes(b"no Parquet at all" * 4096)
        draft.rename(self.directory / name)

    def rows(self, *rows: tuple[int, int, float]) -> None:
        """Write (k, p, seconds) as one file."""
        self.write(table_of(*rows))


def table_of(*rows: tuple[int | None, int, float]) -> pa.Table:
    k, p, seconds = zip(*rows, strict=True)
    ts = pa.array([EPOCH_US + round(s * 1e6) for s in seconds], pa.int64()).cast(pa.timestamp("us"))
    return pa.table([pa.array(k, pa.int64()), pa.array(p, pa.int64()), ts], schema=SCHEMA)


def counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def engine_on(
    spark: Any,
    directory: Path,
    cells: int = 2,
    options: Mapping[str, Any] | None = None,
    lateness: str = "10 seconds",
    **settings: Any,
) -> Engine:
    """A distributed engine over the streams `l` and `r`, which are files in the directory."""
    given = {"executor": "distributed", "partitions": cells, **(options or {})}
    engine = Engine(spark, directory / "checkpoint", Settings(**settings), **given)
    for name in ("l", "r"):
        engine.register(name, FileStream(directory / name).frame(spark), lateness=lateness)
    return engine


def written(directory: Path) -> Counter[Any]:
    """The rows in a sink's directory, which has no other files."""
    rows: Counter[Any] = Counter()
    for file in directory.glob("*.parquet"):
        rows += counted(pq.read_table(file))
    assert not [entry for entry in directory.iterdir() if entry.name.startswith(".")]
    return rows
