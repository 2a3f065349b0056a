"""The demo: a month of real flights and weather, written as files while it runs, joined on Spark while they arrive.

It ends by itself and then checks its result: a batch join of the feeds' files by Spark must find the same pairs. It
writes only to its output directory, and clears only files of an earlier demo.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console

from streamjoin.model.errors import InputError, StreamJoinError
from streamjoin.model.predicates import Equi
from streamjoin.model.spec import JoinSpec
from streamjoin.model.window import TimeWindow
from streamjoin.spark.demo.feeds import FLIGHTS_DDL, TIMES, WEATHER_DDL, Month, play
from streamjoin.spark.demo.view import DemoFigures, Watch, closing, is_live, view
from streamjoin.spark.runtime.session import Stopping, session_beside
from streamjoin.spark.stages.late import late
from streamjoin.spark.stream_join import join

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SPEC = JoinSpec(
    on=Equi("airport"),
    window=TimeWindow("1 hour"),
    time=(TIMES["flights"], TIMES["weather"]),
    order="event_time",
)
EXAMPLE = "examples/flights_and_weather.py"
MARKER = ".streamjoin-demo"

_LOG = "spark.log"
_PARTS = ("flights", "weather", "matches", "checkpoint", _LOG)
_SLICE_SECONDS = 0.25
_POLL = 0.2
_MOST_CORES = 4
"""More partitions would only split batches of a thousand rows into more tasks."""
_WARMING_SLICES = 2


def run(*, seconds: float, output: Path, console: Console) -> None:
    """Run the demo; the month passes in `seconds`, the result stays in `output`.

    Raises:
        InputError: `output` holds something else, or can't be written to.
        SetupError: Spark can't start.
        StreamJoinError: the join failed, or its result is not that of a batch join.
        KeyboardInterrupt: Ctrl-C, after everything was stopped.
    """
    month = Month.cut(max(_WARMING_SLICES, round(seconds / _SLICE_SECONDS)))
    cores = min(_MOST_CORES, os.cpu_count() or 1)
    # Removed once Spark has stopped: until then its listeners write to the checkpoint of a query that has ended.
    with (
        claimed(output),
        Stopping(signal.SIGINT) as ctrl_c,
        tempfile.TemporaryDirectory(prefix="streamjoin-demo-") as scratch,
    ):
        with _step(console, "starting Spark"):
            spark = _session(cores, output / _LOG)
        try:
            with _step(console, "warming up: joining a small part of both feeds"):
                _warm_up(spark, month, Path(scratch), ctrl_c)
            figures = _live(spark, month, seconds, output, console, ctrl_c)
            title = f"{figures.matches:,} matches of {figures.flights:,} flights and {figures.weather:,} observations"
            rows = _summary(figures, output, cores)
            if ctrl_c.asked:
                closing(console, f"stopped by Ctrl-C: {title}", rows)
                raise KeyboardInterrupt
            with _step(console, "checking: Spark's own batch join of the same files"):
                checked = _check(spark, output, figures.matches)
            closing(console, title, [*rows[:-2], ("checked", checked), *rows[-2:]])
        finally:
            spark.stop()


@contextlib.contextmanager
def claimed(output: Path) -> Iterator[None]:
    """Lock and clear `output` for this demo; files that no demo wrote stay."""
    try:
        lock_file = _cleared(output)
    except OSError as error:
        raise InputError(f"can't write to {output}: {error}") from error
    with lock_file:
        yield


def _cleared(output: Path) -> IO[str]:
    """Clear `output` and return its marker file, which is locked while it is open."""
    marker = output / MARKER
    if output.exists() and not marker.is_file() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} is not empty and was not created by the demo: choose another --output")
    output.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(marker.open("w"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another demo is running in {output}: wait for it, or use another --output") from None
        file.write("Made by `streamjoin demo`, which clears this directory when it runs again.\n")
        file.flush()
        for path in (output / part for part in _PARTS):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        opened.pop_all()
        return file


@contextlib.contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    if is_live(console):
        with console.status(f"{what} ...", spinner="dots" if console.encoding.startswith("utf") else "line"):
            yield
    else:
        console.print(f"{what} ...", markup=False, highlight=False, soft_wrap=True)
        yield


def _session(cores: int, log: Path) -> SparkSession:
    config = {
        # Spark's default is a legacy type, which other readers of Parquet interpret as local time.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.streaming.numRecentProgressUpdates": 20,
        # In a one-minute run Java's second compiler costs more than it gains.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with _errors_to(log):
        return session_beside("streamjoin-demo", f"local[{cores}]", config=config)


@contextlib.contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """Give the processes started here a file as error stream: workers that are stopped at work complain there."""
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    except StreamJoinError:
        os.write(terminal, log.read_bytes())
        raise
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _joined(spark: SparkSession, feeds: Path) -> DataFrame:
    flights = spark.readStream.schema(FLIGHTS_DDL).parquet(str(feeds / "flights"))
    weather = spark.readStream.schema(WEATHER_DDL).parquet(str(feeds / "weather"))
    return join(flights, weather, SPEC)


def _start(joined: DataFrame, output: Path, **trigger: Any) -> StreamingQuery:
    writer = joined.writeStream.format("parquet").option("path", str(output / "matches"))
    writer = writer.option("checkpointLocation", str(output / "checkpoint"))
    return (writer.trigger(**trigger) if trigger else writer).start()


def _warm_up(spark: SparkSession, month: Month, scratch: Path, ctrl_c: Stopping) -> None:
    """Compile Java and Python code that is compiled at first use, so that the live part shows the join."""
    for _ in play(month, scratch, seconds=0, slices=_WARMING_SLICES):
        pass
    query = _start(_joined(spark, scratch), scratch, availableNow=True)
    try:
        while not query.awaitTermination(1):
            if ctrl_c.asked:
                raise KeyboardInterrupt
    finally:
        query.stop()


class _Feeds(threading.Thread):
    """Plays the month into files, then waits until the query has joined all of it."""

    def __init__(self, month: Month, output: Path, seconds: float, query: StreamingQuery) -> None:
        super().__init__(name="feeds", daemon=True)
        self.error: Exception | None = None
        self._month, self._output, self._seconds, self._query = month, output, seconds, query
        self._over = threading.Event()

    def stop(self) -> None:
        """End soon, even if the feeds are not finished."""
        self._over.set()

    def now(self) -> float:
        """The feeds' clock: seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """The feeds' clock: wait, but only until `stop`."""
        self._over.wait(seconds)

    def run(self) -> None:
        """The thread's work."""
        try:
            for _ in play(self._month, self._output, seconds=self._seconds, clock=self):
                if self._over.is_set():
                    return
            self._query.processAllAvailable()
        except Exception as error:
            self.error = error


def _live(
    spark: SparkSession, month: Month, seconds: float, output: Path, console: Console, ctrl_c: Stopping
) -> DemoFigures:
    """Run feeds and join side by side, and show them until all is joined or Ctrl-C was pressed."""
    for feed in TIMES:
        (output / feed).mkdir()
    query = _start(_joined(spark, output), output)
    watch = Watch(output, month.start, month.every)
    feeds = _Feeds(month, output, seconds, query)
    began = time.monotonic()
    feeds.start()
    with view(console, seconds) as show:
        try:
            while feeds.is_alive() and not ctrl_c.asked and query.isActive:
                feeds.join(_POLL)
                show(watch.update(time.monotonic() - began, query.recentProgress))
        finally:
            feeds.stop()
            query.stop()
        feeds.join()
        # Spark reports a batch shortly after its rows can be read; a stopped query has reported all.
        watch.figures.finished = True
        show(watch.update(watch.figures.elapsed, query.recentProgress))
    failure = query.exception() or feeds.error
    if failure is not None and not ctrl_c.asked:
        raise StreamJoinError(f"the join stopped: {failure}")
    return watch.figures


def _summary(figures: DemoFigures, output: Path, cores: int) -> list[tuple[str, str]]:
    median, p95 = figures.latency or (0.0, 0.0)
    took = max(figures.elapsed, 1e-9)
    late_rows = late(output / "checkpoint").num_rows if figures.batches else 0
    here = Path(__file__).resolve().parents[4] / EXAMPLE
    code = _short(here) if here.exists() else f"{EXAMPLE} in the repository"
    rows_in, rows_out = (figures.flights + figures.weather) / took, figures.matches / took
    return [
        ("rate", f"{rows_in:,.0f} rows/s in, {rows_out:,.0f} rows/s out, on Spark in local mode with {cores} cores"),
        ("latency", f"median {median:.2f} s, 95% within {p95:.2f} s (row written to match readable)"),
        ("late", f"{late_rows:,} rows were too late to be joined"),
        ("result", f"{_short(output / 'matches')} (Parquet)"),
        ("code", f"{code} (the same join, to start from)"),
    ]


def _check(spark: SparkSession, output: Path, shown: int) -> str:
    """Compare result and batch join as multisets, by number of rows and sum of hashes."""
    from pyspark.sql import functions as F  # noqa: N812

    flights = spark.read.schema(FLIGHTS_DDL).parquet(str(output / "flights"))
    weather = spark.read.schema(WEATHER_DDL).parquet(str(output / "weather")).withColumnRenamed("airport", "place")
    near = "observed BETWEEN scheduled - INTERVAL 1 HOUR AND scheduled + INTERVAL 1 HOUR"
    pairs = flights.join(weather, F.expr(f"airport = place AND {near}")).drop("place")
    digest = F.count(F.lit(1)), F.sum(F.pmod(F.xxhash64(*pairs.columns), F.lit(2**31)))
    result = spark.read.parquet(str(output / "matches")).agg(*digest).first()
    expected = pairs.agg(*digest).first()
    if result is None or expected is None or tuple(result) != tuple(expected) or result[0] != shown:
        raise StreamJoinError(
            f"the demo's result is wrong: a batch join finds {expected and expected[0]:,} pairs, the result holds "
            f"{result and result[0]:,} and {shown:,} were shown; please report this"
        )
    return f"Spark's own batch join of the same files finds the same {shown:,} pairs"


def _short(path: Path) -> str:
    """The path relative to the working directory, if that is shorter."""
    absolute = path.resolve()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(path)
