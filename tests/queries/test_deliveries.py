"""Sinks that fail, hang or are slow: nobody else waits for them, and no row is lost that the spool can hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from streamjoin.adhoc import CallbackSink, Engine, ParquetSink, Settings
from streamjoin.queries.engine import executor
from streamjoin.queries.engine.deliveries import WRITERS
from streamjoin.queries.sinks.base import Target
from tests.queries import journal_cases
from tests.queries.journal_cases import PAIRS, SCHEMA, Killed, killed_at, table
from tests.queries.looped import Looped, read_back


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(executor, "LONGEST_PAUSE", 0.02)


QUICK = Settings(sink_patience=0.05, file_seconds=1e-9)


def opened(checkpoint: Path | None = None, settings: Settings = QUICK) -> Engine:
    return journal_cases.opened(checkpoint, settings=settings)


class Taking:
    """A sink's function that a test breaks, stops and lets go on; it keeps what it took."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.error: BaseException | None = None
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Event()
        self.wanted = 0
        self.full = threading.Event()

    def __call__(self, batch: int, rows: pa.Table) -> None:
        self.entered.set()
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        self.taken += rows["b"].to_pylist()
        if len(self.taken) >= self.wanted:
            self.full.set()

    def wait_for(self, rows: int) -> None:
        self.wanted = rows
        if len(self.taken) < rows:
            self.full.clear()
            assert self.full.wait(60), self.taken


def push(engine: Engine, *numbers: int) -> None:
    for number in numbers:
        engine.push("r", table((1, number, 0)))


def test_a_sink_that_fails_is_tried_again_and_gets_everything_in_order(tmp_path: Path) -> None:
    bad, good = Taking(), Taking()
    bad.error = OSError("no room")
    with opened(tmp_path) as engine:
        engine.create(PAIRS, name="bad", sink=CallbackSink(bad))
        engine.create(PAIRS, name="good", sink=CallbackSink(good))
        engine.push("l", table((1, 0, 0)))
        push(engine, 1, 2, 3)
        assert good.taken == [1, 2, 3]
        info = engine.query("bad")
        assert (info.state, info.error, info.rows, info.rows_undelivered) == ("degraded", "OSError: no room", 0, 3)
        assert info.retry_at is not None
        bad.error = None
        bad.wait_for(3)
        push(engine, 4)
        engine.process_all_available()
        assert bad.taken == [1, 2, 3, 4]
        info = engine.query("bad")
        assert (info.rows, info.rows_undelivered, info.rows_missed, info.error, info.retry_at) == (4, 0, 0, None, None)
    assert not list((tmp_path / "undelivered").glob("*/*"))


class Unprintable(Exception):
    """Of a library whose errors have no text."""

    def __str__(self) -> str:
        raise TypeError("no text")


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Unprintable()])
def test_a_sink_that_wants_to_end_the_program_has_failed(error: BaseException) -> None:
    taking = Taking()
    taking.error = error
    with opened() as engine:
        engine.create(PAIRS, name="q", sink=CallbackSink(taking))
        engine.push_all({"l": table((1, 0, 0)), "r": table((1, 1, 0))})
        engine.process_all_available()
        assert str(engine.query("q").error).startswith(type(error).__name__)
        taking.error = None
        taking.wait_for(1)


@dataclass(frozen=True)
class Ending:
    """A sink whose writer ends the program when it is closed."""

    kind: ClassVar[str] = "ending"

    def open(self, _: Target) -> Ending:
        return self

    def write(self, batch: int, rows: pa.Table) -> None:
        pass

    def close(self) -> None:
        raise SystemExit(1)

    def spec(self) -> None:
        return None


def test_a_sink_that_ends_the_program_when_it_is_closed_ends_no_other() -> None:
    """As many as there are threads that write."""
    good = Taking()
    with opened() as engine:
        engine.create(PAIRS, name="good", sink=CallbackSink(good))
        engine.push("l", table((1, 0, 0)))
        for number in range(WRITERS):
            engine.create(PAIRS, name=f"bad{number}", sink=Ending())
            push(engine, number)
            engine.drop(f"bad{number}")
        push(engine, WRITERS)
        good.wait_for(WRITERS + 1)


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_a_sink_that_hangs_holds_up_nobody(tmp_path: Path, with_checkpoint: bool) -> None:
    """More of them than there are threads that write, and one that works."""
    hanging, good = [Taking() for _ in range(6)], Taking()
    for one in hanging:
        one.go.clear()
    engine = opened(tmp_path / "checkpoint" if with_checkpoint else None)
    with engine:
        for number, one in enumerate(hanging):
            engine.create(PAIRS, name=f"h{number}", sink=CallbackSink(one))
        engine.create(PAIRS, name="good", sink=CallbackSink(good))
        engine.push("l", table((1, 0, 0)))
        push(engine, *range(10))
        good.wait_for(10)
        assert good.taken == list(range(10))
        assert [engine.query(f"h{n}").rows_undelivered for n in range(6)] == [10] * 6
        engine.drop("h5")
        for one in hanging:
            one.go.set()
        for one in hanging[:5]:
            one.wait_for(10)
            assert one.taken == list(range(10))


def test_a_full_spool_is_counted_and_what_it_holds_is_delivered(tmp_path: Path) -> None:
    taking = Taking()
    taking.error = OSError("no room")
    with opened(tmp_path, Settings(sink_patience=0.05, spool_rows=4)) as engine:
        engine.create(PAIRS, name="q", sink=CallbackSink(taking))
        engine.push("l", table((1, 0, 0)))
        push(engine, *range(7))
        info = engine.query("q")
        assert (info.rows, info.rows_undelivered, info.rows_missed) == (0, 4, 3)
    # What was missed stays known, and what waits gets its sink again.
    with opened(tmp_path, QUICK) as engine:
        info = engine.query("q")
        assert (info.rows, info.rows_undelivered, info.rows_missed) == (0, 4, 3)
        taking.error = None
        engine.attach("q", CallbackSink(taking))
        taking.wait_for(4)
        engine.process_all_available()
        assert taking.taken == [0, 1, 2, 3]
        push(engine, 8)
        engine.process_all_available()
        info = engine.query("q")
        assert (info.rows, info.rows_undelivered, info.rows_missed) == (5, 0, 3)


def test_a_sink_that_is_slower_than_its_rows_slows_them_down_before_it_loses_any() -> None:
    """Its spool holds ten rows, and it takes one in the time in which a batch waits for it."""
    taking = Taking()
    slow = threading.Event()

    def take(batch: int, rows: pa.Table) -> None:
        slow.wait(0.02)
        taking(batch, rows)

    with opened(settings=Settings(sink_patience=0.05, spool_rows=10)) as engine:
        engine.create(PAIRS, name="q", sink=CallbackSink(take))
        engine.push("l", table((1, 0, 0)))
        push(engine, *range(40))
        engine.process_all_available()
        assert taking.taken == list(range(40))
        assert engine.query("q").rows_missed == 0


def test_parquet_is_exact_when_its_directory_comes_and_goes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with opened(tmp_path / "checkpoint") as engine:
        engine.create(PAIRS, name="q", sink=ParquetSink(str(out)))
        engine.push("l", table((1, 0, 0)))
        push(engine, 1)
        out.rename(tmp_path / "away")
        out.write_text("a file where the directory was")
        push(engine, 2, 3)
        assert "no file can be written" in str(engine.query("q").error)
    out.unlink()
    (tmp_path / "away").rename(out)
    with opened(tmp_path / "checkpoint") as engine:
        push(engine, 4)
        engine.process_all_available()
    assert read_back(out, ["a", "b"]) == [(0, 1), (0, 2), (0, 3), (0, 4)]


@pytest.mark.parametrize("write", range(0, 12, 2))
def test_a_spool_survives_a_kill_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    """While a sink fails, and while it takes what waited; Parquet beside it is exact, the function at least once."""
    taking = Taking()
    taking.error = OSError("no room")
    batches: list[Callable[[Looped], None]] = [
        lambda run: run.hand({"l": (0, table((1, 0, 0)))}),
        *(lambda run, n=n: run.hand({"r": (n, table((1, n, 0)))}) for n in range(4)),  # type: ignore[misc]
    ]

    def feed(run: Looped) -> None:
        for number, step in enumerate(batches):
            stream, at = ("l", 0) if not number else ("r", number - 1)
            if run.newest(stream) < at:
                step(run)

    def begin() -> Looped:
        return Looped(tmp_path / "checkpoint", QUICK)

    with begin() as run:
        for name in "lr":
            from streamjoin.adhoc import Stream

            run.register(Stream(name, SCHEMA, "t"))
        run.create("calls", PAIRS, CallbackSink(taking))
        run.create("files", PAIRS, ParquetSink(str(tmp_path / "out")))
    with killed_at(write, after=bool(write % 4), monkeypatch=monkeypatch):
        run = begin()
        try:
            feed(run)
        except BaseException as error:
            assert isinstance(error, Killed) or "abandoned" in str(error) or isinstance(run.failure, Killed)
        run.abandon()
    with begin() as run:
        taking.error = None
        run.catalog.attach("calls", CallbackSink(taking))
        feed(run)
        run.catalog.deliveries.drain()
        assert run.catalog.entries["calls"].info().rows == 4
    assert sorted(set(taking.taken)) == [0, 1, 2, 3]
    assert read_back(tmp_path / "out", ["a", "b"]) == [(0, n) for n in range(4)]


class _Counting:
    """Writers that are written together."""

    def __init__(self, log: list[Any], name: str) -> None:
        self.log, self.name = log, name

    def write(self, batch: int, rows: pa.Table) -> None:
        self.log.append((self.name, rows.num_rows))

    def write_all(self, batch: int, parts: list[tuple[_Counting, pa.Table]]) -> None:
        if any(writer.name == "bad" for writer, _ in parts):
            raise OSError("one of them")
        self.log.append(tuple(sorted(writer.name for writer, _ in parts)))

    def close(self) -> None:
        self.log.append(f"{self.name} closed")


def test_sinks_that_belong_together_are_written_at_once(tmp_path: Path) -> None:
    log: list[Any] = []
    with Looped(tmp_path, QUICK) as run:
        deliveries = run.catalog.deliveries
        from streamjoin.adhoc import Stream

        for name in "lr":
            run.register(Stream(name, SCHEMA, "t"))
        gate = threading.Event()
        run.create("gate", PAIRS, CallbackSink(lambda *_: gate.wait(60)))
        for name in ("a", "b"):
            run.create(name, PAIRS)
            deliveries.add(run.catalog.entries[name], _Counting(log, name), "together")
        rows = table((1, 1, 1))
        deliveries.put(9, {"a": rows, "b": rows}, lambda _: None)
        deliveries.drain()
        assert sorted(log) in ([("a", "b")], [("a", 1), ("b", 1)])
        log.clear()
        run.create("bad", PAIRS)
        deliveries.add(run.catalog.entries["bad"], _Counting(log, "bad"), "together")
        deliveries.put(10, {"a": rows, "bad": rows}, lambda _: None)
        deliveries.drain()
        assert sorted(log) == [("a", 1), ("bad", 1)]
        gate.set()
