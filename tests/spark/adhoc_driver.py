"""A program that runs an ad-hoc engine over files it writes, with queries that come and go; a test kills it meanwhile.

Every step is made only if a run before has not made it, so that the runs together do all of them once.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from streamjoin.adhoc import Engine, ParquetSink, Settings
from streamjoin.queries.engine.journal import FileJournal
from streamjoin.queries.executors.distributed.outputs import RowPool
from streamjoin.queries.sources.files import FileSource
from tests.conftest import QUICK_START
from tests.spark.adhoc_streams import SCHEMA, FileStream, table_of

STEPS = 7
QUERIES = (
    "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 3 SECONDS ON x.k = y.k",
    "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 6 SECONDS ON x.k = y.k WHERE x.p > y.p",
    "SELECT x.p AS a, z.p AS c FROM l x JOIN r y WITHIN 2 SECONDS ON x.k = y.k JOIN l z WITHIN 20 ROWS ON z.p = y.p",
    "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 2 SECONDS ON ABS(x.p - y.p) <= 1",
    "SELECT x.p AS a, y.p AS b FROM l x FULL JOIN r y WITHIN 1 SECONDS ON x.k = y.k AND x.p < y.p",
    "SELECT x.p AS a, y.p AS b FROM l x ASOF JOIN r y MATCH_CONDITION (x.ts >= y.ts) ON x.k = y.k TOLERANCE 1 SECONDS",
)


def tuples(stream: str, step: int) -> pa.Table:
    rng = random.Random(f"{stream} {step}")
    # The last ones are so much later that whatever waits is decided.
    second = step if step < STEPS - 1 else step + 200
    return table_of(*((rng.randrange(4), rng.randrange(12), second + rng.random()) for _ in range(12)))


def open_engine(
    directory: Path, executor: str, streams: Mapping[str, FileStream], checkpoint: str | None = None
) -> Engine:
    """`executor` is "embedded", "driver", or "distributed" with a number of cells.

    "cluster" with a number is the distributed one on a local cluster of two executors.
    """
    # With more than two queries rows are pooled, and some wait until the engine stops.
    RowPool.most_files = 2
    settings = Settings(replan_every=2, file_seconds=1.0)
    if executor == "embedded":
        engine = Engine(checkpoint=checkpoint or directory / "checkpoint", settings=settings)
        for name, stream in streams.items():
            source = FileSource(str(stream.directory), "parquet", SCHEMA, {"maxFilesPerTrigger": "1"})
            engine.register(name, source=source, lateness="1 minute")
        return engine
    from streamjoin.spark import session

    kind, _, number = executor.partition(" ")
    master = "local-cluster[2,1,512]" if kind == "cluster" else "local[2]"
    spark = session("adhoc", master, memory="512m", config={**QUICK_START, "spark.executor.memory": "512m"})
    engine = Engine(
        spark,
        directory / "checkpoint",
        settings,
        partitions=int(number) if number else None,
        executor="distributed" if number else "driver",
    )
    for name, stream in streams.items():
        engine.register(name, stream.frame(spark), lateness="1 minute")
    return engine


def main(directory: Path, executor: str, checkpoint: str | None = None) -> None:
    # The test asks which tuples came in which batch.
    FileJournal.kept = 10**6
    streams = {name: FileStream(directory / name) for name in ("l", "r")}
    with open_engine(directory, executor, streams, checkpoint) as engine:
        for step in range(STEPS):
            acted = {(record.action, record.name) for record in engine.changelog()}
            if ("create", f"q{step}") not in acted:
                sql = QUERIES[step % len(QUERIES)]
                engine.create(sql, name=f"q{step}", sink=ParquetSink(str(directory / "out" / f"q{step}")), timeout=120)
                acknowledge(directory, f"create q{step}")
            if step >= 5 and ("drop", f"q{step - 5}") not in acted:
                engine.drop(f"q{step - 5}", timeout=120)
                acknowledge(directory, f"drop q{step - 5}")
            for name, stream in streams.items():
                if len(list(stream.directory.glob("*.parquet"))) <= step:
                    stream.write(tuples(name, step))
            engine.process_all_available()
        if engine.error is not None:
            raise engine.error


def acknowledge(directory: Path, what: str) -> None:
    with (directory / "acknowledged").open("a") as file:
        file.write(what + "\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
