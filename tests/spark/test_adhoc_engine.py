"""The ad-hoc engine on Spark: streams, queries, changes from any thread, and what it tells of itself."""

from __future__ import annotations

import gc
import json
import logging
import re
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamjoin.adhoc import CallbackSink, Engine, MemorySink, Settings, TableSink
from streamjoin.model.errors import InputError, QueryError, SchemaError, SpecError, StateError
from streamjoin.queries.engine import executor
from streamjoin.queries.executors import spark as spark_executor
from streamjoin.queries.executors.spark import SparkExecutor
from streamjoin.spark.demo.feeds import drop
from tests.queries.looped import read_back
from tests.spark.adhoc_streams import PAIRS, FileStream, counted, table_of

pytestmark = pytest.mark.spark


@pytest.fixture
def streams(tmp_path: Path) -> dict[str, FileStream]:
    return {name: FileStream(tmp_path / name) for name in ("l", "r")}


@pytest.fixture
def engine(spark: Any, tmp_path: Path, streams: dict[str, FileStream]) -> Iterator[Engine]:
    made = Engine(spark, tmp_path / "checkpoint")
    for name, stream in streams.items():
        made.register(name, stream.frame(spark), lateness="1 minute")
    yield made
    made.stop()


def test_nothing_holds_on_to_an_engine_that_was_stopped(
    spark: Any, tmp_path: Path, streams: dict[str, FileStream]
) -> None:
    """Spark keeps a callback until the JVM collects garbage, which may be never."""
    engine = Engine(spark, tmp_path / "checkpoint")
    for name, stream in streams.items():
        engine.register(name, stream.frame(spark), lateness="1 minute")
        stream.rows((1, 10, 0.0))
    engine.create(PAIRS)
    engine.start()
    engine.process_all_available()
    engine.stop()
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


def test_a_query_sees_the_batches_from_its_create_to_its_drop(engine: Engine, streams: dict[str, FileStream]) -> None:
    engine.start()
    first = engine.create(PAIRS, name="first")
    streams["l"].rows((1, 10, 0.0))
    streams["r"].rows((1, 20, 1.0))
    engine.process_all_available()
    second = engine.create(PAIRS)
    assert second.name == "q1"
    streams["r"].rows((1, 21, 2.0), (2, 22, 2.0))
    engine.process_all_available()
    assert counted(first.rows()) == Counter([(10, 20), (10, 21)])
    assert second.rows().num_rows == 0, "the left tuple came before the create"
    streams["l"].rows((1, 11, 3.0))
    engine.process_all_available()
    assert counted(second.rows()) == Counter([(11, 21)])
    first.drop()
    streams["l"].rows((2, 12, 4.0))
    engine.process_all_available()
    assert counted(second.rows()) == Counter([(11, 21), (12, 22)])
    assert first.info().state == "dropped"
    assert first.info().rows == 4
    assert [info.name for info in engine.queries()] == ["q1"]
    actions = [(record.serial, record.action, record.name) for record in engine.changelog()]
    assert actions == [
        (1, "register", "l"),
        (2, "register", "r"),
        (3, "create", "first"),
        (4, "create", "q1"),
        (5, "drop", "first"),
    ]
    assert [record.serial for record in engine.changelog(since=3)] == [4, 5]
    batches = [record.batch for record in engine.changelog()]
    assert batches == sorted(batches)


def test_what_it_tells_of_itself(engine: Engine, streams: dict[str, FileStream]) -> None:
    events: list[Any] = []
    told = threading.Event()

    def note(event: Any) -> None:
        events.append(event)
        if event.rows_out:
            told.set()
        raise RuntimeError("never reaches the stream")

    cancel = engine.on_batch(note)
    early = engine.create(PAIRS, name="early")
    assert early.info().state == "pending"
    with engine:
        early.wait(60)
        info = early.info()
        assert (info.state, info.sink) == ("running", "memory, newest 1,000 rows")
        assert info.columns == (("a", "int64"), ("b", "int64"))
        streams["l"].rows((1, 10, 0.0))
        engine.process_all_available()
        streams["l"].rows((1, 11, -90.0))
        streams["r"].rows((1, 20, 1.0))
        engine.process_all_available()
        assert told.wait(60)
        left, right = engine.streams()
        assert (left.name, left.rows, left.late, right.rows) == ("l", 2, 1, 1)
        assert left.watermark == "2025-06-15T15:05:40+00:00"
        assert left.error is None
        metrics = engine.metrics()
        assert (metrics.rows_in, metrics.rows_out, metrics.late, metrics.queries) == (3, 1, 1, 1)
        assert set(metrics.seconds) >= {"joining", "sinks"}
        assert "1 queries" in str(engine.explain())
        shown = engine.preview("SELECT y.p FROM l x JOIN r y WITHIN 9 SECONDS ON y.k = x.k WHERE x.p > 3")
        assert (shown.shares_with, shown.new_joins, shown.shared_joins) == (("early",), 0, 2)
        assert shown.streams == ("l", "r")
        assert shown.cost_shared <= shown.cost_apart
        other = engine.preview("SELECT y.p FROM l x JOIN r y WITHIN 9 SECONDS ON y.p = x.p")
        assert (other.shares_with, other.new_joins) == ((), 2)
        cancel()
    assert sum(sum(event.rows_in.values()) for event in events) == 3
    assert sum(event.rows_out.get("early", 0) for event in events) == 1
    assert [event.latency_ms is not None for event in events] == [bool(event.rows_out.get("early")) for event in events]
    assert {change.name for event in events for change in event.changes} == {"l", "r", "early"}
    assert isinstance(events[0].as_json()["changes"], list)


def test_pause_resume_and_sinks_that_fail(
    engine: Engine, streams: dict[str, FileStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "FIRST_PAUSE", 1000.0)
    monkeypatch.setattr(executor, "LONGEST_PAUSE", 1000.0)
    seen: list[tuple[int, int]] = []

    def refuse(batch: int, rows: Any) -> None:
        if not seen:
            seen.append((batch, rows.num_rows))
            raise OSError("no space")
        seen.append((batch, rows.num_rows))

    with engine:
        good = engine.create(PAIRS, name="good", sink=MemorySink(2))
        bad = engine.create(PAIRS, name="bad", sink=CallbackSink(refuse))
        streams["l"].rows((1, 10, 0.0))
        streams["r"].rows((1, 20, 1.0), (1, 21, 1.0), (1, 22, 1.0))
        engine.process_all_available()
        info = bad.info()
        assert (info.state, info.rows, info.rows_undelivered) == ("degraded", 0, 3)
        assert "no space" in str(info.error)
        assert good.info().rows == 3
        engine.pause("good")
        assert good.info().state == "paused"
        streams["l"].rows((1, 11, 2.0))
        engine.process_all_available()
        assert good.info().rows == 3
        engine.resume("good")
        engine.resume("bad")
        streams["l"].rows((1, 12, 2.0))
        engine.process_all_available()
        assert good.info().rows == 6
        # Nothing of what came meanwhile is lost.
        assert (bad.info().state, bad.info().error, bad.info().rows) == ("running", None, 9)
        assert sum(rows for _, rows in seen[1:]) == 9


def test_a_directory_that_is_gone_makes_its_queries_degraded_until_it_is_back(
    engine: Engine, streams: dict[str, FileStream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself reads on, as if the directory were empty."""
    monkeypatch.setattr(spark_executor, "LOOKED_AT_EVERY", 0.1)
    told = threading.Condition()

    def tell() -> None:
        with told:
            told.notify_all()

    def wait_for(state: str) -> str | None:
        with told:
            assert told.wait_for(lambda: engine.query("q").state == state, 60)
            return engine.query("q").error

    engine.on_state(tell)
    with engine:
        engine.create(PAIRS, name="q")
        streams["l"].rows((1, 10, 0.0))
        engine.process_all_available()
        streams["l"].directory.rename(tmp_path / "away")
        assert "there is no directory" in str(wait_for("degraded"))
        (tmp_path / "away").rename(streams["l"].directory)
        assert wait_for("running") is None
        streams["r"].rows((1, 20, 1.0))
        engine.process_all_available()
        assert counted(engine.rows("q")) == Counter([(10, 20)])


def test_a_sink_may_ask_the_engine(engine: Engine, streams: dict[str, FileStream]) -> None:
    def once(batch: int, rows: Any) -> None:
        engine.preview(PAIRS)
        engine.drop("once")

    with engine:
        engine.create(PAIRS, name="once", sink=CallbackSink(once))
        streams["l"].rows((1, 10, 0.0))
        streams["r"].rows((1, 20, 1.0))
        engine.process_all_available()
        engine.process_all_available()
        assert engine.query("once").state == "dropped"
        assert engine.query("once").rows == 1


def test_many_threads_create_and_drop(engine: Engine, streams: dict[str, FileStream]) -> None:
    def work(number: int) -> None:
        for round_ in range(5):
            handle = engine.create(PAIRS + f" WHERE x.p > {number}", name=f"t{number}-{round_}")
            if round_ % 2:
                handle.drop()

    with engine:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        streams["l"].rows((1, 10, 0.0))
        for thread in threads:
            thread.join()
        assert len(engine.queries()) == 18
        assert [record.serial for record in engine.changelog()] == list(range(1, 2 + 30 + 12 + 1))
        streams["l"].rows((2, 10, 0.0))
        streams["r"].rows((2, 20, 1.0))
        engine.process_all_available()
        assert all(counted(engine.rows(info.name)) == Counter([(10, 20)]) for info in engine.queries())


def test_a_stream_may_come_while_it_runs(
    spark: Any, tmp_path: Path, engine: Engine, streams: dict[str, FileStream]
) -> None:
    engine.start()
    new = FileStream(tmp_path / "new")
    with pytest.raises(QueryError, match="new"):
        engine.create("SELECT x.p FROM l x JOIN new y WITHIN 5 SECONDS ON x.k = y.k")
    engine.register("new", new.frame(spark))
    handle = engine.create("SELECT x.p FROM l x JOIN new y WITHIN 5 SECONDS ON x.k = y.k")
    streams["l"].rows((1, 10, 0.0))
    new.rows((1, 30, 0.0))
    engine.process_all_available()
    assert counted(handle.rows()) == Counter([(10,)])


def test_mistakes_are_told(spark: Any, tmp_path: Path, engine: Engine, streams: dict[str, FileStream]) -> None:
    with pytest.raises(StateError, match="registered already"):
        engine.register("l", streams["l"].frame(spark))
    with pytest.raises(InputError, match="streaming DataFrame"):
        engine.register("n", spark.range(3))
    with pytest.raises(SchemaError, match="no time column"):
        engine.register("n", streams["l"].frame(spark), time="when")
    with engine:
        with pytest.raises(QueryError) as wrong:
            engine.create("SELECT x.nope FROM l x JOIN r y WITHIN 5 SECONDS ON x.k = y.k")
        assert (wrong.value.line, wrong.value.column) == (1, 8)
        engine.create(PAIRS, name="q")
        for call in (
            lambda: engine.create(PAIRS, name="q"),
            lambda: engine.drop("nobody"),
            lambda: engine.query("nobody"),
        ):
            with pytest.raises(SpecError, match="there is"):
                call()
        with pytest.raises(SpecError):
            engine.create(PAIRS, name="")
        with pytest.raises(StateError, match="started before"):
            engine.start()
        assert engine.wait(0.0) is False
    with pytest.raises(StateError, match="stopped"):
        engine.create(PAIRS)
    assert engine.wait() is True


@pytest.mark.parametrize("sharing", ["nothing", "everything"])
def test_other_ways_to_share(spark: Any, tmp_path: Path, streams: dict[str, FileStream], sharing: Any) -> None:
    with Engine(spark, tmp_path / "checkpoint", Settings(sharing=sharing)) as engine:
        for name, stream in streams.items():
            engine.register(name, stream.frame(spark))
        one, two = engine.create(PAIRS), engine.create(PAIRS + " WHERE y.p > 20")
        streams["l"].rows((1, 10, 0.0))
        streams["r"].rows((1, 20, 1.0), (1, 21, 1.0))
        engine.process_all_available()
        assert counted(one.rows()) == Counter([(10, 20), (10, 21)])
        assert counted(two.rows()) == Counter([(10, 21)])
        assert "2 queries" in str(engine.explain())


def test_the_example_of_the_document(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rows in (
        (
            "trades",
            [
                {"sym": "A", "px": 9.5, "ts": "2026-01-01T00:00:00Z"},
                {"sym": "B", "px": 12.0, "ts": "2026-01-01T00:00:04Z"},
            ],
        ),
        (
            "quotes",
            [
                {"sym": "A", "bid": 9.0, "ts": "2026-01-01T00:00:02Z"},
                {"sym": "B", "bid": 11.0, "ts": "2026-01-01T00:00:00Z"},
            ],
        ),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    text = (Path(__file__).parents[2] / "docs" / "adhoc.md").read_text()
    program = text.split("```python\n")[2].split("```")[0]
    exec(compile(program, "docs/adhoc.md", "exec"), {"spark": spark, "home": str(tmp_path)})
    said = capsys.readouterr().out
    assert said.startswith("[{'sym': 'A', 'px': 9.5, 'bid': 9.0}]\n2 queries")
    assert read_back(tmp_path / "expensive", ["sym", "px", "bid"]) == [("B", 12.0, 11.0)]


def test_a_view_of_the_newest_rows(spark: Any, engine: Engine, streams: dict[str, FileStream]) -> None:
    with engine:
        engine.create(PAIRS, name="q", sink=TableSink("newest_pairs", limit=2))
        assert spark.table("newest_pairs").count() == 0
        streams["l"].rows((1, 10, 0.0))
        streams["r"].rows((1, 20, 1.0), (1, 21, 1.0), (1, 22, 1.0))
        engine.process_all_available()
        assert [tuple(row) for row in spark.sql("SELECT * FROM newest_pairs ORDER BY b").collect()] == [
            (10, 21),
            (10, 22),
        ]
        engine.drop("q")
        assert not spark.catalog.tableExists("newest_pairs")


class Heard(logging.Handler):
    """An event for each line of the log that holds a text."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self._events = {text: threading.Event() for text in texts}

    def emit(self, record: logging.LogRecord) -> None:
        for text, event in self._events.items():
            if text in record.getMessage():
                event.set()

    def wait(self, text: str) -> None:
        assert self._events[text].wait(120), f"nothing was said of {text!r}"


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setattr(executor, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(executor, "LONGEST_PAUSE", 0.02)
    # A retry may take that long before it fails on a busy machine, and would count as recovered.
    monkeypatch.setattr(spark_executor, "STEADY", 10_000)
    handler = Heard("'r' failed", "'r' is read again")
    logger = logging.getLogger("streamjoin.adhoc")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_a_stream_that_fails_is_told_and_tried_again_while_the_others_go_on(
    engine: Engine, streams: dict[str, FileStream], heard: Heard
) -> None:
    with engine:
        handle = engine.create(PAIRS)
        streams["r"].spoil("000000.parquet")
        heard.wait("'r' failed")
        told = {info.name: info for info in engine.streams()}
        assert re.fullmatch(r"stream 'r' failed: \S*000000.parquet is not a Parquet file.*", str(told["r"].error))
        assert told["r"].failures > 0 and told["r"].retry_at is not None
        with pytest.raises(StateError, match="'r' failed"):
            engine.process_all_available()
        assert (engine.error, engine.wait(0.0)) == (None, False)
        # The other stream's tuples come in meanwhile, and queries can be made.
        streams["l"].rows((1, 10, 0.0))
        engine._readers._feeds["l"].process_all_available()
        engine._between_batches(lambda: None)
        assert engine.streams()[0].rows == 1
        engine.create(PAIRS)
        # In one step: a retry that met no file would go on without it.
        drop(table_of((1, 20, 1.0)), streams["r"].directory / "000000.parquet")
        heard.wait("'r' is read again")
        engine.process_all_available()
        assert counted(handle.rows()) == Counter([(10, 20)])
        well = engine.streams()[1]
        assert (well.error, well.retry_at, well.rows) == (None, None, 1)
        assert well.failures >= told["r"].failures


def test_a_stream_that_fails_can_be_registered_anew(
    spark: Any, engine: Engine, streams: dict[str, FileStream], heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "FIRST_PAUSE", 1000.0)
    monkeypatch.setattr(executor, "LONGEST_PAUSE", 1000.0)
    with engine:
        streams["r"].spoil("000000.parquet")
        heard.wait("'r' failed")
        (streams["r"].directory / "000000.parquet").unlink()
        drop(table_of((1, 20, 1.0)), streams["r"].directory / "000000.parquet")
        engine.register("r", streams["r"].frame(spark), lateness="1 minute")
        engine.process_all_available()
        assert (engine.streams()[1].rows, engine.streams()[1].error) == (1, None)
        with pytest.raises(StateError, match="registered already"):
            engine.register("r", streams["r"].frame(spark), lateness="1 minute")


def test_the_end_of_spark_ends_the_engine(
    engine: Engine, streams: dict[str, FileStream], heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkExecutor, "gone", True)
    with engine:
        streams["r"].spoil("000000.parquet")
        with pytest.raises(StateError, match="Spark has stopped: stream 'r' failed"):
            engine.wait(120)


def test_the_order_of_partitions_makes_no_tuple_late(spark: Any, tmp_path: Path) -> None:
    """A batch of several partitions or files comes one after the other, in an order that says nothing."""
    engine = Engine(spark, tmp_path / "checkpoint")
    source = FileStream(tmp_path / "l")
    engine.register("l", source.frame(spark).repartition(2, "p"), lateness="1 second")
    engine.register("r", FileStream(tmp_path / "r").frame(spark))
    with engine:
        source.rows(*((n, n, float(n)) for n in range(40)))
        engine.process_all_available()
        told = engine.streams()[0]
        assert (told.rows, told.late) == (40, 0)
        # Behind what an earlier batch had reached is late all the same.
        source.rows((1, 1, 10.0), (2, 2, 41.0))
        engine.process_all_available()
        assert engine.streams()[0].late == 1


def test_the_jobs_of_a_batch_do_not_grow_with_the_queries(
    spark: Any, tmp_path: Path, streams: dict[str, FileStream]
) -> None:
    jobs = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs
    with Engine(spark, tmp_path / "checkpoint", partitions=2, executor="distributed") as engine:
        for name, stream in streams.items():
            engine.register(name, stream.frame(spark), lateness="1 minute")
        for queries in (1, 24):
            for _ in range(queries):
                engine.create(PAIRS, wait=False)
            engine.process_all_available()
            before = jobs()
            streams["l"].rows((queries, 10, 0.0))
            streams["r"].rows((queries, 20, 1.0))
            engine.process_all_available()
            # One to read each stream, and one to join a batch, of which there are one or two.
            assert 3 <= jobs() - before <= 4, "rows that are shown wait in the spool, which takes no job"
        assert engine.metrics().rows_out == 1 + 25
        found = engine.explain()
        assert len(found.tasks) == 2 and all(task.seconds > 0 and "joins" in task.parts for task in found.tasks)
        assert "task 1 of the last batch" in str(found) and len(json.loads(found.json)["tasks"]) == 2
        assert sum(step.pairs for root in found.roots for step in root.step.walk()) > 0, "what tasks counted is here"
