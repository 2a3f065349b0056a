"""The core while everything happens to it: names used again, pauses, batches that come again with other tuples."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import Stream
from streamjoin.queries.core.arrivals import Arrived
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.changes import Change, Create, Drop, Pause, Resume
from streamjoin.queries.core.probe_plan import Choice, orders_of
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.optimizer.plans import Plan
from tests.oracles import adhoc_cases
from tests.queries.core_cases import Rows, lateness_of, rows_of, streams_of, wanted_of
from tests.seeds import examples

SCHEMA = pa.schema({"k": pa.int64(), "p": pa.int64(), "t": pa.int64()})
STREAMS = [Stream(name, SCHEMA, "t") for name in "lrn"]
PAIRS = "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"
RARELY = st.integers(0, 3).map(lambda number: not number)


def batch(*rows: tuple[int, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


class Disturbed:
    """Runs a workload through a core, and disturbs it wherever rows must not depend on it."""

    def __init__(self, case: adhoc_cases.AdhocCase, data: st.DataObject) -> None:
        self.case, self.data = case, data
        chosen = Settings(
            lateness=lateness_of(case),
            replan_every=data.draw(st.sampled_from([1, 2, 8])),
            hysteresis=0.0,
            merging=data.draw(st.booleans()),
            group_cost=data.draw(st.sampled_from([0.0, 15_000.0])),
        )
        self.core = Shared([], chosen)
        self.paused: dict[str, bool] = {}
        self.names = self._names()

    def _names(self) -> dict[str, str]:
        """Queries whose lives do not overlap may have one name, also when one begins where another ends."""
        taken: dict[str, list[tuple[int, int]]] = {}
        found = {}
        for query in self.case.queries:
            begin, end = (
                query.life.created,
                len(self.case.batches) if query.life.dropped is None else query.life.dropped,
            )
            name = self.data.draw(st.sampled_from(["one", "other"]))
            if any(begin < until and since < end for since, until in taken.get(name, ())):
                name = query.name
            taken.setdefault(name, []).append((begin, end))
            found[query.name] = name
        return found

    def register(self, names: set[str]) -> None:
        for stream in streams_of(self.case):
            if stream.name in names and stream.name not in self.core.streams:
                self.core.add_stream(stream)

    def arrive(self, number: int, tables_of: int) -> Arrived:
        tables = self.case.tables(tables_of)
        return self.core.arrive(number, {name: t for name, t in tables.items() if name in self.core.streams})

    def maybe_fail(self, number: int) -> None:
        """A batch with other tuples that is computed and not finished."""
        if self.data.draw(RARELY):
            self.core.results(self.arrive(number, self.data.draw(st.integers(0, len(self.case.batches) - 1))))

    def living(self, number: int) -> list[adhoc_cases.AdhocQuery]:
        return [query for query in self.case.queries if query.life.sees(number)]

    def change(self, number: int) -> None:
        changes: list[Change] = [Drop(self.names[q.name]) for q in self.case.queries if q.life.dropped == number]
        for query in self.case.queries:
            if query.life.created == number:
                self.register({stream for _, stream in query.meaning.sources})
                changes.append(Create(self.names[query.name], query.text))
                self.paused[query.name] = False
        for query in self.living(number):
            if self.data.draw(RARELY):
                kind = Resume if self.paused[query.name] else Pause
                changes.append(kind(self.names[query.name]))
                self.paused[query.name] = kind is Pause
        for part in [changes] if self.data.draw(st.booleans()) else [[change] for change in changes]:
            self.core.apply(part)

    def plan_anew(self) -> None:
        if self.data.draw(RARELY):
            self.core.replan()
        if self.data.draw(RARELY):
            choices = {}
            for name, entry in self.core.queries.items():
                orders = [self.data.draw(st.sampled_from(orders_of(entry.query, a))) for a in entry.query.aliases]
                choices[name] = Choice(self.data.draw(st.integers(0, 2)), tuple(orders))
            self.core.adopt(Plan(choices))

    def maybe_restart(self) -> None:
        if self.data.draw(RARELY):
            taken = self.core.snapshot()
            stored = {
                name: tuple(Bucket.from_table(bucket.to_table()) for bucket in buckets)
                for name, buckets in taken.buckets.items()
            }
            self.core.restore(pickle.loads(pickle.dumps(replace(taken, buckets=stored))))

    def rows(self, arrived: Arrived) -> dict[str, Rows]:
        return {name: rows_of(table) for name, table in self.core.results(arrived)[0].items()}


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(adhoc_cases.cases(most_queries=6, most_batches=7), st.data())
def test_rows_depend_on_tuples_and_lives_alone(case: adhoc_cases.AdhocCase, data: st.DataObject) -> None:
    run, wanted = Disturbed(case, data), wanted_of(case)
    for number in range(len(case.batches)):
        run.register({name for name, rows in case.batches[number].items() if rows})
        run.maybe_fail(number)
        run.change(number)
        run.maybe_fail(number)
        run.plan_anew()
        run.maybe_restart()
        run.maybe_fail(number)
        arrived = run.arrive(number, number)
        found = run.rows(arrived)
        assert found == {
            run.names[query.name]: Rows() if run.paused[query.name] else wanted[query.name].get(number, Rows())
            for query in run.living(number)
        }
        run.core.finish(arrived, {})


def test_a_name_that_is_free_again_may_stand_for_another_query_at_once() -> None:
    core = Shared(STREAMS)
    core.apply([Create("q", PAIRS)])
    core.process(0, {"l": batch((1, 0, 0))})
    three = "SELECT u.p AS a FROM r u JOIN l v WITHIN 5 UNITS ON u.k = v.k JOIN n w WITHIN 5 UNITS ON v.k = w.k"
    core.apply([Drop("q"), Create("q", three)])
    tables = {name: batch((1, 7, 1)) for name in "lrn"}
    assert rows_of(core.process(1, tables)["q"]) == {(7,): 1}
    core.apply([Drop("q"), Create("q", PAIRS)])
    assert rows_of(core.process(2, {name: batch((1, 8, 2)) for name in "lr"})["q"]) == {(8, 8): 1}


def test_sets_of_a_batch_that_came_again_are_those_of_its_tuples() -> None:
    # The third stream's sets are made when a pair gets there: not by the batch that comes again, but by the next one.
    core = Shared(STREAMS, Settings(sharing="everything"))
    joins = "JOIN r y WITHIN 9 UNITS ON x.k = y.k JOIN n z WITHIN 9 UNITS ON y.k = z.k"
    core.apply([Create("q", f"SELECT x.p AS a, z.p AS c FROM l x {joins} WHERE z.p > 5")])
    orders = (("x", "y", "z"), ("y", "x", "z"), ("z", "y", "x"))
    core.adopt(Plan({"q": Choice(0, orders)}))
    core.process(0, {"r": batch((1, 0, 0))})
    failed = core.arrive(1, {"l": batch((1, 1, 1)), "n": batch((1, 9, 1), (1, 9, 1))})
    assert core.results(failed)[0]["q"].num_rows == 2
    core.process(1, {"n": batch((1, 2, 1), (1, 7, 1))})
    found = core.process(2, {"l": batch((1, 3, 2)), "n": batch((2, 9, 2))})["q"]
    assert rows_of(found) == {(3, 7): 1}


def test_a_query_sees_the_tuples_of_a_batch_that_is_computed_again_for_it() -> None:
    core = Shared(STREAMS)
    core.apply([Create("old", PAIRS + " WHERE x.p >= 0")])
    arrived = core.arrive(0, {"l": batch((1, 0, 0)), "r": batch((1, 5, 0))})
    core.results(arrived)
    core.apply([Create("new", PAIRS)])
    found, _ = core.results(arrived)
    assert {name: rows_of(table) for name, table in found.items()} == {"old": {(0, 5): 1}, "new": {(0, 5): 1}}
