"""One run of `ajoin_scale` in a process of its own: an engine on a local cluster, and what its parts hold.

`python -m benchmarks.papers.ajoin_scale_program SPEC` takes and prints JSON. The streams are files that wait, and
each has `rate` tuples per second of event time, so that a window of 1 to 3 seconds holds some multiples of it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_spark import StreamFiles, input_rate
from streamjoin.adhoc import Engine, ParquetSink, Settings
from streamjoin.queries.engine.info import BatchEvent
from streamjoin.spark import session

_SELECTIVITY: Final = 0.2


def main(spec: dict[str, Any]) -> dict[str, Any]:
    """Run it and say what was held where."""
    directory, executors = Path(spec["directory"]), int(spec["executors"])
    spark = session("ajoin_scale", f"local-cluster[{executors},1,1024]", memory="1g")
    spark.sparkContext.setLogLevel("ERROR")
    generator = ajoin.QueryGenerator(2, 50, spec["seed"], selectivity=_SELECTIVITY)
    files = StreamFiles(
        directory / "streams",
        tuple(generator.streams),
        spec["batch"],
        spec["files"],
        spec["rate"],
        spec["seed"],
        # A tuple has as many matches per second of window, whatever the rate.
        keys=max(1, spec["rate"] // ajoin.ATTRIBUTE_MAX),
    ).write()
    distributed = spec["system"] == "distributed"
    options: dict[str, Any] = {"executor": spec["system"], "partitions": executors if distributed else None}
    queries = [same_key(query.text, spec["window"]) for query in generator.queries(spec["queries"])]
    engine = Engine(spark, directory / "checkpoint", Settings(newest_rows=0), **options)
    events: list[BatchEvent] = []
    engine.on_batch(events.append)
    for stream in files.streams:
        engine.register(stream, files.frame(spark, stream), time=ajoin.TIME, lateness="1 second")
    for number, text in enumerate(queries):
        engine.create(text, name=f"q{number}", sink=ParquetSink(str(directory / "out" / str(number))))
    begin = time.perf_counter()
    with engine:
        read: dict[int, int] = {}
        while engine.metrics().rows_in < files.tuples:
            # Answered between two batches, which may have tuples of one stream alone that few queries join.
            before, tasks, after = engine.metrics().batches, engine.explain().tasks, engine.metrics().batches
            if tasks and before == after:
                read[after] = max(task.read_bytes for task in tasks)
            if engine.wait(0.02):
                raise RuntimeError("the engine ended")
        engine.process_all_available()
        metrics, tasks = engine.metrics(), engine.explain().tasks
        rss = resident_bytes()
    spark.stop()
    whole = sum(metrics.state_bytes.values())
    # The driver's process holds all tuples and reads all new ones.
    new = [sum(event.rows_in.values()) for event in events if event.rows_in]
    read_per_tuple = sum(read.values()) / max(1, sum(new[batch - 1] for batch in read))
    return {
        "state_bytes": max(task.state_bytes for task in tasks) if distributed else whole,
        "read_bytes": read_per_tuple if distributed else 8 * (ajoin.ATTRIBUTES + 3),
        "driver_rows": metrics.driver_rows,
        "driver_rss": rss,
        "rows_in": metrics.rows_in,
        "rows_out": metrics.rows_out,
        "tuples_per_s": input_rate(events, 2 * spec["batch"] * len(files.streams)),
        "seconds": time.perf_counter() - begin,
        "files_per_batch": sum(1 for _ in (directory / "out").rglob("*.parquet")) / max(1, metrics.batches),
    }


def same_key(text: str, window: int = 1) -> str:
    """A generated query with its join, and no selection, by the first attributes: all have one placement.

    The window is this many times as long.
    """
    text = re.sub(r"WITHIN (\d+)", lambda found: f"WITHIN {int(found[1]) * window}", text)
    text = re.sub(r"\.a0\b", ".a1", text)
    return re.sub(r"ON (\w+)\.a\d+ = (\w+)\.a\d+", r"ON \1.a0 = \2.a0", text)


def resident_bytes() -> int:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
