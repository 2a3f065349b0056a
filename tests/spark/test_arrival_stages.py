"""Outer, semi and anti joins without a gate, stage by stage without Spark, against a model of what each batch gives."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.model.spec import How
from streamjoin.spark.stages.facts import bound_of, punctuation_of
from streamjoin.spark.stages.figures import standing
from streamjoin.spark.stages.gating import SourceProgress, Standing
from streamjoin.spark.stages.undecided import undecided
from streamjoin.storage.background import merge_due
from streamjoin.storage.blueprint import Blueprint, SourcePlan
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import EMPTY
from streamjoin.storage.merging import MergePolicy
from streamjoin.storage.pieces import read_footer
from streamjoin.testing import conformance, oracle
from streamjoin.testing.cases import JoinCase
from tests.oracles.kind_cases import as_of_cases, extreme_cases, kind_cases, tied_as_of_cases
from tests.seeds import examples
from tests.spark.arrival_model import AsOfModel, Ids, Model, Row
from tests.spark.gated import SCHEMA, gated_batch, gated_blueprint, gated_table
from tests.spark.joining import BACKGROUND, EAGER, in_process

LIGHT = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
ONE = (SourcePlan("0000"),)
_SPEC = sj.JoinSpec(sj.Equi("x"), sj.TimeWindow(5), time="t", order="event_time", how="left")


def _timed(case: JoinCase) -> JoinCase:
    """The case with windows of time."""
    left, right = (
        window if isinstance(window, sj.TimeWindow) else sj.TimeWindow(3 * window.n) for window in case.spec.windows
    )
    case = replace(case, spec=replace(case.spec, window=left if case.spec.self_join else (left, right)))
    # Intervals pass the gate.
    assume(_plan(case, 1, EAGER).bound.intervals is None)
    return case


def _plan(case: JoinCase, partitions: int, policy: MergePolicy) -> Blueprint:
    bound = bind(case.spec, *case.schemas)
    return Blueprint(bound, "join", partitions, policy, token="0" * 32, former_sources=("0000", "0000"))


def _deal(case: JoinCase, rng: random.Random) -> Iterator[Sequence[Sequence[Row]]]:
    """The rows of each side, somewhat out of order, in batches of random sizes; a side may lag far behind the other."""
    sides = (0,) if case.spec.self_join else (0, 1)
    queues = [[dict(e.row) for e in case.events if case.spec.self_join or e.right == bool(side)] for side in sides]
    for queue in queues:
        for _ in range(len(queue) // 3):
            at = rng.randrange(len(queue))
            queue.insert(min(len(queue), at + rng.randrange(5)), queue.pop(at))
    while any(queues):
        sent = [queue[: rng.choice([0, 1, 5, 20])] for queue in queues]
        for queue, rows in zip(queues, sent, strict=True):
            del queue[: len(rows)]
        yield sent


def _run(case: JoinCase, seed: int, gated: int = 0, partitions: Sequence[int] = (3, 1, 5)) -> None:
    """All batches, the first `gated` of them behind a gate as in earlier versions, and the end of input."""
    rng, model = random.Random(seed), Model(case) if case.spec.match is None else AsOfModel(case)
    plans = [_plan(case, p, rng.choice([EAGER, BACKGROUND, MergePolicy()])) for p in partitions]
    root = Path(tempfile.mkdtemp())
    found: Counter[Ids] = Counter()
    # Merges are written only into a log that has begun.
    (root / "join.json").write_text("{}")
    try:
        nothing: Sequence[Sequence[Row]] = [[]] if case.spec.self_join else [[], []]
        batches = [*_deal(case, rng), nothing]
        for batch, sent in enumerate(batches):
            model.add(sent if len(sent) == 2 else [sent[0], sent[0]])
            tables = [conformance.table(rows, schema) for rows, schema in zip(sent, case.schemas, strict=False)]
            if batch < gated:
                plan = gated_blueprint(
                    case.spec, case.schemas, rng.choice([1, 3]), (ONE, ONE), ordered=False, shared=False
                )
                sources = {(side, 0): table for side, table in enumerate(tables)}
                found.update(conformance.ids(gated_batch(plan, root, batch, sources, epoch=9 * batch + 1)))
                continue
            ends, plan, epoch = batch == len(batches) - 1, plans[batch % 3], 9 * batch + 1
            while rng.random() < 0.2:
                # A start that is killed leaves some of its pieces.
                only = rng.sample(range(plan.partitions), rng.randint(1, plan.partitions))
                in_process(plans[rng.randrange(3)], root, batch, tables, epoch, only, ends=ends, rows_a_task=3)
                epoch += 1
            parts = in_process(plan, root, batch, tables, epoch, ends=ends, rows_a_task=rng.choice([2, 7, 64]))
            for part in parts:
                found.update(conformance.ids(pa.Table.from_batches([part])))
            there, final = model.rows()
            assert found == (final if ends else there)
            if not ends:
                log = WindowLog(root, epoch, plan)
                if case.spec.how != "inner" and (case.spec.match is None or case.spec.how == "left"):
                    assert undecided(plan, log, batch).total == (final - found).total()
                assert sum(log.version(batch).late.values()) == model.late
                if rng.random() < 0.5:
                    merge_due(plan, log, batch)
    finally:
        shutil.rmtree(root)


@LIGHT
@given(case=kind_cases("event_time"), seed=st.integers(0, 99))
def test_every_batch_gives_what_its_facts_decide(case: JoinCase, seed: int) -> None:
    _run(_timed(case), seed)


@LIGHT
@given(case=kind_cases("event_time", self_join=True), seed=st.integers(0, 99))
def test_self_joins_give_what_their_facts_decide(case: JoinCase, seed: int) -> None:
    _run(_timed(case), seed)


@LIGHT
@given(case=extreme_cases(kind_cases("event_time")), seed=st.integers(0, 99))
def test_times_at_the_ends_of_int64_are_decided(case: JoinCase, seed: int) -> None:
    _run(_timed(case), seed)


@LIGHT
@given(
    case=kind_cases("event_time") | kind_cases("event_time", self_join=True),
    seed=st.integers(0, 99),
    gated=st.integers(1, 4),
)
def test_a_checkpoint_of_a_join_with_a_gate_goes_on_without_it(case: JoinCase, seed: int, gated: int) -> None:
    _run(_timed(case), seed, gated)


@pytest.mark.parametrize(
    ("how", "on", "match"),
    [
        ("full", sj.Band("x", "x", 1), lambda a, b: abs(a["x"] - b["x"]) <= 1),
        ("left", sj.Equi("x"), lambda a, b: a["x"] == b["x"]),
        ("semi", sj.Band("x", "x", 9), lambda a, b: abs(a["x"] - b["x"]) <= 9),
        ("full", "l.x + r.x > 9", lambda a, b: a["x"] + b["x"] > 9),
    ],
)
@pytest.mark.parametrize("keys", [1, 40])
def test_marks_are_found_in_ranges_of_a_few_words_and_of_parts_of_one(
    how: How, on: sj.JoinPredicate | str, match: oracle.Match, keys: int
) -> None:
    """Where the rows of one word are divided, the marks of a row may lie in another part of it."""
    spec = sj.JoinSpec(on, (sj.TimeWindow(25), sj.TimeWindow(40)), "t", "event_time", how, lateness=3)
    rng = random.Random(keys)
    events, t = [], 0
    for i in range(100):
        t += rng.choice([0, 0, 1, 2])
        events.append(oracle.Event(rng.random() < 0.3, {"t": t, "x": rng.randint(0, keys), "id": i}, t))
    case = JoinCase(spec, match, (SCHEMA, SCHEMA), tuple(oracle.event_time_order(events)), ())
    _run(case, keys, partitions=(9, 4, 12))


@settings(LIGHT, max_examples=examples(20))
@given(case=kind_cases("event_time"), seed=st.integers(0, 99))
def test_facts_decide_as_a_gate_would(case: JoinCase, seed: int) -> None:
    """Beside each other, on the same batches: clocks, the bound, and which rows are late."""
    case = _timed(case)
    plan = _plan(case, 3, EAGER)
    gate = gated_blueprint(case.spec, case.schemas, 2, (ONE, ONE), ordered=False, shared=False)
    root = Path(tempfile.mkdtemp())
    try:
        for batch, sent in enumerate(_deal(case, random.Random(seed))):
            tables = [conformance.table(rows, schema) for rows, schema in zip(sent, case.schemas, strict=True)]
            in_process(plan, root / "a", batch, tables, rows_a_task=3)
            gated_batch(gate, root / "b", batch, {(side, 0): table for side, table in enumerate(tables)})
            version = WindowLog(root / "a", 1, plan).version(batch)
            log = WindowLog(root / "b", 1, gate)
            standing = Standing.from_json(log.gate(batch)[0]["standing"])
            assert version.clocks == tuple(standing.sources[side, "0000"].clock for side in (0, 1))
            assert bound_of(plan, version.clocks) in (standing.bound[0], None)
            assert version.late == log.version(batch).late
            assert version.counts == tuple(
                sum(len(rows[side]) for rows in [*_deal(case, random.Random(seed))][: batch + 1]) for side in (0, 1)
            )
    finally:
        shutil.rmtree(root)


def test_ranges_that_were_told_different_facts_are_no_version(tmp_path: Path) -> None:
    plan = _plan(JoinCase(_SPEC, lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 2, EAGER)
    sides = [gated_table((1, 7, 0), (2, 8, 1)), gated_table((1, 7, 2))]
    in_process(plan, tmp_path, 0, sides, only=[0])
    in_process(plan, tmp_path, 0, [sides[0].slice(1), sides[1]], only=[1])
    with pytest.raises(sj.CheckpointError, match="the pieces of version 0 of the window log disagree"):
        WindowLog(tmp_path, 1, plan).version(0)


def test_a_match_and_an_eviction_in_one_batch_and_a_side_that_lags(tmp_path: Path) -> None:
    """A left tuple that matches and leaves, one that is gone when it comes, and one without a key."""
    plan = _plan(JoinCase(_SPEC, lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 3, EAGER)
    steps: list[tuple[list[tuple[int, int | None, int]], list[tuple[int, int | None, int]], list[Ids]]] = [
        ([(0, 1, 0), (1, 2, 1)], [(0, 9, 10)], []),
        ([(2, 1, 2)], [(4, 1, 11), (90, 3, 12)], [(0, 11), (1, None), (2, 11)]),
        # Behind the right side by more than the window: gone at once, matched or not.
        ([(3, 1, 3), (4, 5, 4), (5, None, 5)], [], [(3, 11), (4, None), (5, None)]),
        ([(91, 3, 6), (91, None, 7)], [(91, 8, 13)], [(6, 12)]),
        ([], [(96, 8, 14)], []),
        ([], [(97, 8, 15)], [(7, None)]),
    ]
    for batch, (left, right, wanted) in enumerate(steps):
        parts = in_process(plan, tmp_path, batch, [_rows(left), _rows(right)])
        found = [ids for part in parts for ids in conformance.ids(pa.Table.from_batches([part]))]
        assert sorted(found, key=str) == sorted(wanted, key=str), batch
    bounds = [json.loads(path.read_bytes())["bound"] for path in sorted(tmp_path.glob("punctuations/*.json"))]
    # Nothing before the slower side, and no unmatched left tuple before what has left.
    assert bounds == [-5, 2, 5, 86, 91, 91]


def _rows(rows: Sequence[tuple[int, int | None, int]]) -> pa.Table:
    return pa.Table.from_pylist([{"t": t, "x": x, "id": i} for t, x, i in rows], SCHEMA)


def test_marks_and_waiting_rows_of_a_gate_are_taken_over_for_good(tmp_path: Path) -> None:
    """A left tuple that matched behind the gate, one that did not, and one that waited in it; later all are gone."""
    spec = replace(_SPEC, window=sj.TimeWindow(50))
    gate = gated_blueprint(spec, (SCHEMA, SCHEMA), 2, (ONE, ONE), ordered=False, shared=False)
    left, right = _rows([(1, 1, 0), (2, 2, 1), (30, 7, 2)]), _rows([(1, 1, 10), (2, 9, 11)])
    found = [conformance.ids(gated_batch(gate, tmp_path, 0, {(0, 0): left, (1, 0): right}))]
    plan = _plan(JoinCase(spec, lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 3, EAGER)
    for batch, row in enumerate([(29, 7, 12), (31, 8, 13), (200, 8, 14)], 1):
        parts = in_process(plan, tmp_path, batch, [_rows([]), _rows([row])], epoch=2)
        found.append([ids for part in parts for ids in conformance.ids(pa.Table.from_batches([part]))])
    assert found == [[(0, 10)], [(2, 12)], [], [(1, None)]]


@pytest.mark.parametrize("on", [sj.Equi("x"), sj.Band("x", "x", 1)])
def test_rows_that_waited_in_a_gate_came_before_new_ones_at_their_time(on: sj.JoinPredicate, tmp_path: Path) -> None:
    spec = replace(_SPEC, on=on, window=None, match=sj.AsOf("backward", tolerance=50))
    gate = gated_blueprint(spec, (SCHEMA, SCHEMA), 2, (ONE, ONE), ordered=False, shared=False)
    sides = {(0, 0): _rows([(1, 1, 0)]), (1, 0): _rows([(5, 1, 10)])}
    assert gated_batch(gate, tmp_path, 0, sides).num_rows == 0
    plan = _plan(JoinCase(spec, lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 3, EAGER)
    found = []
    for batch, (left, right) in enumerate([([(5, 1, 1)], [(5, 1, 11)]), ([], [(9, 1, 12)])], 1):
        parts = in_process(plan, tmp_path, batch, [_rows(left), _rows(right)], epoch=2)
        found.append(sorted(ids for part in parts for ids in conformance.ids(pa.Table.from_batches([part]))))
    assert found == [[(0, None)], [(1, 11)]]


def test_rows_that_a_gate_no_longer_waited_for_are_late(tmp_path: Path) -> None:
    """The right side was idle, so the gate gave out the first left row alone; nothing may match it any more."""
    gate = gated_blueprint(_SPEC, (SCHEMA, SCHEMA), 2, (ONE, ONE), idle_ms=1000, ordered=False, shared=False)
    found = []
    for batch, (left, right) in enumerate([([(1, 1, 0), (4, 2, 1)], [(4, 9, 10)]), ([(8, 8, 2)], [])]):
        sent = {(0, 0): _rows(left), (1, 0): _rows(right)}
        found.append(conformance.ids(gated_batch(gate, tmp_path, batch, sent, now_ms=5000 * batch)))
    plan = _plan(JoinCase(_SPEC, lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 3, EAGER)
    for batch, row in enumerate([(5, 1, 11), (8, 8, 12), (20, 9, 13)], 2):
        parts = in_process(plan, tmp_path, batch, [_rows([]), _rows([row])], epoch=2)
        found.append([ids for part in parts for ids in conformance.ids(pa.Table.from_batches([part]))])
    assert found == [[], [(0, None)], [], [(2, 12)], [(1, None)]]
    assert WindowLog(tmp_path, 2, plan).version(4).late == {"right: late": 1}


@pytest.mark.parametrize(("lateness", "clocks"), [(0, (-(2**62), 2**62)), (2**63 - 1, (0, 5)), (2**64, (9, 9))])
def test_a_bound_further_behind_than_ticks_can_say_is_told(lateness: int, clocks: tuple[int, int]) -> None:
    """Figures are int64: a routing task must not fail for good where times, or a lateness, are far apart."""
    plan = _plan(JoinCase(replace(_SPEC, lateness=lateness), lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 1, EAGER)
    progress = punctuation_of(plan, 0, clocks)
    assert progress.lag == 2**63 - 1
    assert standing(1, EMPTY, 1, 1, progress).num_rows == 1
    gate = Standing({(1, "0000"): SourceProgress(2**62, None)}, (-(2**62), 0, "0000"))
    assert gate.lag == 2**63 - 1


def test_marks_outlive_the_rows_of_their_run(tmp_path: Path) -> None:
    """The run that marks a left tuple has one right row, whose window is short."""
    spec = replace(_SPEC, window=(sj.TimeWindow(50), sj.TimeWindow(1)))
    plan = _plan(JoinCase(spec, lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 2, BACKGROUND)
    steps = [([(1, 1, 0)], []), ([], [(3, 1, 10)]), ([(20, 9, 1)], []), ([], [(60, 8, 11)])]
    found = []
    for batch, sides in enumerate(steps):
        parts = in_process(plan, tmp_path, batch, [_rows(side) for side in sides])
        found.append([ids for part in parts for ids in conformance.ids(pa.Table.from_batches([part]))])
    assert found == [[], [(0, 10)], [], []]


def test_merges_in_the_background_keep_marks_and_rows_without_a_key(tmp_path: Path) -> None:
    spec = replace(_SPEC, window=sj.TimeWindow(500))
    policy = replace(BACKGROUND, runs=1)
    plan = _plan(JoinCase(spec, lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 2, policy)
    # Merges are written only into a log that has begun.
    (tmp_path / "join.json").write_text("{}")
    found: Counter[Ids] = Counter()
    merged = 0
    for batch in range(8):
        left = [(batch, 10 * batch + i, 10 * batch + i) for i in range(5)] + [(batch, None, 100 + batch)]
        right = [(batch, 10 * (batch - 1) + i, 1000 + 10 * batch + i) for i in range(4)]
        for part in in_process(plan, tmp_path, batch, [_rows(left), _rows(right)]):
            found.update(conformance.ids(pa.Table.from_batches([part])))
        merge_due(plan, WindowLog(tmp_path, 1, plan), batch)
        merged = max(merged, WindowLog(tmp_path, 1, plan).version(batch).merged_runs)
    for part in in_process(plan, tmp_path, 8, [_rows([]), _rows([(9_000, 999, 2000)])]):
        found.update(conformance.ids(pa.Table.from_batches([part])))
    assert merged
    pairs = [(10 * batch + i, 1010 + 10 * batch + i) for batch in range(7) for i in range(4)]
    alone = [10 * batch + i for batch in range(8) for i in range(5) if i == 4 or batch == 7] + [*range(100, 108)]
    assert found == Counter([*pairs, *((number, None) for number in alone)])


@pytest.mark.parametrize("how", ["full", "semi", "anti"])
def test_new_tuples_that_match_only_beyond_their_range_are_marked(how: How, tmp_path: Path) -> None:
    """Every left tuple has one partner, a word after its own, and half of the ranges begin between the two."""
    spec = replace(_SPEC, on=sj.Band("x", "x", 1), how=how)
    plan = _plan(JoinCase(spec, lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 16, EAGER)
    found: Counter[Ids] = Counter()
    for batch in range(3):
        sides = [_rows([(100 * batch, 4 * i + side, 1000 * side + i) for i in range(40)]) for side in (0, 1)]
        for part in in_process(plan, tmp_path, batch, sides):
            found.update(conformance.ids(pa.Table.from_batches([part])))
    pairs = [(i, 1000 + i) if how == "full" else (i, None) for i in range(40)]
    assert found == Counter([] if how == "anti" else 3 * pairs)


def test_marks_leave_the_log_with_their_rows(tmp_path: Path) -> None:
    spec = replace(_SPEC, how="full", window=sj.TimeWindow(50))
    plan = _plan(JoinCase(spec, lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 2, MergePolicy(floor=64))
    rng, sizes = random.Random(1), []
    for batch in range(40):
        rows = [[(10 * batch + i % 10, rng.randint(0, 99), 20 * batch + i) for i in range(20)] for _ in range(2)]
        in_process(plan, tmp_path, batch, [_rows(side) for side in rows])
        runs = WindowLog(tmp_path, 1, plan).version(batch).runs
        sizes.append(sum(side.rows for run in runs for side in run.others[:2]))
    # About 200 rows are alive, and some runs have expired ones.
    assert 20 < max(sizes) < 600


@LIGHT
@given(
    case=as_of_cases() | tied_as_of_cases() | extreme_cases(as_of_cases()),
    seed=st.integers(0, 99),
    gated=st.sampled_from([0, 0, 0, 1, 3]),
)
def test_as_of_rows_come_out_when_the_facts_decide_them(case: JoinCase, seed: int, gated: int) -> None:
    assume(_plan(case, 1, EAGER).bound.intervals is None)
    _run(case, seed, gated)


@pytest.mark.parametrize("key", [pa.int64(), pa.string()])
def test_an_as_of_join_by_key_writes_as_much_as_a_batch_has_however_many_keys_it_knows(
    key: pa.DataType, tmp_path: Path
) -> None:
    schema = pa.schema([("t", pa.int64()), ("x", key), ("id", pa.int64())])
    spec = replace(_SPEC, window=None, match=sj.AsOf("backward"))
    plan = _plan(JoinCase(spec, lambda _, __: True, (schema, schema), (), ()), 3, MergePolicy(floor=64, inline=256))
    (tmp_path / "join.json").write_text("{}")
    keys, written = 2_000, []
    known: dict[str, int] = {}
    found: dict[int, int] = {}
    for batch in range(30):
        new = [(7 * batch + i) * 31 % keys for i in range(40)] if batch else range(keys)
        columns = {"x": pa.array(map(str, new)).cast(key), "id": [batch * keys + i for i in range(len(new))]}
        sides = [pa.table({"t": [10 * batch + at] * len(new), **columns}, schema) for at in (1, 0)]
        known |= dict(zip(map(str, new), columns["id"], strict=True))
        found |= {number: known[str(x)] for x, number in zip(new, columns["id"], strict=True)}
        for part in in_process(plan, tmp_path, batch, sides):
            for one, other in conformance.ids(pa.Table.from_batches([part])):
                assert found.pop(one) == other
        log = WindowLog(tmp_path, 1, plan)
        written.append(sum(read_footer(path)["extents"][1][0] for path in log.pieces(batch, 1)))
        merge_due(plan, log, batch)
        assert sum(run.statistics[1].rows for run in log.version(batch).runs) <= 2.5 * keys
    # The newest left rows wait for what may still be nearer.
    assert len(found) == 40
    assert max(written[1:]) <= 40 + 256 + 64


@pytest.mark.parametrize("on", [sj.Equi("x"), None])
def test_left_rows_of_one_key_are_divided(on: sj.JoinPredicate | None, tmp_path: Path) -> None:
    """Each range sees all right rows of the key and stores a part of them; two are needed in each."""
    spec = replace(_SPEC, on=on, window=None, match=sj.AsOf("backward"))
    plan, found = _plan(JoinCase(spec, lambda _, __: True, (SCHEMA, SCHEMA), (), ()), 4, EAGER), Counter[Ids]()
    for batch in range(6):
        left = _rows([(100 * batch + i, 5, 100 * batch + i) for i in range(80)])
        right = _rows([(100 * batch + 2 * i, 5, 10_000 + 100 * batch + 2 * i) for i in range(40)])
        parts = in_process(plan, tmp_path, batch, [left, right], rows_a_task=16)
        found.update(ids for part in parts for ids in conformance.ids(pa.Table.from_batches([part])))
    version = WindowLog(tmp_path, 1, plan).version(5)
    assert version.skew <= 1500
    # The newest right row of each range, and the last one, which a left row may still take.
    assert sum(run.statistics[1].rows for run in version.runs) <= 8
    decided = [100 * batch + i for batch in range(6) for i in range(80) if 100 * batch + i < 578]
    assert found == Counter((i, 10_000 + i - i % 2) for i in decided)
