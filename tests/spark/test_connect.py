"""Joins over Spark Connect: the same code and rows as in classic mode, with nothing of ours on the driver.

The server runs in a process of its own. What the client can't do there, tasks do: they register each start, merge runs,
and complete the late output. `test_exactly_once.py` kills servers and clients.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import streamjoin as sj
from streamjoin.spark import Progress, join, late, punctuations, table_writer
from tests.formats.lakes import Lake
from tests.seeds import THOROUGH
from tests.spark.connect_server import ConnectServer
from tests.spark.every_kind import BATCHES, TIMELESS, check_output, write_input
from tests.spark.exactly_once_driver import KINDS, joined, started
from tests.spark.joining import CASES, expected, pairs, run_to_parquet, stream, streams, tables, write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
BAND = CASES[0]
SPEC = BAND.bound_spec()
# Without a gate, with one, and with an order; what else differs is the same as in a classic session.
KINDS_HERE = KINDS if THOROUGH else ("arrival", "summary", "ordered")


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of a server elsewhere; pyspark takes all of this process for its client meanwhile."""
    with warnings.catch_warnings():
        # As `session` does, which this process can't call: it may have a classic session.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        from pyspark.sql.connect.session import SparkSession as Remote

    server = ConnectServer(tmp_path_factory.mktemp("connect"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        try:
            # The builder of pyspark.sql refuses beside a classic session, which other tests of this process may have.
            spark: Any = Remote.builder.remote(server.url).getOrCreate()
            yield spark
            spark.stop()
        finally:
            server.stop()


def _started(writer: Any, checkpoint: str) -> Any:
    """The query, started; Spark gives the process of its function ten seconds, which a busy machine may not have."""
    from pyspark.errors import PySparkException

    for attempt in range(10):
        try:
            return writer.start(checkpointLocation=checkpoint)
        except PySparkException as error:
            if "failed to connect back" not in str(error) or attempt == 9:
                raise
    raise AssertionError


def _files(spark: Any, directory: Path, batches: int = 2) -> tuple[Any, Any]:
    write_files(directory, tables(BAND, *stream(BAND, seed=6, n=60), batches))
    return streams(spark, directory, BAND.left, BAND.right)


def test_every_kind_of_join_before_and_after_a_restart(connect: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path, 7)
    held_back = [path for path in tmp_path.rglob("*.parquet") if int(path.stem) >= BATCHES // 3]
    (tmp_path / "later").mkdir()
    for path in held_back:
        path.rename(tmp_path / "later" / f"{path.parent.name}-{path.name}")
    progress = Progress(connect)
    figures = []
    for start in (0, 1):
        for path in held_back if start else []:
            (tmp_path / "later" / f"{path.parent.name}-{path.name}").rename(path)
        frames = [joined(connect, tmp_path, kind, 2 + start, 2, tmp_path / kind / "late") for kind in KINDS_HERE]
        queries = [started(frame, tmp_path / kind) for frame, kind in zip(frames, KINDS_HERE, strict=True)]
        for query in queries:
            query.awaitTermination()
        figures += progress.of(queries[-1])
    check_output(tmp_path, 7, KINDS_HERE)
    for kind in KINDS_HERE:
        checkpoint = tmp_path / kind / "checkpoint"
        root = checkpoint / "streamjoin/join"
        runs = {int(path.read_text()) for path in (root / "runs").iterdir()}
        assert len(runs) == 2
        assert {int(path.name) for path in (root / "epochs").iterdir()} == runs
        assert sorted(late(checkpoint)["id_left"].to_pylist()) == list(TIMELESS)
        # Tasks removed what no restart needs: of old versions only what the newest one refers to.
        versions = [int(path.name) for path in (root / "versions").iterdir() if path.name.isdigit()]
        assert len(versions) < BATCHES // 2
    batches = BATCHES // 2
    assert [figure.batch for figure in figures] == list(range(batches))
    last = figures[-1]
    assert (last.join, last.ranges, last.runs > 0, last.window_bytes > 0) == ("join", last.ranges, True, True)
    assert last.skew >= 1
    assert last.waiting is not None
    # A client has the figures before a batch.
    assert punctuations(tmp_path / "ordered/checkpoint")["bound"].to_pylist()[-2] == last.bound


def test_what_a_client_must_say_is_asked_for(connect: SparkSession, tmp_path: Path) -> None:
    result = join(*_files(connect, tmp_path), SPEC)
    writer = result.writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(sj.SetupError, match="can't find out which checkpoint"):
        writer.start()
    with pytest.raises(sj.SpecError, match="relative to a directory"):
        writer.start(checkpointLocation="somewhere")
    with pytest.raises(sj.SetupError, match="asyncProgressTrackingEnabled"):
        writer.start(checkpointLocation=str(tmp_path / "c"), asyncProgressTrackingEnabled=True)
    with pytest.raises(sj.CheckpointError, match="must be writable"):
        result.writeStream.format("noop").start(checkpointLocation="/proc/streamjoin/checkpoint")
    given = join(*streams(connect, tmp_path, BAND.left, BAND.right), SPEC, checkpoint=tmp_path / "other")
    with pytest.raises(sj.SpecError, match="give both the same location"):
        given.writeStream.format("noop").start(checkpointLocation=str(tmp_path / "c"))
    with pytest.raises(sj.SpecError, match="two joins of one query are both called 'join'"):
        result.union(given).writeStream.format("noop").start(checkpointLocation=str(tmp_path / "other"))
    with pytest.raises(sj.SetupError, match="needs a classic Spark session"):
        sj.adhoc.Engine(connect, str(tmp_path / "adhoc"))
    with pytest.raises(sj.NotSupportedError, match="end_of_input=True is not there over Spark Connect"):
        join(*streams(connect, tmp_path, BAND.left, BAND.right), SPEC, end_of_input=True)
    assert not (tmp_path / "c/streamjoin").exists()


def test_what_tasks_find_wrong_reaches_the_client(connect: SparkSession, tmp_path: Path) -> None:
    sides = _files(connect, tmp_path)
    assert pairs(run_to_parquet(join(*sides, SPEC), tmp_path)) == expected(BAND, *stream(BAND, seed=6, n=60))
    # A restart that has nothing to do registers nothing; one with another join is refused by its first task.
    shutil.copy(tmp_path / "left/0000.parquet", tmp_path / "left/more.parquet")
    with pytest.raises(sj.CheckpointError, match="the state of another join"):
        run_to_parquet(join(*sides, sj.JoinSpec(sj.Equi("x", "a"), SPEC.windows, time="ts")), tmp_path)
    with pytest.raises(sj.CheckpointError, match="with the state of 'join', and this join is called 'other'"):
        run_to_parquet(join(*sides, SPEC, name="other"), tmp_path)
    for part in ("offsets", "commits", "sources"):
        shutil.rmtree(tmp_path / "checkpoint" / part)
    writer = join(*sides, SPEC).writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(sj.CheckpointError, match="the window log holds batch"):
        writer.start(checkpointLocation=str(tmp_path / "checkpoint")).awaitTermination()


def test_a_view_of_the_result_needs_the_checkpoint(connect: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    sides = _files(connect, tmp_path)

    def run(name: str, **options: Any) -> Any:
        join(*sides, SPEC, **options).createOrReplaceTempView(name)
        return run_to_parquet(connect.sql(f"SELECT * FROM {name}"), tmp_path / name)

    with pytest.raises(StreamingQueryException, match="give the location of the query's checkpoint"):
        run("unknown")
    with pytest.raises(StreamingQueryException, match="is not the checkpoint of the query"):
        run("elsewhere", checkpoint=tmp_path)
    wanted = expected(BAND, *stream(BAND, seed=6, n=60))
    assert pairs(run("given", checkpoint=tmp_path / "given/checkpoint")) == wanted


def test_a_join_of_a_join_keeps_its_state_apart(connect: SparkSession, tmp_path: Path) -> None:
    left, right = _files(connect, tmp_path)
    first = join(left, right, SPEC).select("ts", "x", "id_left", "id_right")
    spec = sj.JoinSpec(sj.Equi("x", "a") & sj.Theta("l.id_left = r.id"), sj.TimeWindow("1 second"), time="ts")
    query = started(join(first, right.withColumnRenamed("x", "y"), spec), tmp_path)
    query.awaitTermination()
    assert sorted(path.name for path in (tmp_path / "checkpoint/streamjoin").iterdir()) == ["join", "join2"]
    assert sorted({figures.join for figures in Progress(connect).of(query)}) == ["join", "join2"]


def test_a_table_gets_rows_of_other_queries_than_joins(connect: SparkSession, tmp_path: Path) -> None:
    """`foreachBatch` runs in a process of the server: it knows the query by its checkpoint, and can't run a join."""
    from pyspark.errors import StreamingQueryException

    lake = Lake("delta", tmp_path / "lake")
    sides = _files(connect, tmp_path)

    def run(frame: Any, name: str) -> None:
        checkpoint = str(tmp_path / name)
        writer = frame.writeStream.foreachBatch(table_writer(lake.sink(name), checkpoint)).trigger(availableNow=True)
        _started(writer, checkpoint).awaitTermination()

    run(sides[0], "plain")
    assert sorted(lake.table("plain")["id"].to_pylist()) == sorted(row["id"] for row in stream(BAND, seed=6, n=60)[0])
    joined = join(*sides, SPEC)
    for frame in (joined, joined.select("id_left").where("id_left > 3")):
        with pytest.raises(sj.NotSupportedError, match="where a join can't run: use another sink, or a classic"):
            run(frame, "joined")
    given = join(*sides, SPEC, checkpoint=tmp_path / "joined")
    given.createOrReplaceTempView("given")
    with pytest.raises(StreamingQueryException, match="within foreachBatch only on the thread that calls it"):
        run(connect.sql("SELECT * FROM given"), "joined")
