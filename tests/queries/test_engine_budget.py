"""The budget of the engine: queries that are each within their limits, and together take more than there is."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.adhoc import Budget, Engine, Settings, Stream
from streamjoin.model.errors import BackPressureError, EngineBudgetExceededError, SpecError
from streamjoin.queries.core import memory, shared_join
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.outputs import FoundResults
from streamjoin.queries.core.shared import Shared, failure_of
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.engine import inbox
from tests.queries.core_cases import rows_of

SCHEMA = pa.schema({"k": pa.int64(), "p": pa.int64(), "s": pa.string(), "t": pa.int64()})
STREAMS = [Stream(name, SCHEMA, "t") for name in ("l", "r", "z")]
PAIRS = "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"
SHARINGS = pytest.mark.parametrize("sharing", ["cost", "nothing"])


def rows(n: int, at: int = 0) -> pa.Table:
    number = np.arange(n)
    return pa.table({"k": number * 0, "p": number, "s": ["x" * 100] * n, "t": np.full(n, at)}, SCHEMA)


def sized(count: int, budget: Budget | None = None) -> list[Any]:
    """Queries of which each has more rows than the one before: 100, 200, ... by 100 tuples of the right side."""
    return [Create(f"q{n}", f"{PAIRS} WHERE x.p < {n + 1}", budget=budget or Budget(rows=10_000)) for n in range(count)]


@SHARINGS
@pytest.mark.parametrize("small", [False, True])
def test_over_the_sum_the_largest_lose_their_rows_and_the_others_none(
    sharing: Any, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:
        monkeypatch.setattr(shared_join, "_ROOM", 4)
        monkeypatch.setattr(shared_join, "_BLOCK", 8 * 24)
        monkeypatch.setattr(shared_join, "_STEP", 5)
    core = open_core(STREAMS, Settings(sharing=sharing, engine_rows=2_000))
    core.apply(sized(8))
    batch = {"l": rows(100), "r": rows(100)}
    arrived = core.arrive(0, batch)
    outputs, failures = core.results(arrived)
    free = open_core(STREAMS)
    free.apply(sized(8))
    wanted = free.process(0, batch)
    assert failures and sum(found.num_rows for found in outputs.values()) <= 2_000
    for name, found in outputs.items():
        assert rows_of(found) == ({} if name in failures else rows_of(wanted[name]))
    # Whoever needs less than an equal share is never paused.
    assert not {"q0", "q1"} & failures.keys()
    error = next(iter(failures.values()))
    assert isinstance(error, EngineBudgetExceededError)
    assert (error.kind, error.limit) == ("rows", 2_000) and error.total > 2_000 >= error.held > 0
    assert str(error).startswith("paused: the engine's budget of 2,000 rows a batch is exceeded; this query held ")
    assert f"{100 * error.share:.0f} %" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    core.finish(arrived, failures)
    later = core.process(1, {"l": rows(2, at=6), "r": rows(2, at=6)})
    assert {name for name, found in later.items() if found.num_rows} == wanted.keys() - failures.keys()


@SHARINGS
def test_bytes_are_counted_before_they_are_gathered(sharing: Any) -> None:
    wide = PAIRS.replace("y.p", "y.s")
    core = open_core(STREAMS, Settings(sharing=sharing, engine_bytes=400_000))
    core.apply([Create("wide", wide), *sized(4)])
    outputs, failures = core.results(core.arrive(0, {"l": rows(100), "r": rows(100)}))
    assert list(failures) == ["wide"] and "engine's budget of 400 kB" in str(failures["wide"])
    assert [outputs[f"q{n}"].num_rows for n in range(4)] == [100, 200, 300, 400]


def test_what_waits_for_other_joins_counts_too() -> None:
    """Pairs of an outer join are no rows yet, and take memory all the same."""
    text = "SELECT x.p AS a, y.p AS b FROM l x LEFT JOIN r y WITHIN 5 UNITS ON x.k = y.k"
    core = open_core(STREAMS, Settings(engine_bytes=100_000))
    core.apply([Create("outer", text), *sized(2)])
    outputs, failures = core.results(core.arrive(0, {"l": rows(100), "r": rows(100)}))
    assert list(failures) == ["outer"] and [outputs[f"q{n}"].num_rows for n in range(2)] == [100, 200]


def test_results_of_queries_that_lost_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise those that are paused one after the other would take a multiple of the budget."""
    monkeypatch.setattr(shared_join, "_ROOM", 4)
    monkeypatch.setattr(shared_join, "_BLOCK", 8 * 24)
    most = 0

    def watched(found: Any, *arguments: Any) -> None:
        nonlocal most
        add(found, *arguments)
        held = sum(part.nbytes for parts in found._by_sink.values() for _, part in parts)
        most = max(most, held)

    add = FoundResults.add
    monkeypatch.setattr("streamjoin.queries.core.outputs.FoundResults.add", watched)
    core = open_core(STREAMS, Settings(engine_bytes=200_000))
    core.apply([Create(f"q{n}", f"{PAIRS} WHERE y.p >= {n}", budget=Budget(rows=10_000)) for n in range(20)])
    _, failures = core.results(core.arrive(0, {"l": rows(100), "r": rows(100)}))
    assert failures and 100_000 < most < 300_000


def test_the_memory_of_the_process_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    core = open_core(STREAMS, Settings(engine_memory=1 << 30))
    core.apply(sized(3))
    batch = {"l": rows(100), "r": rows(100)}
    monkeypatch.setattr("streamjoin.queries.core.budgets._WEIGHED_EVERY", 0)
    # Memory that other things take is not made up for by results.
    monkeypatch.setattr(memory, "excess", lambda _: 1 << 30)
    outputs, failures = core.results(core.arrive(0, batch))
    assert not failures and outputs["q2"].num_rows == 300
    monkeypatch.setattr(shared_join, "_ROOM", 4)
    monkeypatch.setattr(shared_join, "_BLOCK", 8 * 24)
    monkeypatch.setattr(shared_join, "_STEP", 5)
    fresh = open_core(STREAMS, Settings(engine_memory=1 << 30))
    fresh.apply(sized(3))
    monkeypatch.setattr(memory, "excess", lambda _: 10)
    _, failures = fresh.results(fresh.arrive(0, batch))
    why = str(next(iter(failures.values())))
    assert "engine's budget of 1.1 GB of memory" in why and len(failures) < 3


def test_limits_of_control_groups_are_found(tmp_path: Path) -> None:
    membership, root = tmp_path / "cgroup", tmp_path / "fs"
    (root / "a" / "b").mkdir(parents=True)
    membership.write_text("0::/a/b\n")
    (root / "a" / "memory.max").write_text("5000\n")
    (root / "a" / "b" / "memory.max").write_text("max\n")
    assert memory._group_limits(membership, root) == [5000]
    membership.write_text("4:memory:/x\n3:cpu:/y\n")
    (root / "memory").mkdir()
    (root / "memory" / "memory.limit_in_bytes").write_text("7000")
    assert memory._group_limits(membership, root) == [7000]
    assert memory._group_limits(tmp_path / "none", root) == []
    assert 0 < memory.default_limit() < memory.available() and memory.used() > 1 << 20


@pytest.mark.parametrize("name", ["engine_rows", "engine_bytes", "engine_memory", "batch_rows", "batch_bytes"])
def test_a_limit_is_a_number_from_1(name: str) -> None:
    with pytest.raises(SpecError, match=f"{name} is a number from 1"):
        Settings(**{name: 0})


def engine_on(checkpoint: Path, **limits: Any) -> Engine:
    engine = Engine(checkpoint=checkpoint, settings=Settings(**limits))
    for name in ("l", "r"):
        engine.register(name, schema=SCHEMA, time="t")
    return engine


def test_a_restart_finds_them_paused_and_others_go_on(tmp_path: Path) -> None:
    with engine_on(tmp_path, engine_rows=2_000) as engine:
        for change in sized(8):
            engine.create(change.query, change.name)
        engine.push_all({"l": rows(100), "r": rows(100)})
        before = {query.name: (query.state, query.error, query.rows) for query in engine.queries()}
    assert before["q7"][0] == "failed" and "engine's budget" in str(before["q7"][1]) and before["q0"][0] == "running"
    with engine_on(tmp_path, engine_rows=2_000) as engine:
        again = {query.name: (query.state, query.error, query.rows) for query in engine.queries()}
        assert again == before
        engine.resume("q7")
        engine.push_all({"l": rows(3, at=6), "r": rows(3, at=6)})
        assert engine.query("q7").state == "running" and engine.query("q7").rows == 9
        assert engine.query("q6").state == "failed"


def test_a_batch_that_runs_out_of_memory_is_computed_again_without_the_largest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is not counted may still be too much: then the memory itself says so."""
    from streamjoin.queries.core.outputs import OutputClass

    listed, failing = OutputClass.rows, 2

    def short(self: OutputClass, *arguments: Any) -> Any:
        nonlocal failing
        failing -= 1
        if failing >= 0:
            raise MemoryError
        return listed(self, *arguments)

    monkeypatch.setattr(OutputClass, "rows", short)
    with engine_on(tmp_path) as engine:
        for change in sized(4):
            engine.create(change.query, change.name)
        engine.push_all({"l": rows(100), "r": rows(100)})
        states = {query.name: (query.state, query.rows) for query in engine.queries()}
        assert states == {"q0": ("running", 100), "q1": ("running", 200), "q2": ("failed", 0), "q3": ("failed", 0)}
        assert "of memory" in str(engine.query("q3").error)
    with engine_on(tmp_path) as engine:
        assert [query.state for query in engine.queries()] == ["running", "running", "failed", "failed"]


@pytest.mark.parametrize(
    ("at", "error", "paused", "why"),
    [
        ("q2", MemoryError(), "q1", "this query held"),
        ("q0", MemoryError(), "q0", "too little memory"),
        ("q2", KeyError("x"), "q2", "it can't be computed: KeyError"),
    ],
)
def test_without_sharing_a_failure_costs_one_query(
    at: str, error: Exception, paused: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where memory runs out, the query whose rows take most of it, be they computed already."""
    results, failing = Shared.results, [error]

    def short(self: Shared, arrived: Any) -> Any:
        if at in self.queries and arrived.buckets and failing:
            raise failing.pop()
        return results(self, arrived)

    monkeypatch.setattr(Shared, "results", short)
    with engine_on(tmp_path, sharing="nothing") as engine:
        for change in sized(4):
            engine.create(change.query, change.name)
        engine.push_all({"l": rows(100), "r": rows(100)})
        counts = {f"q{number}": 100 * (number + 1) for number in range(4)} | {paused: 0}
        assert {query.name: query.rows for query in engine.queries()} == counts
        assert {query.name for query in engine.queries() if query.state == "failed"} == {paused}
        assert why in str(engine.query(paused).error)


def test_a_failure_that_is_kept_holds_nothing() -> None:
    class Large:
        pass

    held: list[weakref.ref[Large]] = []

    def fails(error: Exception | None) -> None:
        large = Large()
        held.append(weakref.ref(large))
        # A cycle: the error has this call in its traceback, and this call the error.
        failing = MemoryError()
        raise failing from error

    try:
        try:
            fails(None)
        except MemoryError as first:
            fails(first)
    except MemoryError as error:
        failure = failure_of(error)
    assert isinstance(failure.__cause__, MemoryError)
    assert [one() for one in held] == [None, None]


@SHARINGS
def test_queries_whose_windows_hold_too_much_are_paused_and_hold_nothing(
    sharing: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def opened() -> Engine:
        engine = Engine(checkpoint=tmp_path, settings=Settings(sharing=sharing))
        for name in ("l", "r"):
            engine.register(name, schema=SCHEMA, time="t")
        return engine.start()

    engine = opened()
    engine.create(PAIRS, "short")
    engine.create(PAIRS.replace("5 UNITS", "500 UNITS"), "long")
    engine.create(PAIRS.replace(" JOIN", " LEFT JOIN").replace("5 UNITS", "500 UNITS"), "outer")
    for at in range(0, 100, 10):
        engine.push_all({"l": rows(20, at), "r": rows(20, at)})
    held = sum(engine.metrics().state_bytes.values())
    monkeypatch.setattr(memory, "excess", lambda _: held // 2 if sum(measured()) > held / 2 else 0)

    def measured() -> Any:
        return engine._loop.core.nbytes.values()

    engine.push_all({"l": rows(1, 110), "r": rows(1, 110)})
    states = {query.name: query.state for query in engine.queries()}
    assert states == {"short": "running", "long": "failed", "outer": "failed"}
    why = str(engine.query("long").error)
    assert "engine's budget" in why and "of memory" in why and "%" in why
    assert sum(engine.metrics().state_bytes.values()) < held / 2
    assert engine.query("short").rows == 4_001
    for begin in (120, 140):
        # The next batches, and a restart, hold nothing for them either; a resume begins anew.
        for at in (begin, begin + 10):
            engine.push_all({"l": rows(5, at), "r": rows(5, at)})
            engine.advance(at)
        assert sum(bucket.n for held in engine._loop.core.snapshot().buckets.values() for bucket in held) <= 12
        engine.stop()
        engine = opened()
        assert {query.name: query.state for query in engine.queries()} == states
    engine.resume("long")
    before = engine.query("long").rows
    engine.push_all({"l": rows(3, 160), "r": rows(2, 160)})
    engine.push_all({"r": rows(2, 170)})
    assert engine.query("long").rows - before == 12
    engine.stop()


PROGRAM = """
    import json, resource, sys
    import numpy as np, pyarrow as pa
    from streamjoin.adhoc import Engine

    SCHEMA = pa.schema({"k": pa.int64(), "p": pa.int64(), "s": pa.string(), "t": pa.int64()})

    def rows(n, at):
        number = np.arange(n)
        return pa.table({"k": number * 0, "p": number, "s": ["x" * 40] * n, "t": np.full(n, at)}, SCHEMA)

    def start():
        engine = Engine(checkpoint=sys.argv[1])
        for name in ("l", "r"):
            engine.register(name, schema=SCHEMA, time="t")
        return engine.start()

    engine = start()
    for number in range(12):
        engine.create(
            "SELECT x.p AS a, x.s AS c, y.p AS b, y.s AS d FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k "
            f"WHERE y.p >= {number}", f"q{number}",
        )
    # Kernels and threads are there before the memory is limited.
    engine.push_all({"l": rows(200, 0), "r": rows(200, 0)})
    engine.stop()
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (800 << 20),) * 2)
    engine = start()
    engine.push_all({"l": rows(1200, 10), "r": rows(1200, 10)})
    engine.push_all({"l": rows(10, 20), "r": rows(10, 20)})
    told = {query.name: [query.state, query.error] for query in engine.queries()}
    engine.stop()
    engine = start()
    engine.push_all({"l": rows(10, 30), "r": rows(10, 30)})
    print(json.dumps([told, {query.name: query.state for query in engine.queries()}, str(engine.error)]))
    engine.stop()
"""


@pytest.mark.slow
def test_a_dozen_queries_within_their_limits_do_not_end_an_engine_with_little_memory(tmp_path: Path) -> None:
    """Each takes 150 MB of a batch; the process has 800 MB, and none of it ends in a MemoryError."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    told, after, error = json.loads(run.stdout)
    paused = {name for name, (state, _) in told.items() if state == "failed"}
    assert error == "None" and 0 < len(paused) < 12
    assert all("engine's budget of" in told[name][1] and "%" in told[name][1] for name in paused)
    assert {name for name, state in after.items() if state == "failed"} == paused


def test_a_storm_of_creates_is_answered_and_the_engine_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While a batch runs for long, creates wait up to a number, and the next boundaries make some of them each."""
    monkeypatch.setattr(inbox, "MOST_WAITING", 20)
    monkeypatch.setattr(inbox, "MOST_CREATES", 8)
    entered, released = threading.Event(), threading.Event()

    events: list[Any] = []
    with engine_on(tmp_path) as engine:
        rows_out: Any = engine._loop.rows_out
        results = rows_out.results

        def held(arrived: Any) -> Any:
            if arrived.buckets:
                entered.set()
                assert released.wait(60)
            return results(arrived)

        rows_out.results = held
        engine.on_batch(events.append)
        pushing = threading.Thread(target=engine.push_all, args=({"l": rows(5), "r": rows(5)},))
        pushing.start()
        assert entered.wait(60)
        handles, refused = [], 0
        for _ in range(50):
            try:
                handles.append(engine.create(PAIRS, wait=False))
            except BackPressureError as error:
                assert "20 changes wait for the engine" in str(error)
                refused += 1
        assert (len(handles), refused) == (20, 30)
        # What makes room is never refused.
        dropping = threading.Thread(target=engine.drop, args=(handles[0].name,))
        dropping.start()
        released.set()
        for handle in handles[1:]:
            handle.wait(60)
        dropping.join()
        pushing.join()
        assert len(engine.queries()) == 19 and engine.create(PAIRS).info().state == "running"
    most = max(sum(change.action == "create" for change in event.changes) for event in events)
    assert most == 8
