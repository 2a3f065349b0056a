"""Grouped ad-hoc queries in the core: the oracle, sharing, stored state, and cases by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import Stream
from streamjoin.model.errors import BudgetExceededError, InputError
from streamjoin.model.plain_types import storage_type
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.changes import Create, Pause, Resume
from streamjoin.queries.core.groups.feeds import GroupState, stores_of
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.engine.journal import MemoryJournal
from streamjoin.queries.engine.loop import Attempt
from streamjoin.queries.executors.distributed.executor import CellRows
from streamjoin.queries.executors.distributed.outputs import RowPool
from streamjoin.queries.sinks.base import MemorySink, capabilities
from tests.queries.cell_grid import Grid
from tests.queries.group_cases import SCHEMA, STREAMS, GroupCase, check, group_cases, plain, stored
from tests.seeds import examples


@given(group_cases(), st.sampled_from(["cost", "everything", "nothing"]))
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_those_of_the_oracle_batch_by_batch_and_in_order(case: GroupCase, sharing: Any) -> None:
    check(case, Settings(lateness=case.lateness, future=None, sharing=sharing, replan_every=2))


@given(group_cases(), st.sampled_from(["cost", "nothing"]))
@settings(max_examples=examples(25), deadline=None)
def test_rows_are_the_same_when_the_state_is_stored_before_every_batch(case: GroupCase, sharing: Any) -> None:
    check(case, Settings(lateness=case.lateness, future=None, sharing=sharing), stores=True)


@given(group_cases())
@settings(max_examples=examples(15), deadline=None)
def test_cells_make_groups_of_their_rows_and_the_driver_puts_them_together(
    tmp_path_factory: pytest.TempPathFactory, case: GroupCase
) -> None:
    options = {"lateness": case.lateness, "future": None, "replan_every": 2}
    grid = Grid(tmp_path_factory.mktemp("grid"), STREAMS, 2, 2, **options)
    check(case, Settings(), grid=grid)


# By hand --------------------------------------------------------------------------------------------------------------


def tuples(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(("t", "k", "f"), row, strict=False)) for row in rows], SCHEMA)


COUNT = "SELECT window_end, x.k, count(*) AS n FROM a x GROUP BY x.k, TUMBLE(x.t, 10)"


def test_queries_over_one_join_share_its_rows_whatever_their_windows() -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    # A condition on both streams: the pairs are enumerated.
    join = "FROM a x JOIN b y WITHIN 2 UNITS ON x.k = y.k AND x.f <= y.f GROUP BY x.k, "
    texts = [f"SELECT x.k, max(y.f) AS top {join}TUMBLE(x.t, {size})" for size in range(2, 30)]
    texts += [f"SELECT x.k, count(*) AS n, sum(x.f) AS s {join}HOP(x.t, 1, {size})" for size in range(2, 10)]
    core.apply([Create(f"q{n}", text) for n, text in enumerate(texts)])
    rows = tuples(*((time, "p", 1.0) for time in range(40)))
    core.process(0, {"a": rows, "b": rows})
    (feed,) = core.snapshot().registry.feeds.values()
    assert len(feed.members) == len(texts) and list(core.snapshot().registry.running) == [feed.name]
    assert len(stores_of(core.snapshot().kinds)) == 1
    assert core.costs().keys() == {f"q{n}" for n in range(len(texts))}
    assert {name for root in core.explain().roots for name in root.step.queries} == core.costs().keys()


def test_a_group_explosion_pauses_that_query_alone() -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    wide = "SELECT x.f, count(*) AS n FROM a x GROUP BY x.f, TUMBLE(x.t, 1000)"
    core.apply([Create("wide", wide, budget=Budget(rows=30)), Create("calm", COUNT, budget=Budget(rows=30))])
    core.apply([Create("free", wide)])
    for batch in range(4):
        core.process(batch, {"a": tuples(*((batch, "p", float(100 * batch + n)) for n in range(10)))})
        assert list(core.report.failures) == (["wide"] if batch == 3 else [])
        if batch == 3:
            error = core.report.failures["wide"]
            assert isinstance(error, BudgetExceededError) and "40 open groups" in str(error)
    rows = core.process(4, {"a": tuples((2000, "p", 0.0))})
    assert rows["free"].num_rows == 40 and rows["calm"].to_pylist() == [{"window_end": 10, "k": "p", "n": 40}]
    # It begins anew with the first window after all that came.
    core.apply([Resume("wide")])
    core.process(5, {"a": tuples((2500, "p", 1.0), (3001, "p", 2.0), (3999, "p", 3.0))})
    assert core.process(6, {"a": tuples((5000, "q", 1.0))})["wide"].to_pylist() == [
        {"f": 2.0, "n": 1},
        {"f": 3.0, "n": 1},
    ]


def test_an_expression_that_fails_pauses_its_query_and_not_those_that_share_the_join() -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    core.apply([Create("bad", "SELECT sum(x.i * x.i) AS s, window_end FROM a x GROUP BY x.k, TUMBLE(x.t, 10)")])
    core.apply([Create("good", COUNT)])
    rows = pa.Table.from_pylist([{"t": 1, "k": "p", "i": 2**62}], SCHEMA)
    core.process(0, {"a": rows})
    assert list(core.report.failures) == ["bad"] and isinstance(core.report.failures["bad"], InputError)
    assert core.process(1, {"a": tuples((20, "p"))})["good"].to_pylist() == [{"window_end": 10, "k": "p", "n": 1}]


@pytest.mark.parametrize("cells", [0, 2])
def test_rows_before_its_first_window_fail_no_query(tmp_path: Path, cells: int) -> None:
    """Others that share the join have them found: alone it would not even see them."""
    grid = Grid(tmp_path, STREAMS, max(1, cells), 1, lateness=0, future=None)
    grid.may_fail = True
    core: Any = grid.core if cells else Shared(STREAMS, Settings(lateness=0, future=None))

    def process(number: int, **tables: list[dict[str, Any]]) -> dict[str, pa.Table]:
        given = {name: pa.Table.from_pylist(rows, SCHEMA) for name, rows in tables.items()}
        if cells:
            grid.batch(number, given)
            return dict(grid.grouped)
        return core.process(number, given)  # type: ignore[no-any-return]

    join = "FROM a x JOIN b y WITHIN 2 UNITS ON x.k = y.k GROUP BY x.k, TUMBLE(x.t, 10)"
    squares = f"SELECT sum(x.i * x.i) AS s {join}"
    core.apply([Create("good", f"SELECT count(*) AS n {join}"), Create("old", squares)])
    process(0, a=[{"t": 1, "k": "p", "i": 2**62}], b=[{"t": 0, "k": "q"}])
    core.apply([Create("new", squares), Create("keyed", f"SELECT max(x.i * x.i) AS s {join}")])
    process(1, b=[{"t": 2, "k": "p"}])
    assert {name for name, entry in core.queries.items() if entry.paused} == {"old"}
    process(2, a=[{"t": 21, "k": "p", "i": 3}], b=[{"t": 21, "k": "p"}])
    rows = process(3, a=[{"t": 60, "k": "z"}], b=[{"t": 60, "k": "z"}])
    assert {name: rows[name].to_pylist() for name in ("good", "new", "keyed")} == {
        "good": [{"n": 1}],
        "new": [{"s": 9}],
        "keyed": [{"s": 9}],
    }


def test_a_query_that_fails_in_a_cell_or_has_too_many_groups_fails_alone(tmp_path: Path) -> None:
    grid = Grid(tmp_path, STREAMS, 2, 1, lateness=0, future=None)
    grid.may_fail = True
    bad = "SELECT sum(x.i * x.i) AS s, window_end FROM a x GROUP BY x.k, TUMBLE(x.t, 10)"
    wide = "SELECT x.f, count(*) AS n FROM a x GROUP BY x.f, TUMBLE(x.t, 10)"
    grid.core.apply([Create("bad", bad), Create("good", COUNT), Create("wide", wide, budget=Budget(rows=3))])
    rows = [{"t": 1, "k": "p", "i": 2**62 - row, "f": float(row)} for row in range(4)]
    grid.batch(0, {"a": pa.Table.from_pylist(rows, SCHEMA)})
    assert grid.failures.keys() == {"bad", "wide"} and isinstance(grid.failures["wide"], BudgetExceededError)
    grid.batch(1, {"a": tuples((20, "p"))})
    assert grid.grouped["good"].to_pylist() == [{"window_end": 10, "k": "p", "n": 4}]
    assert not grid.failures and grid.core.queries["bad"].paused and grid.core.queries["wide"].paused


def test_what_fails_where_the_groups_of_cells_are_put_together_fails_its_query_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is open is written down after the rows went out: what can't be is known before."""

    class Lost(SimpleNamespace):
        @property
        def able(self) -> Any:
            raise ValueError("injected")

    grid = Grid(tmp_path, STREAMS, 2, 1, lateness=0, future=None)
    grid.core.apply([Create(name, COUNT) for name in ("good", "unwritten", "lost")])
    grid.batch(0, {"a": tuples((1, "p"))})
    entries: dict[str, Any] = {"good": SimpleNamespace(sink=MemorySink(), able=capabilities(MemorySink()))}
    entries |= {"unwritten": entries["good"], "lost": Lost(sink=None)}
    spark, journal = (
        SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1)),
        SimpleNamespace(spool=str(tmp_path)),
    )
    rows = CellRows(spark, journal, None, grid.core, entries, RowPool())  # type: ignore[arg-type]
    to_table = GroupState.to_table

    def injected(self: GroupState, name: str) -> pa.Table:
        if name == "unwritten":
            raise ValueError("injected")
        return to_table(self, name)

    monkeypatch.setattr(GroupState, "to_table", injected)
    failed: dict[str, InputError] = {}
    (written,) = rows._grouped(grid.core.arrive(1, {"a": grid.read("a", 1, tuples((20, "p")))}), [], failed)
    assert failed.keys() == {"unwritten", "lost"} and all("injected" in str(error) for error in failed.values())
    assert written.counts == {"good": 1}


def test_the_first_window_begins_after_all_that_came_before_the_create_and_the_reach_of_the_join() -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    core.process(0, {"a": tuples((18, "p")), "b": tuples((7, "p"))})
    core.apply([Create("one", COUNT)])
    core.apply(
        [Create("two", "SELECT count(*) AS n FROM a x JOIN b y WITHIN 3 UNITS ON x.k = y.k GROUP BY TUMBLE(10)")]
    )
    queries = core.queries
    assert queries["one"].first_window == 20 and queries["two"].first_window == 30


@pytest.mark.parametrize(("function", "wanted"), [("rank", ["p", "q"]), ("row_number", ["p"])])
def test_zeros_of_either_sign_have_one_rank_and_the_keys_decide_between_them(function: str, wanted: list[str]) -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    ranked = f"QUALIFY {function}() OVER (PARTITION BY window_end ORDER BY max(x.f) * -1) = 1"
    core.apply([Create("q", f"SELECT x.k FROM a x GROUP BY x.k, TUMBLE(x.t, 10) {ranked}")])
    # Minus zero of "q" comes first; NULL is last.
    core.process(0, {"a": tuples((0, "r"), (1, "q", 0.0), (2, "p", -0.0), (3, "s", -1.0))})
    rows = core.process(1, {"a": tuples((20, "p"))})["q"]
    assert rows["k"].to_pylist() == wanted


def test_sums_that_leave_their_type_are_null() -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    core.apply([Create("q", "SELECT sum(x.i) AS s, avg(x.i) AS a FROM a x GROUP BY TUMBLE(x.t, 10)")])
    core.process(0, {"a": pa.Table.from_pylist([{"t": 1, "i": 2**63 - 1}, {"t": 2, "i": 2**63 - 1}], SCHEMA)})
    assert core.process(1, {"a": tuples((20, "p"))})["q"].to_pylist() == [{"s": None, "a": float(2**63 - 1)}]


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_two_zeros_decide_nothing(zeros: tuple[float, float]) -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    core.apply([Create("q", "SELECT arg_min(x.i, x.f) AS a, arg_max(x.i, x.f) AS b FROM a x GROUP BY TUMBLE(x.t, 10)")])
    # In one batch, and in panes that are merged.
    for batch, i in enumerate((1, 2, 3)):
        rows = [{"t": batch, "i": i + 10 * place, "f": zero} for place, zero in enumerate(zeros)]
        core.process(batch, {"a": pa.Table.from_pylist(rows if batch else rows[::-1], SCHEMA)})
    assert core.process(3, {"a": tuples((20, "p"))})["q"].to_pylist() == [{"a": 1, "b": 1}]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.bool_(), [True, None, False, True]),
        (pa.date32(), [3, 1, None, 3]),
        (pa.decimal128(30, 2), ["1.25", None, "7.00", "1.25"]),
        (pa.timestamp("ms", "UTC"), [5, 6, None, 5]),
        (pa.binary(), [b"b", b"", None, b"b"]),
        (pa.dictionary(pa.int32(), pa.string()), ["x", "y", None, "x"]),
        (pa.float32(), [1.5, math.nan, None, 1.5]),
        (pa.uint64(), [2**64 - 1, 0, None, 2**64 - 1]),
        (pa.float16(), [1.5, -2.0, None, 1.5]),
        (pa.decimal32(5, 2), ["1.25", None, "7.00", "1.25"]),
        (pa.uuid(), [bytes(16), b"\xff" * 16, None, bytes(16)]),
        (pa.bool8(), [1, 0, None, 5]),
        (pa.json_(), ["1", "[]", None, "1"]),
    ],
)
def test_keys_and_extremes_of_any_type_that_can_be_compared(type_: pa.DataType, values: list[Any]) -> None:
    from decimal import Decimal

    exact = [Decimal(value) if pa.types.is_decimal(type_) and value else value for value in values]
    stream = Stream("s", pa.schema({"v": type_, "t": pa.int64()}), "t")
    core = Shared([stream], Settings(lateness=0))
    core.apply([Create("keys", "SELECT v, count(*) AS n FROM s GROUP BY v, TUMBLE(t, 10)")])
    core.apply(
        [Create("ends", "SELECT min(v) AS lo, max(v) AS hi, count(DISTINCT v) AS d FROM s GROUP BY TUMBLE(t, 10)")]
    )
    column = pa.array(exact, storage_type(type_))
    if isinstance(type_, pa.BaseExtensionType):
        column = pa.ExtensionArray.from_storage(type_, column)
    core.process(0, {"s": pa.table([column, pa.array([1, 2, 3, 4])], schema=stream.schema)})
    other = Shared([stream], Settings(lateness=0))
    other.restore(core.snapshot())
    rows = other.process(1, {"s": pa.table([pa.nulls(1, type_), pa.array([50])], schema=stream.schema)})
    assert sorted(rows["keys"]["n"].to_pylist()) == [1, 1, 2] and rows["keys"]["v"].to_pylist()[-1] is None
    assert rows["ends"]["d"].to_pylist() == [2]
    if not pa.types.is_floating(type_):
        plain_values = column.cast(rows["ends"].schema.field("lo").type).filter(column.is_valid()).to_pylist()
        assert rows["ends"]["lo"].to_pylist() == [min(plain_values)]
        assert rows["ends"]["hi"].to_pylist() == [max(plain_values)]


def test_a_batch_that_is_computed_query_by_query_leaves_each_its_own_groups() -> None:
    """As after two crashes in a batch; what is stored then must not be mixed up, though it was shared before."""
    join = "FROM a x JOIN b y WITHIN 5 UNITS ON x.k = y.k GROUP BY x.k, "
    texts = {
        "one": f"SELECT window_end, count(*) AS n, max(y.f) AS top {join}TUMBLE(x.t, 10)",
        "two": f"SELECT window_end, sum(y.f) AS s {join}HOP(x.t, 5, 30)",
        "three": f"SELECT window_end, min(x.f) AS lo {join}TUMBLE(x.t, 10)",
    }
    given = [tuples((4 * n, "p", float(n)), (4 * n + 1, "p", 0.5), (4 * n + 2, "q", 1.0)) for n in range(12)]
    chosen = Settings(lateness=0, future=None)

    def rows(careful: bool) -> list[Any]:
        core = Shared(STREAMS, chosen)
        core.apply([Create(name, text) for name, text in texts.items()])
        found = []
        for number, table in enumerate(given):
            arrived = core.arrive(number, {"a": table, "b": table})
            if careful and number in (2, 6):
                attempt = Attempt(MemoryJournal(), number, {"count": 1, "query": None})
                outputs, failures = attempt.results(core, arrived, chosen)
            else:
                outputs, failures = core.results(arrived)
            assert not failures and not core.finish(arrived, failures)
            found.append({name: plain(table) for name, table in outputs.items()})
            if careful:
                core = stored(core, GroupCase([], 0, []), chosen)
        return found

    calm = rows(careful=False)
    assert rows(careful=True) == calm and sum(len(batch["two"]) for batch in calm) > 5


@pytest.mark.parametrize("where", ["run_of_rows", "GroupStore.joined_by"])
def test_any_error_in_what_queries_share_fails_only_those_that_fail_alone(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    core.apply([Create("good", COUNT)])
    core.apply([Create("bad", "SELECT median(x.f) AS m FROM a x GROUP BY x.k, TUMBLE(x.t, 10)")])
    core.process(0, {"a": tuples((1, "p", 1.0))})
    kind = "streamjoin.queries.core.groups.runs.ValuesPart"
    fails = f"{kind}.of_rows" if where == "run_of_rows" else f"{kind}.joined"
    with monkeypatch.context() as patch:
        patch.setattr(fails, classmethod(lambda cls, *_: (_ for _ in ()).throw(pa.ArrowInvalid("too much"))))
        core.process(1, {"a": tuples((2, "p", 1.0))})
    assert list(core.report.failures) == ["bad"] and "too much" in str(core.report.failures["bad"])
    assert core.process(2, {"a": tuples((20, "p"))})["good"].to_pylist() == [{"window_end": 10, "k": "p", "n": 2}]


def test_where_open_groups_take_the_memory_the_queries_that_hold_most_go_and_begin_anew() -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    wide = "SELECT x.f, count(*) AS n FROM a x GROUP BY x.f, TUMBLE(x.t, 1000)"
    core.apply([Create("calm", COUNT), Create("wide", wide), Create("wider", wide.replace("1000", "5000"))])
    core.process(0, {"a": tuples(*((1, "p", float(n)) for n in range(500)))})
    assert core.heaviest(1).keys() == {"wide", "wider"}
    core.apply([Pause(name, releases=True) for name in core.heaviest(1)])
    assert core.nbytes["groups"] < 500 and core.snapshot().kinds.keys() == {"calm"}
    assert core.process(1, {"a": tuples((20, "p"))})["calm"].to_pylist() == [{"window_end": 10, "k": "p", "n": 500}]
