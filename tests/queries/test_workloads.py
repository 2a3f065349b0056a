"""The generators: the paper's workload and NEXMark, and NEXMark's queries against DuckDB."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.rivals import nexmark
from streamjoin.adhoc import Stream
from streamjoin.queries.language.sql import parse
from tests.oracles.adhoc_meaning import arrivals_of, meaning_of
from tests.oracles.adhoc_oracle import gate_order, rows
from tests.queries.duckdb_twin import duckdb_rows

AUCTION_HOUSE = [Stream(name, schema, nexmark.TIME) for name, schema in nexmark.SCHEMAS.items()]


def test_ajoin_tuples_are_uniform_and_follow_from_the_seed() -> None:
    table = ajoin.tuples(1, 20_000, seed=3)
    assert table.schema == ajoin.SCHEMA
    for attribute in range(ajoin.ATTRIBUTES):
        values = table[f"a{attribute}"].to_numpy()
        assert (values.min(), values.max()) == (0, 499)
        # 500 classes of 40 expected: the sum of squared deviations stays within five standard deviations.
        counts = np.bincount(values, minlength=500)
        assert abs(((counts - 40) ** 2 / 40).sum() - 499) < 5 * np.sqrt(2 * 499)
    parts = pa.concat_tables([ajoin.tuples(1, 70, seed=3), ajoin.tuples(1, 30, seed=3, first=70)])
    assert parts == table.slice(0, 100)
    assert ajoin.tuples(2, 100, seed=3) != table.slice(0, 100)
    assert ajoin.tuples(1, 1000, keys=5)["a0"].to_numpy().max() == 4


@pytest.mark.parametrize("ways", [2, 3, 4, 5])
@pytest.mark.parametrize("percent", [0, 25, 50, 75, 100])
def test_ajoin_queries_have_the_similarity_asked_for(ways: int, percent: int) -> None:
    generator = ajoin.QueryGenerator(ways, percent, seed=1)
    streams = [Stream(name, ajoin.SCHEMA, ajoin.TIME) for name in generator.streams]
    found = []
    for query in generator.queries(40):
        plan = parse(query.text, streams)
        assert [source.stream.name for source in plan.sources] == list(query.streams)
        assert [len(step.equalities) for step in plan.steps] == [1] * (ways - 1)
        assert sum(map(len, plan.selections)) == ways
        found.append(ajoin.similarity(query, generator.pattern))
    # The equation takes whole numbers: what can be reached lies beside what was asked for.
    for reached in found:
        assert abs(reached * ways**2 - Fraction(percent * ways**2, 100)) <= Fraction(ways, 2)
    if percent in (0, 100):
        assert set(found) == {Fraction(percent, 100)}


def test_ajoin_similarity_is_the_papers_example() -> None:
    def two(left: int, right: int) -> ajoin.AJoinQuery:
        return ajoin.AJoinQuery(("S1", "S2"), ((left, right),), (ajoin.Selection(0, "<", 9),) * 2, 1)

    assert ajoin.similarity(two(0, 0), two(0, 1)) == Fraction(1, 2)
    assert ajoin.similarity(two(0, 1), two(0, 1)) == 1


def test_two_way_queries_at_half_similarity_share_one_attribute() -> None:
    generator = ajoin.QueryGenerator(2, 50)
    assert {ajoin.similarity(query, generator.pattern) for query in generator.queries(50)} == {Fraction(1, 2)}
    assert {query.window_seconds for query in generator.queries(50)} == {1, 2, 3}


def test_selectivity_is_what_was_asked_for() -> None:
    generator = ajoin.QueryGenerator(2, 50, selectivity=0.5)
    table = ajoin.tuples(1, 5_000)
    for query in generator.queries(10):
        selection = query.selections[0]
        values = table[f"a{selection.attribute}"].to_numpy()
        kept = values < selection.value if selection.operator == "<" else values >= selection.value
        assert abs(kept.mean() - 0.5) < 0.05


def test_scenarios() -> None:
    queries = ajoin.QueryGenerator().queries(6)
    first = list(ajoin.scenario_1(queries, rate=2))
    assert [(c.at, c.action, c.name) for c in first] == [(n / 2, "create", f"q{n}") for n in range(6)]
    running: set[str] = set()
    most = 0
    for change in ajoin.scenario_2(queries, count=2, every=10):
        running = running | {change.name} if change.action == "create" else running - {change.name}
        most = max(most, len(running))
    assert most == 2
    assert running == {"q4", "q5"}


def test_nexmark_events_follow_from_the_seed() -> None:
    whole = nexmark.events(1_000, seed=2)
    assert {name: len(table) for name, table in whole.items()} == {"person": 20, "auction": 60, "bid": 920}
    parts = [nexmark.events(333, seed=2), nexmark.events(667, seed=2, first=333)]
    for name, table in whole.items():
        assert table.schema == nexmark.SCHEMAS[name]
        assert pa.concat_tables([part[name] for part in parts]) == table
        times = table[nexmark.TIME].to_pylist()
        assert times == sorted(times)
    people = set(whole["person"]["id"].to_pylist())
    auctions = set(whole["auction"]["id"].to_pylist())
    assert len(people) == 20
    assert len(auctions) == 60
    assert set(whole["auction"]["seller"].to_pylist()) <= people
    assert set(whole["bid"]["auction"].to_pylist()) <= auctions
    assert nexmark.events(100, seed=3)["bid"] != nexmark.events(100, seed=2)["bid"]


@pytest.mark.parametrize("name", nexmark.QUERIES)
def test_nexmark_queries_are_what_duckdb_says(name: str) -> None:
    plan = parse(nexmark.QUERIES[name], AUCTION_HOUSE, name)
    used = {source.stream.name for source in plan.sources}
    batches = [nexmark.events(200, seed=5, first=first, rate=10) for first in (0, 200)]
    arrivals = gate_order(
        [a for b, tables in enumerate(batches) for s in used for a in arrivals_of(s, tables[s], nexmark.TIME, b)]
    )
    found = rows(arrivals, meaning_of(plan))
    assert found == duckdb_rows(plan, batches)
    assert sum(found.values()) > 3, "the query joins nothing: the test shows nothing"
    assert isinstance(found, Counter)
