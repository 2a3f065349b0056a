"""The distributed ad-hoc engine isolates queries: budgets over all cells, tasks that die or never end, quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamjoin.adhoc import Budget, ParquetSink
from streamjoin.model.errors import StateError
from streamjoin.queries.engine import engine as adhoc_engine
from streamjoin.queries.engine.loop import Attempt
from streamjoin.queries.executors.distributed import executor as distributed_executor
from streamjoin.queries.executors.distributed.cell import run_cell
from streamjoin.queries.executors.distributed.journal import FiledJournal
from tests.seeds import thorough_but
from tests.spark.adhoc_streams import PAIRS, FileStream, engine_on, written

pytestmark = pytest.mark.spark

EVERY = Counter((key, key) for key in range(20))


def feed(directory: Path) -> None:
    FileStream(directory / "l").rows(*((key, key, 0.0) for key in range(20)))
    FileStream(directory / "r").rows(*((key, key, 1.0) for key in range(20)))


def sink(directory: Path, name: str) -> ParquetSink:
    return ParquetSink(str(directory / name))


def is_running(assignment: Any, whole: Any, name: str) -> bool:
    """Whether tasks are asked for the rows of a query."""
    import pickle

    queries = dict(pickle.loads(whole.value).came)
    for delta in assignment.deltas:
        queries.update(delta.came)
        for gone in delta.gone:
            queries.pop(gone, None)
    return name in queries and not queries[name].entry.paused


def poisoned(name: str | None, end: Callable[[], object]) -> Callable[[Any, Any, int], Any]:
    """What tasks do, but for a batch with rows for this query (None: for any batch), in which `end` is called."""
    asked, run = is_running, run_cell

    def task(assignment: Any, whole: Any, cell: int) -> Any:
        if assignment.fresh and (name is None or asked(assignment, whole, name)):
            end()
        return run(assignment, lambda: whole.value, cell)

    return task


def die() -> None:
    import os

    os._exit(1)


def test_a_budget_holds_for_all_cells_together(spark: Any, tmp_path: Path) -> None:
    with engine_on(spark, tmp_path) as engine:
        engine.create(PAIRS, name="rows", sink=sink(tmp_path, "rows"), budget=Budget(rows=19))
        engine.create(PAIRS, name="bytes", budget=Budget(bytes=20 * 16 - 1))
        engine.create(PAIRS, name="candidates", budget=Budget(candidates=1))
        engine.create(PAIRS, name="enough", sink=sink(tmp_path, "enough"), budget=Budget(rows=20, bytes=20 * 16))
        feed(tmp_path)
        engine.process_all_available()
        states = {info.name: (info.state, info.rows) for info in engine.queries()}
        assert states.pop("enough") == ("running", 20)
        assert set(states.values()) == {("failed", 0)}
        assert "over its budget of 19 rows a batch: 20 at" in str(engine.query("rows").error)
        assert "a batch: 320 at" in str(engine.query("bytes").error)
        # No cell has all keys, so none was over the budgets of rows and bytes alone.
        assert all(task.tuples for task in engine.explain().tasks)
        engine.resume("rows")
        FileStream(tmp_path / "l").rows((1, 50, 2.0))
        engine.process_all_available()
        assert engine.query("rows").rows == 1
    assert written(tmp_path / "enough") == EVERY + Counter([(50, 1)])
    assert written(tmp_path / "rows") == Counter([(50, 1)])


def test_tasks_that_never_end_are_interrupted_by_the_drop_of_their_query(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adhoc_engine, "INTERRUPT_AFTER", 0.1)
    began = tmp_path / "began"

    def hang() -> None:
        import threading

        began.touch()
        threading.Event().wait()

    monkeypatch.setattr(distributed_executor, "_task", poisoned("bad", hang))
    with engine_on(spark, tmp_path) as engine:
        engine.create(PAIRS, name="good", sink=sink(tmp_path, "good"))
        engine.create(PAIRS, name="bad", sink=sink(tmp_path, "bad"))
        feed(tmp_path)
        while not began.exists():
            assert not engine.wait(0.05)
        engine.drop("bad")
        engine.process_all_available()
        assert {info.name: info.rows for info in engine.queries()} == {"good": 20}
    assert written(tmp_path / "good") == EVERY
    assert not list((tmp_path / "bad").iterdir())


def test_a_query_whose_tasks_die_is_found_and_paused_and_the_others_get_their_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed_executor, "_task", poisoned("bad", die))
    with engine_on(spark, tmp_path) as engine:
        for name in ("one", "bad", "two"):
            engine.create(PAIRS, name=name, sink=sink(tmp_path, name))
        feed(tmp_path)
        engine.process_all_available()
        assert {info.name: (info.state, info.rows) for info in engine.queries()} == {
            "one": ("running", 20),
            "bad": ("failed", 0),
            "two": ("running", 20),
        }
        assert "the tasks that compute it fail" in str(engine.query("bad").error)
        monkeypatch.undo()
        engine.resume("bad")
        FileStream(tmp_path / "l").rows((1, 50, 2.0))
        engine.process_all_available()
        assert engine.query("bad").rows == 1
    assert written(tmp_path / "one") == written(tmp_path / "two") == EVERY + Counter([(50, 1)])


def unfinished(spark: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint with a batch that no start could compute, whatever queries there are: none of them is to blame."""
    with monkeypatch.context() as patch:
        patch.setattr(distributed_executor, "_task", poisoned(None, die))
        with engine_on(spark, directory) as engine:
            for name in ("good", "bad", "gone"):
                engine.create(PAIRS, name=name, sink=sink(directory, name))
            feed(directory)
            with pytest.raises(StateError):
                engine.wait(120)
            assert {info.state for info in engine.queries()} == {"running"}


def test_a_batch_that_no_start_can_compute_is_computed_without_queries_in_quarantine(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished(spark, tmp_path, monkeypatch)
    engine = engine_on(spark, tmp_path, options={"quarantine": ["bad"]})
    engine.drop("gone", wait=False)
    with monkeypatch.context() as patch:
        # Whoever asks for the rows of one of them dies.
        patch.setattr(distributed_executor, "_task", poisoned("bad", die))
        with engine:
            engine.process_all_available()
            assert {info.name: info.state for info in engine.queries()} == {"good": "running", "bad": "failed"}
            assert "quarantined" in str(engine.query("bad").error)
    assert written(tmp_path / "good") == EVERY
    assert not written(tmp_path / "bad") and not written(tmp_path / "gone")


def test_the_second_start_computes_query_by_query_and_a_third_leaves_out_where_it_ended(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished(spark, tmp_path, monkeypatch)
    # A start that ended, and one that ended while a query was computed.
    journal = FiledJournal(str(tmp_path / "checkpoint")).log
    batch = max(journal.numbers("batches"))
    Attempt(journal, batch, {}).note("bad")
    journal.close()
    asked: list[list[str]] = []
    run = distributed_executor.CellRows._run

    def noted(self: Any, arrived: Any, active: Any) -> Any:
        asked.append([name for name in active if not self._core.queries[name].paused])
        return run(self, arrived, active)

    monkeypatch.setattr(distributed_executor.CellRows, "_run", noted)
    with engine_on(spark, tmp_path) as engine:
        engine.process_all_available()
        states = {info.name: info.state for info in engine.queries()}
        assert states == {"good": "running", "bad": "failed", "gone": "running"}
        assert "the process ended twice" in str(engine.query("bad").error)
    assert asked[:3] == [[], ["good"], ["gone"]]
    assert written(tmp_path / "good") == written(tmp_path / "gone") == EVERY
    assert not written(tmp_path / "bad")


WAITS = "SELECT x.p + 1 AS a, y.p AS b FROM l x LEFT JOIN r y WITHIN 5 SECONDS ON x.k = y.k"
STEPS = {
    "deciding": ("streamjoin.queries.core.kinds", "JoinKinds", "step"),
    "gathering": ("streamjoin.queries.core.kinds", "JoinKinds", "gather"),
    "naming what waits": ("streamjoin.queries.core.kinds", "JoinKinds", "with_ids"),
    "packing what waits": ("streamjoin.queries.core.kinds", "KindState", "to_table"),
    "holding what waits": ("streamjoin.queries.core.kinds", "JoinKinds", "pins"),
    "computing outputs": ("streamjoin.queries.core.gathering", "Gatherer", "rows"),
}


def failing_in_cells(module: str, owner: str, function: str) -> Callable[[Any, Any, int], Any]:
    """What tasks do, with a function that fails for the query `bad`."""
    run = run_cell

    def task(assignment: Any, whole: Any, cell: int) -> Any:
        import importlib

        target = getattr(importlib.import_module(module), owner)
        real = getattr(target, function)

        def fails(self: Any, *arguments: Any) -> Any:
            if "bad" in (getattr(getattr(self, "query", None), "name", None), arguments[0] if arguments else None):
                raise ValueError("injected")
            return real(self, *arguments)

        setattr(target, function, fails)
        try:
            return run(assignment, lambda: whole.value, cell)
        finally:
            setattr(target, function, real)

    return task


# The embedded engine is failed at every step: `tests/queries/test_every_step_isolated.py`.
@pytest.mark.parametrize("step", thorough_but(STEPS, "deciding", "computing outputs"))
def test_a_step_that_fails_in_cells_is_charged_to_its_query(
    step: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed_executor, "_task", failing_in_cells(*STEPS[step]))
    for _ in range(2):
        # A restart gets past it.
        with engine_on(spark, tmp_path) as engine:
            if not engine.queries():
                engine.create(PAIRS, name="good", sink=sink(tmp_path, "good"))
                engine.create(WAITS, name="bad", sink=sink(tmp_path, "bad"))
                engine.create(WAITS, name="fine", sink=sink(tmp_path, "fine"))
                feed(tmp_path)
            engine.process_all_available()
            states = {info.name: info.state for info in engine.queries()}
            assert states == {"good": "running", "bad": "failed", "fine": "running"}
            assert "ValueError: injected" in str(engine.query("bad").error)
    assert written(tmp_path / "good") == EVERY
    assert not written(tmp_path / "bad")


def test_the_reason_of_a_task_that_fails_is_what_its_python_raised(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KeyError("the real reason")

    monkeypatch.setattr(distributed_executor, "_task", poisoned("bad", fail))
    with engine_on(spark, tmp_path) as engine:
        for name in ("good", "bad"):
            engine.create(PAIRS, name=name, sink=sink(tmp_path, name))
        feed(tmp_path)
        engine.process_all_available()
        assert engine.query("bad").error == "the tasks that compute it fail: KeyError: 'the real reason'"
        assert engine.query("good").rows == 20
