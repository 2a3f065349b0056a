"""Queries that run while their sink or a source fails are degraded, say why, and are running again afterwards."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from streamjoin.adhoc import CallbackSink, Engine, Settings
from streamjoin.queries.engine import executor, figures
from streamjoin.queries.sources.files import FileSource
from tests.queries.journal_cases import PAIRS, SCHEMA, table


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(executor, "LONGEST_PAUSE", 0.02)


class States:
    """Waits until the engine has told of a state."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told = threading.Condition()
        engine.on_state(self._tell)

    def _tell(self) -> None:
        with self._told:
            self._told.notify_all()

    def wait_for(self, query: str, fits: Callable[[str], bool]) -> str | None:
        with self._told:
            assert self._told.wait_for(lambda: fits(self._engine.query(query).state), 60)
            return self._engine.query(query).error


def opened(**sources: FileSource) -> Engine:
    engine = Engine(settings=Settings(sink_patience=0.05))
    for name in "lr":
        if name in sources:
            engine.register(name, source=sources[name], time="t")
        else:
            engine.register(name, schema=SCHEMA, time="t")
    return engine


def test_a_sink_that_fails_makes_its_query_degraded_until_it_takes_rows() -> None:
    failing = [True]
    taken: list[int] = []

    def take(batch: int, rows: pa.Table) -> None:
        if failing[0]:
            raise OSError("no room")
        taken.extend(rows["b"].to_pylist())

    with opened() as engine:
        states = States(engine)
        engine.create(PAIRS, name="bad", sink=CallbackSink(take))
        engine.create(PAIRS, name="good")
        engine.push_all({"l": table((1, 0, 0)), "r": table((1, 1, 0))})
        assert states.wait_for("bad", lambda state: state == "degraded") == "OSError: no room"
        assert engine.degraded() == {"bad": "OSError: no room"}
        assert (engine.query("good").state, engine.query("good").error) == ("running", None)
        engine.pause("bad")
        assert engine.query("bad").state == "paused"
        engine.resume("bad")
        failing[0] = False
        assert states.wait_for("bad", lambda state: state == "running") is None
        assert (taken, engine.degraded()) == ([1], {})


def test_a_sink_that_hangs_makes_its_query_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "HUNG", 0.0)
    go, entered = threading.Event(), threading.Event()

    def take(batch: int, rows: pa.Table) -> None:
        entered.set()
        assert go.wait(60)

    with opened() as engine:
        states = States(engine)
        engine.create(PAIRS, name="q", sink=CallbackSink(take))
        engine.push_all({"l": table((1, 0, 0)), "r": table((1, 1, 0))})
        assert entered.wait(60)
        assert "busy with the same rows" in str(states.wait_for("q", lambda state: state == "degraded"))
        go.set()
        assert states.wait_for("q", lambda state: state == "running") is None


def test_a_source_directory_that_is_gone_makes_its_queries_degraded(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text(json.dumps({"k": 1, "p": 1, "t": 0}))
    with opened(l=FileSource(str(folder), "json", SCHEMA)) as engine:
        states = States(engine)
        engine.create(PAIRS, name="reads")
        engine.create("SELECT x.p AS a, y.p AS b FROM r x JOIN r y WITHIN 5 UNITS ON x.k = y.k", name="other")
        engine.process_all_available()
        assert engine.query("reads").state == "running"
        folder.rename(tmp_path / "away")
        why = str(states.wait_for("reads", lambda state: state == "degraded"))
        assert "stream 'l' failed" in why
        assert f"there is no directory {folder}" in why
        assert engine.query("other").state == "running"
        (tmp_path / "away").rename(folder)
        assert states.wait_for("reads", lambda state: state == "running") is None
        (folder / "2.json").write_text(json.dumps({"k": 1, "p": 2, "t": 0}))
        engine.push("r", table((1, 5, 0)))
        engine.process_all_available()
        assert {stream.name: stream.rows for stream in engine.streams()} == {"l": 2, "r": 1}


def test_a_stream_of_the_checkpoint_that_nobody_registered_makes_its_queries_degraded(tmp_path: Path) -> None:
    engine = Engine(checkpoint=tmp_path)
    for name in "lr":
        engine.register(name, schema=SCHEMA, time="t")
    with engine:
        engine.create(PAIRS, name="q")
        engine.push("l", table((1, 0, 0)))
    again = Engine(checkpoint=tmp_path)
    again.register("l", schema=SCHEMA, time="t")
    with again:
        info = again.query("q")
        assert (info.state, info.error) == (
            "degraded",
            "stream 'r' is in the checkpoint, but not registered in this run",
        )
        again.register("r", schema=SCHEMA, time="t")
        assert again.query("q").state == "running"
