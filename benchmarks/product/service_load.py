"""What asking costs a stream, and how long answers take: a saturated engine with and without 200 requests/s.

One service over one engine, in this process and on Spark's `local`, as `streamjoin serve` runs them, reading two
made-up streams as fast as it can.
Windows of a few seconds with and without requests alternate while it runs, so what disturbs the machine disturbs both.
The client is a process of its own on the same machine: its share of the cores is part of what is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from benchmarks.harness import Cell, Context, Experiment, Figure, Row, human, met
from streamjoin.model.errors import StateError
from streamjoin.queries.sources.base import SourceRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamjoin.adhoc import Engine

ALONE, ASKED = 0, 200
EMBEDDED, SPARK = "embedded", "spark"
AIM = 0.95
"""Of the rate alone."""
AIM_MS = 100.0
"""Within which 99 of 100 answers come."""
QUERIES = 5
SQL = "SELECT a.k, a.v, b.v AS other FROM a JOIN b WITHIN 1 SECOND ON a.k = b.k WHERE a.v > {v}"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class MadeUpRows:
    """A source that always has more: `rows` of a second of event time with each read, as Spark's rate source has."""

    rows: int
    step: int
    schema = pa.schema({"ts": pa.timestamp("us"), "k": pa.int64(), "v": pa.int64()})

    def open(self, notes: Any) -> MadeUpRows:  # noqa: ARG002
        """Itself."""
        return self

    def read(self, position: Any) -> SourceRows:
        """The next second."""
        second = position["second"] if position else 0
        values = np.arange(second * self.rows, (second + 1) * self.rows)
        times = second * 1_000_000 + np.arange(self.rows) * 1_000_000 // self.rows
        keys = (values * self.step + values // 1000) % self.rows
        columns = [pa.array(times).cast(pa.timestamp("us")), pa.array(keys), pa.array(values)]
        return SourceRows(pa.table(columns, schema=self.schema), {"second": second + 1})

    def close(self) -> None:
        """Nothing is open."""


class _Service:
    """An engine that runs, and the service over it on a thread."""

    def __init__(self, kind: str, rows: int, spark: SparkSession | None) -> None:
        import uvicorn

        from streamjoin.service import ServiceConfig, create_app
        from streamjoin.service.server import bind

        # Its own, because it writes until it is closed, which is after the experiment's scratch is gone.
        self._scratch = tempfile.TemporaryDirectory(prefix="streamjoin-bench-")
        scratch = Path(self._scratch.name)
        self._own = kind == SPARK and spark is None
        self.spark: SparkSession | None = spark
        self.engine = self._embedded(scratch, rows) if kind == EMBEDDED else self._on_spark(scratch, rows)
        self.events: list[tuple[float, int]] = []
        self.engine.on_batch(lambda event: self.events.append((time.perf_counter(), sum(event.rows_in.values()))))
        self.engine.start()
        for number in range(QUERIES):
            self.engine.create(SQL.format(v=number), name=f"q{number}", timeout=120)
        self._socket = bind(ServiceConfig(checkpoint=str(scratch), port=0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._app = create_app(self.engine, ServiceConfig(checkpoint=str(scratch)))
        config = uvicorn.Config(self._app, log_level="warning", access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

    def _embedded(self, scratch: Path, rows: int) -> Engine:
        from streamjoin.adhoc import Engine

        engine = Engine(checkpoint=str(scratch / "checkpoint"))
        for name, step in (("a", 7), ("b", 11)):
            engine.register(name, source=MadeUpRows(rows, step))
        return engine

    def _on_spark(self, scratch: Path, rows: int) -> Engine:
        from streamjoin.adhoc import Engine
        from streamjoin.spark import session

        self.spark = session("service_load", memory="1g") if self.spark is None else self.spark
        engine = Engine(self.spark, checkpoint=str(scratch / "checkpoint"))
        for name, step in (("a", 7), ("b", 11)):
            frame = (
                self.spark.readStream.format("rate-micro-batch")
                .option("rowsPerBatch", rows)
                .option("advanceMillisPerBatch", 1000)
                .option("numPartitions", 1)
                .load()
            )
            key = f"pmod(value * {step} + value div 1000, {rows}) AS k"
            engine.register(name, frame.selectExpr("timestamp AS ts", key, "value AS v"), time="ts")
        return engine

    def rate(self, seconds: float) -> tuple[float, int]:
        """Rows a second from the end of a batch to the end of another, and how many batches that were."""
        begin = len(self.events)
        ended = time.perf_counter() + seconds
        while time.perf_counter() < ended or len(self.events) < begin + 4:
            time.sleep(0.05)
            if self.engine.error is not None:
                raise self.engine.error
        seen = self.events[begin:]
        return sum(rows for _, rows in seen[1:]) / (seen[-1][0] - seen[0][0]), len(seen) - 1

    @property
    def cpu_seconds(self) -> float:
        """The CPU that the thread of the service's event loop took."""
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident or 0))

    def close(self) -> None:
        self._app.state.service.begin_stop()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self.engine.stop()
        if self._own and self.spark is not None:
            self.spark.stop()
        self._scratch.cleanup()


class ServiceLoad(Experiment):
    """The stream's rate by the requests beside it."""

    title = "service: a saturated engine beside 200 requests per second"
    measure = "rows_per_s"
    unit = "rows/s"
    repeats = 5
    warmups = 1
    against: ClassVar = {"requests_per_s": ALONE}

    def __init__(self, spark: SparkSession | None = None) -> None:
        """A session that is given is used and left running."""
        self._spark = spark
        self._services: dict[str, _Service] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Both engines, alone and asked; a short window each when quick."""
        seconds, rows = (2, 2_000) if quick else (10, 20_000)
        return [
            {"engine": engine, "requests_per_s": rate, "seconds": seconds, "rows": rows}
            for engine in (EMBEDDED, SPARK)
            for rate in (ALONE, ASKED)
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:  # noqa: ARG002
        """One window."""
        service = self._only(cell["engine"], cell["rows"], cell["seconds"])
        rate = cell["requests_per_s"]
        if not rate:
            rows, batches = service.rate(cell["seconds"])
            nothing = {"answers_per_s": 0.0, "median_ms": 0.0, "p99_ms": 0.0, "failures": 0, "cpu_ms": 0.0}
            return {"rows_per_s": rows, "batches": batches, **nothing, "slowest_path_p99_ms": 0.0}
        # A little longer than the window, whose end waits for a batch.
        arguments = [service.url, str(rate), str(cell["seconds"] + 2)]
        client = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.product.service_client", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        if client.stdout is None or client.stdout.readline() != "asking\n":
            raise StateError(f"the client did not begin; it ended with {client.wait()}")
        before = service.cpu_seconds
        rows, batches = service.rate(cell["seconds"])
        report = json.loads(client.communicate()[0])
        return {
            "rows_per_s": rows,
            "batches": batches,
            "answers_per_s": report["answers"] / (cell["seconds"] + 2),
            "cpu_ms": (service.cpu_seconds - before) / max(1, report["answers"]) * 1000,
            **{name: report[name] for name in ("median_ms", "p99_ms", "failures", "slowest_path_p99_ms")},
        }

    def _only(self, kind: str, rows: int, seconds: float) -> _Service:
        """The service over an engine; the other engine is stopped, because each takes what it can get."""
        if kind not in self._services:
            self.close()
            self._services[kind] = _Service(kind, rows, self._spark)
            self._services[kind].rate(seconds)
        return self._services[kind]

    def close(self) -> None:
        """Stop the service and Spark."""
        while self._services:
            self._services.popitem()[1].close()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Two bars for each engine."""
        axes = figure.subplots()
        names = [
            f"{row['engine']}, {'alone' if not row['requests_per_s'] else str(row['requests_per_s']) + ' requests/s'}"
            for row in rows
        ]
        axes.bar(names, [row["rows_per_s"] for row in rows])
        axes.tick_params("x", rotation=15)
        axes.set(ylabel="rows/s of the stream")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The ratio and the aim, and what the clients saw."""
        lines = []
        for row in rows:
            if not row["requests_per_s"]:
                continue
            asked = f"{row['engine']}: beside {row['requests_per_s']} requests/s"
            judged = met(row["ratio"] >= AIM)
            lines.append(f"{asked} the stream runs at {row['ratio']:.3f} of its rate alone; aim {AIM}: {judged}")
            judged = met(row["p99_ms"] <= AIM_MS)
            lines.append(
                f"{asked} 99 % of the answers come within {row['p99_ms']:.0f} ms; aim {AIM_MS:.0f} ms: {judged} ("
                f"median {row['median_ms']:.1f} ms, slowest route {row['slowest_path_p99_ms']:.0f} ms, "
                f"{human(row['answers_per_s'])} answers/s, {row['failures']:.0f} failures, {row['cpu_ms']:.2f} ms of "
                "CPU each)"
            )
        return [*lines, "the client ran on the same machine"]


EXPERIMENT = ServiceLoad()
