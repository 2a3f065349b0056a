"""The core on the workloads: NEXMark's queries together against DuckDB, the paper's queries shared against apart."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.rivals import nexmark
from streamjoin.adhoc import Stream
from streamjoin.queries.core.changes import Create, Drop
from streamjoin.queries.core.probe_plan import Choice, orders_of
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.language.sql import parse
from streamjoin.queries.optimizer.plans import Plan
from tests.oracles import row_evaluator
from tests.queries.core_cases import Rows, rows_of
from tests.queries.duckdb_twin import duckdb_rows

AUCTION_HOUSE = [Stream(name, schema, nexmark.TIME) for name, schema in nexmark.SCHEMAS.items()]


def test_nexmark_queries_together_are_what_duckdb_says() -> None:
    core = open_core(AUCTION_HOUSE)
    core.apply([Create(name, text) for name, text in nexmark.QUERIES.items()])
    batches = [nexmark.events(100, seed=5, first=first, rate=10) for first in range(0, 400, 100)]
    found: dict[str, Rows] = {name: Rows() for name in nexmark.QUERIES}
    plans = {name: parse(text, AUCTION_HOUSE, name) for name, text in nexmark.QUERIES.items()}
    for number, tables in enumerate(batches):
        for name, table in core.process(number, tables).items():
            assert table.schema == plans[name].schema
            found[name] += Rows(tuple(row.values()) for row in row_evaluator.rows_of(table))
    for name, plan in plans.items():
        wanted = duckdb_rows(plan, batches)
        assert found[name] == wanted, name
        assert sum(wanted.values()) > 3


def any_plan(core: Shared, random: np.random.Generator) -> Plan:
    """Queries in one of two groups, and joined in any order."""
    found = {}
    for name, entry in core.queries.items():
        orders = [orders_of(entry.query, alias) for alias in entry.query.aliases]
        found[name] = Choice(int(random.integers(2)), tuple(some[random.integers(len(some))] for some in orders))
    return Plan(found)


@pytest.mark.parametrize(("ways", "keys"), [(2, 20), (3, 60), (4, 120)])
def test_the_papers_queries_give_the_same_shared_and_apart(ways: int, keys: int) -> None:
    generator = ajoin.QueryGenerator(ways, 50, seed=ways, selectivity=0.7)
    streams = [Stream(name, ajoin.SCHEMA, ajoin.TIME) for name in generator.streams]
    queries = [query.text for query in generator.queries(24)]
    cores = [open_core(streams, Settings(sharing=how, replan_every=2)) for how in ("cost", "everything", "nothing")]
    shuffled = Shared(streams)
    random = np.random.default_rng(ways)
    rows = 0
    for number in range(8):
        tables = {
            name: ajoin.tuples(n, 60, rate=100, first=60 * number, keys=keys)
            for n, name in enumerate(generator.streams)
        }
        answers = []
        for core in (*cores, shuffled):
            # Six queries come at each of the first four batches; later the oldest go.
            core.apply([Create(f"q{n}", queries[n]) for n in range(6 * number, min(24, 6 * number + 6))])
            core.apply([Drop(f"q{n}") for n in range(6 * (number - 5), 6 * (number - 4)) if number > 4])
            if core is shuffled:
                core.adopt(any_plan(core, random))
            answers.append({name: rows_of(table) for name, table in core.process(number, tables).items()})
        assert answers[0] == answers[1] == answers[2] == answers[3]
        rows += sum(sum(found.values()) for found in answers[0].values())
    assert rows > 100
