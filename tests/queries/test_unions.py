"""UNION ALL: the rows of several queries as one, which live, fail and wait together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Engine, Settings, Stream
from streamjoin.model.errors import BudgetExceededError, QueryError
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.changes import Create, Drop, Pause, Resume
from streamjoin.queries.core.row_lists import RowList
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.language.plan import MAX_BRANCHES
from streamjoin.queries.language.sql import parse
from streamjoin.service.plan_graph import PlanGraph
from tests.queries.cell_grid import Grid
from tests.queries.core_cases import Rows, rows_of

TRADES = Stream("trades", pa.schema({"sym": pa.string(), "px": pa.int64(), "t": pa.int64()}), "t")
QUOTES = Stream("quotes", pa.schema({"sym": pa.string(), "bid": pa.int64(), "at": pa.int64()}), "at")
CLOSES = Stream("closes", pa.schema({"px": pa.int64(), "sym": pa.string(), "half": pa.float64(), "t": pa.int64()}), "t")
STREAMS = [TRADES, QUOTES]
AROUND = "RANGE BETWEEN 3 UNITS PRECEDING AND 2 UNITS FOLLOWING EXCLUDE PREVAILING"
BRANCHES = [
    "SELECT t.sym, q.bid FROM trades t LEFT JOIN quotes q WITHIN 3 UNITS ON t.sym = q.sym",
    "SELECT 'x' || sym AS x, px FROM trades WHERE px > 4",
    "SELECT q.sym, q.bid FROM quotes q LEFT ANTI JOIN trades t WITHIN 2 UNITS ON t.sym = q.sym",
    "SELECT q.sym, p.bid FROM quotes q JOIN quotes p WITHIN 2 ROWS ON q.bid = p.bid",
    "SELECT t.sym, sum(q.bid) AS b FROM trades t WINDOW JOIN quotes q ON t.sym = q.sym " + AROUND,
    "SELECT sym, px FROM trades WHERE px > 4",
]
BATCHES: list[dict[str, list[tuple[str, int, int]]]] = [
    {"trades": [("a", 1, 1), ("b", 5, 2), ("a", 6, 3)], "quotes": [("a", 10, 2), ("c", 10, 3)]},
    {"quotes": [("b", 7, 5), ("d", 7, 6)]},
    {"trades": [("d", 9, 7), ("c", 4, 9)], "quotes": [("d", 1, 9)]},
    {"trades": [("z", 1, 40)], "quotes": [("z", 9, 60)]},
]


def tables(batch: dict[str, list[tuple[str, int, int]]]) -> dict[str, pa.Table]:
    schemas = {stream.name: stream.schema for stream in STREAMS}
    return {
        name: pa.table([list(column) for column in zip(*rows, strict=True)], schema=schemas[name])
        for name, rows in batch.items()
    }


UNION = " UNION ALL ".join(BRANCHES).replace(" AS x", "").replace(" AS b", "")


@pytest.mark.parametrize("sharing", ["cost", "nothing"])
def test_its_rows_are_those_of_each_select(sharing: Any) -> None:
    core = open_core(STREAMS, Settings(sharing=sharing))
    core.apply([Create("union", UNION), *(Create(f"q{n}", text) for n, text in enumerate(BRANCHES))])
    assert core.queries["union"].query.schema == pa.schema({"sym": pa.string(), "bid": pa.int64()})
    seen = 0
    for number, batch in enumerate(BATCHES):
        rows = core.process(number, tables(batch))
        union = rows.pop("union")
        wanted = sum((rows_of(table.rename_columns(union.column_names)) for table in rows.values()), Rows())
        assert rows_of(union) == wanted
        seen += union.num_rows
        if number == 1:
            # Through what a checkpoint has of it.
            core.restore(core.snapshot())
    assert seen > 20 and {name for name in core.queries if "union" in name} == {"union"}
    core.apply([Pause("union")])
    assert not core.process(10, tables({"trades": [("p", 9, 70)]}))["union"].num_rows
    core.apply([Resume("union")])
    rows = core.process(11, tables({"trades": [("r", 9, 71)]}))["union"].to_pylist()
    assert rows == [{"sym": "xr", "bid": 9}, {"sym": "r", "bid": 9}]
    core.apply([Drop("union"), Create("union", "SELECT sym FROM trades")])
    assert core.process(12, tables({"trades": [("s", 9, 72)]}))["union"].to_pylist() == [{"sym": "s"}]
    assert not [name for name in core.snapshot().kinds if name.startswith("union")]


@pytest.mark.parametrize("sharing", ["cost", "nothing"])
def test_a_select_over_its_budget_fails_all_of_it_alone(sharing: Any) -> None:
    core = open_core(STREAMS, Settings(sharing=sharing))
    text = f"SELECT sym, bid FROM quotes UNION ALL {BRANCHES[0]} UNION ALL SELECT sym, px FROM trades"
    core.apply([Create("over", text, budget=Budget(rows=2)), Create("all", "SELECT sym FROM trades")])
    rows = core.process(0, tables(BATCHES[0]))
    assert (rows["over"].num_rows, rows["all"].num_rows) == (0, 3)
    assert isinstance(core.report.failures["over"], BudgetExceededError)
    assert core.queries["over"].paused and not core.snapshot().kinds
    core.apply([Resume("over")])
    assert core.process(1, tables({"quotes": [("y", 7, 5)]}))["over"].to_pylist() == [{"sym": "y", "bid": 7}]
    # Its SELECTs have one budget together.
    assert not core.process(2, tables({"quotes": [("b", 7, 5), ("d", 7, 6)]}))["over"].num_rows
    assert "2 rows a batch: 3 at" in str(core.report.failures["over"])


def test_rows_that_cannot_be_put_together_fail_that_query_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    core = open_core(STREAMS)
    text = "SELECT t.sym AS bad, q.bid FROM trades t JOIN quotes q WITHIN 3 UNITS ON t.sym = q.sym"
    core.apply([Create("bad", f"{text} UNION ALL {BRANCHES[0]}"), Create("good", UNION)])
    table = RowList.table

    def injected(self: RowList) -> pa.Table:
        if "bad" in self.schema.names:
            raise ValueError("injected")
        return table(self)

    monkeypatch.setattr(RowList, "table", injected)
    rows = core.process(0, tables(BATCHES[0]))
    assert list(core.report.failures) == ["bad"] and "injected" in str(core.report.failures["bad"])
    assert not rows["bad"].num_rows and rows["good"].num_rows
    assert core.queries["bad"].paused and not [name for name in core.snapshot().kinds if name.startswith("bad")]
    monkeypatch.undo()
    core.apply([Resume("bad")])
    assert core.process(1, tables({"quotes": [("a", 7, 4)]}))["bad"].num_rows


@pytest.mark.parametrize("cells", [1, 3])
def test_cells_give_the_same_rows(tmp_path: Path, cells: int) -> None:
    core, grid = open_core(STREAMS), Grid(tmp_path, STREAMS, cells, workers=2)
    for one in (core, grid.core):
        one.apply([Create("union", UNION), Create("plain", BRANCHES[0])])
    for number, batch in enumerate(BATCHES):
        wanted = {name: rows_of(rows) for name, rows in core.process(number, tables(batch)).items() if rows.num_rows}
        assert grid.batch(number, tables(batch)) == wanted
        if number == 2:
            grid.resize()


def test_the_plan_has_the_steps_of_each_select() -> None:
    core = open_core(STREAMS)
    core.apply([Create("union", f"SELECT sym, bid FROM quotes UNION ALL {UNION}")])
    core.process(0, tables(BATCHES[0]))
    assert [(step.queries, step.stream) for step in core.explain().last_steps] == [(("union",), "quotes")]
    edges = PlanGraph(core.explain(), [], [], {}).as_data()["edges"]
    ends = {edge["from"].split(":")[0] for edge in edges if edge["to"] == "sink:union"}
    assert ends == {"selection", "join", "window"}
    window = next(edge["to"] for edge in edges if edge["to"].startswith("window:"))
    assert {edge["from"] for edge in edges if edge["to"] == window} == {"selection:0:trades", "selection:0:quotes"}


def test_the_engine_knows_all_of_its_streams() -> None:
    with Engine() as engine:
        for stream in STREAMS:
            engine.register(stream.name, time=stream.time, schema=stream.schema)
        estimate = engine.preview(UNION)
        assert estimate.streams == ("trades", "quotes") and "window join with quotes" in str(estimate)
        engine.create(UNION, "union")
        engine.push("quotes", tables(BATCHES[1])["quotes"])
        engine.push("trades", tables(BATCHES[3])["trades"])
        assert engine.rows("union").num_rows and engine.query("union").columns == (("sym", "string"), ("bid", "int64"))


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("SELECT sym FROM trades UNION ALL SELECT sym, bid FROM quotes", "this one has 2 columns", "sym, bid"),
        ("SELECT sym, px FROM trades UNION ALL SELECT * FROM quotes", "this one has 3 columns", "*"),
        ("SELECT sym, px FROM trades UNION ALL SELECT px, sym FROM closes", "in another order", "px, sym"),
        (
            "SELECT sym, px FROM trades UNION ALL SELECT sym, half AS px FROM closes",
            "this column is double, and px of the first SELECT is int64: write CAST",
            "half AS px",
        ),
        (
            "SELECT sym, px FROM trades UNION ALL SELECT sym, count(*) AS n FROM trades GROUP BY sym, TUMBLE(t, 5)",
            "groups of a query come out by themselves",
            "GROUP BY",
        ),
        ("SELECT px FROM trades UNION ALL", "a query starts with SELECT", None),
        ("SELECT px FROM trades UNION ALL VALUES (1)", "a query starts with SELECT", "VALUES"),
        (" UNION ALL ".join(["SELECT px FROM trades"] * (MAX_BRANCHES + 1)), "at most 20 SELECTs", "UNION"),
    ],
)
def test_what_is_refused(text: str, message: str, marked: str | None) -> None:
    with pytest.raises(QueryError, match=message.replace("(", r"\(")) as told:
        parse(text, [*STREAMS, CLOSES])
    assert marked is None or text[told.value.column - 1 :][: told.value.length] == marked
