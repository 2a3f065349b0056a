"""The n-way oracle: against the two-way one, against DuckDB, and its reading of parsed queries against functions."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import Stream
from streamjoin.queries.language.sql import parse
from streamjoin.testing import oracle
from tests.oracles import adhoc_cases
from tests.oracles.adhoc_meaning import arrivals_of, meaning_of
from tests.oracles.adhoc_oracle import Arrival, Condition, JointWindow, Life, Meaning, results, rows, rows_by_batch
from tests.queries.duckdb_twin import duckdb_rows

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def streams_of(case: adhoc_cases.AdhocCase) -> list[Stream]:
    return [Stream(name, schema, adhoc_cases.TIME) for name, schema in case.schemas.items()]


@SLOW
@given(adhoc_cases.cases())
def test_a_parsed_query_means_what_its_functions_say(case: adhoc_cases.AdhocCase) -> None:
    arrivals = case.arrivals
    for query in case.queries:
        plan = parse(query.text, streams_of(case), query.name)
        wanted = rows(arrivals, query.meaning, query.life)
        assert rows(arrivals, meaning_of(plan), query.life) == wanted, query.text
        assert sum(rows_by_batch(arrivals, query.meaning, query.life).values(), Counter()) == wanted


@SLOW
@given(adhoc_cases.cases(most_queries=2, most_sources=3))
def test_duckdb_agrees(case: adhoc_cases.AdhocCase) -> None:
    arrivals = case.arrivals
    batches = [case.tables(batch) for batch in range(len(case.batches))]
    for query in case.queries:
        plan = parse(query.text, streams_of(case))
        found = duckdb_rows(plan, batches, query.life.created, query.life.dropped, wide=("p",))
        assert found == rows(arrivals, query.meaning, query.life), query.text


@SLOW
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 2)), max_size=20),
    st.sampled_from(["time", "rows"]),
    st.integers(1, 5),
    st.booleans(),
)
def test_two_sources_are_what_the_join_oracle_says(
    tuples: list[tuple[bool, int, int]], kind: str, size: int, self_join: bool
) -> None:
    def match(left: oracle.Row, right: oracle.Row) -> bool:
        return bool(left["k"] == right["k"])

    tuples = sorted(tuples, key=lambda t: t[1])
    window = ("time" if kind == "time" else "count", size)
    events = [oracle.Event(right and not self_join, {"k": k}, ts) for right, ts, k in tuples]
    arrivals = [Arrival("r" if event.right else "l", event.row, event.ts) for event in events]
    meaning = Meaning(
        (("x", "l"), ("y", "l" if self_join else "r")),
        (JointWindow("x", "y", kind, size),),
        (Condition(frozenset("xy"), lambda rows: match(rows["x"], rows["y"])),),
        lambda rows: (),
    )
    if self_join:
        wanted = oracle.self_join(events, match, window, window)
    else:
        sides = [[place for place, event in enumerate(events) if event.right == right] for right in (False, True)]
        wanted = [(sides[0][a], sides[1][b]) for a, b in oracle.join(events, match, window, window)]
    assert results(arrivals, meaning) == sorted(wanted)


def test_a_query_sees_its_batches_alone() -> None:
    schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
    stream = Stream("s", schema, "t")
    plan = parse("SELECT x.t AS a, y.t AS b FROM s x JOIN s y WITHIN 100 UNITS ON x.k = y.k AND x.t < y.t", [stream])
    arrivals = [a for b in range(4) for a in arrivals_of("s", pa.table({"k": [1], "t": [b]}, schema), "t", b)]
    meaning = meaning_of(plan)
    assert sorted(rows(arrivals, meaning, Life(1, 3))) == [(1, 2)]
    assert sorted(rows(arrivals, meaning, Life(2))) == [(2, 3)]
    assert len(rows(arrivals, meaning)) == 6
    assert {batch: len(found) for batch, found in rows_by_batch(arrivals, meaning).items()} == {1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize(("size", "wanted"), [(1, []), (2, [(0, 1), (1, 2)]), (3, [(0, 1), (0, 2), (1, 2)])])
def test_rows_count_the_arriving_tuple_in_a_self_join(size: int, wanted: list[tuple[int, int]]) -> None:
    arrivals = [Arrival("s", {}, 0) for _ in range(3)]
    meaning = Meaning((("x", "s"), ("y", "s")), (JointWindow("x", "y", "rows", size),), (), lambda rows: ())
    assert [pair for pair in results(arrivals, meaning) if pair[0] < pair[1]] == wanted


def test_rows_count_before_selections() -> None:
    schema = pa.schema({"k": pa.int64(), "p": pa.int64(), "t": pa.int64()})
    plan = parse(
        "SELECT x.t AS a, y.t AS b FROM l x JOIN r y WITHIN 1 ROWS ON x.k = y.k WHERE x.p > 0",
        [Stream(name, schema, "t") for name in "lr"],
    )
    left = pa.table({"k": [1, 1], "p": [1, 0], "t": [0, 1]}, schema)
    right = pa.table({"k": [1], "p": [1], "t": [2]}, schema)
    arrivals = arrivals_of("l", left, "t") + arrivals_of("r", right, "t")
    assert rows(arrivals, meaning_of(plan)) == Counter()
    assert sorted(rows(arrivals[:1] + arrivals[2:], meaning_of(plan))) == [(0, 2)]


def test_unrelated_aliases_have_no_window_and_may_hold_one_tuple() -> None:
    schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
    plan = parse(
        "SELECT x.t AS a, y.t AS b, z.t AS c FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k "
        "JOIN l z WITHIN 5 UNITS ON z.k = y.k",
        [Stream(name, schema, "t") for name in "lr"],
    )
    left = pa.table({"k": [1, 1], "t": [0, 9]}, schema)
    right = pa.table({"k": [1], "t": [5]}, schema)
    arrivals = arrivals_of("l", left, "t") + arrivals_of("r", right, "t")
    assert sorted(rows(arrivals, meaning_of(plan))) == [(0, 5, 0), (0, 5, 9), (9, 5, 0), (9, 5, 9)]
