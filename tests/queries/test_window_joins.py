"""Window joins of ad-hoc queries: the bits of the oracle and of `sj.open`, restarts, sharing, and what is refused."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import Engine, Stream
from streamjoin.model.errors import BudgetExceededError, QueryError
from streamjoin.queries.core import window_joins
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.changes import Create, Drop, Pause, Resume
from streamjoin.queries.core.kinds import KindState, joined_states, unpacked_states
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.language.sql import parse
from tests.joins.summary_runs import normal
from tests.queries.cell_grid import Grid
from tests.queries.window_join_cases import LATENESS, SqlCase, rows_of_all, sql_cases
from tests.seeds import examples

SETTINGS = Settings(lateness=LATENESS, future=None)


def opened(case: SqlCase) -> Shared:
    return Shared(case.streams, SETTINGS)


def restarted(core: Shared) -> Shared:
    """An engine that knows of another what is stored."""
    state = core.snapshot()
    queries = {name: entry.query for name, entry in state.registry.queries.items()}
    stored = joined_states([one.to_table(name) for name, one in state.kinds.items()])
    other = Shared(core.streams.values(), core.settings)
    other.restore(replace(state, kinds={name: unpacked_states(stored, queries)[name] for name in state.kinds}))
    return other


@given(sql_cases(), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_those_of_the_oracle_and_of_open_to_the_bit(case: SqlCase, data: st.DataObject) -> None:
    """Between any two batches the engine may start again, and a batch may be computed twice."""
    core = opened(case)
    core.apply([Create("q", case.text)])
    tables = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_joins, "_LEAST_STORED", data.draw(st.sampled_from([1, 1 << 18])))
        for batch in range(len(case.batches) + 1):
            event = data.draw(st.sampled_from(["", "", "restart", "again"]))
            core = restarted(core) if event == "restart" else core
            arrived = core.arrive(batch, case.tables(batch))
            if event == "again":
                core.results(arrived)
            outputs, failures = core.results(arrived)
            assert not failures
            core.finish(arrived, failures)
            tables.append(outputs["q"])
    assert rows_of_all(case, tables) == case.expected == case.of_open()


@pytest.mark.parametrize(("cells", "resizes"), [(1, False), (3, False), (4, True)])
def test_cells_give_the_same_rows(cells: int, resizes: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Left tuples of one cell meet all that they summarise there, also when cells change and tasks run twice."""

    @given(sql_cases())
    @settings(max_examples=examples(12), deadline=None)
    def check(case: SqlCase) -> None:
        directory = tmp_path_factory.mktemp("cells")
        grid = Grid(directory, case.streams, cells, 2, lateness=LATENESS, future=None)
        grid.core.apply([Create("q", case.text)])
        found: Counter[tuple[Any, ...]] = Counter()
        for batch in range(len(case.batches) + 1):
            if resizes and batch % 2:
                grid.resize()
            rows = grid.batch(batch, case.tables(batch)).get("q", Counter())
            found.update({tuple(normal(row)): count for row, count in rows.items()})
        assert found == Counter(map(tuple, case.expected))

    check()


# By hand --------------------------------------------------------------------------------------------------------------

TRADES = pa.schema({"sym": pa.string(), "px": pa.float64(), "qty": pa.int64(), "ts": pa.timestamp("us")})
QUOTES = pa.schema({"sym": pa.string(), "bid": pa.float64(), "at": pa.timestamp("ms")})
LAST_SECOND = "RANGE BETWEEN 1 SECOND PRECEDING AND CURRENT ROW EXCLUDE PREVAILING"
AROUND = "FROM trades t WINDOW JOIN quotes q ON t.sym = q.sym RANGE BETWEEN {} EXCLUDE PREVAILING"


def market(*texts: str, **options: Any) -> Shared:
    core = Shared([Stream("trades", TRADES, "ts"), Stream("quotes", QUOTES, "at")], Settings(future=None, **options))
    core.apply([Create(f"q{number}", text) for number, text in enumerate(texts)])
    return core


def trades(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(TRADES.names, (sym, px, qty, int(1e6 * ts)), strict=True)) for sym, px, qty, ts in rows], TRADES
    )


def quotes(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(QUOTES.names, (sym, bid, int(1e3 * at)), strict=True)) for sym, bid, at in rows], QUOTES
    )


def rows_by_batch(core: Shared, *batches: dict[str, pa.Table]) -> list[list[tuple[Any, ...]]]:
    given = []
    for tables in batches:
        table = core.process(core.snapshot().batch + 1, tables)["q0"]
        assert not core.report.failures
        given.append(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))
    return given


def test_a_row_comes_out_when_its_window_is_complete() -> None:
    """No other left tuple is needed for that, and without lateness nothing else has to pass."""
    core = market(
        "SELECT t.sym, count(*) AS n, avg(q.bid) AS mid " + AROUND.format("2 SECONDS PRECEDING AND 1 SECOND FOLLOWING")
    )
    assert rows_by_batch(
        core,
        {"quotes": quotes(("A", 9, 0), ("A", 1, 3), ("A", 2, 4.5)), "trades": trades(("A", 1, 1, 5), ("B", 1, 1, 5))},
        {"quotes": quotes(("A", 6, 6))},
        {"quotes": quotes(("B", 6, 6.001))},
    ) == [[], [], [("A", 3, 3.0), ("B", 0, None)]]


def test_lateness_holds_a_row_back_until_no_earlier_left_tuple_can_come() -> None:
    core = market(
        "SELECT t.qty, count(*) AS n " + AROUND.format("2 SECONDS PRECEDING AND 1 SECOND PRECEDING"), lateness="3 s"
    )
    assert rows_by_batch(
        core,
        {"quotes": quotes(("A", 9, 4), ("A", 9, 20)), "trades": trades(("A", 1, 1, 5))},
        {"trades": trades(("A", 1, 2, 4))},
        {"trades": trades(("A", 1, 3, 8))},
    ) == [[], [], [(2, 0), (1, 1)]]


def test_a_stream_that_is_silent_lets_rows_out() -> None:
    now = [0]
    streams = [Stream("trades", TRADES, "ts"), Stream("quotes", QUOTES, "at")]
    core = Shared(streams, Settings(future=None, idle="1 second", lateness="1 s"), lambda: now[0])
    core.apply([Create("q0", "SELECT t.qty, count(*) AS n " + AROUND.format("9 SECONDS PRECEDING AND CURRENT ROW"))])
    assert rows_by_batch(core, {"quotes": quotes(("A", 1, 0)), "trades": trades(("A", 1, 1, 0))}) == [[]]
    rows = []
    for second in range(2, 8):
        now[0] = second * 10**9
        rows += rows_by_batch(core, {"quotes": quotes(("A", 1, 10 * second))})[0]
    assert rows == [(1, 1)]


def test_another_column_of_a_stream_changes_no_row() -> None:
    """The query is read again, and what was taken in is made anew of what the streams hold."""
    text = "SELECT t.qty, count(*) AS n, last(q.bid) AS bid " + AROUND.format(
        "2 SECONDS PRECEDING AND 1 SECOND FOLLOWING"
    )
    core = market(text.replace("EXCLUDE", "INCLUDE"))
    assert rows_by_batch(core, {"quotes": quotes(("A", 1, 0), ("A", 2, 7)), "trades": trades(("A", 1, 1, 5))}) == [
        [(1, 1, 1.0)]
    ]
    rows_by_batch(core, {"quotes": quotes(("A", 3, 8)), "trades": trades(("A", 1, 2, 8))})
    wider = Stream("quotes", QUOTES.append(pa.field("more", pa.int64())), "at")
    assert core.change_stream(wider, 0) == {}
    last = quotes(("A", 4, 8.5), ("A", 5, 11)).append_column("more", pa.array([1, 2]))
    assert rows_by_batch(core, {"quotes": last, "trades": trades(("A", 1, 3, 9))}) == [[(2, 4, 4.0), (3, 3, 4.0)]]


def test_markouts_by_several_window_joins() -> None:
    """What the quote in force 1 and 5 seconds after each trade is above its price."""
    join = (
        "WINDOW JOIN quotes {0} ON t.sym = {0}.sym RANGE BETWEEN {1} SECONDS FOLLOWING AND {1} SECONDS FOLLOWING "
        "INCLUDE PREVAILING "
    )
    text = (
        "SELECT t.qty, last(a.bid) - t.px AS one, last(b.bid) - t.px AS five, last(b.bid) - last(a.bid) AS since "
        "FROM trades t " + join.format("a", 1) + join.format("b", 5)
    )
    core = market(text)
    assert rows_by_batch(
        core,
        {"quotes": quotes(("A", 10.5, 0)), "trades": trades(("A", 10, 1, 5), ("A", 10, 2, 5), ("B", 10, 3, 5))},
        {"quotes": quotes(("A", 11, 6), ("A", 12, 7), ("A", 13, 10.5))},
    ) == [[], [(1, 1.0, 2.0, 1.0), (2, 1.0, 2.0, 1.0), (3, None, None, None)]]


@pytest.mark.parametrize("is_inner", [False, True])
def test_several_window_joins_are_each_what_they_are_alone(is_inner: bool) -> None:
    """Together a left tuple waits for the last of its windows; INNER of either leaves it out."""
    join = "WINDOW JOIN {1} {0} ON t.sym = {0}.sym RANGE BETWEEN {2} {3} PREVAILING"
    ranges = {
        "a": ("quotes", "3 SECONDS PRECEDING AND 1 SECOND PRECEDING", "INCLUDE"),
        "b": ("quotes", "CURRENT ROW AND 4 SECONDS FOLLOWING", "EXCLUDE"),
        "c": ("trades", "2 SECONDS PRECEDING AND 2 SECONDS FOLLOWING", "EXCLUDE"),
    }
    outputs = {"a": "last(a.bid) AS x", "b": "sum(b.bid) AS y, count(b.at) AS n", "c": "max(c.qty) AS z"}
    joins = {alias: join.format(alias, *of) for alias, of in ranges.items()}
    both = [("INNER " if is_inner and alias == "b" else "") + text for alias, text in joins.items()]
    texts = [f"SELECT t.qty, {', '.join(outputs.values())} FROM trades t {' '.join(both)}"]
    texts += [f"SELECT t.qty, {outputs[alias]} FROM trades t {joins[alias]}" for alias in outputs]
    core, generator = market(*texts, lateness="2 s"), random.Random(5)
    rows: list[dict[int, tuple[Any, ...]]] = [{} for _ in texts]
    for n in range(13):
        core = restarted(core) if is_inner else core
        at = [[max(0.0, 3 * n + 3 * generator.random() - 2 * generator.random()) for _ in range(15)] for _ in range(2)]
        tables = {
            "trades": trades(*((generator.choice("AB"), 1, 15 * n + i, t) for i, t in enumerate(at[0]))),
            "quotes": quotes(*((generator.choice("ABC"), generator.choice([0.1, 1e16, -1e16]), t) for t in at[1])),
        }
        if n == 12:
            tables = {"trades": trades(("C", 1, -1, 99)), "quotes": quotes(("C", 1, 99))}
        for name, table in core.process(n, tables).items():
            columns = [column.to_pylist() for column in table.columns]
            rows[int(name[1:])].update({row[0]: row[1:] for row in zip(*columns, strict=True)})
        assert not core.report.failures
    together, *alone = rows
    wanted = {number: sum((of[number] for of in alone), ()) for number in alone[0]}
    if is_inner:
        wanted = {number: row for number, row in wanted.items() if row[2]}
        assert 20 < len(wanted) < len(alone[0])
    assert together == wanted and len(wanted) > 20


def test_on_says_what_is_summarised_and_where_which_rows_there_are() -> None:
    text = (
        "SELECT t.qty, t.px * 2 AS twice, count(*) AS n, median(q.bid) AS mid FROM trades t {} WINDOW JOIN quotes q "
        "RANGE BETWEEN CURRENT ROW AND 9 SECONDS FOLLOWING EXCLUDE PREVAILING ON t.sym = q.sym AND q.bid > t.px "
        "AND q.bid < 50 AND t.qty > 1 WHERE t.qty < 4"
    )
    batches = [
        {
            "trades": trades(*(("A", 10, n, 0) for n in range(1, 6))),
            "quotes": quotes(*(("A", n, 1) for n in (9, 11, 13, 60))),
        },
        {"quotes": quotes(("A", 12, 10))},
    ]
    rows = [(2, 20.0, 2, 12.0), (3, 20.0, 2, 12.0)]
    assert rows_by_batch(market(text.format("")), *batches) == [[], [(1, 20.0, 0, None), *rows]]
    assert rows_by_batch(market(text.format("INNER")), *batches) == [[], rows]


def test_only_tuples_since_the_create_count() -> None:
    core = market("SELECT t.qty FROM trades t")
    window = "9 SECONDS PRECEDING AND CURRENT ROW"
    rows_by_batch(core, {"quotes": quotes(("A", 1, 0)), "trades": trades(("A", 1, 1, 0))})
    text = "SELECT t.qty, count(*) AS n " + AROUND.format(window)
    core.apply([Drop("q0"), Create("q0", text), Create("inner", text.replace("WINDOW", "INNER WINDOW"))])
    tables = {"quotes": quotes(("A", 2, 2)), "trades": trades(("A", 1, 2, 3))}
    assert rows_by_batch(core, tables, {"quotes": quotes(("A", 2, 4))}) == [[], [(2, 1)]]


def test_what_waits_when_a_query_is_paused_gives_no_row_and_what_comes_meanwhile_counts() -> None:
    core = market(
        "SELECT t.qty, count(*) AS n, sum(q.bid) AS s " + AROUND.format("9 SECONDS PRECEDING AND CURRENT ROW")
    )
    rows_by_batch(core, {"quotes": quotes(("A", 1, 0)), "trades": trades(("A", 1, 1, 0))})
    core.apply([Pause("q0")])
    rows_by_batch(core, {"quotes": quotes(("A", 2, 1)), "trades": trades(("A", 1, 2, 1))})
    core.apply([Resume("q0")])
    tables = {"quotes": quotes(("A", 4, 2), ("A", 0, 5)), "trades": trades(("A", 1, 3, 4))}
    assert rows_by_batch(core, tables) == [[(3, 3, 7.0)]]


@pytest.mark.parametrize("restarts", [False, True])
def test_what_others_have_the_streams_hold_changes_nothing_after_a_pause(restarts: bool) -> None:
    """A tuple from before every window to come is neither in force then, nor can it fail the query again."""
    window = "2 SECONDS PRECEDING AND CURRENT ROW"
    texts = [
        "SELECT t.px, last(q.bid) AS b " + AROUND.format(window).replace("EX", "IN"),
        "SELECT t.px, sum(TRY_CAST(q.bid AS BIGINT) * 9223372036854775807) AS b " + AROUND.format(window),
    ]
    long = "SELECT t.px FROM trades t JOIN quotes q WITHIN 9999 SECONDS ON t.sym = q.sym"
    found = []
    for beside in ([], [long]):
        core = market(*texts, *beside)
        core.process(0, {"quotes": quotes(("A", 1, 0)), "trades": trades(("A", 1, 1, 0))})
        core.process(1, {"quotes": quotes(("A", 3, 5), ("B", 1, 5), ("A", 1, 6)), "trades": trades(("C", 1, 1, 6))})
        assert list(core.report.failures) == ["q1"]
        core.apply([Pause("q0")])
        core.process(2, {"quotes": quotes(("C", 1, 10)), "trades": trades(("C", 1, 1, 10))})
        core.apply([Resume("q0"), Resume("q1")])
        given = {"quotes": quotes(("C", 1, 60)), "trades": trades(("A", 1, 1, 20), ("C", 2, 1, 20), ("B", 3, 1, 20))}
        rows = []
        for batch, tables in enumerate((given, {"quotes": quotes(("C", 1, 70))}), 3):
            core = restarted(core) if restarts else core
            results = core.process(batch, tables)
            assert not core.report.failures
            rows += [results[name].to_pylist() for name in ("q0", "q1")]
        found.append(rows)
    assert found[0] == found[1] and {"px": 2.0, "b": 1.0} in found[0][0] and {"px": 1.0, "b": None} in found[0][0]


def test_the_streams_hold_what_a_window_can_need_and_the_tuples_in_force() -> None:
    core = market(
        "SELECT t.qty, last(q.bid) AS bid " + AROUND.format("2 SECONDS PRECEDING AND CURRENT ROW").replace("EX", "IN")
    )
    for n in range(40):
        core.process(n, {"quotes": quotes((f"s{n % 2}" if n else "C", n, n), ("rare", n, n))})
    assert core.report.failures == {}
    core.process(50, {"trades": trades(("x", 1, 0, 38.5))})
    core.process(51, {"quotes": quotes(("x", 1, 60)), "trades": trades(("C", 1, 1, 59), ("x", 1, 1, 59))})
    state = core.snapshot()
    assert sum(bucket.n for bucket in state.buckets["quotes"]) < 12
    waiting = state.kinds["q0"]
    assert isinstance(waiting, KindState)
    assert sorted(waiting.held["q"].rows["sym"].to_pylist()) == ["C", "rare", "s0", "s1"]
    assert rows_by_batch(core, {"quotes": quotes(("x", 1, 61))}) == [[]]


def test_a_budget_of_candidates_counts_what_is_looked_at_one_by_one() -> None:
    window = "99 SECONDS PRECEDING AND CURRENT ROW"
    core = market("SELECT median(q.bid) AS m " + AROUND.format(window))
    for name, aggregate in (("plain", "avg(q.bid)"), ("listed", "median(q.bid)")):
        core.apply([Create(name, f"SELECT {aggregate} AS m {AROUND.format(window)}", budget=Budget(candidates=60))])
    tables = {
        "quotes": quotes(*(("A", n, n) for n in range(40))),
        "trades": trades(*(("A", 1, 1, 30 + n) for n in range(3))),
    }
    rows, failures = core.results(core.arrive(0, tables))
    assert {name: table.num_rows for name, table in rows.items()} == {"q0": 3, "plain": 3, "listed": 0}
    assert isinstance(failures["listed"], BudgetExceededError) and len(failures) == 1


def test_rows_are_the_same_alone_and_beside_others() -> None:
    outputs = ["count(*) AS n", "sum(q.bid) AS s, min(q.bid) AS low", "quantile(q.bid, 0.5) AS m"]
    windows = ["5 SECONDS PRECEDING AND 1 SECOND FOLLOWING", "1 SECOND FOLLOWING AND 4 SECONDS FOLLOWING"]
    pairs = [(one, AROUND.format(window)) for one in outputs for window in windows]
    texts = [f"SELECT t.qty, {one} {join} WHERE t.px > {px}" for one, join in pairs for px in (0, 3)]
    texts += [
        "SELECT t.qty, q.bid FROM trades t JOIN quotes q WITHIN 2 SECONDS ON t.sym = q.sym",
        "SELECT t.px FROM trades t",
    ]
    generator = random.Random(7)
    batches = []
    for n in range(8):
        at = sorted(round(5 * n + 5 * generator.random(), 3) for _ in range(60))
        syms = [generator.choice("ABC") for _ in at]
        values = [generator.choice([0.1, 1e16, -1e16, 3.5]) for _ in at]
        tables = quotes(*zip(syms[::2], values[::2], at[::2], strict=True))
        batches.append(
            {
                "quotes": tables,
                "trades": trades(
                    *((s, 9 * generator.random(), 1, t) for s, t in zip(syms[1::2], at[1::2], strict=True))
                ),
            }
        )

    def found(chosen: list[str]) -> list[list[pa.Table]]:
        core = market(*chosen)
        given = [core.process(n, batch) for n, batch in enumerate(batches)]
        return [[tables[f"q{number}"] for tables in given] for number in range(len(chosen))]

    together = found(texts)
    for number, text in enumerate(texts):
        assert found([text])[0] == together[number], text
    assert sum(table.num_rows for tables in together for table in tables) > 2000


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("WINDOW JOIN quotes q ON t.sym = q.sym", "quotes q", "RANGE BETWEEN is missing"),
        ("WINDOW JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym", "WITHIN", "has a RANGE and no WITHIN"),
        ("RIGHT WINDOW JOIN quotes q RANGE BETWEEN 1 SECOND PRECEDING AND CURRENT ROW EXCLUDE PREVAILING",
         "RIGHT WINDOW JOIN", "a window join is LEFT, as WINDOW JOIN alone, or INNER"),
        ("WINDOW JOIN quotes q RANGE BETWEEN 1 SECOND PRECEDING AND CURRENT ROW",
         "RANGE BETWEEN 1 SECOND PRECEDING AND CURRENT ROW", "write EXCLUDE PREVAILING or INCLUDE PREVAILING"),
        ("WINDOW JOIN quotes q RANGE BETWEEN 1 SECOND FOLLOWING AND CURRENT ROW EXCLUDE PREVAILING",
         "RANGE BETWEEN 1 SECOND FOLLOWING AND CURRENT ROW", "the first bound lies after the second one"),
        ("WINDOW JOIN quotes q RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE PREVAILING",
         "UNBOUNDED PRECEDING AND", "a window has two ends"),
        ("WINDOW JOIN quotes q RANGE BETWEEN 5 ROWS PRECEDING AND CURRENT ROW EXCLUDE PREVAILING",
         "5 ROWS PRECEDING", "'ROWS' is no unit of a range"),
        ("WINDOW JOIN quotes q RANGE BETWEEN 5 UNITS PRECEDING AND CURRENT ROW EXCLUDE PREVAILING",
         "RANGE BETWEEN 5 UNITS PRECEDING AND CURRENT ROW", "write the bounds in MILLISECONDS"),
        ("WINDOW JOIN quotes q RANGE BETWEEN 5 SECONDS PRECEDING AND 5 UNITS FOLLOWING EXCLUDE PREVAILING",
         "RANGE BETWEEN 5 SECONDS PRECEDING AND 5 UNITS FOLLOWING", "both bounds are durations"),
        ("WINDOW JOIN quotes q RANGE BETWEEN 400 DAYS PRECEDING AND CURRENT ROW EXCLUDE PREVAILING",
         "400 DAYS PRECEDING", "at most 366 DAYS"),
        ("WINDOW JOIN quotes q RANGE BETWEEN 5 SECONDS AND CURRENT ROW EXCLUDE PREVAILING",
         "5 SECONDS AND", "a bound is a number, a unit and PRECEDING or FOLLOWING"),
        ("WINDOW JOIN quotes q ON t.px < q.bid RANGE BETWEEN 1 SECOND PRECEDING AND CURRENT ROW INCLUDE PREVAILING",
         "RANGE BETWEEN 1 SECOND PRECEDING AND CURRENT ROW", "takes equalities of columns alone"),
        (f"JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym WINDOW JOIN quotes p {LAST_SECOND}", "JOIN",
         "a window join follows one stream"),
        (f"WINDOW JOIN quotes q {LAST_SECOND} WINDOW JOIN quotes p {LAST_SECOND}", "quotes p",
         "nothing of p is in the result"),
        (f"WINDOW JOIN quotes q {LAST_SECOND} WHERE q.bid > 1", "q.bid", "belongs in ON of its WINDOW JOIN"),
    ],
)  # fmt: skip
def test_what_is_refused_after_from(text: str, place: str, message: str) -> None:
    check_refused(f"SELECT max(q.bid) AS m FROM trades t {text}", place, message)


@pytest.mark.parametrize(
    ("outputs", "place", "message"),
    [
        ("t.sym", "quotes q", "nothing of q is in the result"),
        ("max(q.bid)", "max(q.bid)", "needs a name"),
        ("q.bid AS b", "q.bid", "q.bid is a column of many tuples"),
        ("max(q.bid) + q.bid AS b", "q.bid", "q.bid is a column of many tuples"),
        ("sum(q.sym) AS b", "sum(q.sym", "SUM takes numbers and durations"),
        ("t.px + max(q.sym) AS b", "t.px + max(q.sym)", "+ can't take t.px (double) and MAX(q.sym) (string)"),
        ("count(*) AS n, max(q.bod) AS b", "q.bod", "did you mean q.bid"),
        ("max(q.bid) AS b, q.*", "q.*", "summarised"),
    ],
)
def test_what_is_refused_in_select(outputs: str, place: str, message: str) -> None:
    check_refused(f"SELECT {outputs} " + AROUND.format("1 SECOND PRECEDING AND CURRENT ROW"), place, message)


def check_refused(text: str, place: str, message: str) -> None:
    with pytest.raises(QueryError) as error:
        parse(text, [Stream("trades", TRADES, "ts"), Stream("quotes", QUOTES, "at")])
    assert message in str(error.value)
    assert text[error.value.column - 1 :][: error.value.length] == place


def test_count_of_all_is_ambiguous_beside_another_window_join() -> None:
    joins = f"WINDOW JOIN quotes q {LAST_SECOND} WINDOW JOIN quotes p {LAST_SECOND}"
    text = f"SELECT count(*) AS n, max(p.bid) AS b FROM trades t {joins}"
    check_refused(text, "count(*", "an aggregate summarises the tuples of one window join, here of q or p")


def test_a_column_may_be_called_range() -> None:
    stream = Stream("s", pa.schema({"range": pa.int64(), "t": pa.int64()}), "t")
    window = "RANGE BETWEEN CURRENT ROW AND 1 UNIT FOLLOWING EXCLUDE PREVAILING"
    text = f"SELECT max(b.range) AS m FROM s a WINDOW JOIN s b ON {{}} {window}"
    for on in ("b.t = a.t AND a.range BETWEEN b.range AND 9", "a.range = b.range"):
        assert parse(text.format(on), [stream]).steps[0].summary is not None


def test_duckdb_counts_the_same_matches() -> None:
    generator = random.Random(3)
    at = [sorted(round(100 * generator.random(), 3) for _ in range(400)) for _ in range(2)]
    given = trades(*((generator.choice("ABC"), 1, n, t) for n, t in enumerate(at[0])))
    other = quotes(*((generator.choice("ABC"), generator.randint(0, 99), t) for t in at[1]))
    outputs = "t.qty, count(*) AS n, sum(q.bid) AS s, max(q.bid) AS top"
    core = market(f"SELECT {outputs} {AROUND.format('3 SECONDS PRECEDING AND 1 SECOND PRECEDING')}")
    end = {"trades": trades(("A", 1, 999, 900)), "quotes": quotes(("A", 1, 850))}
    rows = [row for batch in rows_by_batch(core, {"trades": given, "quotes": other}, end) for row in batch]
    wanted = duckdb.execute(
        "SELECT l.qty, count(r.at), sum(r.bid), max(r.bid) FROM given l LEFT JOIN other r ON l.sym = r.sym AND r.at "
        "BETWEEN l.ts - INTERVAL 3 SECONDS AND l.ts - INTERVAL 1 SECOND GROUP BY l.qty ORDER BY l.qty"
    )
    assert sorted(rows) == wanted.fetchall()


@pytest.mark.parametrize("sharing", ["cost", "nothing"])
def test_an_engine_previews_runs_and_explains_window_joins(sharing: Any) -> None:
    with Engine(settings=Settings(future=None, sharing=sharing)) as engine:
        engine.register("trades", schema=TRADES, time="ts")
        engine.register("quotes", schema=QUOTES, time="at")
        text = "SELECT t.qty, {}(q.bid) AS m " + AROUND.format("1 SECOND PRECEDING AND CURRENT ROW")
        listed = engine.preview(text.format("median"))
        assert (listed.new_joins, listed.shared_joins) == (0, 0)
        assert listed.streams == ("trades", "quotes") and "looks at every match" in listed.text
        assert "the ends of windows decide" in engine.preview(text.format("avg")).text
        query = engine.create(text.format("median"))
        engine.push_all({"trades": trades(("A", 1, 1, 1)), "quotes": quotes(("A", 3, 0.5), ("A", 4, 1), ("A", 5, 2))})
        assert query.rows().to_pylist() == [{"qty": 1, "m": 3.5}]
        assert "1 queries" in str(engine.explain()) and query.info().state == "running"
