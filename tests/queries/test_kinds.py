"""Outer, semi, anti and as-of joins of ad-hoc queries: the oracle, sharing, and what is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import Stream
from streamjoin.model.errors import BudgetExceededError, InputError
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.changes import Create, Drop, Pause, Resume
from streamjoin.queries.core.kinds import KindState, joined_states, unpacked_states
from streamjoin.queries.core.row_lists import read
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import open_core
from tests.oracles import adhoc_kind_cases
from tests.queries.core_cases import check_kinds, lateness_of, rows_of, streams_of
from tests.queries.duckdb_twin import duckdb_kind_rows
from tests.seeds import examples

Rows = Counter[tuple[Any, ...]]


def run(
    case: adhoc_kind_cases.KindCase, chosen: Settings, between: Callable[[Shared, int], Shared] | None = None
) -> dict[str, dict[int, Rows]]:
    """Every query's rows by batch."""
    core: Any = open_core(streams_of(case.inner), chosen)
    queries: list[Any] = [*case.inner.queries, *case.queries]
    rows: dict[str, dict[int, Rows]] = {query.name: {} for query in queries}
    for batch in range(len(case.inner.batches)):
        core.apply([Drop(q.name) for q in queries if q.life.dropped == batch])
        core.apply([Create(q.name, q.text) for q in queries if q.life.created == batch])
        if between is not None:
            core = between(core, batch)
        for name, table in core.process(batch, case.inner.tables(batch)).items():
            if table.num_rows:
                rows[name][batch] = rows_of(table)
        assert not core.report.late and not core.report.untimed and not core.report.failures
    return rows


@given(adhoc_kind_cases.kind_cases())
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_those_of_the_oracle_beside_inner_queries(case: adhoc_kind_cases.KindCase) -> None:
    check_kinds(case, run(case, Settings(lateness=lateness_of(case.inner), future=None)))


@given(adhoc_kind_cases.kind_cases(), st.sampled_from(["cost", "everything", "nothing"]))
@settings(max_examples=examples(24), deadline=None)
def test_rows_are_the_same_when_the_state_is_stored_after_every_batch(
    case: adhoc_kind_cases.KindCase, sharing: Any
) -> None:
    """What waits goes through its stored form between any two batches, as by a restart between match and eviction."""
    chosen = Settings(lateness=lateness_of(case.inner), future=None, sharing=sharing, replan_every=2)

    def restored(core: Any, _batch: int) -> Any:
        state = core.snapshot()
        queries = {name: entry.query for name, entry in state.registry.queries.items()}
        kinds = unpacked_states(joined_states([one.to_table(name) for name, one in state.kinds.items()]), queries)
        other = open_core(streams_of(case.inner), chosen)
        other.restore(replace(state, kinds={name: kinds[name] for name in state.kinds}))
        return other

    check_kinds(case, run(case, chosen, restored))


# By hand --------------------------------------------------------------------------------------------------------------

SCHEMA = pa.schema({"k": pa.int64(), "p": pa.int64(), "t": pa.int64()})
Batch = dict[str, list[tuple[Any, ...]]]


def given_rows(*rows: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def opened(text: str, streams: str = "lr", **options: Any) -> Shared:
    core = Shared([Stream(name, SCHEMA, "t") for name in streams], Settings(future=None, **options))
    core.apply([Create("q", text)])
    return core


def rows_by_batch(core: Shared, *batches: Batch) -> list[list[tuple[Any, ...]]]:
    """The rows of q after each batch; a batch has (key, payload, time) by stream."""
    given = []
    for batch in batches:
        tables = {stream: given_rows(*rows) for stream, rows in batch.items()}
        table = core.process(core.snapshot().batch + 1, tables)["q"]
        given.append(sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=str))
    return given


LOOKUP = "SELECT l.p a, r.p b FROM l ASOF LEFT JOIN r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k TOLERANCE {} UNITS"
LEFT_JOIN = "SELECT l.p a, r.p b FROM l LEFT JOIN r WITHIN 5 UNITS ON l.k = r.k"


def test_an_unmatched_tuple_comes_out_once_the_other_stream_has_passed_its_window() -> None:
    core = opened(LEFT_JOIN)
    assert rows_by_batch(
        core,
        {"l": [(1, 10, 0), (2, 20, 1)], "r": [(1, 11, 5)]},
        {"r": [(9, 0, 6)]},
        {"l": [(7, 0, 50)]},
        {"r": [(9, 0, 7)]},
        {"r": [(2, 12, 7)]},
    ) == [[(10, 11)], [], [], [(20, None)], []]


def test_lateness_holds_an_unmatched_tuple_back() -> None:
    core = opened(LEFT_JOIN, lateness=3)
    first, second, third = rows_by_batch(
        core, {"l": [(1, 10, 0), (2, 20, 1)]}, {"r": [(9, 0, 8)]}, {"r": [(1, 11, 5), (9, 0, 9)]}
    )
    assert (first, second, third) == ([], [], [(10, 11)])
    assert rows_by_batch(core, {"r": [(9, 0, 10)]}) == [[(20, None)]]


def test_a_match_and_an_eviction_in_one_batch() -> None:
    """The right tuples of the batch match the left one and move the bound past its window."""
    assert rows_by_batch(opened(LEFT_JOIN), {"l": [(1, 10, 0)]}, {"r": [(1, 11, 4), (9, 0, 90)]}) == [[], [(10, 11)]]


def test_a_window_of_rows_passes_with_the_streams_own_tuples() -> None:
    core = opened("SELECT l.p a, r.p b FROM l LEFT JOIN r WITHIN 2 ROWS ON l.k = r.k")
    assert rows_by_batch(core, {"l": [(1, 10, 0)]}, {"l": [(2, 20, 1)]}, {"r": [(2, 21, 1)]}, {"l": [(3, 30, 2)]}) == [
        [],
        [],
        [(20, 21)],
        [(10, None)],
    ]


def test_tuples_that_can_match_nothing_come_out_at_once() -> None:
    core = opened("SELECT l.p a, r.p b FROM l LEFT JOIN r WITHIN 5 UNITS ON l.k = r.k AND l.p > 10")
    assert rows_by_batch(core, {"l": [(None, 20, 0), (1, 5, 0), (1, 20, 0)]}, {"r": [(1, 1, 0), (None, 2, 0)]}) == [
        [(20, None), (5, None)],
        [(20, 1)],
    ]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("LEFT JOIN r WITHIN 5 UNITS ON l.k = r.k AND r.p > 1", [(1, None), (2, 2), (3, None)]),
        ("LEFT JOIN r WITHIN 5 UNITS ON l.k = r.k WHERE r.p > 1", [(2, 2)]),
        ("LEFT JOIN r WITHIN 5 UNITS ON l.k = r.k WHERE r.p IS NULL", [(3, None)]),
        ("LEFT JOIN r WITHIN 5 UNITS ON l.k = r.k AND l.p > 1", [(1, None), (2, 2), (3, None)]),
        ("LEFT JOIN r WITHIN 5 UNITS ON l.k = r.k WHERE l.p > 1", [(2, 2), (3, None)]),
        ("RIGHT JOIN r WITHIN 5 UNITS ON l.k = r.k AND l.p > 1", [(None, 1), (None, 4), (2, 2)]),
        ("RIGHT JOIN r WITHIN 5 UNITS ON l.k = r.k WHERE l.p > 1", [(2, 2)]),
        ("RIGHT JOIN r WITHIN 5 UNITS ON l.k = r.k AND r.p < 2", [(1, 1), (None, 2), (None, 4)]),
        ("RIGHT JOIN r WITHIN 5 UNITS ON l.k = r.k WHERE r.p > 1", [(2, 2), (None, 4)]),
        ("FULL JOIN r WITHIN 5 UNITS ON l.k = r.k AND r.p < 2", [(1, 1), (2, None), (3, None), (None, 2), (None, 4)]),
        ("FULL JOIN r WITHIN 5 UNITS ON l.k = r.k WHERE l.p + r.p > 2", [(2, 2)]),
        ("FULL JOIN r WITHIN 5 UNITS ON l.k = r.k WHERE 1 = 0", []),
    ],
)
def test_on_says_what_matches_and_where_which_rows_stay(text: str, rows: list[tuple[Any, ...]]) -> None:
    core = opened(f"SELECT l.p a, r.p b FROM l {text}")
    batches: tuple[Batch, ...] = (
        {"l": [(1, 1, 0), (2, 2, 0), (3, 3, 0)], "r": [(1, 1, 0), (2, 2, 0), (4, 4, 0)]},
        {"l": [(None, 0, 90)], "r": [(None, 0, 90)]},
    )
    first, second = rows_by_batch(core, *batches)
    given = [row for row in [*first, *second] if row not in ((0, None), (None, 0))]
    assert sorted(given, key=str) == sorted(rows, key=str)


def test_semi_gives_a_tuple_once_and_anti_never_if_it_was_matched() -> None:
    batches: tuple[Batch, ...] = (
        {"l": [(1, 10, 0), (2, 20, 0)]},
        {"r": [(1, 1, 1), (1, 2, 1)]},
        {"r": [(1, 3, 2)]},
        {"r": [(2, 4, 6)]},
    )
    text = "SELECT l.p a FROM l LEFT {} JOIN r WITHIN 5 UNITS ON l.k = r.k"
    assert rows_by_batch(opened(text.format("SEMI")), *batches) == [[], [(10,)], [], []]
    assert rows_by_batch(opened(text.format("ANTI")), *batches) == [[], [], [], [(20,)]]


@pytest.mark.parametrize(
    ("operator", "rows"),
    [
        (">=", [[], [(10, 3)], [], []]),
        (">", [[(10, 1)], [], [], []]),
        ("<=", [[], [(10, 2)], [], []]),
        ("<", [[], [], [(10, 4)], []]),
    ],
)
def test_an_as_of_join_takes_the_nearest_once_it_is_decided(operator: str, rows: list[Any]) -> None:
    """Two right tuples have the left one's time: the last counts looking back, the first looking ahead."""
    text = f"SELECT l.p a, r.p b FROM l ASOF JOIN r MATCH_CONDITION (l.t {operator} r.t) ON l.k = r.k TOLERANCE 9 UNITS"
    core = opened(text)
    assert (
        rows_by_batch(
            core,
            {"l": [(1, 10, 5)], "r": [(1, 0, 1), (1, 1, 4), (2, 9, 5)]},
            {"r": [(1, 2, 5), (1, 3, 5), (2, 9, 6)]},
            {"r": [(1, 4, 8), (1, 5, 8), (1, 6, 9)]},
            {"r": [(1, 7, 30)]},
        )
        == rows
    )


def test_an_as_of_partner_is_kept_though_its_own_window_has_passed() -> None:
    """The left stream is far ahead, so the partner can match nothing new, and yet its row is still to come."""
    core = opened(LOOKUP.format(2))
    filler: list[Batch] = [{"l": [(9, 0, 100 + n)]} for n in range(3)]
    assert rows_by_batch(core, {"r": [(1, 7, 1)]}, {"l": [(1, 10, 2)]}, *filler, {"r": [(5, 8, 3)]}) == [
        [],
        [],
        [],
        [],
        [],
        [(10, 7)],
    ]


@pytest.mark.parametrize(
    ("match", "how", "rows"),
    [
        ("NEAREST(l.t, r.t)", "", [[], [(10, 3)], [], [(30, 0)]]),
        ("NEAREST(l.t, r.t) AND l.t <> r.t", "", [[], [(10, 4)], [], []]),
        ("NEAREST(l.t, r.t)", "ANTI", [[], [], [], [(20,)]]),
    ],
)
def test_nearest_in_both_directions_with_ties_and_a_tolerance(match: str, how: str, rows: list[Any]) -> None:
    """Of equal times the last counts, of equal distances the one before; a left tuple without a partner has none."""
    outputs = "l.p a" if how else "l.p a, r.p b"
    text = f"SELECT {outputs} FROM l ASOF {how} JOIN r MATCH_CONDITION ({match}) ON l.k = r.k TOLERANCE 3 UNITS"
    core = opened(text)
    batches: tuple[Batch, ...] = (
        {"l": [(1, 10, 5), (2, 20, 5)], "r": [(1, 1, 2), (1, 4, 4), (2, 9, 1)]},
        {"r": [(1, 2, 5), (1, 3, 5), (1, 5, 6), (3, 0, 8)]},
        {"l": [(3, 30, 8)]},
        {"r": [(2, 6, 9)]},
    )
    assert rows_by_batch(core, *batches) == rows


def test_an_as_of_join_without_a_tolerance_finds_the_newest_however_old() -> None:
    text = "SELECT l.p a, r.p b FROM l ASOF LEFT JOIN r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k"
    core = opened(text)
    assert rows_by_batch(core, {"r": [(1, 1, 0), (1, 2, 3), (2, 5, 3), (None, 7, 3)]}) == [[]]
    for n in range(20):
        rows_by_batch(core, {"r": [(3, n, 100 * n + 100)], "l": [(9, 0, 100 * n + 100)]})
    assert rows_by_batch(core, {"l": [(1, 10, 5000), (2, 20, 5000), (4, 30, 5000), (None, 40, 5000)]}) == [[(40, None)]]
    assert rows_by_batch(core, {"r": [(2, 6, 5000)]}, {"r": [(8, 0, 5001)]}) == [
        [(0, None)],
        [(10, 2), (20, 6), (30, None)],
    ]
    state = core.snapshot()
    assert sum(bucket.n for bucket in state.buckets["r"]) < 5, "the streams hold no more than before"
    waiting = state.kinds["q"]
    assert isinstance(waiting, KindState)
    assert sorted(waiting.held["r"].ids.tolist()) == [1, 2, 23, 24, 25], "one tuple for each key before 5000"


def test_an_as_of_join_without_a_tolerance_has_a_bound_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.queries.core.kinds.MOST_HELD", 3)
    core = opened("SELECT l.p a, r.p b FROM l ASOF JOIN r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k")
    core.apply([Create("other", LEFT_JOIN)])
    rows_by_batch(core, {"r": [(key, key, key) for key in range(3)], "l": [(9, 0, 50)]})
    assert not core.report.failures
    rows_by_batch(core, {"r": [(3, 3, 3), (9, 0, 60)], "l": [(9, 1, 60)]})
    assert "has more than 3 keys" in str(core.report.failures["q"])
    assert core.queries["q"].paused and not core.queries["other"].paused


def test_chained_as_of_joins_wait_for_each_other() -> None:
    text = (
        "SELECT l.p a, r.p b, s.p c "
        "FROM l ASOF LEFT JOIN r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k TOLERANCE 5 UNITS "
        "ASOF LEFT JOIN s MATCH_CONDITION (l.t >= s.t) ON l.k = s.k TOLERANCE 5 UNITS"
    )
    core = opened(text, "lrs")
    assert rows_by_batch(
        core,
        {"l": [(1, 10, 5), (2, 20, 5)], "r": [(1, 1, 4), (9, 0, 9)]},
        {"s": [(1, 2, 3), (2, 3, 5)]},
        {"s": [(9, 0, 6)]},
    ) == [[], [], [(10, 1, 2), (20, None, 3)]]


def test_an_outer_join_after_an_inner_one() -> None:
    text = "SELECT l.p a, r.p b, s.p c FROM l JOIN r WITHIN 5 UNITS ON l.k = r.k {} JOIN s WITHIN 2 UNITS ON s.k = r.k"
    batches: tuple[Batch, ...] = (
        {"l": [(1, 10, 0), (2, 20, 0)], "s": [(1, 5, 4), (3, 6, 4)]},
        {"r": [(1, 1, 3), (2, 2, 3)]},
        {"l": [(9, 0, 60)], "r": [(9, 0, 50)], "s": [(9, 0, 70)]},
    )
    assert rows_by_batch(opened(text.format("LEFT"), "lrs"), *batches) == [[], [(10, 1, 5)], [(20, 2, None)]]
    assert rows_by_batch(opened(text.format("RIGHT"), "lrs"), *batches) == [[], [(10, 1, 5)], [(None, None, 6)]]
    assert rows_by_batch(opened(text.format("FULL"), "lrs"), *batches) == [
        [],
        [(10, 1, 5)],
        [(20, 2, None), (None, None, 6)],
    ]


def test_an_idle_stream_lets_unmatched_tuples_out() -> None:
    now = [0]
    core = Shared([Stream(n, SCHEMA, "t") for n in "lr"], Settings(future=None, idle="1 second"), lambda: now[0])
    core.apply([Create("q", LEFT_JOIN)])
    assert rows_by_batch(core, {"l": [(1, 10, 0)], "r": [(9, 0, 0)]}, {"l": [(2, 0, 50)]}) == [[], []]
    rows: list[tuple[Any, ...]] = []
    for second in range(3, 9):
        now[0] = second * 10**9
        rows += rows_by_batch(core, {"l": [(2, 0, 50 + 10 * second)]})[0]
    assert (10, None) in rows


def test_silence_that_can_move_no_clock_asks_for_no_batch() -> None:
    """A tuple still waits, and only another tuple can decide it: empty batches would follow each other at once."""
    now = [0]
    core = Shared([Stream(n, SCHEMA, "t") for n in "lr"], Settings(future=None, idle="1 second"), lambda: now[0])
    core.apply([Create("q", LEFT_JOIN)])
    rows_by_batch(core, {"l": [(1, 10, 0), (2, 20, 20)], "r": [(9, 0, 0)]})
    now[0] = 5 * 10**9
    assert core.time_to_idle() == 0
    assert rows_by_batch(core, {}) == [[(10, None)]]
    assert core.snapshot().kinds["q"].n == 1
    assert core.time_to_idle() is None


@pytest.mark.parametrize("sharing", ["cost", "nothing"])
def test_a_batch_of_changes_alone_leaves_what_silence_decides_to_the_next(sharing: Any) -> None:
    """It gives no row: if it moved the clocks, no later silence would, and what waits would wait for a tuple."""
    now = [0]
    chosen = Settings(idle="1 second", sharing=sharing)
    core: Any = open_core([Stream(n, SCHEMA, "t") for n in "lr"], chosen, lambda: now[0])
    core.apply([Create("q", LEFT_JOIN)])
    rows_by_batch(core, {"l": [(1, 10, 0), (2, 20, 20)], "r": [(9, 0, 0)]})
    now[0] = 5 * 10**9
    changes = replace(core.arrive(1, {}), logged=False)
    assert not core.results(changes)[0]["q"].num_rows
    core.finish(changes, {})
    assert core.time_to_idle() == 0
    assert core.process(2, {})["q"].to_pylist() == [{"a": 10, "b": None}]


def test_what_waited_for_a_query_that_has_left_waits_no_more() -> None:
    """A cell's share of it may run elsewhere now: it must not fail for what is not known here any more."""
    core = opened(LEFT_JOIN)
    rows_by_batch(core, {"l": [(1, 10, 0)]})
    assert core.waiting.keys() == {"q"}
    core.apply([Drop("q"), Create("inner", LEFT_JOIN.replace("LEFT ", ""))])
    core.results(core.arrive(1, {}))
    failures: dict[str, InputError] = {}
    assert not core.waiting and not core.waiting_by_ids(failures) and not failures


def test_a_late_tuple_gives_no_row() -> None:
    core = opened(LEFT_JOIN)
    assert rows_by_batch(core, {"l": [(1, 10, 50)]}, {"l": [(2, 20, 40)], "r": [(9, 0, 90)]}) == [[], [(10, None)]]
    assert core.report.late["l"].num_rows == 1


def test_a_query_sees_the_tuples_that_come_after_its_create() -> None:
    core = opened("SELECT l.p a FROM l JOIN r WITHIN 5 UNITS ON l.k = r.k")
    rows_by_batch(core, {"l": [(1, 10, 0)], "r": [(2, 1, 0)]})
    core.apply([Drop("q"), Create("q", LEFT_JOIN)])
    assert rows_by_batch(core, {"l": [(2, 20, 1)]}, {"r": [(9, 0, 50)]}) == [[], [(20, None)]]


def test_what_waits_when_a_query_is_paused_gives_no_row() -> None:
    core = opened(LEFT_JOIN)
    rows_by_batch(core, {"l": [(1, 10, 0)]})
    core.apply([Pause("q")])
    rows_by_batch(core, {"r": [(1, 1, 0)], "l": [(2, 20, 1)]})
    core.apply([Resume("q")])
    assert rows_by_batch(core, {"l": [(3, 30, 2)]}, {"r": [(2, 2, 2), (9, 0, 50)]}) == [[], [(20, 2), (30, None)]]


def test_a_query_over_its_budget_loses_what_waits_and_others_nothing() -> None:
    core = opened("SELECT l.p a, r.p b FROM l JOIN r WITHIN 5 UNITS ON l.k = r.k")
    core.apply([Create("small", LEFT_JOIN, budget=Budget(rows=1)), Create("large", LEFT_JOIN)])
    core.process(0, {"l": given_rows((1, 10, 0), (2, 20, 0), (3, 30, 0))})
    rows, failures = core.results(arrived := core.arrive(1, {"r": given_rows((1, 1, 0), (9, 0, 50))}))
    assert isinstance(failures["small"], BudgetExceededError) and rows["small"].num_rows == 0
    assert rows["large"].num_rows == 3 and rows["q"].num_rows == 1
    core.finish(arrived, failures)
    core.apply([Resume("small")])
    assert core.process(2, {"r": given_rows((9, 0, 99))})["small"].num_rows == 0


def test_a_batch_that_is_computed_twice_gives_the_same_rows_once() -> None:
    core = opened(LEFT_JOIN)
    rows_by_batch(core, {"l": [(1, 10, 0), (2, 20, 0)]})
    arrived = core.arrive(1, {"r": given_rows((1, 1, 0), (9, 0, 50))})
    first, second = (read(core.results(arrived)[0]["q"]).to_pylist() for _ in range(2))
    assert first == second and len(first) == 2
    core.finish(arrived, {})
    assert rows_by_batch(core, {"r": [(9, 0, 99)]}) == [[]]


def test_rows_are_the_same_alone_and_beside_twenty_other_queries() -> None:
    """The queries share indexes and query-sets with inner ones of the same join and with each other."""
    kinds = {
        "left": "SELECT l.p a, r.p b FROM l LEFT JOIN r WITHIN {w} UNITS ON l.k = r.k",
        "full": "SELECT l.p a, r.p b FROM l FULL JOIN r WITHIN {w} UNITS ON l.k = r.k WHERE l.p IS NULL OR l.p > 20",
        "anti": "SELECT l.p a FROM l ANTI JOIN r WITHIN {w} UNITS ON l.k = r.k AND r.p > 10",
        "semi": "SELECT l.p a FROM l SEMI JOIN r WITHIN {w} UNITS ON l.k = r.k",
        "asof": LOOKUP.replace("{}", "{w}"),
    }
    texts = {f"{name}{w}": text.format(w=w) for name, text in kinds.items() for w in (3, 9)}
    inner = {f"i{w}": f"SELECT l.p a, r.p b FROM l JOIN r WITHIN {w} UNITS ON l.k = r.k" for w in range(1, 21)}
    generator = np.random.default_rng(7)
    batches = []
    for n in range(6):
        draws = [
            generator.integers(0, 12, 40),
            generator.integers(0, 50, 40),
            10 * n + np.sort(generator.integers(0, 10, 40)),
        ]
        rows = list(zip(*(draw.tolist() for draw in draws), strict=True))
        batches.append({"l": given_rows(*rows[:20]), "r": given_rows(*rows[20:])})

    def rows_of_all(queries: dict[str, str]) -> dict[str, list[Rows]]:
        core = Shared([Stream(n, SCHEMA, "t") for n in "lr"], Settings(future=None, lateness=10))
        core.apply([Create(name, text) for name, text in queries.items()])
        given = [core.process(n, batch) for n, batch in enumerate(batches)]
        return {name: [rows_of(tables[name]) for tables in given] for name in queries}

    together = rows_of_all({**inner, **texts})
    assert sum(sum(counter.values()) for name in texts for counter in together[name]) > 500
    for name, text in texts.items():
        assert rows_of_all({name: text})[name] == together[name], name
    core = Shared([Stream(n, SCHEMA, "t") for n in "lr"])
    core.apply([Create(name, text) for name, text in {**inner, **texts}.items()])
    assert [len(root.step.queries) for root in core.explain().roots] == [len(inner) + len(texts)] * 2


FINITE = [
    "SELECT l.p a, r.p b FROM l LEFT JOIN r WITHIN 4 UNITS ON l.k = r.k AND r.p < 30 WHERE l.p > 3",
    "SELECT l.p a, r.p b FROM l RIGHT JOIN r WITHIN 4 UNITS ON l.k = r.k AND ABS(l.p - r.p) <= 9",
    "SELECT l.p a, r.p b FROM l FULL JOIN r WITHIN 2 UNITS ON l.k = r.k AND l.p < r.p WHERE l.p IS NULL OR r.p > 5",
    "SELECT l.p a, r.p b, s.p c FROM l JOIN r WITHIN 3 UNITS ON l.k = r.k LEFT JOIN s WITHIN 2 UNITS ON s.k = r.k",
    "SELECT l.p a, r.p b, s.p c FROM l JOIN r WITHIN 3 UNITS ON l.k = r.k FULL JOIN s WITHIN 2 UNITS ON s.k = l.k",
    "SELECT l.p a FROM l SEMI JOIN r WITHIN 4 UNITS ON l.k = r.k AND r.p > 20",
    "SELECT l.p a FROM l ANTI JOIN r WITHIN 4 UNITS ON l.k = r.k AND r.p > 20",
    "SELECT l.p a, r.p b FROM l ASOF JOIN r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k TOLERANCE 6 UNITS",
    "SELECT l.p a, r.p b FROM l ASOF LEFT JOIN r MATCH_CONDITION (l.t > r.t) ON l.k = r.k TOLERANCE 6 UNITS",
    "SELECT l.p a, r.p b FROM l ASOF LEFT JOIN r MATCH_CONDITION (l.t <= r.t) ON l.k = r.k TOLERANCE 6 UNITS",
    "SELECT l.p a, r.p b FROM l ASOF LEFT JOIN r MATCH_CONDITION (l.t >= r.t) ON l.k = r.k",
    "SELECT l.p a, r.p b FROM l ASOF JOIN r MATCH_CONDITION (l.t > r.t) ON l.k = r.k WHERE r.p > l.p",
]


def test_finite_input_gives_the_rows_of_duckdb() -> None:
    """Times on the right differ for each key, as DuckDB leaves open which of equal times an as-of join takes."""
    generator = np.random.default_rng(3)
    tables: dict[str, pa.Table] = {}
    for stream in "lrs":
        keys = generator.integers(0, 6, 60).tolist()
        times = {key: iter(np.sort(generator.choice(90, 60, replace=False)).tolist()) for key in range(6)}
        payloads = generator.integers(0, 40, 60).tolist()
        rows = [(key or None, payload, next(times[key])) for key, payload in zip(keys, payloads, strict=True)]
        tables[stream] = given_rows(*rows).sort_by("t")
    end = {stream: given_rows((None, None, 10_000)) for stream in "lrs"}
    for text in FINITE:
        core = opened(text, "lrs", lateness=1000)
        query = core.queries["q"].query
        rows_of_query = Counter[tuple[Any, ...]]()
        cuts = [0, 7, 8, 30, 60]
        for batch, (first, last) in enumerate(pairwise(cuts)):
            part = {stream: table.slice(first, last - first) for stream, table in tables.items()}
            rows_of_query += rows_of(core.process(batch, part)["q"])
        rows_of_query += rows_of(core.process(9, end)["q"])
        # The tuples that end the input have no key and no payload.
        rows_of_query = Counter({row: n for row, n in rows_of_query.items() if any(v is not None for v in row)})
        wanted = duckdb_kind_rows(query, tables)
        assert sum(wanted.values()) > 10
        assert rows_of_query == wanted, text
