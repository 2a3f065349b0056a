"""The distributed ad-hoc engine: no row in the driver, shares of state, sinks that tasks write to, and restarts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import CallbackSink, Engine, MemorySink, ParquetSink, Settings, TableSink
from streamjoin.formats.tables import LakeWriter
from streamjoin.model.errors import CheckpointError, SpecError, StateError
from streamjoin.queries.engine.deliveries import Deliveries
from streamjoin.queries.executors.distributed import executor as distributed_executor
from streamjoin.queries.executors.distributed import rows_out as distributed_rows_out
from streamjoin.queries.executors.distributed.journal import FiledJournal
from streamjoin.queries.executors.distributed.rows_out import CellRowsOut
from tests.formats.lakes import KINDS, Lake
from tests.queries.journal_cases import Killed
from tests.spark.adhoc_streams import PAIRS, FileStream, counted, engine_on, written

pytestmark = pytest.mark.spark


def test_no_row_passes_the_driver_and_cells_share_the_state(spark: Any, tmp_path: Path) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    with engine_on(spark, tmp_path, newest_rows=0) as engine:
        engine.create(PAIRS, name="pairs", sink=ParquetSink(str(tmp_path / "out")))
        wanted: Counter[Any] = Counter()
        for step in range(3):
            left.rows(*((key, 100 * step + key, 20.0 * step) for key in range(64)))
            right.rows(*((key, 100 * step + key, 20.0 * step + 1) for key in range(64)))
            wanted += Counter((100 * step + key, 100 * step + key) for key in range(64))
            # A listing during which files appear may hold the later of two without the earlier, which is then late.
            engine.process_all_available()
        left.rows((1, 1, 0.0), (1, 9, 40.0))
        wanted[9, 201] += 1
        engine.process_all_available()
        metrics, tasks = engine.metrics(), engine.explain().tasks
        assert engine.query("pairs").rows == sum(wanted.values())
        assert engine.late("l")["p"].to_pylist() == [1]
        assert engine.streams()[0].late == 1
    assert metrics.driver_rows == 0
    assert metrics.rows_in == 6 * 64 + 2
    assert metrics.partitions == len(tasks) == 2
    held = [task.tuples for task in tasks]
    assert all(0.3 * sum(held) < share < 0.7 * sum(held) for share in held), held
    assert written(tmp_path / "out") == wanted


def test_sinks_of_the_driver_get_all_rows_and_views_the_newest(spark: Any, tmp_path: Path) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    calls: Counter[Any] = Counter()
    with engine_on(spark, tmp_path, newest_rows=2, rows_bytes=1 << 20) as engine:
        engine.create(PAIRS, name="called", sink=CallbackSink(lambda _, rows: calls.update(counted(rows))))
        engine.create(PAIRS, name="files", sink=ParquetSink(str(tmp_path / "out")))
        engine.create(PAIRS, name="view", sink=TableSink("pairs_view", limit=3))
        left.rows(*((key, key, 0.0) for key in range(20)))
        right.rows(*((key, key, 1.0) for key in range(20)))
        engine.process_all_available()
        everything = Counter((key, key) for key in range(20))
        assert calls == everything
        assert engine.newest("files", 100).total == 20
        assert engine.rows("files").num_rows == 2
        # All rows for the function, and the newest of each cell for whoever looks and for the view.
        assert engine.metrics().driver_rows == 20 + 2 * 2 + 2 * 3
        # Of files the driver has the newest rows of each batch, and a page says how many are elsewhere.
        page = engine.page("files")
        assert (page.total, page.missed + page.table.num_rows, page.remaining) == (20, 20, 0)
        info = engine.query("view")
        assert (info.rows, info.rows_undelivered) == (20, 0)
        shown = counted(spark.table("pairs_view").toArrow())
        assert sum(shown.values()) == 3 and shown < everything
    assert written(tmp_path / "out") == everything


def test_all_rows_of_a_query_without_a_sink_can_be_read(spark: Any, tmp_path: Path) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    with engine_on(spark, tmp_path, newest_rows=2, rows_bytes=1 << 20) as engine:
        engine.create(PAIRS, name="pairs", sink=MemorySink(limit=2))
        left.rows(*((key, key, 0.0) for key in range(20)))
        right.rows(*((key, key, 1.0) for key in range(20)))
        engine.process_all_available()
        first = engine.page("pairs", limit=7)
        rest = engine.page("pairs", first.next)
        assert (first.missed, rest.missed, rest.remaining, rest.total) == (0, 0, 0, 20)
        assert counted(pa.concat_tables([first.table, rest.table])) == Counter((key, key) for key in range(20))


def test_a_sink_that_refuses_has_its_rows_kept_and_gets_them_once(spark: Any, tmp_path: Path) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    out = tmp_path / "out"
    with engine_on(spark, tmp_path) as engine:
        engine.create(PAIRS, name="bad", sink=ParquetSink(str(out)))
        engine.create(PAIRS, name="good")
        out.rmdir()
        out.write_text("in the way")
        left.rows(*((key, key, 0.0) for key in range(8)))
        right.rows(*((key, key, 1.0) for key in range(8)))
        engine.process_all_available()
        info = engine.query("bad")
        assert (info.rows, info.rows_undelivered) == (0, 8)
        assert engine.query("good").rows == 8
        out.unlink()
        engine.resume("bad")
        left.rows((1, 50, 2.0))
        engine.process_all_available()
    assert written(out) == Counter([*((key, key) for key in range(8)), (50, 1)])


def test_rows_that_were_listed_before_a_crash_are_not_computed_again(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    engine = engine_on(spark, tmp_path, cells=3)
    with engine:
        engine.create(PAIRS, name="q", sink=ParquetSink(str(tmp_path / "out")))
        left.rows(*((key, key, 0.0) for key in range(9)))
        right.rows(*((key, key, 1.0) for key in range(9)))
        with monkeypatch.context() as patch:
            names = iter(range(100))

            def publish(hidden: str, name: str) -> None:
                if next(names):
                    raise Killed("the process dies here")
                Path(hidden).rename(tmp_path / "out" / name)

            patch.setattr(distributed_rows_out, "publish", publish)
            with pytest.raises(StateError, match="dies here"):
                engine.wait(60)
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1
    with pytest.raises(CheckpointError, match="distributed"):
        Engine(spark, tmp_path / "checkpoint", executor="driver")
    with monkeypatch.context() as patch:
        patch.setattr(distributed_executor, "run_cells", lambda *_: pytest.fail("computed again"))
        # A checkpoint knows what began it.
        with engine_on(spark, tmp_path, cells=2, options={"executor": None}) as engine:
            engine.process_all_available()
            assert engine.query("q").rows == 9
    with engine_on(spark, tmp_path, cells=1) as engine:
        left.rows((3, 30, 2.0))
        engine.process_all_available()
        assert engine.query("q").rows == 10
    assert written(tmp_path / "out") == Counter([*((key, key) for key in range(9)), (30, 3)])


def test_what_it_refuses(spark: Any, tmp_path: Path) -> None:
    for driver in ("driver", None):
        with pytest.raises(SpecError, match="in its own process: leave partitions out, or give executor="):
            Engine(spark, tmp_path / "checkpoint", partitions=2, executor=driver)  # type: ignore[arg-type]
    assert not (tmp_path / "checkpoint").exists()
    for options in ({"executor": "elsewhere"}, {"executor": "distributed", "partitions": 0}):
        with pytest.raises(SpecError, match=r"executor is|partitions"):
            Engine(spark, tmp_path / "checkpoint", **options)
    with pytest.raises(SpecError, match="share nothing"):
        Engine(spark, tmp_path / "checkpoint", Settings(sharing="nothing"), executor="distributed")
    with pytest.raises(SpecError, match="runs on Spark"):
        Engine(executor="distributed")


MANY = [f"q{number}" for number in range(10)]


def create_many(engine: Engine, directory: Path) -> None:
    for name in MANY:
        engine.create(PAIRS, name=name, sink=ParquetSink(str(directory / "out" / name)))


def files(directory: Path) -> int:
    return len(list((directory / "out").glob("*/*.parquet")))


def feed(directory: Path, steps: range) -> Counter[Any]:
    left, right = FileStream(directory / "l"), FileStream(directory / "r")
    for step in steps:
        # Spark may take two files of one millisecond in any order: neither makes the other late.
        left.rows(*((key, 100 * step + key, 8.0 * step) for key in range(8)))
        right.rows(*((key, 100 * step + key, 8.0 * step + 1) for key in range(8)))
    return Counter((100 * step + key, 100 * step + key) for step in steps for key in range(8))


@pytest.mark.parametrize("seconds", [1e-9, 1e6])
def test_many_queries_write_few_files_and_every_row_once(spark: Any, tmp_path: Path, seconds: float) -> None:
    # A listing may hold a later file without an earlier one, whose rows are not late all the same.
    with engine_on(spark, tmp_path, lateness="1 minute", newest_rows=0, file_seconds=seconds) as engine:
        create_many(engine, tmp_path)
        wanted = feed(tmp_path, range(4))
        engine.process_all_available()
        batches = engine.metrics().batches
        # With `seconds` of nearly nothing some queries are flushed by every batch, otherwise all once at the end.
        flushed = files(tmp_path)
        assert flushed <= len(MANY) + (8 * batches if seconds < 1 else 0)
        assert {info.rows for info in engine.queries()} == {sum(wanted.values())}
        assert engine.metrics().driver_rows == 0
        wanted += feed(tmp_path, range(4, 5))
        while engine.metrics().rows_in < 5 * 16:
            assert not engine.wait(0.05)
        # Without a flush: a drop leaves a query's directory whole.
        engine.drop("q0")
        assert written(tmp_path / "out" / "q0") == wanted
    # A stop does so for all.
    for name in MANY:
        assert written(tmp_path / "out" / name) == wanted


@pytest.mark.parametrize("moment", ["write_flushed", "_name_flushed", "_release"])
def test_pooled_rows_survive_a_crash_while_they_get_their_files(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    owner: Any = FiledJournal if moment == "write_flushed" else CellRowsOut
    with monkeypatch.context() as patch:

        def crash(*_: Any) -> None:
            raise RuntimeError("the process dies here")

        flush = CellRowsOut._flush

        def dying(self: Any, names: Any) -> None:
            if names:
                patch.setattr(owner, moment, crash)
            flush(self, names)

        patch.setattr(CellRowsOut, "_flush", dying)
        engine = engine_on(spark, tmp_path, file_seconds=1e6)
        with engine:
            create_many(engine, tmp_path)
            wanted = feed(tmp_path, range(2))
            with pytest.raises(RuntimeError, match="dies here"):
                engine.process_all_available()
    with engine_on(spark, tmp_path, cells=3, file_seconds=1e6) as engine:
        wanted += feed(tmp_path, range(2, 3))
        engine.process_all_available()
        assert {info.rows for info in engine.queries()} == {sum(wanted.values())}
    for name in MANY:
        assert written(tmp_path / "out" / name) == wanted
    assert not list((tmp_path / "checkpoint" / "outputs").iterdir())
    assert not list((tmp_path / "checkpoint" / "spool").iterdir())


def test_pooled_rows_wait_for_a_directory_that_can_not_be_written_to(spark: Any, tmp_path: Path) -> None:
    with engine_on(spark, tmp_path, file_seconds=1e6) as engine:
        create_many(engine, tmp_path)
        out = tmp_path / "out" / "q0"
        out.rmdir()
        out.write_text("in the way")
        wanted = feed(tmp_path, range(1))
        engine.process_all_available()
        info = engine.query("q0")
        assert (info.rows, info.rows_undelivered, info.state) == (0, 8, "degraded")
        assert "no file can be written" in str(info.error)
        assert written(tmp_path / "out" / "q1") == wanted
        out.unlink()
        engine.process_all_available()
        assert (engine.query("q0").rows, engine.query("q0").error) == (8, None)
        assert written(out) == wanted


def test_tasks_write_the_files_of_tables_and_the_driver_commits_them(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row passes the driver, a crash before the commit computes nothing again, and one after it adds nothing."""
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    lakes = [Lake(kind, tmp_path / kind) for kind in KINDS]
    write = LakeWriter.write
    deaths = iter([False, True])

    def dying(self: LakeWriter, batch: int, rows: Any) -> None:
        assert not isinstance(rows, pa.Table)
        if next(deaths):
            write(self, batch, rows)
        raise OSError("not now")

    with engine_on(spark, tmp_path, newest_rows=0, sink_patience=60) as engine:
        for lake in lakes:
            engine.create(PAIRS, name=lake.kind, sink=lake.sink("t"))
        left.rows(*((key, key, 0.0) for key in range(9)))
        right.rows(*((key, key, 1.0) for key in range(9)))
        engine.process_all_available()
        assert engine.metrics().driver_rows == 0
        assert [engine.query(kind).rows for kind in KINDS] == [9, 9]
        with monkeypatch.context() as patch:
            patch.setattr(LakeWriter, "write", dying)

            def die(*_: Any) -> None:
                raise RuntimeError("the process dies here")

            # The sinks have failed, one of them after its commit, and nothing of the batch is spooled yet.
            patch.setattr(Deliveries, "settle", die)
            left.rows((3, 30, 2.0), (4, 40, 2.0))
            with pytest.raises(StateError, match="dies here"):
                engine.wait(60)
    with engine_on(spark, tmp_path, newest_rows=0) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(distributed_executor, "run_cells", lambda *_: pytest.fail("computed again"))
            engine.process_all_available()
        assert [engine.query(kind).rows for kind in KINDS] == [11, 11]
        for part in (tmp_path / "delta" / "t" / "_delta_log", tmp_path / "iceberg" / "catalog.db"):
            part.rename(part.with_name("away"))
        right.rows((3, 300, 3.0))
        engine.process_all_available()
        # They wait in the checkpoint, as those of any sink that fails.
        assert [engine.query(kind).rows_undelivered for kind in KINDS] == [2, 2]
        for part in (tmp_path / "delta" / "t" / "_delta_log", tmp_path / "iceberg" / "catalog.db"):
            if part.is_file():
                part.unlink()
            (part.parent / "away").rename(part)
        for kind in KINDS:
            engine.resume(kind)
        engine.process_all_available()
    wanted = Counter([*((key, key) for key in range(9)), (30, 3), (40, 4), (3, 300), (30, 300)])
    for lake in lakes:
        assert counted(lake.table("t")) == wanted, lake.kind


def test_the_number_of_cells_follows_the_load(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down while batches take nearly nothing of the threshold, up again where they take more; no row is lost."""
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    wanted: Counter[Any] = Counter()
    cores, step = 2, 0
    monkeypatch.setattr(distributed_executor, "cluster_cores", lambda _: cores)
    texts = {"inner": PAIRS, "outer": PAIRS.replace("JOIN", "LEFT JOIN")}
    for cores, cells, threshold in ((2, 1, 1e6), (1, 2, 1e-9)):
        decided: list[str] = []
        with engine_on(spark, tmp_path, options={"partitions": "auto"}, latency_threshold=threshold) as engine:
            engine.on_batch(lambda event, told=decided: told.extend(event.scaling))  # type: ignore[misc]
            for name, text in texts.items() if cells == 1 else ():
                engine.create(text, name=name, sink=ParquetSink(str(tmp_path / name)))
            cores = 2
            while not (decided and engine.metrics().partitions == cells):
                # A tuple meets those of the step before, which came to other cells.
                for stream in (left, right):
                    stream.rows(*((key, 100 * step + key, 3.0 * step) for key in range(8)))
                for one, other in ((step, step), (step - 1, step), (step, step - 1)):
                    wanted.update((100 * one + key, 100 * other + key) for key in range(8) if min(one, other) >= 0)
                step += 1
                engine.process_all_available()
                assert step < 60
        assert any(text.startswith(f"{cells} cell{'s'[: cells > 1]} instead of") for text in decided)
    assert written(tmp_path / "inner") == written(tmp_path / "outer") == wanted


def test_files_of_tasks_say_which_query_they_are_of(spark: Any, tmp_path: Path) -> None:
    """So that a directory stays with one query, though the driver never wrote to it."""
    sink = ParquetSink(str(tmp_path / "out"))
    with engine_on(spark, tmp_path) as engine:
        engine.create(PAIRS, name="q", sink=sink)
        feed(tmp_path, range(1))
        engine.process_all_available()
        engine.drop("q")
        for other in (f"{PAIRS} WHERE x.p > 1", PAIRS.replace("x.p AS a", "x.k AS a, x.p AS c")):
            with pytest.raises(SpecError, match="a directory belongs to one query"):
                engine.create(other, name="q", sink=sink)
        engine.create(PAIRS, name="q", sink=sink)
