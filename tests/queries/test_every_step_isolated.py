"""Whatever is done for one query may fail, at any step of any batch: it is named and paused, and the others go on.

The steps are found, not listed: every function of the engine's threads that is called with something of the query, and
all that those call. One test for each kind of query fails them one by one, at every call and over a restart.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import streamjoin.queries
from streamjoin.adhoc import Engine, ParquetSink, Settings
from streamjoin.model.errors import StreamJoinError
from streamjoin.queries.engine import deliveries, executor
from streamjoin.queries.language.plan import query_name
from tests.queries import journal_cases
from tests.queries.journal_cases import PAIRS, table
from tests.queries.looped import read_back
from tests.seeds import THOROUGH

pytestmark = pytest.mark.slow

PACKAGE = str(Path(streamjoin.queries.__file__).parent)
THREADS = ("adhoc batches", "adhoc sinks", "adhoc store")
Step = tuple[str, str]
"""A function's file and name."""


class Injector:
    """Traces the engine's threads: notes the steps that are done for a query, or fails one of them."""

    def __init__(self, query: str, failing: Step | None = None) -> None:
        self.query, self.failing = query, failing
        self.steps: dict[Step, int] = {}
        self.fired = 0
        self._owned: dict[int, FrameType] = {}
        """The frames of such steps, kept so that no other frame gets their numbers."""

    def is_specific(self, frame: FrameType) -> bool:
        """Whether a call is done for the query: it has something of it, or its caller does."""
        above = frame.f_back
        while above is not None:
            if id(above) in self._owned:
                return True
            above = above.f_back
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        return any(self._is_of(frame.f_locals.get(name)) for name in names)

    def _is_of(self, value: Any) -> bool:
        if isinstance(value, str):
            return query_name(value) == self.query
        if type(value).__module__.partition(".")[0] != "streamjoin":
            return False
        fields = vars(value) if hasattr(value, "__dict__") else {}
        named = [fields.get("name")]
        named += [vars(fields[key]).get("name") for key in ("query", "_query") if hasattr(fields.get(key), "__dict__")]
        if hasattr(fields.get("entry"), "query"):
            named.append(fields["entry"].query.name)
        return any(isinstance(name, str) and query_name(name) == self.query for name in named)

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        code: CodeType = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or not self.is_specific(frame):
            return None
        step = code.co_filename, code.co_qualname
        self.steps[step] = self.steps.get(step, 0) + 1
        if step == self.failing:
            self.fired += 1
            raise ValueError("injected")
        self._owned[id(frame)] = frame
        return None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The engine's threads that begin inside are traced."""

        def begin(frame: FrameType, event: str, argument: Any) -> Any:
            if threading.current_thread().name.startswith(THREADS):
                return self.trace(frame, event, argument)
            return None

        def rearm(_: FrameType, event: str, __: Any) -> None:
            # Python ends the tracing of a thread in which a tracer raised.
            if event == "call" and sys.gettrace() is None and threading.current_thread().name.startswith(THREADS):
                sys.settrace(begin)

        before = threading.gettrace(), threading.getprofile()
        threading.settrace(begin)
        threading.setprofile(rearm)
        try:
            yield
        finally:
            threading.settrace(before[0])  # type: ignore[arg-type]
            threading.setprofile(before[1])
            self._owned.clear()


LATEST = "SELECT x.p AS a, y.p AS b FROM l x ASOF LEFT JOIN r y MATCH_CONDITION (x.t >= y.t) ON x.k = y.k"
KINDS = {
    "inner": "SELECT x.p + 1 AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k WHERE x.p + 1 > 0",
    "left": "SELECT x.p AS a, y.p AS b FROM l x LEFT JOIN r y WITHIN 5 UNITS ON x.k = y.k WHERE x.p <> 77",
    "as-of without columns": "SELECT x.p AS a FROM l x ASOF LEFT JOIN r y MATCH_CONDITION (x.t >= y.t)",
    "as-of": LATEST,
    "window join": (
        "SELECT x.p AS a, last(y.p) AS b, median(y.p) AS m FROM l x WINDOW JOIN r y ON x.k = y.k "
        "RANGE BETWEEN 5 UNITS PRECEDING AND CURRENT ROW INCLUDE PREVAILING WHERE x.p <> 77"
    ),
    "group": (
        "SELECT x.k, count(*) AS a, max(y.p) AS b FROM l x JOIN r y WITHIN 1 UNITS ON x.k = y.k "
        "GROUP BY x.k, HOP(x.t, 1, 2) HAVING a > 0 QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY b) <= 3"
    ),
    "groups of one stream": (
        "SELECT x.p AS a, count(*) AS b FROM l x GROUP BY x.p, TUMBLE(x.t, 1) "
        "HAVING b > 0 QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY b) <= 3"
    ),
    "union": (
        "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k UNION ALL "
        "SELECT x.p, y.p FROM l x LEFT JOIN r y WITHIN 1 UNITS ON x.k = y.k WHERE x.p <> 77 UNION ALL "
        "SELECT x.p, max(y.p) AS b FROM l x WINDOW JOIN r y ON x.k = y.k "
        "RANGE BETWEEN 5 UNITS PRECEDING AND CURRENT ROW EXCLUDE PREVAILING"
    ),
    "selection": "SELECT x.p AS a, x.t AS b FROM l x WHERE x.p <> 77",
}


def opened(directory: Path, **options: Any) -> Engine:
    settings = Settings(replan_every=1, rebuild_every=1, sink_patience=0.5)
    return journal_cases.opened(directory / "checkpoint", settings=settings, **options)


def push(engine: Engine, moment: int) -> None:
    engine.push_all({"l": table((1, moment, moment)), "r": table((1, 10 + moment, moment))})


DONE: set[Step] = set()
"""What has failed for a kind of query before."""
GOOD = sorted((a, 10 + b) for a in range(6) for b in range(6))


def scenario(directory: Path, sql: str, injector: Injector) -> str | None:
    """Two queries over a restart; gives why the create of the bad one was refused, if it was."""
    refused = None
    for run in range(2):
        with injector.watching(), opened(directory) as engine:
            if not run:
                engine.create(PAIRS, name="good", sink=ParquetSink(str(directory / "good")))
                try:
                    engine.create(sql, name="bad", sink=ParquetSink(str(directory / "bad")))
                except StreamJoinError as error:
                    refused = str(error)
            push(engine, 3 * run)
            push(engine, 3 * run + 1)
            if "bad" in {info.name for info in engine.queries()}:
                for change in (engine.pause, engine.resume):
                    try:
                        change("bad")
                    except StreamJoinError as error:
                        refused = str(error)
            push(engine, 3 * run + 2)
            engine.process_all_available()
            assert engine.error is None
    return refused


@pytest.mark.parametrize("step", ["SinkQueue.gathers", "Deliveries._filled"])
def test_a_failure_beside_the_sink_of_a_query_ends_nothing(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These hold up neither the engine nor whoever waits until all is delivered."""
    monkeypatch.setattr(executor, "FIRST_PAUSE", 0.01)
    injector = Injector("bad", (deliveries.__file__, step))
    scenario(tmp_path, KINDS["inner"], injector)
    assert injector.fired
    assert sorted(read_back(tmp_path / "good", ["a", "b"])) == GOOD


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_of_any_step_is_charged_to_its_query(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "FIRST_PAUSE", 0.01)
    sql = KINDS[kind]
    found = Injector("bad")
    assert scenario(tmp_path / "found", sql, found) is None
    assert sorted(read_back(tmp_path / "found" / "good", ["a", "b"])) == GOOD
    functions = {name for _, name in found.steps}
    # No window of the join's groups is complete yet.
    assert {"LiveQuery.of", *(["RunningQuery.take"] if kind != "group" else []), "Deliveries.add"} <= functions
    if kind in ("left", "as-of", "as-of without columns", "window join"):
        assert {"KindState.to_table", "JoinKinds.step", "JoinKinds.pins"} <= functions
    silent = []
    steps = sorted(found.steps.keys() - DONE)
    DONE.update(steps)
    # All of them take minutes: `make thorough` has the time; the suite takes a tenth, by the kind of query another one.
    steps = steps if THOROUGH else steps[list(KINDS).index(kind) :: 10]
    for number, step in enumerate(steps):
        directory = tmp_path / str(number)
        injector = Injector("bad", step)
        caplog.clear()
        try:
            refused = scenario(directory, sql, injector)
        except StreamJoinError as error:
            raise AssertionError(f"{step} ended the engine: {error}") from error
        assert sorted(read_back(directory / "good", ["a", "b"])) == GOOD, step
        # Without the failure everything goes on, the query too.
        with opened(directory) as engine:
            states = {info.name: info for info in engine.queries()}
            told = [refused or "", *(str(info.error) for info in states.values())]
            told += [record.getMessage() for record in caplog.records]
            told += [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
            if injector.fired and not any("injected" in text for text in told):
                silent.append(step)
            assert states["good"].state == "running" and states["good"].error is None, step
            if "bad" in states:
                engine.resume("bad")
                before = engine.query("bad").rows
                for moment in (20, 21, 40):
                    push(engine, moment)
                engine.process_all_available()
                assert engine.query("bad").state == "running", step
                assert engine.query("bad").rows > before, step
    assert not silent
