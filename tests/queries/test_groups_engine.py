"""Grouped queries in an engine: what a create answers, open groups, silence, restarts, pauses, and DuckDB's rows."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.adhoc import Engine, Settings

SCHEMA = pa.schema({"ts": pa.timestamp("us"), "sym": pa.string(), "px": pa.float64()})
NOON = dt.datetime(2026, 1, 1, 12)
TEXT = (
    "SELECT t.sym, window_start, count(*) AS n, sum(q.px) AS s FROM trades t JOIN quotes q WITHIN 3 SECONDS "
    "ON t.sym = q.sym GROUP BY t.sym, TUMBLE(t.ts, INTERVAL '1' MINUTE)"
)


def at(*rows: tuple[float, str, float]) -> list[dict[str, Any]]:
    return [{"ts": NOON + dt.timedelta(seconds=seconds), "sym": sym, "px": px} for seconds, sym, px in rows]


def opened(checkpoint: Path | None = None, settings: Settings | None = None) -> Engine:
    engine = Engine(checkpoint=None if checkpoint is None else str(checkpoint), settings=settings)
    for name in ("trades", "quotes"):
        engine.register(name, schema=SCHEMA, lateness="2 seconds")
    return engine


def test_a_create_says_which_window_is_first_and_when_it_is_due() -> None:
    with opened() as engine:
        before = engine.create(TEXT, "before").info().groups
        assert before is not None and before.first_window is None and before.first_due is None
        engine.push("trades", at((30, "A", 1.0)))
        after = engine.create(TEXT, "after").info().groups
        assert after is not None and after.first_window == "2026-01-01T12:01:00"
        # A minute, the reach of the join, and the lateness.
        assert after.first_due == "2026-01-01T12:02:05"
        assert engine.create("SELECT sym FROM trades", "plain").info().groups is None


def test_open_groups_have_values_so_far_and_a_stream_that_holds_them_back() -> None:
    with opened() as engine:
        engine.create(TEXT, "q")
        engine.push("quotes", at((1, "A", 9.0), (90, "B", 1.0)))
        engine.push("trades", at((2, "A", 1.0), (2.5, "A", 1.0)))
        found = engine.query("q").groups
        assert found is not None and (found.windows, found.groups, found.held_back_by) == (1, 1, "trades")
        assert found.oldest == "2026-01-01T12:00:00" and found.complete_until == "2026-01-01T12:00:00.500000"
        (row,) = engine.open_groups("q").to_pylist()
        assert (row["sym"], row["n"], row["s"]) == ("A", 2, 18.0)
        assert not engine.rows("q").num_rows
        # The quiet stream says how far it is: the window is complete.
        engine.advance(NOON + dt.timedelta(seconds=70), "trades")
        assert engine.rows("q").to_pylist() == [row] and not engine.open_groups("q").num_rows
        engine.pause("q")
        assert engine.query("q").groups is None and not engine.open_groups("q").num_rows


def test_a_quiet_stream_lets_windows_go_after_idle(tmp_path: Path) -> None:
    with opened(tmp_path, Settings(idle="1 second")) as engine:
        engine.create(TEXT, "q")
        engine.push("quotes", at((1, "A", 9.0)))
        engine.push("trades", at((2, "A", 1.0)))
        # Nothing more comes of the quotes, and of the trades what ends the minute.
        engine.push("trades", at((300, "Z", 1.0)))
        (rows,) = [next(iter(engine.iterate("q", timeout=20)))]
        assert rows.to_pylist() == [{"sym": "A", "window_start": NOON, "n": 1, "s": 9.0}]


def test_a_restart_goes_on_with_what_was_open_and_a_resume_begins_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as engine:
        engine.create(TEXT, "q")
        engine.create(TEXT.replace("'1' MINUTE", "'30' SECOND"), "half")
        engine.create(TEXT, "paused")
        engine.push("quotes", at((1, "A", 0.1), (2, "A", 0.2), (3, "A", 0.3)))
        engine.push("trades", at((2, "A", 1.0)))
        engine.pause("paused")
    with opened(tmp_path) as engine:
        engine.resume("paused")
        resumed = engine.query("paused").groups
        assert resumed is not None and resumed.first_window == "2026-01-01T12:01:00"
        engine.push_all({"quotes": at((58, "A", 1.0), (70, "A", 5.0), (200, "A", 1.0)), "trades": at((59, "A", 1.0))})
        engine.push("trades", at((71, "A", 1.0), (200, "A", 1.0)))
        rows = {name: [(row["n"], row["s"]) for row in engine.rows(name).to_pylist()] for name in engine_names(engine)}
        assert rows == {
            "q": [(4, 1.6), (1, 5.0)],
            "half": [(3, 0.6), (1, 1.0), (1, 5.0)],
            "paused": [(1, 5.0)],
        }


@pytest.mark.parametrize("sharing", ["nothing", "cost"])
def test_a_restart_gives_every_query_its_own_groups(tmp_path: Path, sharing: Any) -> None:
    outputs = {"count(*)": [2], "max(t.px)": [4.0], "count(DISTINCT t.sym)": [2]}
    settings = Settings(sharing=sharing)
    with opened(tmp_path, settings) as engine:
        for output in outputs:
            engine.create(f"SELECT {output} AS x FROM trades t GROUP BY TUMBLE(t.ts, INTERVAL '1' MINUTE)", output)
        engine.push("trades", at((1, "A", 1.0), (2, "B", 4.0)))
    with opened(tmp_path, settings) as engine:
        engine.push("trades", at((200, "A", 1.0)))
        assert {output: engine.rows(output)["x"].to_pylist() for output in outputs} == outputs


def test_a_query_may_have_any_name(tmp_path: Path) -> None:
    names = [f"0-{batch}" for batch in range(5, 20)]
    with opened(tmp_path) as engine:
        for n, name in enumerate(names):
            where = f"WHERE t.px < {n + 9}"
            engine.create(f"SELECT sum(t.px) AS s FROM trades t {where} GROUP BY TUMBLE(INTERVAL '1' MINUTE)", name)
        engine.push("trades", at((1, "A", 1.0)))
        engine.push("trades", at((2, "A", 4.0)))
    with opened(tmp_path) as engine:
        engine.push("trades", at((200, "A", 1.0)))
        assert {name: engine.rows(name)["s"].to_pylist() for name in names} == {name: [5.0] for name in names}


def engine_names(engine: Engine) -> list[str]:
    return [info.name for info in engine.queries()]


def test_rows_are_those_of_duckdb() -> None:
    duckdb = pytest.importorskip("duckdb")
    rng = np.random.default_rng(3)
    tables = {}
    for name in ("trades", "quotes"):
        times = np.sort(rng.integers(0, 600_000, 3000))
        rows = at(*((ms / 1000, f"S{sym}", round(float(px), 2)) for ms, sym, px in zip(
            times, rng.integers(0, 20, 3000), rng.normal(100, 5, 3000), strict=True
        )))  # fmt: skip
        tables[name] = pa.Table.from_pylist(rows, SCHEMA)
    text = (
        "SELECT t.sym, window_end, count(*) AS n, sum(q.px) AS s, avg(q.px - t.px) AS d, max(q.px) AS top, "
        "count(DISTINCT q.px) AS prices, stddev_samp(q.px) AS sd FROM trades t JOIN quotes q WITHIN 3 SECONDS "
        "ON t.sym = q.sym GROUP BY t.sym, TUMBLE(t.ts, INTERVAL '1' MINUTE) HAVING count(*) > 2 "
        "QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY n DESC, t.sym) <= 7"
    )
    with opened() as engine:
        engine.create(text, "q")
        for begin in range(0, 3000, 700):
            engine.push_all({name: table.slice(begin, 700) for name, table in tables.items()})
        engine.advance(NOON + dt.timedelta(hours=1))
        found = engine.rows("q", 1000)
    trades, quotes = tables["trades"], tables["quotes"]  # noqa: F841 - DuckDB reads them
    connection = duckdb.connect()
    wanted = connection.sql(
        "SELECT t.sym, date_trunc('minute', t.ts) + INTERVAL 1 MINUTE AS window_end, count(*) AS n, sum(q.px) AS s, "
        "avg(q.px - t.px) AS d, max(q.px) AS top, count(DISTINCT q.px) AS prices, stddev_samp(q.px) AS sd "
        "FROM trades t JOIN quotes q ON t.sym = q.sym AND abs(epoch_us(t.ts) - epoch_us(q.ts)) <= 3000000 "
        "GROUP BY 1, 2 HAVING count(*) > 2 QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY n DESC, t.sym) "
        "<= 7 ORDER BY window_end, t.sym"
    ).to_arrow_table()
    assert found.num_rows == wanted.num_rows > 50
    for name in found.column_names:
        one, other = found[name].to_pylist(), wanted[name].to_pylist()
        assert one == (pytest.approx(other, rel=1e-12, abs=1e-12) if name in ("s", "d", "sd") else other), name


def test_a_preview_says_how_groups_are_made_and_who_shares_them() -> None:
    with opened() as engine:
        engine.create(TEXT, "one")
        engine.push("trades", at((30, "A", 1.0)))
        hop = "GROUP BY t.px, HOP(t.ts, INTERVAL '1' MINUTE, INTERVAL '2' MINUTE)"
        other = engine.preview(TEXT[: TEXT.index("GROUP")].replace("t.sym,", "t.px,") + hop)
        assert other.shares_with == ("one",) and (other.new_joins, other.shared_joins, other.cost_apart) == (0, 0, 0.0)
        assert other.text == "└─ groups from ranges of q by key and time, no pair is enumerated"
        pairs = engine.preview(TEXT.replace("sum(q.px)", "median(q.px)"))
        assert pairs.shares_with == () and pairs.new_joins == 2
        assert pairs.text.endswith("└─ groups of pairs, as MEDIAN(q.px) takes every value of the other stream")
        assert "groups" not in engine.preview("SELECT sym FROM trades").text
