"""Budgets: a query that takes too much of a batch loses that batch's rows, and no other query anything."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import Stream
from streamjoin.model.errors import BudgetExceededError, InterruptedBatchError, SpecError
from streamjoin.queries.core import shared_join
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.changes import Create, Drop, Resume
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.kernels.probe import probe_shared
from tests.oracles import adhoc_cases
from tests.queries.core_cases import lateness_of, rows_of, streams_of
from tests.seeds import examples

SLOW = settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
SCHEMA = pa.schema({"k": pa.int64(), "p": pa.int64(), "s": pa.string(), "t": pa.int64()})
STREAMS = [Stream(name, SCHEMA, "t") for name in ("l", "r", "z")]
PAIRS = "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"
SCAN = "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.p < y.p"
TRIANGLE = (
    "SELECT x.p AS a, y.p AS b, w.p AS c FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k JOIN z w WITHIN 5 UNITS "
    "ON y.k = w.k"
)
SHARINGS = pytest.mark.parametrize("sharing", ["cost", "nothing"])


def rows(n: int, keys: int = 1, at: int = 0) -> pa.Table:
    number = np.arange(n)
    return pa.table({"k": number % keys, "p": number, "s": ["x" * 100] * n, "t": np.full(n, at)}, SCHEMA)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that joins of a few pairs are cut, looked at and stopped as those of millions are."""
    monkeypatch.setattr(shared_join, "_ROOM", 4)
    monkeypatch.setattr(shared_join, "_BLOCK", 8 * 24)
    monkeypatch.setattr(shared_join, "_STEP", 5)


@SHARINGS
@pytest.mark.parametrize(
    ("text", "budget", "kind"),
    [
        (PAIRS, Budget(candidates=9_000), "candidates"),
        (SCAN, Budget(candidates=2_000), "candidates"),
        (PAIRS, Budget(rows=9_999), "rows"),
        (TRIANGLE, Budget(rows=10_000), "rows"),
        (TRIANGLE, Budget(candidates=20_000), "candidates"),
        (PAIRS.replace("y.p", "y.s"), Budget(bytes=100 * 100 * 100), "bytes"),
    ],
)
def test_only_the_query_that_is_over_its_budget_loses_its_rows(
    sharing: Any, text: str, budget: Budget, kind: str
) -> None:
    core = open_core(STREAMS, Settings(sharing=sharing))
    core.apply(
        [
            Create("kept", text),
            Create("over", text, budget=budget),
            Create("few", f"{text} WHERE x.p = 1 AND y.p = 2", budget=budget),
        ]
    )
    batch = {"l": rows(100), "r": rows(100), "z": rows(2)}
    arrived = core.arrive(0, batch)
    outputs, failures = core.results(arrived)
    assert list(failures) == ["over"]
    error = failures["over"]
    assert isinstance(error, BudgetExceededError)
    limit = getattr(budget, kind)
    assert (error.kind, error.limit) == (kind, limit) and error.reached > limit and error.place
    assert f"{limit:,} {kind} a batch" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.place) == (str(error), error.place)
    assert outputs["over"].num_rows == 0 < outputs["few"].num_rows
    alone = open_core(STREAMS)
    alone.apply([Create("kept", text), Create("few", f"{text} WHERE x.p = 1 AND y.p = 2")])
    wanted = alone.process(0, batch)
    assert {name: rows_of(outputs[name]) for name in wanted} == {name: rows_of(found) for name, found in wanted.items()}
    # Like any query that failed it is paused, and can go on with the next batch.
    core.finish(arrived, failures)
    assert core.queries["over"].paused and not core.queries["few"].paused
    core.apply([Resume("over")])
    later = core.process(1, {"l": rows(1, at=6), "r": rows(1, at=6), "z": rows(1, at=6)})
    assert rows_of(later["over"]) == rows_of(later["kept"])


@SLOW
@given(adhoc_cases.cases(most_queries=4), st.data())
def test_others_gain_what_they_gain_without_the_queries_that_are_over(
    case: adhoc_cases.AdhocCase, data: st.DataObject
) -> None:
    limits = st.none() | st.integers(1, 30)
    budgets = {q.name: Budget(*(data.draw(limits) for _ in range(3))) for q in case.queries if data.draw(st.booleans())}
    small = {"_ROOM": (shared_join, 4), "_BLOCK": (shared_join, 8 * 24), "_STEP": (shared_join, 5)}
    sizes = small if data.draw(st.booleans()) else {}
    with pytest.MonkeyPatch.context() as patch:
        for name, (module, size) in sizes.items():
            patch.setattr(module, name, size)
        bounded = open_core(streams_of(case), Settings(lateness=lateness_of(case), replan_every=2))
        free = open_core(streams_of(case), Settings(lateness=lateness_of(case)))
        for batch in range(len(case.batches)):
            changes = [Drop(q.name) for q in case.queries if q.life.dropped == batch]
            created = [q for q in case.queries if q.life.created == batch]
            bounded.apply([*changes, *(Create(q.name, q.text, budget=budgets.get(q.name, Budget())) for q in created)])
            free.apply([*changes, *(Create(q.name, q.text) for q in created)])
            arrived = bounded.arrive(batch, case.tables(batch))
            outputs, failures = bounded.results(arrived)
            wanted = free.process(batch, case.tables(batch))
            assert set(failures) <= set(budgets)
            for name, found in outputs.items():
                budget = budgets.get(name, Budget())
                assert rows_of(found) == (rows_of(wanted[name]) if name not in failures else {})
                if name not in failures and budget.rows is not None:
                    assert found.num_rows <= budget.rows
            # As if it had been within its budget: the next batch has the query again.
            bounded.finish(arrived, {})


@pytest.mark.usefixtures("small_steps")
def test_a_join_in_steps_is_the_same_join() -> None:
    core = Shared(STREAMS)
    core.apply([Create("two", PAIRS), Create("scan", SCAN), Create("three", TRIANGLE)])
    outputs = core.process(0, {"l": rows(12), "r": rows(12), "z": rows(12)})
    assert {name: len(rows_of(found)) for name, found in outputs.items()} == {"two": 144, "scan": 66, "three": 1728}
    assert all(found.num_rows == len(rows_of(found)) for found in outputs.values())


@pytest.mark.usefixtures("small_steps")
def test_a_query_that_explodes_is_stopped_before_it_is_through() -> None:
    core = Shared(STREAMS)
    core.apply([Create("q", PAIRS, budget=Budget(candidates=50))])
    _, failures = core.results(core.arrive(0, {"l": rows(100), "r": rows(100)}))
    error = failures["q"]
    assert isinstance(error, BudgetExceededError) and 50 < error.reached <= 50 + 100 + 5


@SHARINGS
@pytest.mark.usefixtures("small_steps")
def test_a_batch_can_be_interrupted_and_run_again(sharing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    core = open_core(STREAMS, Settings(sharing=sharing))
    core.apply([Create("q", PAIRS), Create("p", SCAN)])
    core.process(0, {"l": rows(10)})
    arrived = core.arrive(1, {"r": rows(10)})
    asking = threading.Thread(target=core.interrupt)
    asking.start()
    asking.join()
    with pytest.raises(InterruptedBatchError, match="can be run again"):
        core.results(arrived)
    calls = 0

    def probe_and_interrupt(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            core.interrupt()
        return probe_shared(*arguments)

    monkeypatch.setattr(shared_join, "probe_shared", probe_and_interrupt)
    with pytest.raises(InterruptedBatchError):
        core.results(arrived)
    assert calls == 3
    outputs, failures = core.results(arrived)
    core.finish(arrived, failures)
    assert (outputs["q"].num_rows, outputs["p"].num_rows) == (100, 45)
    assert core.process(2, {"r": rows(1, at=1)})["q"].num_rows == 10


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "5"])
def test_a_budget_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(SpecError, match="budget of rows is a whole number from 1"):
        Budget(rows=limit)
