"""Joins behind a gate, stage by stage without Spark: every predicate, window, source and cut against the oracle."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

import streamjoin as sj
from streamjoin.model.binding import bind, narrowed
from streamjoin.model.spec import How
from streamjoin.spark.runtime import checkpoints
from streamjoin.spark.stages import gating
from streamjoin.spark.stages.figures import NAMES
from streamjoin.spark.stages.gating import HeldRows, Standing, source_names
from streamjoin.spark.stages.late import late_rows
from streamjoin.spark.stages.output import OrderTask
from streamjoin.spark.stages.undecided import undecided
from streamjoin.storage.background import merge_due
from streamjoin.storage.blueprint import Blueprint, SourcePlan
from streamjoin.storage.log import WindowLog, late_files
from streamjoin.storage.merging import MergePolicy
from streamjoin.testing import conformance, oracle
from streamjoin.testing.cases import JoinCase, cases
from tests.oracles.expected import expected
from tests.oracles.kind_cases import extreme_cases
from tests.seeds import examples
from tests.spark.gated import PLANS, SCHEMA, deal, gated_batch, gated_blueprint, gated_plan, gated_spec, gated_table
from tests.spark.joining import BACKGROUND, EAGER


def _run(case: JoinCase, seed: int, root: Path, ordered: bool) -> tuple[list[conformance.IdPair], int]:
    """The pairs in the order in which they come, and how many tuples were let through, under a random cut.

    The first batches may have a gate of one task, as earlier versions had.
    """
    rng = random.Random(seed)
    alone = rng.choice([0, 0, 0, 1, 3])
    policy = rng.choice([EAGER, BACKGROUND, MergePolicy()])
    (root / "join.json").write_text("{}")
    found: list[conformance.IdPair] = []
    for batch, sent in enumerate(deal(case, rng)):
        sources, n, shared = (PLANS, PLANS), (3, 1, 9)[batch % 3], batch >= alone
        plan = gated_blueprint(case.spec, case.schemas, n, sources, ordered=ordered, shared=shared, policy=policy)
        rows_a_task = rng.choice([2, 7, 64])
        found += conformance.ids(gated_batch(plan, root, batch, sent, epoch=batch + 1, rows_a_task=rows_a_task))
        if rng.random() < 0.3:
            merge_due(plan, WindowLog(root, 1, plan), batch)
    footer, _ = WindowLog(root, batch + 1, plan).gate(batch)
    counts = footer["standing"]["counts"]
    return found, counts[0] if case.spec.self_join else sum(counts)


def _check(case: JoinCase, seed: int, ordered: bool) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        found, released = _run(case, seed, root, ordered)
    finally:
        shutil.rmtree(root)
    through = JoinCase(case.spec, case.match, case.schemas, case.events[:released], ())
    wanted = expected(through)
    assert found == wanted if ordered else sorted(found) == sorted(wanted)


LIGHT = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@LIGHT
@given(case=cases("event_time"), seed=st.integers(0, 99), ordered=st.booleans())
def test_rows_and_their_order_are_the_oracles(case: JoinCase, seed: int, ordered: bool) -> None:
    _check(case, seed, ordered)


@LIGHT
@given(case=cases("event_time", self_join=True), seed=st.integers(0, 99))
def test_self_joins_are_the_oracles(case: JoinCase, seed: int) -> None:
    _check(case, seed, ordered=True)


@LIGHT
@given(case=extreme_cases(cases("event_time")), seed=st.integers(0, 99), ordered=st.booleans())
def test_times_at_the_ends_of_int64_are_the_oracles(case: JoinCase, seed: int, ordered: bool) -> None:
    _check(case, seed, ordered)


# The gate in every range, beside one task


_ROUTES = SCHEMA.append(pa.field("by", pa.string()))
_SPECS: list[dict[str, Any]] = [
    {"window": sj.CountWindow(3)},
    {"window": (sj.TimeWindow(4), sj.CountWindow(5)), "lateness": 2},
    {"window": sj.TimeWindow(6), "lateness": 3},
    {"window": sj.TimeWindow(6), "on": sj.Band("x", "x", 2), "how": "full"},
    {"window": (sj.TimeWindow(3), sj.TimeWindow(20)), "how": "full", "lateness": 1},
    {"window": sj.CountWindow(4), "how": "anti"},
    {"window": (sj.CountWindow(4), sj.TimeWindow(9)), "how": "semi", "on": sj.Band("x", "x", 1)},
    {"window": sj.TimeWindow(9), "how": "left", "on": "l.x + r.x > 4"},
    {"window": sj.TimeWindow(7), "how": "anti", "self_join": True},
    {"window": sj.CountWindow(3), "self_join": True, "on": sj.Band("x", "x", 1)},
    {"window": None, "match": sj.AsOf("nearest", 4), "how": "left", "lateness": 1},
    {"window": None, "match": sj.AsOf("backward", 4), "on": sj.Band("x", "x", 1)},
]


@settings(LIGHT, max_examples=examples(60))
@given(spec=st.sampled_from(_SPECS), seed=st.integers(0, 2**20), ordered=st.booleans())
def test_every_range_decides_as_one_task_does(spec: dict[str, Any], seed: int, ordered: bool) -> None:
    """Sources by a column, in the order of a position, idle ones, late rows, the end, and rows without key or time."""
    rng = random.Random(seed)
    sides = (0,) if spec.get("self_join") else (0, 1)
    plans = [_sources(rng) for _ in sides]
    queues = {(side, i): _stream(rng, 2 * side + i) for side in sides for i in range(len(plans[side]))}
    now, idle_ms, alone, batch = 0, rng.choice([None, 50]), rng.choice([0, 0, 2]), -1
    root = Path(tempfile.mkdtemp())
    try:
        while any(queues.values()):
            # One source may be far ahead of another.
            sent, now, batch = {}, now + rng.choice([1, 40, 100]), batch + 1
            for key, queue in queues.items():
                n = rng.choice([0, 0, 3, 9, 40])
                sent[key] = pa.Table.from_pylist(queue[:n], _ROUTES)
                del queue[:n]
            out, ends = [], rng.random() < 0.1
            for shared in (False, True):
                own = root / str(shared)
                plan = gated_blueprint(
                    gated_spec(**spec), (_ROUTES, _ROUTES), rng.choice([1, 3, 12]), (plans[0], plans[-1]), idle_ms,
                    ordered, shared=shared and batch >= alone, policy=rng.choice([EAGER, BACKGROUND]),
                )  # fmt: skip
                tasks: dict[str, Any] = {"rows_a_task": rng.choice([3, 64]), "one_by_one": rng.random() < 0.5}
                if plan.shared_gate and rng.random() < 0.2:
                    # A start that is killed leaves the pieces of some ranges.
                    killed, only = replace(plan, partitions=7), rng.sample(range(7), rng.randint(0, 6))
                    gated_batch(killed, own, batch, sent, now, 2 * batch + 1, ends=ends, only=only)
                ids = conformance.ids(gated_batch(plan, own, batch, sent, now, 2 * batch + 2, ends=ends, **tasks))
                log = WindowLog(own, 2 * batch + 2, plan)
                footer, _ = log.gate(batch)
                told = {name: footer[name] for name in ("standing", "waiting", "awaited", "bound", "positions", "lag")}
                found = ids if ordered else sorted(map(str, ids))
                out.append((found, told, footer["clocks"], log.version(batch).late, undecided(plan, log, batch)))
            assert out[0] == out[1], batch
        late = [
            sorted(str(row) for _, path in late_files(root / str(shared)) for row in _late_ids(path))
            for shared in (False, True)
        ]
        assert late[0] == late[1]
    finally:
        shutil.rmtree(root)


def test_ranges_that_were_told_different_times_are_no_version(tmp_path: Path) -> None:
    plan = gated_plan()
    published = WindowLog.publish
    for t, only in ((1, 0), (2, 1)):

        def publish(log: WindowLog, batch: int, partition: int, *piece: Any, only: int = only) -> None:
            if partition == only:
                published(log, batch, partition, *piece)

        with mock.patch.object(WindowLog, "publish", publish):
            gated_batch(plan, tmp_path, 0, {(0, 0): gated_table((t, 7, 0)), (1, 0): gated_table((1, 7, 10))})
    with pytest.raises(sj.CheckpointError, match="the pieces of version 0 of the window log disagree"):
        WindowLog(tmp_path, 1, plan).version(0)


@pytest.mark.parametrize("how", ["inner", "full", "semi"])
@pytest.mark.parametrize("on", [sj.Band("x", "x", 3), "l.x - r.x between -3 and 3"])
def test_rows_that_waited_find_partners_in_other_ranges(how: How, on: Any, tmp_path: Path) -> None:
    """One side is a batch ahead of the other, in turn, and each range has a few words, or a part of one."""
    found = []
    for shared in (False, True):
        root, ids = tmp_path / str(shared), []
        plan = gated_blueprint(
            gated_spec(on=on, window=sj.TimeWindow(12), how=how), (SCHEMA, SCHEMA), 16, (PLANS[:1], PLANS[:1]),
            shared=shared,
        )  # fmt: skip
        for batch in range(6):
            sent = {(side, 0): gated_table((9 * batch, 0, -1 - batch)) for side in (0, 1)}
            sent[batch % 2, 0] = gated_table(*((9 * batch + i // 10, (7 * i) % 60, 100 * batch + i) for i in range(60)))
            ids += conformance.ids(gated_batch(plan, root, batch, sent))
        found.append(ids)
    assert found[0] == found[1]
    assert len(found[0]) > 100


def test_sources_of_a_side_may_share_their_tasks(tmp_path: Path) -> None:
    """Where each has one partition, Spark reads them one after the other in its first task."""
    plan = gated_blueprint(gated_spec(window=sj.TimeWindow(50)), (SCHEMA, SCHEMA), 3, (PLANS, PLANS))
    found = []
    for one_by_one in (True, False):
        root, ids = tmp_path / str(one_by_one), []
        for t in (0, 10, 20):
            sent = {(0, 0): gated_table(*((t + i, i, t + i) for i in range(5))), (0, 1): gated_table((t + 9, 8, t + 8))}
            sent |= {(1, 0): gated_table((t, 1, t + 1), (t + 7, 8, t + 2)), (1, 1): gated_table((t + 9, 3, t + 3))}
            ids += conformance.ids(gated_batch(plan, root, t // 10, sent, one_by_one=one_by_one))
        found.append(ids)
    assert found[0] == found[1]
    assert found[1][:4] == [(1, 1), (8, 2), (3, 3), (1, 11)]


def test_ordered_rows_of_one_time_are_divided_among_the_tasks(tmp_path: Path) -> None:
    """Times of whole seconds have many rows each: a task sorts a part of their places, not all of a time."""
    plan = gated_blueprint(gated_spec(window=sj.TimeWindow(0)), (SCHEMA, SCHEMA), 8, (PLANS[:1], PLANS[:1]))
    rows = [(5, i, i) for i in range(160)]
    order, sizes = OrderTask.__call__, []

    def counted(task: OrderTask, parts: Any) -> list[pa.RecordBatch]:
        out = list(order(task, parts))
        sizes.append(sum(batch.num_rows for batch in out))
        return out

    with mock.patch.object(OrderTask, "__call__", counted):
        out = gated_batch(
            plan, tmp_path, 0, {(0, 0): gated_table(*rows, (9, 0, 0)), (1, 0): gated_table(*rows[::-1], (9, 0, 0))}
        )
    assert conformance.ids(out)[:160] == [(i, i) for i in range(159, -1, -1)]
    # Every pair has the place of its right tuple, and those come after the left ones.
    assert max(sizes) <= 160 // 4 + 1


@pytest.mark.parametrize("how", ["full", "anti"])
def test_rows_without_a_key_that_wait_come_out_once(how: How, tmp_path: Path) -> None:
    """Each has one owner in every batch, whatever the ranges are."""
    found: list[conformance.IdPair] = []
    for batch, partitions in enumerate((16, 5, 11, 16)):
        # The right side lags until the end.
        t = 10 * batch
        left = gated_table(*((t, i if i % 2 else None, t * 10 + i) for i in range(60)))
        right = gated_table((0 if batch < 3 else 99, 1000, 9000 + batch))
        plan = gated_blueprint(
            gated_spec(window=sj.TimeWindow(0), how=how), (SCHEMA, SCHEMA), partitions, (PLANS[:1], PLANS[:1])
        )
        found += conformance.ids(gated_batch(plan, tmp_path, batch, {(0, 0): left, (1, 0): right}))
    # In the last batch those with a key are still in their window.
    wanted = [100 * batch + i for batch in range(4) for i in range(60) if batch < 3 or i % 2 == 0]
    assert sorted(row[0] for row in found if row[0] is not None) == wanted


def test_rows_that_waited_in_one_task_keep_their_numbers_beside_new_ones(tmp_path: Path) -> None:
    """New rows of the first batch in which every range decides wait with those that a gate of one task left."""
    found = []
    for batch, (left, right, shared) in enumerate(
        [
            ([(5, 1, 0), (6, 2, 1), (7, 3, 2)], [(1, 9, 10)], False),
            ([(8, 4, 3), (9, 5, 4)], [(4, 1, 11)], True),
            ([(9, 6, 5)], [(7, 3, 12), (7, 4, 16)], True),
            ([(20, 0, 6)], [(8, 4, 13), (9, 6, 14), (20, 0, 15)], True),
        ]
    ):
        sources = (PLANS[:1], PLANS[:1])
        plan = gated_blueprint(
            gated_spec(how="full", window=sj.TimeWindow(4)), (SCHEMA, SCHEMA), 3, sources, shared=shared
        )
        sent = {(0, 0): gated_table(*left), (1, 0): gated_table(*right)}
        found.append(conformance.ids(gated_batch(plan, tmp_path, batch, sent)))
    assert found == [[], [], [(0, 11), (None, 10), (2, 12)], [(3, 16), (3, 13), (5, 14), (1, None), (4, None)]]


def test_merges_in_the_background_keep_the_marks_behind_a_gate(tmp_path: Path) -> None:
    plan = gated_plan(gated_spec(how="left", window=sj.TimeWindow(500)))
    plan = replace(plan, policy=replace(BACKGROUND, runs=1))
    # Merges are written only into a log that has begun.
    (tmp_path / "join.json").write_text("{}")
    merged = 0
    for batch in range(8):
        left = [(batch, 10 * batch + i, 10 * batch + i) for i in range(4)]
        right = [(batch, 10 * (batch - 1) + i, 1000) for i in range(3)]
        gated_batch(plan, tmp_path, batch, {(0, 0): gated_table(*left), (1, 0): gated_table(*right)})
        merge_due(plan, WindowLog(tmp_path, 1, plan), batch)
        merged = max(merged, WindowLog(tmp_path, 1, plan).version(batch).merged_runs)
    assert merged
    last = {(side, 0): gated_table((9_000, 999, 99)) for side in (0, 1)}
    found = conformance.ids(gated_batch(plan, tmp_path, 8, last))
    assert found[:3] == [(60, 1000), (61, 1000), (62, 1000)]
    assert found[3:] == [(10 * batch + i, None) for batch in range(8) for i in range(4) if batch == 7 or i == 3]


def test_a_partner_stays_until_no_left_row_waits_for_a_nearer_one(tmp_path: Path) -> None:
    spec = gated_spec(window=None, match=sj.AsOf("nearest", tolerance=4), how="left")
    plan, found = gated_plan(spec), []
    sent = {(0, 0): gated_table((5, 7, 0), (6, 7, 1)), (1, 0): gated_table((1, 7, 10), (2, 8, 11))}
    for batch, t in enumerate(range(3, 13)):
        found += conformance.ids(gated_batch(plan, tmp_path, batch, sent))
        sent = {(0, 0): gated_table((t + 10, 9, 2)), (1, 0): gated_table((t, 8, 12))}
    assert found == [(0, 10), (1, None)]


def _stream(rng: random.Random, number: int) -> list[dict[str, Any]]:
    """The rows of one source, somewhat out of order."""
    rows, clock = [], 0
    for i in range(rng.choice([0, 20, 50])):
        clock += rng.choice([0, 0, 1, 2])
        t = None if rng.random() < 0.03 else clock - rng.choice([0, 0, 0, 1, 5])
        x = None if rng.random() < 0.1 else rng.randint(0, 20)
        rows.append({"t": t, "x": x, "id": 1000 * number + i, "by": rng.choice(["a", "b", "", None])})
    if rng.random() < 0.3:
        rng.shuffle(rows)
    return rows


def _sources(rng: random.Random) -> tuple[SourcePlan, ...]:
    position = rng.choice([None, "id"])
    return rng.choice(
        [
            (SourcePlan("0000", position=position),),
            (SourcePlan("0000", by="by", position=position, values=rng.choice([(), ("a",)])),),
            (SourcePlan("b", position=position), SourcePlan("a")),
        ]
    )


def _late_ids(path: Any) -> list[tuple[Any, ...]]:
    rows = pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()
    return [
        (row["batch"], row["side"], row["reason"], row.get("id_left", row.get("id")), row.get("id_right"))
        for row in rows
    ]


# The gate by itself


def _standing(plan: Blueprint, root: Path, batch: int, epoch: int = 1) -> dict[str, object]:
    log = WindowLog(root, epoch, plan)
    footer, _ = log.gate(batch)
    before = log.version(batch - 1).late
    late = {reason: n - before.get(reason, 0) for reason, n in log.version(batch).late.items()}
    late = {reason: n for reason, n in late.items() if n}
    return {"bound": footer["standing"]["bound"][0], "waiting": footer["waiting"], "late": late}


def test_a_tuple_waits_until_every_source_has_passed_it(tmp_path: Path) -> None:
    plan = gated_plan()
    first = gated_batch(plan, tmp_path, 0, {(0, 0): gated_table((1, 7, 0), (5, 7, 1)), (1, 0): gated_table((1, 7, 10))})
    # The left side comes first among equal times: the right one's at 1 is ready only when the left has passed 1.
    assert conformance.ids(first) == [(0, 10)]
    assert _standing(plan, tmp_path, 0) == {"bound": 1, "waiting": [1, 0], "late": {}}
    second = gated_batch(plan, tmp_path, 1, {(1, 0): gated_table((4, 7, 11), (6, 7, 12))})
    assert conformance.ids(second) == [(0, 11), (1, 10), (1, 11)]
    assert second["position"].to_pylist() == [2, 3, 3]
    assert _standing(plan, tmp_path, 1)["waiting"] == [0, 1]


def _held(plan: Blueprint, root: Path, batch: int) -> str:
    return str(HeldRows.from_footer(WindowLog(root, 1, plan).gate(batch)[0]))


def test_the_source_that_rows_wait_for_is_named(tmp_path: Path) -> None:
    left = SourcePlan("mine", by="x", values=("2", "10"))
    plan = gated_blueprint(gated_spec(), (SCHEMA, SCHEMA), 2, ((left,), (SourcePlan("theirs"),)), 1000)
    both = {(0, 0): gated_table((1, 2, 0), (2, 2, 1)), (1, 0): gated_table((5, 1, 2))}
    gated_batch(plan, tmp_path, 0, both, now_ms=0)
    silent = "3 rows wait in the gate for source 'mine/10' of the left side, which has sent no row yet"
    assert _held(plan, tmp_path, 0) == silent
    gated_batch(plan, tmp_path, 1, {(0, 0): gated_table((4, 10, 3), (5, 10, 4))}, now_ms=1)
    behind = "3 rows wait in the gate for source 'mine/2' of the left side, which is behind all others"
    assert _held(plan, tmp_path, 1) == behind
    gated_batch(plan, tmp_path, 2, {(1, 0): gated_table((9, 1, 5))}, now_ms=1002)
    assert (
        _held(plan, tmp_path, 2)
        == "0 rows wait in the gate for source 'theirs' of the right side, which is behind all others"
    )
    gated_batch(plan, tmp_path, 3, {}, now_ms=3000)
    assert _held(plan, tmp_path, 3) == "0 rows wait in the gate"
    # As earlier versions wrote it.
    assert str(HeldRows.from_footer({"waiting": [2, 1]})) == "3 rows wait in the gate"


def test_more_waiting_rows_than_allowed_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    any_number = gated_plan(gated_spec(lateness=1))
    assert any_number.gate is not None
    plan = replace(any_number, gate=replace(any_number.gate, most_waiting=3))
    first = {(0, 0): gated_table((1, 7, 0), (5, 7, 1)), (1, 0): gated_table((2, 7, 10))}
    gated_batch(plan, tmp_path / "a", 0, first)
    second = {(0, 0): gated_table((6, 7, 2), (7, 7, 3), (3, 7, 4))}
    for _ in range(2):
        with pytest.raises(sj.StateError, match=r"^4 rows wait .* source '0000' of the right side.*: most_waiting=3\."):
            gated_batch(plan, tmp_path / "a", 1, second)
    assert not [path for path in (tmp_path / "a").rglob("*") if "0000000001" in str(path.relative_to(tmp_path))]
    # Another start without the limit goes on as if there had never been one.
    gated_batch(any_number, tmp_path / "b", 0, first)
    again, never = (gated_batch(any_number, tmp_path / root, 1, second, epoch=2) for root in "ab")
    assert again == never and _standing(any_number, tmp_path / "a", 1, 2)["late"] == {"left: late": 1}


def test_many_waiting_rows_are_warned_of_each_time_they_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoints, "MANY_WAITING", 10)
    plan = gated_plan()
    gated_batch(plan, tmp_path, 0, {(0, 0): gated_table((1, 1, 0))})
    running = checkpoints.RunningJoin(plan, WindowLog(tmp_path, 1, plan), "")
    values = dict.fromkeys(NAMES, 0)
    warned = []
    for waiting in (9, 10, 19, 20, 39, 5, 10, 4, 9, 12):
        caplog.clear()
        checkpoints._warn_of_waiting(running, 0, {"streamjoin_join": Row(**{**values, "waiting": waiting})})
        warned.append(len(caplog.records))
    assert warned == [0, 1, 0, 1, 0, 0, 0, 0, 0, 1]
    for unknown in ({}, {"streamjoin_join": Row(**{**values, "waiting": None})}):
        checkpoints._warn_of_waiting(running, 0, unknown)
    assert "right side, which has sent no row yet. Every batch" in caplog.text


def test_what_is_behind_is_late_and_told(tmp_path: Path) -> None:
    plan = gated_plan(gated_spec(lateness=2))
    gated_batch(plan, tmp_path, 0, {(0, 0): gated_table((10, 1, 0)), (1, 0): gated_table((10, 1, 1), (None, 1, 2))})
    gated_batch(plan, tmp_path, 1, {(0, 0): gated_table((8, 1, 3), (7, 1, 4)), (1, 0): gated_table((9, 1, 5))})
    assert _standing(plan, tmp_path, 0)["late"] == {"right: no time": 1}
    assert _standing(plan, tmp_path, 1)["late"] == {"left: late": 1}
    assert dict(WindowLog(tmp_path, 1, plan).version(1).late) == {"right: no time": 1, "left: late": 1}
    assert [batch for batch, _ in late_files(tmp_path)] == [0, 1]
    assert _standing(plan, tmp_path, 1)["bound"] == 8


def test_rows_of_one_batch_are_late_for_each_other_only_by_position(tmp_path: Path) -> None:
    rows = gated_table((10, 1, 1), (3, 1, 2), (4, 1, 0))
    for position, late in ((None, {}), ("id", {"left: late": 1})):
        plan, root = gated_plan(position=position), tmp_path / str(position)
        gated_batch(plan, root, 0, {(0, 0): rows, (1, 0): gated_table((1, 1, 0))})
        assert _standing(plan, root, 0)["late"] == late


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 40])
def test_by_position_the_cut_decides_nothing_about_who_is_late(cut: int, tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [(i // 2 - rng.choice([0, 0, 1, 6]), rng.randint(0, 2), i) for i in range(40)]
    plan = gated_plan(gated_spec(lateness=3), position="id")
    found: list[tuple[int, int]] = []
    late = 0
    for batch, begin in enumerate(range(0, 40, cut)):
        part = gated_table(*rows[begin : begin + cut])
        found += conformance.ids(gated_batch(plan, tmp_path, batch, {(0, 0): part, (1, 0): part}))
        late += sum(_standing(plan, tmp_path, batch)["late"].values())  # type: ignore[attr-defined]
    newest = [max(t for t, _, _ in rows[: i + 1]) for i in range(40)]
    kept = [row for row, clock in zip(rows, newest, strict=True) if row[0] >= clock - 3]
    events = [oracle.Event(right, {"x": x, "id": i}, t) for right in (False, True) for t, x, i in kept]
    ready = [e for e in oracle.event_time_order(events) if (e.ts, e.right) <= (newest[-1] - 3, False)]
    ids = [[e.row["id"] for e in ready if e.right == side] for side in (False, True)]
    pairs = oracle.join(ready, lambda l, r: l["x"] == r["x"], ("count", 3), ("count", 3))
    assert found == [(ids[0][l], ids[1][r]) for l, r in pairs]
    assert late == 2 * (40 - len(kept)) > 0


def test_an_idle_source_is_passed_by_the_batches_own_times(tmp_path: Path) -> None:
    plan = gated_plan(idle_ms=1000)
    gated_batch(plan, tmp_path, 0, {(0, 0): gated_table((1, 1, 0)), (1, 0): gated_table((1, 1, 1))}, now_ms=5000)
    gated_batch(plan, tmp_path, 1, {(0, 0): gated_table((7, 1, 2))}, now_ms=6000)
    assert _standing(plan, tmp_path, 1)["bound"] == 1
    gated_batch(plan, tmp_path, 2, {(0, 0): gated_table((9, 1, 3))}, now_ms=6001)
    assert _standing(plan, tmp_path, 2)["bound"] == 9
    gated_batch(plan, tmp_path, 3, {(1, 0): gated_table((8, 1, 4), (10, 1, 5))}, now_ms=6002)
    assert _standing(plan, tmp_path, 3) == {"bound": 9, "waiting": [0, 1], "late": {"right: late": 1}}
    gated_batch(plan, tmp_path, 4, {}, now_ms=9000)
    assert _standing(plan, tmp_path, 4)["waiting"] == [0, 0]


def test_another_run_of_a_batch_writes_the_same_bytes(tmp_path: Path) -> None:
    """Also by another start, and with the rows in other tasks."""
    rng = random.Random(1)
    plan = gated_plan(idle_ms=50)
    written = []
    batches = [[(10 * b + rng.randint(0, 9), rng.randint(0, 3), 100 * b + i) for i in range(30)] for b in range(4)]
    for root in (tmp_path / "a", tmp_path / "b"):
        for b, rows in enumerate(batches):
            sent = {(0, 0): gated_table(*sorted(rows)), (1, 0): gated_table(*sorted(rows)[::2])}
            once = gated_batch(plan, root, b, sent, now_ms=100 * b)
            assert once == gated_batch(plan, root, b, sent, now_ms=100 * b, task=b)
        written.append({p.relative_to(root): p.read_bytes() for p in sorted(root.rglob("*.*"))})
    assert written[0] == written[1]
    assert len(written[0]) > 8


def _by_value(plan: Blueprint, root: Path, batch: int, t: int) -> list[int]:
    """The ids that come out, of rows of the sources 10, 9, 2 and -1 at one time; the ids are in the order of values."""
    left = gated_table((t, 10, 3), (t, 9, 2), (t, 2, 1), (t, -1, 0))
    sent = {(0, 0): left, (1, 0): gated_table((t + 1, 0, 99))}
    return [row[0] for row in conformance.ids(gated_batch(plan, root, batch, sent)) if row[0] is not None]


def _by_x(values: tuple[str, ...] = ()) -> Blueprint:
    spec = gated_spec(on=sj.Equi("id"), window=sj.TimeWindow(3), how="left")
    sources = (SourcePlan("0000", by="x", values=values),), PLANS[:1]
    return gated_blueprint(spec, (SCHEMA, SCHEMA), 2, sources)


@pytest.mark.parametrize("values", [(), ("10", "2", "-1", "9")])
def test_equal_times_of_sources_by_a_column_have_the_order_of_its_values(
    values: tuple[str, ...], tmp_path: Path
) -> None:
    plan = _by_x(values)
    assert _by_value(plan, tmp_path, 0, 5) == []
    assert _by_value(plan, tmp_path, 1, 50) == [0, 1, 2, 3]


def test_a_checkpoint_with_sources_named_by_text_keeps_their_order(tmp_path: Path) -> None:
    """As earlier versions wrote them. Another order would release some rows twice and find others late."""
    plan = _by_x()
    to_json = Standing.to_json
    with (
        mock.patch.object(Standing, "to_json", lambda s: {k: v for k, v in to_json(s).items() if k != "names"}),
        mock.patch.object(gating, "source_names", lambda plan, values, **_: source_names(plan, values, by_text=True)),
    ):
        assert _by_value(plan, tmp_path, 0, 5) == []
    assert _by_value(plan, tmp_path, 1, 50) == [0, 3, 1, 2]
    assert _by_value(plan, tmp_path, 2, 90) == [0, 3, 1, 2]
    standing = WindowLog(tmp_path, 1, plan).gate(2)[0]["standing"]
    assert [name for side, name, *_ in standing["sources"] if not side] == [f"0000/{v}" for v in (-1, 10, 2, 9)]
    assert standing["names"] == "text"


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), unique=True)
    | st.lists(st.decimals(-(10**9), 10**9, places=3), unique=True)
    | st.lists(st.floats(allow_nan=False).filter(lambda x: x != 0), unique=True)
    | st.lists(st.dates(), unique=True)
    | st.lists(st.text(), unique=True)
    | st.lists(st.booleans(), unique=True)
)
def test_names_of_sources_sort_like_their_values(values: list[Any]) -> None:
    names = source_names("s", pa.array(values))
    assert [name for _, name in sorted(zip(values, names, strict=True))] == sorted(names)
    assert sorted(names) == sorted({*names})


def test_late_rows_name_their_side() -> None:
    rows = late_rows(gated_plan().bound, 3, "right", {"late": gated_table((1, 2, 3))})
    assert rows.to_pylist()[0] | {"batch": 3, "side": "right", "reason": "late", "id_right": 3} == rows.to_pylist()[0]


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_late_rows_of_both_sides_are_told_apart_where_the_result_has_one(how: How, tmp_path: Path) -> None:
    spec = gated_spec(how=how, window=sj.TimeWindow(3))
    bound = narrowed(bind(spec, SCHEMA, SCHEMA.append(pa.field("more", pa.int64()))), ["id"])
    # The rest of the right side is neither moved nor stored.
    assert (bound.schema.names, bound.right_schema.names) == (["id"], ["t", "x", "id"])
    plan = replace(gated_plan(spec), bound=bound)
    for batch, t in enumerate((10, 5)):
        sent = {(side, 0): gated_table((t, 7, 10 * batch + side)).select(bound.left_schema.names) for side in (0, 1)}
        gated_batch(plan, tmp_path, batch, sent)
    rows = pa.ipc.open_file(late_files(tmp_path)[0][1].read_bytes()).read_all().to_pylist()
    assert [(row["side"], row["id_left"], row["id_right"]) for row in rows] == [("left", 10, None), ("right", None, 11)]
    assert (rows[1]["t_right"], rows[1]["x_right"]) == (5, 7)
