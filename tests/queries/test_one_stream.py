"""Queries over one stream: a row for each tuple that passes, in gate order, with no tuple stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Engine, Settings, Stream
from streamjoin.model.errors import BudgetExceededError
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.changes import Create, Drop, Pause, Resume
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import open_core
from streamjoin.service.plan_graph import PlanGraph

SCHEMA = pa.schema({"sym": pa.string(), "px": pa.int64(), "qty": pa.int64(), "t": pa.int64()})
TRADES = Stream("trades", SCHEMA, "t")
DEAR = "SELECT t.sym, t.px * t.qty AS notional FROM trades t WHERE t.px > 10"
ALL = "SELECT * FROM trades"
SHARING = pytest.mark.parametrize("sharing", ["cost", "nothing"])


def trades(*rows: tuple[str, int, int, int]) -> dict[str, pa.Table]:
    return {"trades": pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)}


FIRST = trades(("a", 5, 1, 3), ("b", 20, 2, 1), ("a", 30, 3, 2))
SECOND = trades(("c", 11, 1, 6), ("d", 10, 2, 5))


@SHARING
def test_rows_come_in_gate_order_and_no_tuple_is_held(sharing: Any) -> None:
    core = open_core([TRADES], Settings(sharing=sharing))
    core.apply([Create("dear", DEAR), Create("all", ALL), Create("none", "SELECT 1 AS one FROM trades WHERE 1 = 2")])
    rows = core.process(0, FIRST)
    assert rows["dear"].to_pydict() == {"sym": ["b", "a"], "notional": [40, 90]}
    assert rows["all"] == FIRST["trades"].take([1, 2, 0])
    assert rows["none"].schema == pa.schema({"one": pa.int64()}) and not rows["none"].num_rows
    assert set(core.nbytes.values()) == {0}
    core.apply([Pause("dear"), Drop("none"), Create("later", "SELECT qty FROM trades WHERE sym < 'd'")])
    rows = core.process(1, SECOND)
    assert not rows["dear"].num_rows and rows["later"]["qty"].to_pylist() == [1]
    core.apply([Resume("dear")])
    assert core.process(2, trades(("e", 12, 1, 7)))["dear"].to_pylist() == [{"sym": "e", "notional": 12}]


def test_it_holds_no_more_beside_a_join() -> None:
    join = "SELECT x.px FROM trades x JOIN trades y WITHIN 2 ROWS ON x.sym = y.sym"
    alone, both = Shared([TRADES]), Shared([TRADES])
    alone.apply([Create("join", join)])
    both.apply([Create("join", join), Create("all", ALL)])
    for core in (alone, both):
        core.process(0, FIRST)
    assert both.nbytes["tuples"] == alone.nbytes["tuples"] > 0


@SHARING
def test_late_tuples_give_no_row(sharing: Any) -> None:
    core = open_core([TRADES], Settings(sharing=sharing))
    core.apply([Create("all", ALL)])
    core.process(0, FIRST)
    assert core.process(1, trades(("late", 1, 1, 1), ("now", 1, 1, 4)))["all"]["sym"].to_pylist() == ["now"]
    assert core.report.late["trades"]["sym"].to_pylist() == ["late"]


@SHARING
def test_only_the_query_over_its_budget_loses_its_rows(sharing: Any) -> None:
    core = open_core([TRADES], Settings(sharing=sharing))
    core.apply([Create("few", DEAR, budget=Budget(rows=2)), Create("many", ALL, budget=Budget(rows=2))])
    rows = core.process(0, FIRST)
    assert (rows["few"].num_rows, rows["many"].num_rows) == (2, 0)
    assert isinstance(core.report.failures["many"], BudgetExceededError)
    assert core.queries["many"].paused and not core.queries["few"].paused


def test_the_plan_says_what_is_selected() -> None:
    core = Shared([TRADES], Settings(replan_every=1))
    core.apply([Create("dear", DEAR), Create("all", f"{ALL} WHERE px < 7")])
    core.process(0, FIRST)
    found = core.explain()
    (root,) = found.roots
    assert (root.step.joins, root.step.probes, root.step.pairs, root.step.candidates) == (False, 3, 3, 0)
    assert root.step.ends == ("all", "dear")
    assert (found.streams[0].rate, found.streams[0].held) == (3, 0)
    assert "selection: 2 queries read it alone; 3 of 3 tuples a batch (100.0%)" in str(found)
    assert "all selects from trades, because other queries do" in str(found)
    assert "0 candidates" not in str(found) and "⋈" not in found._repr_html_()
    graph = PlanGraph(found, [], [], {}).as_data()
    assert [node["kind"] for node in graph["nodes"]] == ["source", "selection", "sink", "sink"]
    assert {(edge["from"], edge["to"]) for edge in graph["edges"]} == {
        ("source:trades", "selection:0:trades"),
        ("selection:0:trades", "sink:all"),
        ("selection:0:trades", "sink:dear"),
    }
    core.replan()
    assert not any(decision.rule == "group_by_cost" for decision in core.explain().decisions)


def test_the_engine_previews_it_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    def opened() -> Engine:
        engine = Engine(checkpoint=tmp_path)
        engine.register("trades", schema=SCHEMA, time="t")
        return engine

    with opened() as engine:
        dear = engine.create(DEAR, name="dear")
        engine.push("trades", FIRST["trades"])
        assert dear.rows().to_pylist() == [{"sym": "b", "notional": 40}, {"sym": "a", "notional": 90}]
        shown = engine.preview("SELECT px FROM trades WHERE px > 20")
        assert (shown.new_joins, shown.shared_joins, shown.shares_with) == (0, 0, ("dear",))
        assert shown.text == "new tuples of trades, selected: shared with 1 queries"
        assert (shown.rows, shown.rows_found) == (((30,),), 1)
        assert shown.warning is None
    with opened() as engine:
        engine.push("trades", SECOND["trades"])
        assert engine.rows("dear").to_pylist() == [{"sym": "c", "notional": 11}]
