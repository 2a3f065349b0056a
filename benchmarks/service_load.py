"""What asking costs the stream: the rate of a running engine with and without 200 requests a second beside it.

One service over one engine on Spark, as `streamjoin serve` runs it, reading two made-up streams as fast as it can.
Windows of a few seconds with and without requests alternate while it runs, so what disturbs the machine disturbs both.
The client is a process of its own on the same machine: its share of the cores is part of what is measured.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Context, Experiment, Row, human
from streamjoin.model.errors import StateError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

    from streamjoin.adhoc import Engine

ALONE, ASKED = 0, 200
AIM = 0.95
QUERIES = 5
SQL = "SELECT a.k, a.v, b.v AS other FROM a JOIN b WITHIN 1 SECOND ON a.k = b.k WHERE a.v > {v}"
ROOT = Path(__file__).parents[1]


class _Service:
    """An engine that runs, and the service over it on a thread."""

    def __init__(self, rows: int, spark: SparkSession | None) -> None:
        import uvicorn

        from streamjoin.adhoc import Engine
        from streamjoin.service import ServiceConfig, create_app
        from streamjoin.spark import session

        # Its own, because it writes until it is closed, which is after the experiment's scratch is gone.
        self._scratch = tempfile.TemporaryDirectory(prefix="streamjoin-bench-")
        scratch = Path(self._scratch.name)
        self._own = spark is None
        self.spark = session("service_load", memory="1g") if spark is None else spark
        self.engine: Engine = Engine(self.spark, checkpoint=str(scratch / "checkpoint"))
        for name, step in (("a", 7), ("b", 11)):
            frame = (
                self.spark.readStream.format("rate-micro-batch")
                .option("rowsPerBatch", rows)
                .option("advanceMillisPerBatch", 1000)
                .option("numPartitions", 1)
                .load()
            )
            key = f"pmod(value * {step} + value div 1000, {rows}) AS k"
            self.engine.register(name, frame.selectExpr("timestamp AS ts", key, "value AS v"), time="ts")
        self.events: list[tuple[float, int]] = []
        self.engine.on_batch(lambda event: self.events.append((time.perf_counter(), sum(event.rows_in.values()))))
        self.engine.start()
        for number in range(QUERIES):
            self.engine.create(SQL.format(v=number), name=f"q{number}", timeout=120)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._app = create_app(self.engine, ServiceConfig(checkpoint=str(scratch)))
        config = uvicorn.Config(self._app, log_level="warning", access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

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
        if self._own:
            self.spark.stop()
        self._scratch.cleanup()


class ServiceLoad(Experiment):
    """The stream's rate by the requests beside it."""

    title = "service: the rate of a running stream beside 200 requests a second"
    measure = "rows_per_s"
    unit = "rows/s"
    repeats = 7
    warmups = 1

    def __init__(self, spark: SparkSession | None = None) -> None:
        """A session that is given is used and left running."""
        self._spark = spark
        self._service: _Service | None = None

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Alone and asked; a short window each when quick."""
        seconds, rows = (2, 2_000) if quick else (10, 20_000)
        return [{"requests_per_s": rate, "seconds": seconds, "rows": rows} for rate in (ALONE, ASKED)]

    def baseline(self, cell: Cell) -> Cell | None:
        """The stream alone."""
        return None if cell["requests_per_s"] == ALONE else {**cell, "requests_per_s": ALONE}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:  # noqa: ARG002
        """One window."""
        if self._service is None:
            self._service = _Service(cell["rows"], self._spark)
            self._service.rate(cell["seconds"])
        service, rate = self._service, cell["requests_per_s"]
        if not rate:
            rows, batches = service.rate(cell["seconds"])
            nothing = {"answers_per_s": 0.0, "p99_ms": 0.0, "failures": 0, "cpu_ms": 0.0}
            return {"rows_per_s": rows, "batches": batches, **nothing}
        # A little longer than the window, whose end waits for a batch.
        arguments = [service.url, str(rate), str(cell["seconds"] + 2)]
        client = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.service_client", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        if client.stdout is None or client.stdout.readline() != "asking\n":
            raise StateError(f"the client did not begin; it ended with {client.wait()}")
        before = service.cpu_seconds
        rows, batches = service.rate(cell["seconds"])
        told = json.loads(client.communicate()[0])
        return {
            "rows_per_s": rows,
            "batches": batches,
            "answers_per_s": told["answers"] / (cell["seconds"] + 2),
            "p99_ms": told["p99_ms"],
            "failures": told["failures"],
            "cpu_ms": (service.cpu_seconds - before) / max(1, told["answers"]) * 1000,
        }

    def close(self) -> None:
        """Stop the service and Spark."""
        if self._service is not None:
            self._service.close()
            self._service = None

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Two bars."""
        axes = figure.subplots()
        names = ["alone" if not row["requests_per_s"] else f"{row['requests_per_s']} requests/s" for row in rows]
        axes.bar(names, [row["rows_per_s"] for row in rows])
        axes.set(ylabel="rows/s of the stream")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The ratio and the aim, and what the clients saw."""
        asked = next(row for row in rows if row["requests_per_s"])
        met = "met" if asked["ratio"] >= AIM else "missed"
        share = f"beside {asked['requests_per_s']} requests/s the stream runs at {asked['ratio']:.3f} of its rate alone"
        seen = f"{human(asked['answers_per_s'])} answers/s, {asked['failures']:.0f} failures"
        return [
            f"{share}; aim {AIM}: {met}",
            f"{seen}, 99 % within {asked['p99_ms']:.0f} ms; the client ran on the same machine",
            f"{asked['cpu_ms']:.2f} ms of CPU an answer on the service's own thread",
        ]


EXPERIMENT = ServiceLoad()
