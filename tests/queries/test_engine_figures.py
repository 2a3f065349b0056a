"""What an engine counts and measures: counters across restarts, a query's latency by stage, where streams are from."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import CallbackSink, Engine, MemorySink, ParquetSink, Settings
from streamjoin.model.errors import CheckpointError, SetupError, StreamJoinError
from streamjoin.queries.engine import executor, figures
from streamjoin.queries.engine.figures import Passage
from streamjoin.queries.engine.inbox import SourceBatch
from streamjoin.queries.engine.info import LATENCY_STAGES
from streamjoin.queries.sinks.base import NewestRows
from streamjoin.queries.sources.files import FileSource
from streamjoin.queries.sources.kafka import KafkaSource
from streamjoin.queries.sources.rate import RateSource
from tests.queries.journal_cases import LEFT, PAIRS, RIGHT, Killed, killed_at, opened, table
from tests.queries.looped import Looped


def counts(engine: Engine) -> tuple[Any, ...]:
    """Everything that is counted since the checkpoint was made."""
    metrics = engine.metrics()
    return (
        (metrics.rows_in, metrics.rows_out, metrics.late),
        {info.name: (info.rows, info.rows_undelivered, info.rows_missed) for info in engine.queries()},
        {info.name: (info.rows, info.late, info.untimed, info.malformed) for info in engine.streams()},
    )


def refuse(_batch: int, _rows: pa.Table) -> None:
    raise OSError("no room")


def test_counters_continue_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "FIRST_PAUSE", 60.0)
    with opened(tmp_path / "c", settings=Settings(spool_rows=1, future=10)) as engine:
        engine.create(PAIRS, name="memory")
        engine.create(PAIRS, name="files", sink=ParquetSink(str(tmp_path / "out")))
        engine.create(PAIRS, name="stuck", sink=CallbackSink(refuse))
        for number in range(4):
            engine.push_all({"l": table((1, number, 9)), "r": table((1, number, 9))})
        engine.push("l", table((1, 8, 0), (1, 9, 5_000)))
        engine.drop("memory")
        # Another query of the same name has counted nothing.
        engine.create(PAIRS, name="memory")
        before = counts(engine)
        assert before[0] == (10, 48, 1)
        assert before[1] == {"files": (16, 0, 0), "stuck": (0, 1, 15), "memory": (0, 0, 0)}
        assert before[2] == {"l": (6, 1, 1, 0), "r": (4, 0, 0, 0)}
        batches = engine.metrics().batches
    with opened(tmp_path / "c", settings=Settings(spool_rows=1, future=10)) as engine:
        assert counts(engine) == before
        assert engine.metrics().batches == batches
        engine.push_all({"l": table((2, 0, 12)), "r": table((2, 0, 12))})
        assert counts(engine)[0] == (12, 51, 1)
        assert engine.metrics().batches == batches + 1


def run_of_two(checkpoint: Path) -> tuple[Any, ...]:
    """Whatever of a small run is not done yet; the counters after it."""
    run = Looped(checkpoint)
    try:
        run.begin(LEFT, RIGHT)
        if "q" not in run.catalog.entries:
            run.create("q", PAIRS, MemorySink())
        for number, left in enumerate([table((1, 1, 9)), table((1, 3, 9), (1, 4, 0))]):
            if run.newest("l") < number:
                run.hand({"l": (number, left)})
            if run.newest("r") < number:
                run.hand({"r": (number, table((1, 2, 9)))})
        metrics = run.loop.metrics(running=True, started_at=None)
        streams = {name: (figures.rows, figures.late) for name, figures in run.catalog.streams.items()}
        return metrics.rows_in, metrics.rows_out, metrics.late, run.catalog.entries["q"].info().rows, streams
    finally:
        run.abandon()


def test_counters_are_exact_whichever_write_the_process_ends_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for write in range(100):
        with killed_at(write, bool(write % 2), monkeypatch):
            try:
                run_of_two(tmp_path / str(write))
                break
            except (Killed, StreamJoinError):
                pass
        assert run_of_two(tmp_path / str(write)) == (5, 4, 1, 4, {"l": (3, 1), "r": (2, 0)}), write
    assert write > 12


AROUND = (
    "SELECT x.p AS a, sum(y.p) AS s, avg(y.p) AS m FROM l x WINDOW JOIN r y ON x.k = y.k "
    "RANGE BETWEEN 2 UNITS PRECEDING AND CURRENT ROW EXCLUDE PREVAILING"
)
BEYOND = {
    "around": AROUND,
    "twice": f"{AROUND} UNION ALL {AROUND}",
    "groups": "SELECT k AS a, sum(p) AS s, avg(p) AS m FROM r GROUP BY k, TUMBLE(t, 4)",
}
LARGE = 2**63 - 1


def run_beyond(checkpoint: Path, settings: Settings) -> dict[str, int]:
    """Whatever of a run with two times two sums beyond int64 is not done yet; how many are counted of each query."""
    run = Looped(checkpoint, settings)
    try:
        run.begin(LEFT, RIGHT)
        for name, text in BEYOND.items():
            if name not in run.catalog.entries:
                run.create(name, text, MemorySink())
        for number, t in enumerate((4, 8, 40)):
            run.go_on(2 * number, {"r": table((1, LARGE, t), (1, 1, t), (2, LARGE, t))})
            run.go_on(2 * number + 1, {"l": table((1, 0, t), (2, 0, t))})
        return {name: entry.info().overflowed for name, entry in run.catalog.entries.items()}
    finally:
        run.abandon()


@pytest.mark.parametrize(("sharing", "writes"), [("cost", (14, 21, 28)), ("nothing", (24,))])
def test_sums_beyond_their_type_are_counted_once_wherever_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharing: Any, writes: tuple[int, ...]
) -> None:
    settings = Settings(sharing=sharing, future=None)
    for write in writes:
        with killed_at(write, bool(write % 2), monkeypatch), pytest.raises((Killed, StreamJoinError)):
            run_beyond(tmp_path / str(write), settings)
        assert run_beyond(tmp_path / str(write), settings) == {"around": 2, "twice": 4, "groups": 2}, write


def test_latency_is_the_time_from_arrival_to_delivery_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(100)
    fake = SimpleNamespace(monotonic=lambda: float(next(clock)), time=lambda: 0.0)
    monkeypatch.setattr(figures, "time", fake)
    early = SourceBatch("l", 0, table(), handed_at=20.0, read_at=15.0, looked_at=10.0)
    pushed = SourceBatch("r", 0, table(), handed_at=30.0)
    passage = Passage.of([pushed, early], begun_at=40.0, joined_at=70.0)
    assert passage == Passage(source=5.0, read=5.0, queue=20.0, join=30.0, store=30.0, ready_at=100.0)
    assert passage.milliseconds(101.0) == {
        "source": 5000,
        "read": 5000,
        "queue": 20_000,
        "join": 30_000,
        "store": 30_000,
        "sink": 1000,
    }
    assert Passage.of([pushed], 40.0, 70.0) == Passage(0.0, 0.0, 10.0, 30.0, 31.0, 101.0)
    assert Passage.of([], 40.0, 70.0) is None


def test_replayed_events_have_the_latency_of_now(tmp_path: Path) -> None:
    """Events of 2001 are old, but their rows come as fast as any others."""
    schema = pa.schema({"k": pa.int64(), "ts": pa.timestamp("us")})
    out, held = threading.Event(), threading.Event()
    engine = Engine(settings=Settings(sink_patience=0.01))
    for name in "lr":
        (tmp_path / name).mkdir()
        line = json.dumps({"k": 1, "ts": "2001-01-01T00:00:00"})
        (tmp_path / name / "0.json").write_text(line + "\n")
        engine.register(name, source=FileSource(str(tmp_path / name), "json", schema))

    def slow(_batch: int, _rows: pa.Table) -> None:
        held.set()
        assert out.wait(60)

    with engine:
        sql = "SELECT x.k FROM l x JOIN r y WITHIN 1 SECOND ON x.k = y.k"
        engine.process_all_available()
        quick = engine.create(sql, name="quick")
        engine.create(sql, name="slow", sink=CallbackSink(slow))
        assert engine.query("quick").latency_ms is None and engine.query("quick").latency == {}
        for name in "lr":
            (tmp_path / name / ".1.json").write_text(line + "\n")
            (tmp_path / name / ".1.json").rename(tmp_path / name / "1.json")
        assert held.wait(60)
        engine._between_batches(lambda: None)
        info = quick.info()
        assert tuple(info.latency) == LATENCY_STAGES and min(info.latency.values()) >= 0
        assert info.latency_ms == pytest.approx(sum(info.latency.values()))
        assert 0 < (info.latency_ms or 0) < 600_000
        assert engine.query("slow").latency_ms is None
        # The engine tells the slowest query's whose rows are delivered.
        assert engine.metrics().latency == info.latency
        assert all((stream.lag_seconds or 0) > 20 * 365 * 86_400 for stream in engine.streams())
        out.set()
        engine.process_all_available()
        late = engine.query("slow").latency
        assert late["join"] == info.latency["join"] and late["sink"] > info.latency["sink"]


LINES = pa.schema({"k": pa.int64(), "ts": pa.timestamp("us")})


def test_a_stream_from_another_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.json").write_text('{"k": 1, "ts": "2001-01-01T00:00:00"}\n')
    checkpoint = tmp_path / "c"
    # A directory that does not exist was never read: the next one may be another.
    with pytest.raises(SetupError, match="no directory"), Engine(checkpoint=checkpoint) as engine:
        engine.register("l", source=FileSource(str(tmp_path / "nowhere"), "json", LINES))
    with Engine(checkpoint=checkpoint) as engine:
        engine.register("l", source=FileSource(str(tmp_path / "here"), "json", LINES))
        engine.register("pushed", schema=LINES)
        engine.push("pushed", [{"k": 1, "ts": dt.datetime(2001, 1, 1)}])
        engine.process_all_available()
    engine = Engine(checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match=r"'l' .*is read from files in .*here, and not from files in .*there"):
        engine.register("l", source=FileSource(str(tmp_path / "there"), "json", LINES))
    with pytest.raises(CheckpointError, match=r"and not from pushes, .* or under another name"):
        engine.register("l", schema=LINES)
    with pytest.raises(CheckpointError, match="read from pushes, and not from files in"):
        engine.register("pushed", source=FileSource(str(tmp_path / "there"), "json", LINES))
    # The same place by another way, and other options of it, are no other place.
    monkeypatch.chdir(tmp_path)
    engine.register("l", source=FileSource("here", "json", LINES, {"maxFilesPerTrigger": "1"}))
    engine.register("there", source=FileSource("there", "json", LINES))
    engine.register("pushed", schema=LINES)
    with engine:
        engine.process_all_available()
        assert {info.name: info.rows for info in engine.streams()} == {"l": 1, "pushed": 1, "there": 1}


def test_topics_are_places_and_brokers_are_not() -> None:
    def topics(servers: str, **options: str) -> str:
        return KafkaSource({"kafka.bootstrap.servers": servers, **options}, LINES).origin

    assert topics("a:1", subscribe="x,y") == topics("b:2", subscribe="y, x") == "Kafka topics x, y"
    assert topics("a:1", subscribe="x") != topics("a:1", subscribePattern="x")
    assert RateSource(1).origin == RateSource(2).origin


def test_a_checkpoint_of_before_takes_the_place_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "0.json").write_text('{"k": 1, "ts": "2001-01-01T00:00:00"}\n')
    with Engine(checkpoint=tmp_path / "c") as engine:
        engine.register("l", source=FileSource(str(tmp_path / "here"), "json", LINES))
        engine.process_all_available()
    (tmp_path / "c" / "origins" / "l").unlink()
    with Engine(checkpoint=tmp_path / "c") as engine:
        engine.register("l", source=FileSource(str(tmp_path / "here"), "json", LINES))
        engine.process_all_available()
        assert engine.streams()[0].rows == 1
    with pytest.raises(CheckpointError, match="is read from files in"), Engine(checkpoint=tmp_path / "c") as engine:
        engine.register("l", schema=LINES)


def test_the_newest_rows_of_a_query_hold_on_to_nothing_else() -> None:
    """A query with a row now and then would otherwise keep the rows that all queries had in these batches."""
    newest = NewestRows(pa.schema({"n": pa.int64(), "s": pa.string()}), 1000)
    before = pa.total_allocated_bytes()
    for number in range(20):
        buffer = pa.allocate_buffer(8 * 100_000)
        numbers = pa.Array.from_buffers(pa.int64(), 100_000, [None, buffer])
        texts = pa.chunked_array([["x" * number] * 10] * 10_000).combine_chunks()
        whole = pa.table({"n": numbers, "s": texts})
        newest.write(number, whole.slice(number, 1))
        del buffer, numbers, texts, whole
    assert pa.total_allocated_bytes() - before < 800_000
    assert newest.newest(100).column("s").to_pylist() == ["x" * number for number in range(20)]
    assert newest.after(15, 100).table.num_rows == 5 and newest.newest(3).num_rows == 3


@pytest.mark.parametrize("sharing", ["cost", "nothing"])
def test_what_queries_cost_is_divided_among_them(sharing: Any) -> None:
    engine = Engine(settings=Settings(sharing=sharing))
    schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
    for name in ("l", "r", "alone"):
        engine.register(name, schema=schema, time="t")
    pairs = "SELECT x.t AS a, y.t AS b FROM {} x JOIN r y WITHIN 500 UNITS ON x.k = y.k"
    with engine:
        for name, stream in (("one", "l"), ("two", "l"), ("three", "alone")):
            engine.create(pairs.format(stream), name=name)
        for begin in range(0, 300, 100):
            rows = [{"k": number % 7, "t": number} for number in range(begin, begin + 100)]
            engine.push_all({"l": rows, "r": rows})
            costs = {info.name: (info.cpu_seconds, info.state_bytes) for info in engine.queries()}
        held = sum(engine.metrics().state_bytes.values())
    assert costs["one"][0] > 0
    assert costs["one"][1] == pytest.approx(costs["two"][1], rel=0.01)
    # What nobody else reads is counted for one query alone, and nothing twice.
    assert 0 < costs["three"][1] < costs["one"][1]
    assert 0.5 * held < sum(size for _, size in costs.values()) <= held
