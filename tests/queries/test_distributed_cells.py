"""Cells of the distributed engine in this process: random workloads against the oracle, however they are placed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from streamjoin.adhoc import Settings, Stream
from streamjoin.model.errors import CheckpointError
from streamjoin.queries.core.changes import Create, Drop
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.executors.distributed.cell import Cell, run_cell
from streamjoin.queries.executors.distributed.parts import read_part
from streamjoin.queries.executors.distributed.placement import place
from streamjoin.queries.language.sql import parse
from tests.oracles import adhoc_cases, adhoc_kind_cases
from tests.queries.cell_grid import Grid
from tests.queries.core_cases import Rows, check_kinds, lateness_of, rows_of, streams_of, wanted_of
from tests.seeds import examples

SLOW = settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(("cells", "workers", "resizes"), [(1, 1, False), (2, 1, False), (4, 3, False), (6, 2, True)])
def test_random_workloads_give_what_the_oracle_says(
    cells: int, workers: int, resizes: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    @SLOW
    @given(adhoc_cases.cases())
    def check(case: adhoc_cases.AdhocCase) -> None:
        grid = Grid(
            tmp_path_factory.mktemp("grid"),
            streams_of(case),
            cells,
            workers,
            lateness=lateness_of(case),
            replan_every=2,
        )
        found: dict[str, dict[int, Rows]] = {query.name: {} for query in case.queries}
        for batch in range(len(case.batches)):
            changes = [Drop(q.name) for q in case.queries if q.life.dropped == batch]
            changes += [Create(q.name, q.text) for q in case.queries if q.life.created == batch]
            grid.core.apply(changes)
            if resizes and batch % 2:
                grid.resize()
            if workers > 1 and batch % 2:
                grid.call_heavy(case.tables(batch))
            for name, rows in grid.batch(batch, case.tables(batch)).items():
                found[name][batch] = rows
        wanted = wanted_of(case)
        for query in case.queries:
            assert found[query.name] == wanted[query.name], query.text

    check()


@pytest.mark.parametrize(("cells", "workers", "resizes"), [(3, 1, False), (4, 3, True)])
def test_other_joins_than_inner_ones_give_what_the_oracle_says(
    cells: int, workers: int, resizes: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Workers change and forget, so that what waits is in memory, in the files of one cell, or in those of all."""

    @settings(SLOW, max_examples=examples(25))
    @given(adhoc_kind_cases.kind_cases())
    def check(case: adhoc_kind_cases.KindCase) -> None:
        directory = tmp_path_factory.mktemp("grid")
        options = {"lateness": lateness_of(case.inner), "replan_every": 2, "future": None}
        grid = Grid(directory, streams_of(case.inner), cells, workers, **options)
        queries: list[Any] = [*case.inner.queries, *case.queries]
        found: dict[str, dict[int, Rows]] = {query.name: {} for query in queries}
        for batch in range(len(case.inner.batches)):
            grid.core.apply([Drop(q.name) for q in queries if q.life.dropped == batch])
            grid.core.apply([Create(q.name, q.text) for q in queries if q.life.created == batch])
            if resizes and batch % 2:
                grid.resize()
            if grid.random.random() < 0.5:
                grid.call_heavy(case.inner.tables(batch))
            for name, rows in grid.batch(batch, case.inner.tables(batch)).items():
                found[name][batch] = rows
        check_kinds(case, found)

    check()


@pytest.mark.parametrize(
    ("text", "routes"),
    [
        ("l x LEFT JOIN r y WITHIN 5 UNITS ON x.k = y.k", {"l": ["key"], "r": ["key"]}),
        ("l x FULL JOIN r y WITHIN 5 UNITS ON x.k = y.k AND x.t <> y.t", {"l": ["key"], "r": ["key"]}),
        ("l x LEFT JOIN r y WITHIN 5 UNITS ON ABS(x.k - y.k) <= 1", {"l": ["owner"], "r": ["span"]}),
        ("l x RIGHT JOIN r y WITHIN 5 UNITS ON ABS(x.k - y.k) <= 1", {"l": ["span"], "r": ["owner"]}),
        ("l x FULL JOIN r y WITHIN 5 UNITS ON ABS(x.k - y.k) <= 1", {"l": [], "r": []}),
        ("l x ANTI JOIN r y WITHIN 5 UNITS ON x.k <> y.k", {"l": ["spread"], "r": ["all"]}),
        ("l x RIGHT JOIN r y WITHIN 5 UNITS ON x.k <> y.k", {"l": ["all"], "r": ["spread"]}),
        ("l x SEMI JOIN l y WITHIN 5 UNITS ON x.k = y.k", {"l": ["key"]}),
        ("l x SEMI JOIN l y WITHIN 5 UNITS ON x.k = y.t", {"l": []}),
        # The two streams of the inner join may differ in `t`, and their result comes out unmatched then.
        (
            "l x JOIN r y WITHIN 5 UNITS ON x.k = y.k LEFT JOIN s z WITHIN 5 UNITS ON x.t = z.t AND y.t = z.t",
            {"l": ["key", "key"], "r": ["key", "all"], "s": ["all", "key"]},
        ),
        (
            "l x JOIN r y WITHIN 5 UNITS ON x.k = y.k FULL JOIN s z WITHIN 5 UNITS ON x.t = z.t",
            {"l": ["key"], "r": ["all"], "s": ["key"]},
        ),
        (
            "l x SEMI JOIN r y WITHIN 5 UNITS ON x.k = y.k ANTI JOIN s z WITHIN 5 UNITS ON x.t = z.t",
            {"l": ["key", "key"], "r": ["key", "all"], "s": ["all", "key"]},
        ),
    ],
)
def test_whoever_may_come_out_unmatched_lies_in_one_cell_with_all_it_can_match(
    text: str, routes: dict[str, list[str]]
) -> None:
    schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
    query = parse(f"SELECT x.t AS a FROM {text}", [Stream(name, schema, "t") for name in "lrs"])
    placement = place(query, 0, False)
    assert {name: [route.kind for route in found] for name, found in placement.routes.items()} == routes
    assert placement.waits and len(set(map(len, routes.values()))) == 1


def test_silence_does_not_move_the_clock_of_a_stream_that_is_being_read(tmp_path: Path) -> None:
    """Its tasks set late tuples aside by the clock at their begin: what a later clock decides they could contradict."""
    schema, now = pa.schema({"k": pa.int64(), "t": pa.int64()}), [0]
    streams = [Stream(name, schema, "t") for name in "lr"]
    grid = Grid(tmp_path, streams, 2, 1, lambda: now[0], future=None, idle="1 second")
    grid.core.apply([Create("q", "SELECT x.t AS a FROM l x ANTI JOIN r y WITHIN 5 UNITS ON x.k = y.k")])
    grid.batch(0, {name: pa.table([[1], [0]], schema=schema) for name in "lr"})
    grid.batch(1, {"l": pa.table([[2, 2], [10, 80]], schema=schema)})
    now[0] = 5 * 10**9
    assert grid.core.time_to_idle() == 0
    assert grid.core.time_bounds("r", 0) == (0, (1 << 63) - 1)
    assert grid.core.time_to_idle() is None, "a batch that moves no clock would be followed by the next at once"
    assert grid.batch(2, {"l": pa.table([[2], [95]], schema=schema)}) == {}
    # Now its tuples are in a batch, as late as they may be, and with the next silence the clock moves.
    assert grid.batch(3, {"r": pa.table([[2], [5]], schema=schema)}) == {}
    now[0] = 50 * 10**9
    assert grid.batch(4, {"l": pa.table([[3], [96]], schema=schema)}) == {"q": Rows({(80,): 1})}


def played(tmp_path: Path, batches: int) -> Grid:
    """One cell, which has had batches with one tuple of the same key from each stream."""
    schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
    grid = Grid(tmp_path, [Stream(name, schema, "t") for name in "lr"], 1, 1)
    grid.core.apply([Create("q", "SELECT x.k AS a FROM l x JOIN r y WITHIN 9 UNITS ON x.k = y.k")])
    for number in range(batches):
        rows = grid.batch(number, {name: pa.table({"k": [1], "t": [number]}) for name in "lr"})
        assert rows == {"q": Rows({(1,): 2 * number + 1})}
    return grid


def test_a_straggler_of_an_older_batch_leaves_a_cell_as_it_is(tmp_path: Path) -> None:
    """A second attempt of a task may begin when its batch is done, in a process that is further on."""
    grid = played(tmp_path, 4)
    worker = grid.workers[0]
    before = dict(worker)
    old = run_cell(grid.assignments[1], lambda: grid.sent.whole, 0, worker)
    assert (old.rows.counts, old.rebuilt, old.tuples) == ({"q": 3}, True, 4)
    grid.bucket("l", 0).unlink()
    with pytest.raises(CheckpointError, match="l-0"):
        run_cell(grid.assignments[1], lambda: grid.sent.whole, 0, worker)
    assert worker == before and worker[grid.sent.run, 0].batch == 3


def test_a_cell_that_failed_on_the_way_begins_anew(tmp_path: Path) -> None:
    grid = played(tmp_path, 3)
    worker: dict[tuple[str, int], Cell] = {}
    run_cell(grid.assignments[0], lambda: grid.sent.whole, 0, worker)
    # It has missed a batch, and can't read it at first.
    hidden = grid.bucket("l", 1).rename(tmp_path / "hidden")
    with pytest.raises(CheckpointError, match="l-1"):
        run_cell(grid.assignments[2], lambda: grid.sent.whole, 0, worker)
    assert not worker
    hidden.rename(grid.bucket("l", 1))
    found = run_cell(grid.assignments[2], lambda: grid.sent.whole, 0, worker)
    assert (found.rows.counts, found.rebuilt) == ({"q": 5}, True)


def test_the_plan_is_explained_by_what_cells_did(tmp_path: Path) -> None:
    schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
    streams = [Stream(name, schema, "t") for name in "lrs"]
    grid, whole = Grid(tmp_path, streams, 3, 2), Shared(streams)
    joins = "JOIN r y WITHIN 9 UNITS ON x.k = y.k JOIN s z WITHIN 9 UNITS ON y.k = z.k"
    grid.repeats = [1]
    for core in (grid.core, whole):
        core.apply(
            [
                Create("q", f"SELECT x.k FROM l x {joins}"),
                Create("p", "SELECT x.k FROM l x JOIN r y WITHIN 9 UNITS ON x.k = y.k"),
            ]
        )
    for number in range(4):
        tables = {name: pa.table({"k": [n % 5 for n in range(20)], "t": [number] * 20}) for name in "lrs"}
        whole.process(number, tables)
        grid.batch(number, tables)
        assert all(set(part.seconds) == {"sets", "joins", "rows"} for one in grid.results for part in one.figures)
        grid.core.take_figures([part for one in grid.results for part in one.figures])
    one, other = (
        {
            (root.driver, step.condition, step.stream): (step.probes, step.candidates, step.pairs)
            for root in core.explain().roots
            for step in root.step.walk()
        }
        for core in (grid.core, whole)
    )
    assert one == other and all(pairs for _, _, pairs in one.values())


def test_queries_by_many_attributes_move_to_one_placement_and_lose_no_tuple(tmp_path: Path) -> None:
    """With two cells, three placements hold more than one stream divided and the other one whole."""
    schema = pa.schema({**{f"a{number}": pa.int64() for number in range(4)}, "t": pa.int64()})
    rng = random.Random(5)
    tables = [
        {name: pa.table([[rng.randrange(6) for _ in range(30)] for _ in range(4)] + [[batch] * 30], schema=schema)}
        for batch in range(6)
        for name in "lr"
    ]
    streams = [Stream(name, schema, "t") for name in "lrs"]
    grid, whole = Grid(tmp_path, streams, 2, 1), Shared(streams)
    placements = []
    for number, batches in enumerate(tables):
        # A key, then others: the first query has seen tuples that no placement but its own has.
        changes: list[Any] = []
        if number % 2 == 0 and number < 8:
            a = number // 2
            text = f"SELECT x.a0 AS p, y.a1 AS q, x.t AS s FROM l x JOIN r y WITHIN 9 UNITS ON x.a{a} = y.a{a}"
            changes = [Create(f"q{a}", text)]
        if number == 8:
            # A placement by the first query's key, which has none of the earlier tuples.
            changes = [Create("late", "SELECT x.a0 AS p FROM r x JOIN s y WITHIN 9 UNITS ON x.a0 = y.a0")]
        if number == 10:
            changes = [Drop(f"q{a}") for a in (1, 2, 3)]
        for core in (grid.core, whole):
            core.apply(changes)
        wanted = {name: rows_of(table) for name, table in whole.process(number, batches).items() if table.num_rows}
        assert grid.batch(number, batches) == wanted
        found = grid.sent.placements.current.values()
        placements.append([sorted(route.kind for (route,) in one.routes.values()) for one in found])
    assert placements[0] == [["key", "key"]]
    assert placements[3] == 2 * [["key", "key"]]
    assert placements[9] == [["all", "spread"], ["key", "key"]]
    assert placements[-1] == [["key", "key", "key"]]


def test_plans_follow_costs_that_cells_measure_as_in_one_process(tmp_path: Path) -> None:
    """Two crowds of queries that want different tuples, and a three-way join whose streams differ in size."""
    schema = pa.schema({"k": pa.int64(), "v": pa.int64(), "t": pa.int64()})
    streams = [Stream(name, schema, "t") for name in "lrs"]
    options: dict[str, Any] = {"replan_every": 2, "group_cost": 20.0, "hysteresis": 0.0}
    grid, whole = Grid(tmp_path, streams, 3, 1, **options), Shared(streams, Settings(**options))
    crowds = [f"x.v {sign} {value} AND y.v {sign} {value}" for sign in "<>" for value in (500, 500 + (sign == ">"))]
    texts = [f"SELECT x.t AS a FROM l x JOIN r y WITHIN 3 UNITS ON x.k = y.k WHERE {found}" for found in crowds]
    texts.append(
        "SELECT x.t AS a FROM l x JOIN r y WITHIN 3 UNITS ON x.k = y.k "
        "JOIN s z WITHIN 3 UNITS ON y.k = z.k WHERE z.v = 1"
    )
    for core in (grid.core, whole):
        core.apply([Create(f"q{number}", text) for number, text in enumerate(texts)])
    first = whole.plan
    rng = random.Random(7)
    for batch in range(8):
        tables = {
            name: pa.table(
                [[rng.randrange(40) for _ in range(rows)], [rng.randrange(1000) for _ in range(rows)], [batch] * rows],
                schema=schema,
            )
            for name, rows in (("l", 200), ("r", 300), ("s", 50))
        }
        wanted = {name: rows_of(table) for name, table in whole.process(batch, tables).items() if table.num_rows}
        assert grid.batch(batch, tables) == wanted
        assert grid.core.snapshot().optimizer.plan.choices == whole.plan.choices, batch
    assert whole.plan.choices != first.choices
    assert {choice.group for choice in whole.plan.choices.values()} == {0, 1}
    assert grid.core.snapshot().optimizer.statistics.streams["l"].rate == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("divided", "columns", "joined"),
    [
        ("l", ", y.v AS b", "LEFT JOIN r y WITHIN 2 UNITS ON x.k = y.k AND x.v < y.v"),
        ("r", ", y.v AS b", "RIGHT JOIN r y WITHIN 2 UNITS ON x.k = y.k AND x.v < y.v"),
        ("l", "", "SEMI JOIN r y WITHIN 2 UNITS ON x.k = y.k AND x.v < y.v"),
        ("l", "", "ANTI JOIN r y WITHIN 2 UNITS ON x.k = y.k AND y.v > x.v + 90"),
        ("l", ", y.v AS b", "ASOF JOIN r y MATCH_CONDITION (x.t <= y.t) ON x.k = y.k TOLERANCE 3 UNITS"),
        ("l", ", y.v AS b", "ASOF LEFT JOIN r y MATCH_CONDITION (x.t >= y.t) ON x.k = y.k"),
        (
            "l",
            ", sum(y.v) AS b",
            "WINDOW JOIN r y ON x.k = y.k RANGE BETWEEN 3 UNITS PRECEDING AND 1 UNIT FOLLOWING INCLUDE PREVAILING",
        ),
    ],
)
def test_a_heavy_key_is_divided_where_tuples_wait(tmp_path: Path, divided: str, columns: str, joined: str) -> None:
    """Half of all tuples have one key: no cell has most of them, and every tuple comes out as in one process."""
    schema = pa.schema({"k": pa.int64(), "v": pa.int64(), "t": pa.int64()})
    streams = [Stream(name, schema, "t") for name in "lr"]
    cells, most = 4, []
    grid, whole = Grid(tmp_path, streams, cells, 1, replan_every=1), Shared(streams)
    grid.repeats = [1]
    for core in (grid.core, whole):
        core.apply([Create("q", f"SELECT x.v AS a{columns} FROM l x {joined}")])
    rng, out = random.Random(7), 0
    for batch in range(12):
        keys = [[rng.choice([0, rng.choice([None, *range(1, 200)])]) for _ in range(400)] for _ in range(2)]
        if batch >= 8:
            keys = [[rng.randrange(200) for _ in range(400)] for _ in range(2)]
        tables = {
            name: pa.table([own, [rng.randrange(100) for _ in own], [batch] * len(own)], schema=schema)
            for name, own in zip("lr", keys, strict=True)
        }
        wanted = {name: rows_of(table) for name, table in whole.process(batch, tables).items() if table.num_rows}
        assert grid.batch(batch, tables) == wanted
        out += sum(sum(rows.values()) for rows in wanted.values())
        (placement,) = grid.sent.placements.current.values()
        parts = grid.assignments[-1].fresh[divided].parts
        rows = [
            sum(placement.groups(divided, cells).rows(read_part(part, schema).table, cell).size for part in parts)
            for cell in range(cells)
        ]
        assert sum(rows) == 400
        most.append(max(rows))
    assert out > 100
    assert most[0] > 200, "no cell has been looked at yet"
    assert max(most[2:8]) < 140


def test_a_full_join_leaves_a_heavy_key_where_it_is(tmp_path: Path) -> None:
    """Both sides may come out unmatched: a copy of either would, in each cell that has one."""
    schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
    streams = [Stream(name, schema, "t") for name in "lr"]
    grid, whole = Grid(tmp_path, streams, 3, 1, replan_every=1), Shared(streams)
    text = "SELECT x.t AS a, y.t AS b FROM l x {} JOIN r y WITHIN 1 UNITS ON x.k = y.k"
    for core in (grid.core, whole):
        core.apply([Create(name, text.format(name)) for name in ("FULL", "LEFT", "RIGHT")])
    for batch in range(6):
        tables = {name: pa.table([[n % 2 * n for n in range(20)], [batch] * 20], schema=schema) for name in "lr"}
        wanted = {name: rows_of(table) for name, table in whole.process(batch, tables).items() if table.num_rows}
        assert grid.batch(batch, tables) == wanted
    found = grid.sent.placements.current.values()
    divided = [{name: route.divided for name, (route,) in one.routes.items() if route.heavy} for one in found]
    assert sorted(map(sorted, (one.items() for one in divided))) == [
        [],
        [("l", False), ("r", True)],
        [("l", True), ("r", False)],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("cells", [2, 5])
def test_a_heavy_key_is_divided_among_cells_and_put_together_again(tmp_path: Path, cells: int) -> None:
    schema = pa.schema({"k": pa.string(), "t": pa.int64()})
    streams = [Stream(name, schema, "t") for name in "lrs"]
    grid, whole = Grid(tmp_path, streams, cells, 1, replan_every=1), Shared(streams)
    texts = {
        "two": "SELECT x.t AS a, y.t AS b FROM l x JOIN r y WITHIN 4 UNITS ON x.k = y.k",
        "three": "SELECT x.t AS a FROM l x JOIN r y WITHIN 2 UNITS ON x.k = y.k JOIN s z WITHIN 2 UNITS ON y.k = z.k",
        "itself": "SELECT x.t AS a, y.t AS b FROM l x JOIN l y WITHIN 1 UNITS ON x.k = y.k",
        "rows": "SELECT x.t AS a, y.t AS b FROM r x JOIN s y WITHIN 20 ROWS ON x.k = y.k",
    }
    for core in (grid.core, whole):
        core.apply([Create(name, text) for name, text in texts.items()])
    rng = random.Random(3)
    decided, most = [], []
    for batch in range(8):
        # From the third batch on one key has most tuples, and at last none has.
        keys = ["heavy"] * 40 if 2 <= batch < 6 else []
        tables = {
            name: pa.table(
                [[rng.choice([*keys, *map(str, range(60))]) for _ in range(100)], [batch] * 100], schema=schema
            )
            for name in "lrs"
        }
        wanted = {name: rows_of(table) for name, table in whole.process(batch, tables).items() if table.num_rows}
        assert grid.batch(batch, tables) == wanted
        routes = [route for one in grid.sent.placements.current.values() for (route,) in one.routes.values()]
        decided.append(sum(bool(route.heavy) for route in routes))
        counts = [result.rows.counts.get("two", 0) for result in grid.results]
        most.append(max(counts) / sum(counts))
    assert not decided[1] and decided[4] and not decided[-1]
    # The batch that brings the key finds nearly all rows in its cell; later ones have them in all.
    assert most[2] > 0.7
    assert most[4] < most[2] - 0.15
