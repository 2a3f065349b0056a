"""Groups made from ranges of one side of an equality join: the same bits as those of its pairs, whatever happens."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin._arrays import Array
from streamjoin.adhoc import Stream
from streamjoin.kernels.kinds.partners import partner_ranges
from streamjoin.queries.core.changes import Create, Drop
from streamjoin.queries.core.groups import feeds, runs
from streamjoin.queries.core.groups.feeds import stores_of
from streamjoin.queries.core.groups.partners import reason_for_pairs
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.engine.figures import rows_so_far
from streamjoin.queries.language.sql import parse
from streamjoin.windows.clock import FOREVER, NEVER
from tests.queries.cell_grid import Grid
from tests.queries.group_cases import KEYS, STREAMS, GroupCase, change, check, group_cases, group_queries, stored
from tests.seeds import examples

Batches = list[dict[str, pa.Table]]


@contextmanager
def pairs_only() -> Iterator[None]:
    """Every grouped query enumerates its pairs."""
    with (
        patch.object(feeds, "partner_rule", lambda query: None),
        patch.object(feeds, "reason_for_pairs", lambda query: "the test asks for pairs"),
    ):
        yield


@st.composite
def one_sided(draw: st.DrawFn) -> GroupCase:
    """Queries over one equality join, also of a stream with itself, by the time and the keys of one side."""
    anchor = draw(st.sampled_from("xy"))
    keys = draw(st.lists(st.tuples(st.sampled_from([*KEYS]), st.just(anchor)), max_size=2, unique=True))
    shape = 2, draw(st.integers(1, 6)), draw(st.sampled_from(["aba", "aba", "aab"])), anchor, keys
    case = draw(group_cases())
    queries = [draw(group_queries(n, len(case.batches), shape)) for n in range(draw(st.integers(1, 4)))]
    return GroupCase(case.batches, case.lateness, queries)


def bits(table: pa.Table) -> str:
    """Rows with all their bits: of zeros the sign, too."""
    return repr(table.to_pylist())


def told(case: GroupCase, *, stores: bool, only: bool) -> list[Any]:
    """What queries give and have open after each batch, whose state may go through files before it."""
    chosen = Settings(lateness=case.lateness, future=None, replan_every=2)
    core: Any = open_core(STREAMS, chosen)
    found = []
    for batch in range(len(case.batches)):
        change(core, case, batch)
        if stores:
            core = stored(core, case, chosen)
        rows = core.process(batch, case.tables(batch))
        assert not core.report.failures
        state = core.snapshot()
        running = [name for name, entry in core.queries.items() if not entry.paused]
        assert not only or not any(feed.partners for feed in state.registry.feeds.values())
        so_far = {name: bits(rows_so_far(core.queries[name], state, 1000)) for name in running}
        found.append(({name: bits(table) for name, table in rows.items()}, so_far))
    return found


@given(one_sided(), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_ranges_give_the_rows_and_the_open_groups_of_pairs_batch_by_batch(case: GroupCase, stores: bool) -> None:
    by_ranges = told(case, stores=stores, only=False)
    with pairs_only():
        assert told(case, stores=False, only=True) == by_ranges


@given(one_sided(), st.sampled_from(["cost", "nothing"]), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_ranges_give_the_rows_of_the_oracle(case: GroupCase, sharing: Any, stores: bool) -> None:
    check(case, Settings(lateness=case.lateness, future=None, sharing=sharing), stores=stores)


@given(one_sided())
@settings(max_examples=examples(20), deadline=None)
def test_cells_make_groups_from_ranges(tmp_path_factory: pytest.TempPathFactory, case: GroupCase) -> None:
    options = {"lateness": case.lateness, "future": None, "replan_every": 2}
    check(case, Settings(), grid=Grid(tmp_path_factory.mktemp("grid"), STREAMS, 2, 2, **options))


# Which queries --------------------------------------------------------------------------------------------------------

JOIN = "FROM a x JOIN b y WITHIN 5 UNITS ON x.k = y.k"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"SELECT x.k, count(*) AS n {JOIN} GROUP BY x.k, TUMBLE(x.t, 10)", None),
        (f"SELECT x.i, sum(x.f) AS s, max(y.f) AS m, count(y.k) AS c {JOIN} GROUP BY x.i, HOP(x.t, 5, 10)", None),
        (
            f"SELECT y.k, min(x.k) AS m, avg(y.i) AS a {JOIN} WHERE x.f > 0 AND y.i < 3 GROUP BY y.k, TUMBLE(y.t, 10)",
            None,
        ),
        (f"SELECT arg_max(y.f, y.t) AS last, median(x.f) AS m {JOIN} GROUP BY TUMBLE(x.t, 10)", None),
        # The keys are equal, so it does not matter whose it is.
        (f"SELECT y.k, count(DISTINCT y.k) AS n {JOIN} GROUP BY y.k, TUMBLE(x.t, 10)", None),
        (f"SELECT count(*) FILTER (WHERE y.f > 1) AS n, bool_or(y.i > 2) AS o {JOIN} GROUP BY TUMBLE(x.t, 10)", None),
        ("SELECT count(*) AS n FROM a x GROUP BY TUMBLE(x.t, 10)", None),
        (f"SELECT y.i, count(*) AS n {JOIN} GROUP BY y.i, TUMBLE(x.t, 10)", "y.i is not of x, whose time is that of"),
        (f"SELECT count(*) AS n {JOIN} GROUP BY TUMBLE(10)", "the window is by the time of the result"),
        (f"SELECT sum(x.f * y.f) AS s {JOIN} GROUP BY TUMBLE(x.t, 10)", "SUM(x.f * y.f) takes both streams"),
        (f"SELECT median(y.f) AS m {JOIN} GROUP BY TUMBLE(x.t, 10)", "MEDIAN(y.f) takes every value of the other"),
        (f"SELECT count(*) AS n {JOIN} AND x.f < y.f GROUP BY TUMBLE(x.t, 10)", "other conditions than equalities"),
        (f"SELECT count(*) AS n {JOIN} WHERE x.f + y.f > 1 GROUP BY TUMBLE(x.t, 10)", "other conditions than"),
        (f"SELECT count(*) AS n {JOIN} JOIN c z WITHIN 5 UNITS ON y.k = z.k GROUP BY TUMBLE(x.t, 10)", "more than two"),
        ("SELECT count(*) AS n FROM a x JOIN b y WITHIN 5 ROWS ON x.k = y.k GROUP BY TUMBLE(10)", "WITHIN ROWS"),
    ],
)
def test_why_pairs_are_enumerated(text: str, reason: str | None) -> None:
    query = parse(text, STREAMS)
    found = reason_for_pairs(query)
    assert (found is None) == (reason is None) and (reason or "") in (found or "")
    core = Shared(STREAMS, Settings(lateness=0))
    core.apply([Create("q", text)])
    if len(query.sources) > 1:
        told_by = "no pair is enumerated" if reason is None else f"of pairs, as {found}"
        assert told_by in str(core.explain())
    core.process(0, {"a": tuples((1, "p", 1)), "b": tuples((2, "p", 2))})
    steps = [step for root in core.explain().roots for step in root.step.walk() if step.joins]
    assert bool(steps) == (reason is not None)


def tuples(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(("t", "k", "i", "f"), row, strict=False)) for row in rows], STREAMS[0].schema)


def test_queries_over_one_join_share_one_pass_whatever_their_windows_and_keys() -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    texts = [f"SELECT x.k, max(y.f) AS top {JOIN} GROUP BY x.k, TUMBLE(x.t, {size})" for size in range(2, 30)]
    texts += [f"SELECT y.i, sum(x.f) AS s {JOIN} GROUP BY y.i, HOP(y.t, 1, {size})" for size in (3, 9)]
    core.apply([Create(f"q{n}", text) for n, text in enumerate(texts)])
    for batch in range(3):
        core.process(batch, {"a": tuples((batch, "p", 1, 1.0)), "b": tuples((batch, "p", 1, 2.0))})
    found = core.snapshot().registry.feeds.values()
    assert [len(feed.members) for feed in found] == [28, 2] and not core.snapshot().registry.running
    assert len(core.partners._joins) == 1 and core.partners.nbytes > 0
    core.apply([Drop(f"q{n}") for n in range(len(texts))])
    assert not core.partners._joins


def test_no_candidates_are_counted_where_no_pair_is_enumerated() -> None:
    from streamjoin.queries.core.budgets import Budget

    core = Shared(STREAMS, Settings(lateness=0))
    text = f"SELECT x.k, count(*) AS n {JOIN} GROUP BY x.k, TUMBLE(x.t, 10)"
    core.apply([Create("q", text, budget=Budget(candidates=10, rows=2))])
    many = tuples(*((1, "p") for _ in range(50)))
    core.process(0, {"a": many, "b": many})
    rows = core.process(1, {name: tuples((40, "z")) for name in "ab"})["q"]
    assert rows.to_pylist() == [{"k": "p", "n": 2500}] and not core.report.failures
    core.process(2, {name: tuples((41, "p"), (41, "q"), (41, "r")) for name in "ab"})
    assert list(core.report.failures) == ["q"] and "open groups" in str(core.report.failures["q"])


# Against DuckDB -------------------------------------------------------------------------------------------------------

TWIN: Mapping[str, str] = {
    "n": "count(*)",
    "cy": "count(y.f)",
    "sy": "sum(y.i)",
    "fy": "sum(y.f)",
    "ay": "avg(y.f)",
    "lo": "min(y.f)",
    "hi": "max(y.k)",
    "sx": "sum(x.i)",
    "fx": "sum(x.f)",
    "dx": "count(DISTINCT x.i)",
    "mx": "median(x.f)",
    "bx": "max(x.f)",
}


@pytest.mark.parametrize("seed", range(3))
def test_random_streams_group_as_duckdb_groups_their_join(seed: int) -> None:
    rng = random.Random(seed)
    reach, size, lateness = rng.choice([1, 3, 40]), rng.choice([7, 20, 100]), 10
    outputs = ", ".join(f"{text} AS {name}" for name, text in TWIN.items())
    on = f"x.k = y.k{' AND x.i = y.i' if seed == 2 else ''}"
    core = Shared(STREAMS, Settings(lateness=lateness, future=None))
    join = f"FROM a x JOIN b y WITHIN {reach} UNITS ON {on} WHERE x.f > 0 AND y.i <> 3"
    core.apply(
        [Create("q", f"SELECT x.i % 3 AS g, window_start AS w, {outputs} {join} GROUP BY x.i % 3, TUMBLE(x.t, {size})")]
    )
    whole: dict[str, list[pa.Table]] = {"a": [], "b": []}
    found = []
    for batch in range(25):
        tables = {}
        for name in whole:
            rows = [
                (max(0, 15 * batch + rng.randint(-lateness, 15)), rng.choice("pqr"), rng.choice([None, 0, 1, 2, 3, 5]))
                for _ in range(rng.choice([0, 1, 30]))
            ]
            tables[name] = tuples(*((*row, rng.choice([None, 0.25, -1.5, 8.0])) for row in rows))
        arrived = core.arrive(batch, tables)
        for name, bucket in arrived.buckets.items():
            whole[name].append(bucket.table)
        outputs_of, failures = core.results(arrived)
        assert not failures and not core.finish(arrived, failures)
        found.append(feeds_rows(outputs_of["q"]))
    found.append(feeds_rows(core.process(25, {name: tuples((10**6, "z")) for name in whole})["q"]))
    connection = duckdb.connect()
    for name, tables_of in whole.items():
        connection.register(name, pa.concat_tables(tables_of))
    selected = outputs.replace("median(x.f)", "quantile_cont(x.f, 0.5)")
    wanted = connection.sql(
        f"SELECT x.i % 3 AS g, (x.t // {size}) * {size} AS w, {selected} FROM a x JOIN b y ON {on} "
        f"AND abs(x.t - y.t) <= {reach} WHERE x.f > 0 AND y.i <> 3 GROUP BY ALL"
    ).to_arrow_table()
    rows = pa.concat_tables(found)

    def ordered(table: pa.Table) -> list[tuple[Any, ...]]:
        return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)

    assert rows.num_rows > 10
    assert ordered(rows) == ordered(wanted.cast(rows.schema))


def feeds_rows(listed: Any) -> pa.Table:
    return listed if isinstance(listed, pa.Table) else listed.table


# Types, ends and failures ---------------------------------------------------------------------------------------------


def both_ways(streams: list[Stream], texts: list[str], batches: Batches, lateness: int = 0) -> list[Any]:
    """What queries give by ranges, which is what they give by pairs."""
    found = []
    for only in (False, True):
        core = Shared(streams, Settings(lateness=lateness, future=None))

        def run(core: Shared = core) -> list[Any]:
            core.apply([Create(f"q{number}", text) for number, text in enumerate(texts)])
            rows = []
            for batch, tables in enumerate(batches):
                rows.append(core.process(batch, tables))
                assert not core.report.failures, core.report.failures
            return rows

        if only:
            with pairs_only():
                rows = run()
        else:
            rows = run()
            assert all(feed.partners for feed in core.snapshot().registry.feeds.values())
        found.append([{name: bits(table) for name, table in one.items()} for one in rows])
    assert found[0] == found[1]
    return rows


VALUES: Mapping[Any, list[Any]] = {
    pa.float64(): [0.0, -0.0, float("nan"), float("inf"), 1e16, -1e16, 5e-324, 1.7e308, None],
    pa.float32(): [0.0, -0.0, float("nan"), 1.5, None],
    pa.int64(): [2**63 - 1, -(2**63), 0, 7, None],
    pa.uint64(): [2**64 - 1, 0, 2**63, None],
    pa.int8(): [-128, 127, 0, None],
    pa.decimal128(30, 2): [Decimal("1.25"), Decimal("-7.00"), None],
    pa.decimal256(60, 1): [Decimal("1e40"), Decimal("-2.5"), None],
    pa.bool_(): [True, False, None],
    pa.date32(): [3, 1, None],
    pa.binary(): [b"b", b"", None],
    pa.duration("ms"): [5, -6, None],
    pa.dictionary(pa.int32(), pa.string()): ["x", "y", None],
}


@pytest.mark.parametrize("type_", [*VALUES], ids=str)
def test_values_and_keys_of_every_type(type_: pa.DataType) -> None:
    rng = random.Random(str(type_))
    streams = [Stream(name, pa.schema({"k": type_, "v": type_, "t": pa.int64()}), "t") for name in "ab"]

    def table(base: int) -> pa.Table:
        n = rng.randint(0, 12)
        columns = [pa.array([rng.choice(VALUES[type_]) for _ in range(n)], type_) for _ in range(2)]
        return pa.table(
            [*columns, pa.array([base + rng.randint(0, 9) for _ in range(n)], pa.int64())], streams[0].schema
        )

    batches = [{name: table(6 * batch) for name in "ab"} for batch in range(12)]
    batches.append({name: pa.table([pa.nulls(1, type_)] * 2 + [pa.array([500])], streams[0].schema) for name in "ab"})
    asked = [
        "count(*)",
        "count(y.v)",
        "count(x.v)",
        "min(y.v)",
        "max(y.v)",
        "min(x.v)",
        "max(x.v)",
        "arg_min(y.v, y.t)",
    ]
    asked += ["arg_max(y.t, y.v)", "arg_max(x.t, x.v)", "count(DISTINCT x.v)"]
    if not (pa.types.is_boolean(type_) or pa.types.is_date(type_) or pa.types.is_binary(type_) or "dict" in str(type_)):
        asked += ["sum(y.v)", "sum(x.v)"] + ["avg(y.v)", "avg(x.v)"] * (not pa.types.is_duration(type_))
    outputs = ", ".join(f"{text} AS o{number}" for number, text in enumerate(asked))
    joins = [f"FROM {join} WITHIN 7 UNITS ON x.k = y.k" for join in ("a x JOIN b y", "a x JOIN a y")]
    texts = [f"SELECT x.v, {outputs} {join} GROUP BY x.v, TUMBLE(x.t, 10)" for join in joins]
    texts += [f"SELECT x.k, {outputs} {joins[0]} GROUP BY x.k, HOP(x.t, 3, 10)"]
    rows = both_ways(streams, texts, batches, lateness=4)
    assert sum(table.num_rows for one in rows for table in one.values()) > 20


def test_keys_of_types_that_differ() -> None:
    left = Stream("a", pa.schema({"k": pa.int64(), "v": pa.float64(), "t": pa.int64()}), "t")
    right = Stream("b", pa.schema({"k": pa.float64(), "v": pa.float64(), "t": pa.int64()}), "t")
    keys = {"a": [2**53, 2**53 + 1, 0, 3, None], "b": [2.0**53, 0.0, -0.0, 3.0, 3.5, float("nan"), None]}
    batches = []
    for batch in range(4):
        tables = {}
        for stream in (left, right):
            own = keys[stream.name]
            columns = [pa.array(own, stream.schema.field("k").type), pa.array([float(n) for n in range(len(own))])]
            tables[stream.name] = pa.table([*columns, pa.array([batch] * len(own))], stream.schema)
        batches.append(tables)
    batches.append(
        {s.name: pa.table([pa.nulls(1, s.schema.field("k").type), [0.0], [99]], s.schema) for s in (left, right)}
    )
    on = "WITHIN 1 UNITS ON x.k = y.k"
    texts = [f"SELECT x.k, sum(y.v) AS s, max(y.k) AS m FROM a x JOIN b y {on} GROUP BY x.k, TUMBLE(x.t, 2)"]
    texts += [f"SELECT y.k, sum(x.v) AS s, min(y.k) AS m FROM a x JOIN b y {on} GROUP BY y.k, TUMBLE(y.t, 2)"]
    assert both_ways([left, right], texts, batches)[-1]["q0"].num_rows == 4


def test_times_at_the_ends_of_time_and_a_reach_beyond_them() -> None:
    times = [NEVER, NEVER + 1, -1, 0, 5, FOREVER - 1, FOREVER]
    table = tuples(*((time, "p", n, float(n)) for n, time in enumerate(times)))
    texts = [
        "SELECT window_start, count(*) AS n, sum(y.i) AS s, max(y.f) AS m "
        f"FROM a x JOIN {other} y WITHIN {reach} UNITS ON x.k = y.k GROUP BY TUMBLE(x.t, 1000)"
        for reach in (1, 5, 2**53)
        for other in "ab"
    ]
    (rows,) = both_ways(STREAMS, texts, [{"a": table, "b": table}])
    assert {"window_start": -1000, "n": 2, "s": 7, "m": 4.0} in rows["q4"].to_pylist()


def test_sums_beyond_their_type_are_null_and_counted_whoever_multiplies_them() -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    core.apply(
        [Create(f"q{n}", f"SELECT sum({one}.i) AS s {JOIN} GROUP BY TUMBLE(x.t, 10)") for n, one in enumerate("xy")]
    )
    core.process(0, {"a": tuples((1, "p", 2**62)), "b": tuples((1, "p", 2**62), (2, "p", 2**62))})
    rows = core.process(1, {name: tuples((40, "z", 0)) for name in "ab"})
    assert rows["q0"].to_pylist() == [{"s": None}] and rows["q1"].to_pylist() == [{"s": None}]
    assert [state.overflowed for state in core.snapshot().kinds.values()] == [1, 1]


def test_a_tuple_that_is_nobodys_partner_fails_no_query() -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    core.apply([Create("q", f"SELECT sum(y.i * y.i) AS s, count(*) AS n {JOIN} GROUP BY TUMBLE(x.t, 10)")])
    core.apply([Create("calm", f"SELECT count(*) AS n {JOIN} GROUP BY TUMBLE(x.t, 10)")])
    core.process(0, {"a": tuples((1, "p", 0)), "b": tuples((1, "p", 3), (2, "q", 2**62), (2, "p", None))})
    core.process(1, {"a": tuples((3, "p", 0))})
    assert not core.report.failures
    rows = core.process(2, {name: tuples((40, "z", 0)) for name in "ab"})
    assert rows["q"].to_pylist() == [{"s": 18, "n": 4}]
    core.process(3, {"a": tuples((41, "p", 0)), "b": tuples((41, "p", 2**62))})
    assert list(core.report.failures) == ["q"]
    core.process(4, {name: tuples((90, "z", 0)) for name in "ab"})
    assert not core.report.failures


def test_a_batch_that_is_taken_back_leaves_nothing() -> None:
    """A batch is computed, given up, and comes again with other tuples."""
    text = f"SELECT x.k, count(*) AS n, sum(y.i) AS s, max(y.f) AS m {JOIN} GROUP BY x.k, TUMBLE(x.t, 10)"
    core = Shared(STREAMS, Settings(lateness=0))
    core.apply([Create("q", text)])
    core.process(0, {"a": tuples((1, "p", 1, 1.0)), "b": tuples((1, "p", 1, 1.0))})
    for value in (5, 6):
        wrong = core.arrive(1, {"a": tuples((2, "p", 9, 9.0), (2, "q")), "b": tuples((3, "p", value, 9.0))})
        core.results(wrong)
    right = core.arrive(1, {"b": tuples((2, "p", 7, 0.5))})
    core.results(right)
    core.finish(right, {})
    rows = core.process(2, {name: tuples((40, "z", 0)) for name in "ab"})["q"]
    assert rows.to_pylist() == [{"k": "p", "n": 2, "s": 8, "m": 1.0}]


def test_open_groups_that_were_shared_go_on_where_one_query_needs_pairs_and_another_does_not() -> None:
    """As in a checkpoint from before there were ranges."""
    texts = [
        f"SELECT x.k, {one}(y.f) AS v, sum(x.i) AS s {JOIN} GROUP BY x.k, TUMBLE(x.t, 20)" for one in ("max", "median")
    ]
    rng = random.Random(3)
    batches = [
        {
            name: tuples(*((6 * n + rng.randint(0, 9), rng.choice("pq"), n, rng.random()) for _ in range(9)))
            for name in "ab"
        }
        for n in range(12)
    ]
    chosen = Settings(lateness=4, future=None)

    def run(restarts: bool) -> list[Any]:
        found = []
        with pairs_only():
            core = Shared(STREAMS, chosen)
            core.apply([Create(f"q{n}", text) for n, text in enumerate(texts)])
            found += [core.process(number, batches[number]) for number in range(5)]
            assert len(stores_of(core.snapshot().kinds)) == 1
        state = core.snapshot()
        if restarts:
            # Nothing that was derived while pairs were asked for.
            queries = pickle.loads(pickle.dumps(dict(state.registry.queries)))
            core = Shared(STREAMS, chosen)
            core.restore(replace(state, registry=replace(state.registry, queries=queries, known_feeds={})))
            assert [feed.partners is None for feed in core.snapshot().registry.feeds.values()] == [False, True]
        found += [core.process(number, batches[number]) for number in range(5, 12)]
        assert len(stores_of(core.snapshot().kinds)) == 1 + restarts
        return [{name: bits(table) for name, table in one.items()} for one in found]

    assert run(restarts=True) == run(restarts=False)


def test_many_small_batches_with_disorder_give_what_one_large_batch_gives() -> None:
    rng = random.Random(5)
    rows = {
        name: [
            (rng.randint(0, 400), rng.choice("pqrs"), rng.randint(-9, 9), rng.choice([0.5, None, 2.0]))
            for _ in range(900)
        ]
        for name in "ab"
    }
    outputs = "count(*) AS n, sum(y.i) AS s, min(y.f) AS m, sum(x.i) AS o"
    text = f"SELECT x.k, {outputs} {JOIN.replace('5', '60')} GROUP BY x.k, "
    texts = [
        text + "TUMBLE(x.t, 50)",
        text + "HOP(x.t, 7, 50)",
        text.replace("a x JOIN b", "a x JOIN a") + "TUMBLE(x.t, 9)",
    ]
    found = []
    for cut in (900, 40, 3):
        core = Shared(STREAMS, Settings(lateness=1000, future=None))
        core.apply([Create(f"q{n}", one) for n, one in enumerate(texts)])
        batches = [{name: tuples(*rows[name][at : at + cut]) for name in rows} for at in range(0, 900, cut)]
        for number, tables in enumerate(batches):
            core.process(number, tables)
        last = core.process(len(batches), {name: tuples((5000, "z")) for name in rows})
        found.append({name: bits(table) for name, table in last.items()})
        assert all(table.num_rows > 20 for table in last.values())
    assert found[0] == found[1] == found[2]


# Windows of many panes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 1 << 21])
def test_windows_are_summed_up_by_key_as_they_are_pane_by_pane(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(at_once)
    outputs = "count(*) AS n, count(x.f) AS c, sum(x.f) AS s, avg(x.i) AS a, min(x.f) AS lo, max(x.k) AS hi, "
    outputs += "arg_max(x.i, x.f) AS am"
    texts = [
        f"SELECT x.k, {outputs} FROM a x GROUP BY x.k, HOP(x.t, {slide}, {size})" for slide, size in [(1, 20), (7, 70)]
    ]
    texts += [f"SELECT x.k, {outputs} FROM a x GROUP BY x.k, TUMBLE(x.t, {size}) HAVING n > 2" for size in (10, 33)]
    ranked = "QUALIFY row_number() OVER (PARTITION BY window_end ORDER BY n DESC) <= 2"
    texts += [f"SELECT x.k, {outputs} FROM a x GROUP BY x.k, HOP(x.t, {slide}, 40) {ranked}" for slide in (5, 8)]
    values = [None, 0.0, -0.0, 1e16, -1e16, 0.1, float("nan")]
    batches = [
        tuples(
            *(
                (10 * n + rng.randint(0, 12), rng.choice(["p", "q", None]), rng.randint(-5, 5), rng.choice(values))
                for _ in range(60)
            )
        )
        for n in range(20)
    ]
    found = []
    for worth in (0, 10**9):
        monkeypatch.setattr(runs, "_WORTH_TOTALS", worth)
        monkeypatch.setattr(runs, "_MOST_AT_ONCE", at_once)
        monkeypatch.setattr(feeds, "_MOST_TOGETHER", at_once)
        core = Shared(STREAMS, Settings(lateness=3, future=None))
        core.apply([Create(f"q{n}", text) for n, text in enumerate(texts)])
        rows = [core.process(number, {"a": table}) for number, table in enumerate([*batches, tuples((900, "z"))])]
        found.append([{name: bits(table) for name, table in one.items()} for one in rows])
        apart = Shared(STREAMS, Settings(lateness=3, future=None))
        apart.apply([Create("q5", texts[5])])
        alone = [
            apart.process(number, {"a": table})["q5"] for number, table in enumerate([*batches, tuples((900, "z"))])
        ]
        assert [bits(table) for table in alone] == [one["q5"] for one in found[-1]]
    assert found[0] == found[1] and sum(len(one["q0"]) for one in found[0]) > 1000


def test_one_query_of_many_that_can_not_be_computed_together_fails_alone() -> None:
    core = Shared(STREAMS, Settings(lateness=0))
    text = "SELECT sum(x.i) * 4 AS s FROM a x GROUP BY TUMBLE(x.t, {})"
    core.apply([Create("short", text.format(10)), Create("long", text.format(20))])
    core.process(0, {"a": tuples((1, "p", 2**60), (11, "p", 2**60))})
    rows = core.process(1, {"a": tuples((40, "z", 0))})
    assert list(core.report.failures) == ["long"]
    assert rows["short"].to_pylist() == [{"s": 2**62}]


# The kernel -----------------------------------------------------------------------------------------------------------

TICKS = st.one_of(st.integers(-8, 8), st.sampled_from([NEVER, NEVER + 3, FOREVER - 3, FOREVER]))
SIDE = st.lists(st.tuples(st.integers(0, 3), TICKS), max_size=30).map(sorted)


@given(SIDE, SIDE, st.one_of(st.integers(0, 6), st.just(FOREVER)))
@settings(max_examples=examples(300), deadline=None)
def test_ranges_are_those_within_reach(own: list[tuple[int, int]], other: list[tuple[int, int]], reach: int) -> None:
    def side(rows: list[tuple[int, int]]) -> tuple[Array, Array, Array]:
        keys = sorted({key for key, _ in rows})
        starts = [next(n for n, row in enumerate(rows) if row[0] == key) for key in keys]
        ticks = np.array([tick for _, tick in rows], np.int64)
        return np.array(keys, np.int64), np.array([*starts, len(rows)], np.int64), ticks

    out = [np.empty(len(own), np.int64) for _ in range(3)]
    n = partner_ranges(*side(own), *side(other), reach, *out)
    found = {int(place): (int(first), int(last)) for place, first, last in zip(*(one[:n] for one in out), strict=True)}
    wanted = {}
    for place, (key, tick) in enumerate(own):
        near = [n for n, (its, time) in enumerate(other) if its == key and abs(time - tick) <= reach]
        if near:
            wanted[place] = near[0], near[-1]
    assert found == wanted and list(found) == sorted(found)
