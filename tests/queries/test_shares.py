"""Shares of a batch: how they are cut and how many there are, and copies of the core that run them."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.model.errors import CheckpointError
from streamjoin.queries.core.changes import Create, Drop
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared, ShareFigures
from streamjoin.queries.engine.journal import write_table
from streamjoin.queries.executors.replica import Assignment, Delta, Replica, run_share, unpacked
from streamjoin.queries.executors.shares import balanced, even_cuts, fixed, following_load, shares_of
from streamjoin.queries.language.plan import Stream
from streamjoin.queries.optimizer.plans import Plan
from tests.oracles import adhoc_kind_cases
from tests.queries.core_cases import Rows, lateness_of, rows_of, streams_of

SLOW = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


def test_the_number_of_shares_follows_the_load_and_does_not_flap() -> None:
    scaling = following_load(8, threshold=1.0)
    told: list[str] = []
    counts = []
    load = [0.1] * 3 + [5.0] * 12 + [3.0] * 10 + [0.01] * 40
    for seconds in load:
        # More shares take less time, but a job has a floor.
        taken = seconds / max(1, scaling.shares) + 0.05
        scaling, decided = scaling.after(taken, (), 1000)
        told += decided
        counts.append(scaling.shares)
    assert counts[2] == 0
    assert max(counts) == 8
    assert counts[14] == 8, "a load of 5 s in shares of at most 1 s"
    assert counts[24] == 8, "two fifths of a threshold are no reason to go down"
    assert counts[-1] == 0
    assert [text.split(":")[0] for text in told] == [
        "no to 2 shares",
        "2 to 4 shares",
        "4 to 8 shares",
        "8 to 4 shares",
        "4 to 2 shares",
        "2 to no shares",
    ]
    assert "1,000 tuples, over the 1 s allowed" in told[0]
    assert fixed(3).after(9.0, (), 10)[0].shares == 3


def test_cuts_move_to_where_the_work_is() -> None:
    # All work lies in the first tenth: four shares come to share it.
    scaling = fixed(4)
    decisions = 0
    for _ in range(20):
        work = tuple(
            max(0.0, min(0.1, high) - min(0.1, low)) for low, high in zip(scaling.cuts, scaling.cuts[1:], strict=False)
        )
        scaling, told = scaling.after(1.0, tuple(10 * part for part in work), 100)
        decisions += len(told)
    assert max(work) < 1.3 * sum(work) / 4
    assert 0 < decisions < 20, "it stops once the work is even"
    assert scaling.cuts[0] == 0.0
    assert scaling.cuts[-1] == 1.0
    assert balanced((0.0, 0.5, 1.0), (0.0, 0.0)) == (0.0, 0.5, 1.0)


class Spread:
    """Runs batches by copies of the core as tasks do: any copy may get any share, and miss batches."""

    def __init__(self, directory: Path, core: Shared, copies: int) -> None:
        self.directory, self.core = directory, core
        self.processes: list[dict[str, Replica]] = [{} for _ in range(copies)]
        self.versions: list[Delta] = []
        self.base = 0
        self.sent: dict[str, Any] = {}
        self.figures: list[ShareFigures] = []
        self.assignments: list[Assignment] = []

    def deltas(self) -> None:
        state = self.core.snapshot()
        choices = state.optimizer.plan.choices
        now = {name: (query, choices[name]) for name, query in state.registry.running.items()}
        came = {n: query for n, query in now.items() if self.sent.get(n) != query}
        gone = tuple(n for n in self.sent if n not in now)
        self.versions.append(Delta(len(self.versions), tuple(self.core.streams.values()), came, gone))
        self.sent = now

    def whole(self) -> bytes:
        found: dict[str, Any] = {}
        for delta in self.versions[: self.base + 1]:
            found = {n: q for n, q in found.items() if n not in delta.gone} | dict(delta.came)
        return pickle.dumps(Delta(self.base, self.versions[self.base].streams, found, ()))

    def rows(self, arrived: Any, chosen: list[int]) -> dict[str, Rows]:
        self.deltas()
        for name, bucket in arrived.buckets.items():
            write_table(self.directory / f"{name}-{arrived.batch}", bucket.to_table())
        state = self.core.snapshot()
        assignment = Assignment(
            "run",
            arrived.batch,
            self.base,
            tuple(self.versions[self.base + 1 :]),
            {
                s: tuple((b.batch, str(self.directory / f"{s}-{b.batch}")) for b in held)
                for s, held in state.buckets.items()
            },
            {name: str(self.directory / f"{name}-{arrived.batch}") for name in arrived.buckets},
            state.clocks,
            tuple(shares_of(arrived.buckets, even_cuts(len(chosen)))),
        )
        assignment = pickle.loads(pickle.dumps(assignment))
        self.assignments.append(assignment)
        running = state.registry.running
        tables = {name: [entry.schema.empty_table()] for name, entry in running.items()}
        for share, copy in enumerate(chosen):
            given_back = pickle.loads(pickle.dumps(run_share(assignment, self.whole, share, self.processes[copy])))
            self.figures.append(given_back.figures)
            for name, data in given_back.rows.items():
                tables[name].append(unpacked(data, running[name].schema))
        rows, _ = self.core.complete(arrived, {name: pa.concat_tables(parts) for name, parts in tables.items()}, {})
        return {name: rows_of(table) for name, table in rows.items()}


@SLOW
@given(adhoc_kind_cases.kind_cases(most_queries=2), st.data())
def test_copies_give_what_the_core_gives_whatever_they_missed(
    tmp_path_factory: pytest.TempPathFactory, workload: adhoc_kind_cases.KindCase, data: st.DataObject
) -> None:
    case = workload.inner
    queries: list[Any] = [*case.queries, *workload.queries]
    core = Shared(streams_of(case), Settings(lateness=lateness_of(case), replan_every=2, hysteresis=0.0))
    spread = Spread(tmp_path_factory.mktemp("buckets"), core, 2)
    for number in range(len(case.batches)):
        core.apply([Drop(q.name) for q in queries if q.life.dropped == number])
        core.apply([Create(q.name, q.text) for q in queries if q.life.created == number])
        arrived = core.arrive(number, case.tables(number))
        if arrived.buckets and data.draw(st.booleans()) and spread.versions:
            spread.base = data.draw(st.integers(spread.base, len(spread.versions) - 1))
        if arrived.buckets:
            chosen = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=3))
            found = spread.rows(arrived, chosen)
            wanted, _ = core.results(arrived)
            assert found == {name: rows_of(table) for name, table in wanted.items()}
        core.finish(arrived, {})


@pytest.mark.parametrize("chosen", [[[0], [0], [0]], [[0], [1], [0]], [[0], [0], [1]], [[0, 1], [1], [0, 1]]])
def test_a_copy_that_missed_a_batch_keeps_what_that_batch_needs(tmp_path: Path, chosen: list[list[int]]) -> None:
    """The last b of the second batch is near the last c of the first, which no tuple to come can be near."""
    schema = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("t", pa.timestamp("ms"))])
    core = Shared([Stream(name, schema, "t") for name in "abc"], Settings(replan_every=2, hysteresis=0.0))
    spread = Spread(tmp_path, core, 2)
    near = "JOIN b y WITHIN 1 ROWS ON x.k = y.k JOIN c z WITHIN 1 ROWS ON y.k = z.k"
    text = f"SELECT x.id AS i, y.id AS j, z.id AS l FROM a x {near}"
    core.apply([Create("q", text)])
    numbers = itertools.count()
    for batch, (sizes, copies) in enumerate(zip([(1, 1, 1), (1, 1, 1), (1, 0, 0)], chosen, strict=True)):
        columns = {name: [next(numbers) for _ in range(n)] for name, n in zip("abc", sizes, strict=True)}
        tables = {
            name: pa.table({"id": ids, "k": [0] * len(ids), "t": [0] * len(ids)}, schema)
            for name, ids in columns.items()
        }
        arrived = core.arrive(batch, tables)
        found = spread.rows(arrived, copies)
        wanted, _ = core.results(arrived)
        assert found == {name: rows_of(table) for name, table in wanted.items()}
        core.finish(arrived, {})
    assert sorted(found["q"]) == [(6, 4, 2), (6, 4, 5)]


def test_a_copy_takes_another_plan_for_tuples_that_it_has_seen(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.timestamp("ms"))])
    core = Shared([Stream("a", schema, "t")], Settings(sharing="everything"))
    spread = Spread(tmp_path, core, 1)
    text = "SELECT x.k FROM a x JOIN a y WITHIN 9 ROWS ON x.k = y.k JOIN a z WITHIN 9 ROWS ON x.k = z.k"
    core.apply([Create("q", text)])
    counts = []
    for number, order in enumerate((("y", "z"), ("z", "y"))):
        orders = (("x", *order), ("y", "x", "z"), ("z", "x", "y"))
        core.adopt(Plan({"q": replace(core.plan.choices["q"], orders=orders)}))
        arrived = core.arrive(number, {"a": pa.table({"k": [1, 1], "t": pa.array([0, 0], schema.field("t").type)})})
        counts.append(sum(spread.rows(arrived, [0])["q"].values()))
        core.finish(arrived, {})
    assert counts == [2 * 1 * 1, 4 * 3 * 3 - 2], "any x, with other tuples as y and z; less those there were"


def test_a_copy_that_failed_on_the_way_begins_anew(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    core = Shared([Stream("a", schema, "t"), Stream("b", schema, "t")])
    spread = Spread(tmp_path, core, 2)
    core.apply([Create("q", "SELECT x.k FROM a x JOIN b y WITHIN 9 UNITS ON x.k = y.k")])
    counts = []
    for number in range(3):
        arrived = core.arrive(number, {name: pa.table({"k": [1], "t": [number]}, schema) for name in "ab"})
        if number == 2:
            # The first copy has missed a batch, and can't read it at first.
            missed = tmp_path / "a-1"
            hidden = missed.rename(tmp_path / "hidden")
            with pytest.raises(CheckpointError, match="a-1"):
                spread.rows(arrived, [0])
            hidden.rename(missed)
        counts.append(sum(spread.rows(arrived, [0 if number != 1 else 1])["q"].values()))
        core.finish(arrived, {})
    assert counts == [1, 3, 5]


def test_a_straggler_of_an_older_batch_leaves_a_copy_as_it_is(tmp_path: Path) -> None:
    """A second attempt of a task may begin when its batch is done, in a process that is further on."""
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    core = Shared([Stream("a", schema, "t"), Stream("b", schema, "t")])
    spread = Spread(tmp_path, core, 1)
    core.apply([Create("q", "SELECT x.k FROM a x JOIN b y WITHIN 9 UNITS ON x.k = y.k")])
    counts = []
    for number in range(4):
        arrived = core.arrive(number, {name: pa.table({"k": [1], "t": [number]}, schema) for name in "ab"})
        counts.append(sum(spread.rows(arrived, [0])["q"].values()))
        core.finish(arrived, {})
        if number == 2:
            old = run_share(spread.assignments[1], spread.whole, 0, spread.processes[0])
            assert old.counted == {"q": 3}
            (tmp_path / "a-0").rename(tmp_path / "gone")
            with pytest.raises(CheckpointError, match="a-0"):
                run_share(spread.assignments[1], spread.whole, 0, spread.processes[0])
    assert counts == [1, 3, 5, 7]


def test_the_plan_is_explained_by_what_tasks_did(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    streams = [Stream(name, schema, "t") for name in "abc"]
    alone, core = Shared(streams), Shared(streams)
    spread = Spread(tmp_path, core, 2)
    joins = "JOIN b y WITHIN 9 UNITS ON x.k = y.k JOIN c z WITHIN 9 UNITS ON y.k = z.k"
    for one in (alone, core):
        one.apply(
            [
                Create("q", f"SELECT x.k FROM a x {joins}"),
                Create("p", "SELECT x.k FROM a x JOIN b y WITHIN 9 ROWS ON x.k = y.k"),
            ]
        )
    for number in range(4):
        tables = {s.name: pa.table({"k": [n % 3 for n in range(9)], "t": [number] * 9}, schema) for s in streams}
        alone.process(number, tables)
        arrived = core.arrive(number, tables)
        spread.figures.clear()
        spread.rows(arrived, [number % 2, 1])
        core.take_figures(spread.figures)
        core.finish(arrived, {})
    # Candidates are fewer in one go, where both directions of a first join read them at once.
    figures = [
        {
            (root.driver, step.condition, step.stream): (step.probes, step.pairs)
            for root in one.explain().roots
            for step in root.step.walk()
        }
        for one in (alone, core)
    ]
    assert figures[0] == figures[1] and all(pairs for _, pairs in figures[0].values())
    assert all(set(found.seconds) == {"sets", "joins", "rows"} for found in spread.figures)
