"""After a pause: what was missed comes in bounded batches, committed one by one, and progress is told."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamjoin.adhoc import Engine, MemorySink, Settings
from streamjoin.model.errors import CheckpointError
from streamjoin.queries.engine import engine as engine_module
from streamjoin.queries.engine import inbox as inbox_module
from streamjoin.queries.engine.figures import CatchUp
from streamjoin.queries.engine.inbox import Inbox, Pace, SourceBatch, Staging, plain_position
from streamjoin.queries.engine.info import CatchingUp
from streamjoin.queries.engine.loop import TableRowsOut
from streamjoin.queries.sources.base import SourceRows
from streamjoin.queries.sources.files import FileSource
from streamjoin.queries.sources.rate import RateSource

SCHEMA = pa.schema({"t": pa.int64(), "k": pa.int64()})
PAIRS = "SELECT x.t AS a, y.t AS b FROM l x JOIN r y WITHIN 1 UNITS ON x.t = y.t"


def write(directory: Path, number: int, times: range) -> None:
    directory.mkdir(exist_ok=True)
    # The latest first: what is read together is in no order.
    rows = pa.table({"t": list(reversed(times)), "k": [0] * len(times)}, SCHEMA)
    pq.write_table(rows, directory / f"{number:04}.parquet")


def opened(root: Path, **settings: Any) -> Engine:
    engine = Engine(checkpoint=root / "checkpoint", settings=Settings(**settings))
    for name in ("l", "r"):
        engine.register(name, source=FileSource(str(root / name), "parquet", SCHEMA), time="t")
    return engine


def follow(engine: Engine) -> list[Any]:
    events: list[Any] = []
    engine.on_batch(events.append)
    return events


@pytest.mark.parametrize("limits", [{"batch_rows": 100}, {"batch_bytes": 1600}])
def test_what_was_missed_comes_in_bounded_batches_and_none_is_late(tmp_path: Path, limits: dict[str, int]) -> None:
    for name in ("l", "r"):
        for number in range(4):
            write(tmp_path / name, number, range(number * 300, number * 300 + 300))
    engine = opened(tmp_path, **limits)
    events = follow(engine)
    # Before the start: a query has nothing of batches before it.
    engine.create(PAIRS, "q", MemorySink(10_000))
    with engine:
        engine.process_all_available()
        assert [stream.late for stream in engine.streams()] == [0, 0]
        rows = engine.rows("q", 10_000)
        assert rows.column("a").to_pylist() == rows.column("b").to_pylist()
        assert sorted(rows.column("a").to_pylist()) == list(range(1200))
        assert CatchingUp.of(engine.streams()) is None
    sizes = [rows for event in events for rows in event.rows_in.values() if rows]
    assert sum(sizes) == 2400 and max(sizes) == 100
    assert not list((tmp_path / "checkpoint" / "staged").rglob("*.*"))


def test_a_stop_waits_for_one_batch_and_a_restart_goes_on_within_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("l", "r"):
        write(tmp_path / name, 0, range(1000))
    begun = threading.Event()

    results = TableRowsOut.results

    def held(self: TableRowsOut, arrived: Any) -> Any:
        """A batch with rows runs until all streams are asked to stop."""
        if arrived.buckets:
            begun.set()
            feeds: Any = engine._readers._feeds
            assert all(feed._stopping.wait(60) for feed in feeds.values())
        return results(self, arrived)

    monkeypatch.setattr(TableRowsOut, "results", held)
    found: Counter[int] = Counter()
    stops = 0
    for _ in range(100):
        begun.clear()
        engine = opened(tmp_path, batch_rows=100)
        if not stops:
            engine.create(PAIRS, "q", MemorySink(10_000))
        engine.start()
        assert begun.wait(60)
        before = engine.metrics().rows_in
        engine.stop()
        stops += 1
        # The batch that ran, one that waited for each stream, and no more.
        assert engine.metrics().rows_in - before <= 400
        assert all(stream.late == 0 for stream in engine.streams())
        found.update(engine.rows("q", 10_000).column("a").to_pylist())
        if engine.metrics().rows_in == 2000:
            break
    assert stops > 2 and found == Counter(range(1000))


def test_a_position_within_a_read_needs_what_was_read(tmp_path: Path) -> None:
    kept = Staging(tmp_path / "staged")
    kept.begin(pa.table({"t": list(range(50))}), pa.table({"value": ["!"]}), {"files": 3}, "t")
    pace = Pace(20)
    given = kept.next(pace)
    assert given.rows.num_rows == 20 and given.malformed is not None and plain_position(given.position) == {"files": 3}
    kept.handed(given)
    again = Staging(tmp_path / "staged")
    again.resume(given.position)
    assert (again.rows_left, again.share_left) == (30, 0.6)
    taken = []
    while again.has_more:
        given = again.next(pace)
        again.handed(given)
        taken += given.rows.column("t").to_pylist()
        assert given.malformed is None
    assert taken == list(range(20, 50)) and given.position == {"files": 3}
    assert list((tmp_path / "staged").iterdir()) == []
    with pytest.raises(CheckpointError):
        Staging(tmp_path / "staged").resume({"staged": "gone", "rows": 20, "to": {"files": 3}})


def test_batches_follow_what_they_cost() -> None:
    pace = Pace(100_000, 1 << 20)
    first = pace.rows_of(10**9, 1)
    # Nothing is known of what a tuple costs.
    assert first == 1000
    for _ in range(7):
        pace.after(pace.rows_of(10**9, 1), 0.1, 0.0)
    assert pace.rows_of(10**9, 1) == 100_000
    pace.after(100_000, 2.0, 0.0)
    assert pace.rows_of(10**9, 1) == 50_000
    # By the budget of the engine as well, and never down to nothing.
    pace.after(50_000, 0.1, 0.5)
    assert pace.rows_of(10**9, 1) == 25_000
    for _ in range(20):
        pace.after(pace.rows_of(10**9, 1), 60.0, 0.0)
    assert pace.rows_of(10**9, 1) == 500
    # A batch of few tuples says nothing, whatever it took.
    pace.after(1, 60.0, 0.0)
    assert pace.rows_of(10**9, 1) == 500
    assert pace.rows_of(10, 100 << 20) == 1 and pace.rows_of(10, 3 << 20) == 3


class Counted:
    """A source that says what is left; it gives `rows` a read, and waits to be allowed to."""

    schema = SCHEMA
    origin = "counted"

    def __init__(self, total: int, rows: int) -> None:
        self.total, self.rows = total, rows
        self.allowed = threading.Semaphore(0)

    def open(self, _: object) -> Counted:
        return self

    def left(self, position: Any) -> int:
        return self.total - (position or 0)

    def read(self, position: Any) -> SourceRows | None:
        begun = position or 0
        if begun >= self.total:
            return None
        self.allowed.acquire()
        end = min(self.total, begun + self.rows)
        return SourceRows(pa.table({"t": list(range(begun, end)), "k": [0] * (end - begun)}, SCHEMA), end)

    def close(self) -> None:
        pass


def test_progress_is_told_until_the_source_is_read() -> None:
    source = Counted(1000, 100)
    engine = Engine()
    engine.register("l", source=source, time="t")  # type: ignore[arg-type]
    done = threading.Semaphore(0)
    engine.on_batch(lambda _: done.release())
    with engine:
        for _ in range(5):
            source.allowed.release()
            done.acquire()
        # The feed has told of its fifth read when it asks for the sixth.
        source.allowed.release()
        done.acquire()
        info = engine.streams()[0]
        assert info.caught_up is not None and 0.3 < info.caught_up < 0.7 and info.catch_up_seconds is not None
        behind = CatchingUp.of(engine.streams())
        assert behind is not None and str(behind).startswith("catching up: ") and behind.streams == ("l",)
        for _ in range(10):
            source.allowed.release()
        engine.process_all_available()
        assert engine.streams()[0].caught_up is None and engine.streams()[0].rows == 1000


def test_progress_is_told_from_the_first_batch_of_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files, which a source finds by reading, and after a restart within what it read."""
    write(tmp_path / "l", 0, range(500))
    write(tmp_path / "r", 0, range(1))
    shares: list[float | None] = []

    results = TableRowsOut.results

    def asking(self: TableRowsOut, arrived: Any) -> Any:
        if "l" in arrived.buckets:
            shares.append({info.name: info for info in engine.streams()}["l"].caught_up)
            began.set()
        return results(self, arrived)

    monkeypatch.setattr(TableRowsOut, "results", asking)
    for _ in range(2):
        began = threading.Event()
        engine = opened(tmp_path, batch_rows=10)
        first = len(shares)
        with engine:
            assert began.wait(60)
        assert shares[first] == 0.0 and None not in shares


def test_how_far_a_stream_is_and_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("streamjoin.queries.engine.figures.time.monotonic", lambda: now)
    catch_up = CatchUp()
    assert (catch_up.share, catch_up.seconds) == (None, None)
    catch_up.note(10, 1000)
    assert (catch_up.share, catch_up.seconds) == (0.0, None)
    now += 10
    catch_up.note(100, 900)
    assert (catch_up.share, catch_up.seconds) == (0.1, 90.0)
    # One that keeps up has what came since its last read.
    catch_up.note(10, 10)
    assert catch_up.share is None


def test_a_rate_says_what_is_due() -> None:
    now = [10**9]
    source = RateSource(100, clock=lambda: now[0])
    first = source.read(None)
    assert first is not None and source.left(None) == 0
    now[0] += 5 * 10**9
    assert source.left(first.position) == 500
    second = source.read(first.position)
    assert second is not None and source.left(second.position) == 0
    # Also by another rate, which begins where the rows before it end.
    now[0] += 10**9
    for rate in (10, 1000):
        faster = RateSource(rate, clock=lambda: now[0])
        left = faster.left(second.position)
        third = faster.read(second.position)
        assert third is not None and left == third.rows.num_rows and faster.left(third.position) == 0


def test_a_start_does_not_wait_for_a_long_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("l", "r"):
        write(tmp_path / name, 0, range(10))

    results = TableRowsOut.results

    def ending(self: TableRowsOut, arrived: Any) -> Any:
        if arrived.buckets:
            raise RuntimeError("the process ends here")
        return results(self, arrived)

    monkeypatch.setattr(TableRowsOut, "results", ending)
    engine = opened(tmp_path)
    engine.create(PAIRS, "q")
    engine.start()
    with pytest.raises(Exception, match="the process ends here"):
        engine.wait(60)
    engine.stop()

    released, entered = threading.Event(), threading.Event()

    def held(self: TableRowsOut, arrived: Any) -> Any:
        entered.set()
        assert released.wait(60)
        return results(self, arrived)

    monkeypatch.setattr(TableRowsOut, "results", held)
    monkeypatch.setattr(engine_module, "_START_PATIENCE", 0.01)
    engine = opened(tmp_path)
    with engine:
        # Queries and streams are shown while the unfinished batch is computed.
        assert entered.wait(60) and [query.name for query in engine.queries()] == ["q"]
        assert not released.is_set()
        released.set()
        engine.process_all_available()
        assert engine.query("q").rows == 10
    engine = opened(tmp_path)
    engine.start()
    engine.stop()


def test_streams_that_are_read_at_the_same_moments_come_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "LINGER", 600)
    inbox, taken = Inbox(), []
    for name in ("l", "r", "empty", "broken"):
        inbox.expect(name)
    taking = threading.Thread(target=lambda: taken.append(inbox.take()))
    taking.start()
    rows = SCHEMA.empty_table()
    for name in ("l", "r"):
        with inbox.reading(name):
            pass
        inbox.put(SourceBatch(name, 0, rows))
    inbox.expect_none("empty")
    with pytest.raises(OSError), inbox.reading("broken"):
        raise OSError
    taking.join()
    first = taken[0]
    assert first is not None and first.given.keys() == {"l", "r"}
    # Nobody waits for what was given.
    inbox.put(SourceBatch("l", 1, rows))
    later = inbox.take()
    assert later is not None and later.given.keys() == {"l"}
