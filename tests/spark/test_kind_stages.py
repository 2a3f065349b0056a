"""The kinds of join on Spark, stage by stage without Spark: windows, cuts and numbers of ranges against the oracle."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.model.spec import How
from streamjoin.spark.stages.gating import Standing
from streamjoin.storage.background import merge_due
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.merging import MergePolicy
from streamjoin.storage.pieces import write_piece
from streamjoin.testing import conformance, oracle
from streamjoin.testing.cases import JoinCase
from tests.oracles.expected import expected
from tests.oracles.kind_cases import (
    as_of_cases,
    extreme_cases,
    interval_kind_cases,
    kind_cases,
    tied_as_of_cases,
)
from tests.seeds import examples
from tests.spark.gated import (
    PLANS,
    SCHEMA,
    Sent,
    deal,
    gated_batch,
    gated_blueprint,
    gated_plan,
    gated_spec,
    gated_table,
)
from tests.spark.joining import BACKGROUND, EAGER

LIGHT = settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def _run(case: JoinCase, seed: int, ordered: bool) -> tuple[list[conformance.IdPair], Standing]:
    """The rows in the order in which they come, under a random cut, and the gate's progress at the end.

    The first batches may have a gate of one task, as earlier versions had.
    """
    rng = random.Random(seed)
    alone = rng.choice([0, 0, 0, 1, 3])
    policy = rng.choice([EAGER, BACKGROUND, MergePolicy()])
    root = Path(tempfile.mkdtemp())
    # Merges are written only into a log that has begun.
    (root / "join.json").write_text("{}")
    try:
        rows: list[conformance.IdPair] = []
        for batch, sent in enumerate(deal(case, rng)):
            sources, n = (PLANS, PLANS), (3, 1, 9)[batch % 3]
            shared = batch >= alone
            plan = gated_blueprint(case.spec, case.schemas, n, sources, ordered=ordered, shared=shared, policy=policy)
            again = _batch(plan, root, batch, sent, 2 * batch + 1, rows_a_task=rng.choice([2, 7, 64]))
            if rng.random() < 0.2:
                # The batch runs again after a restart, whose pieces count from then on.
                assert sorted(map(str, _batch(plan, root, batch, sent, epoch=2 * batch + 2))) == sorted(map(str, again))
            rows += again
            if rng.random() < 0.3:
                merge_due(plan, WindowLog(root, 1, plan), batch)
        log = WindowLog(root, 1, plan)
        return rows, Standing.from_json(log.gate(batch, log.version(batch).epoch)[0]["standing"])
    finally:
        shutil.rmtree(root)


def _batch(
    plan: Blueprint, root: Path, batch: int, sent: Sent, epoch: int, rows_a_task: int = 64
) -> list[conformance.IdPair]:
    return conformance.ids(gated_batch(plan, root, batch, sent, epoch=epoch, rows_a_task=rows_a_task))


def _check(rows: Sequence[conformance.IdPair], wanted: Sequence[conformance.IdPair], ordered: bool) -> None:
    if ordered:
        assert list(rows) == list(wanted[: len(rows)])
    else:
        assert sorted(map(str, rows)) == sorted(map(str, wanted[: len(rows)]))


@LIGHT
@given(case=kind_cases("event_time"), seed=st.integers(0, 99), ordered=st.booleans())
def test_rows_and_their_order_are_the_oracles(case: JoinCase, seed: int, ordered: bool) -> None:
    _check_outer(case, seed, ordered)


@LIGHT
@given(case=kind_cases("event_time", self_join=True), seed=st.integers(0, 99), ordered=st.booleans())
def test_self_joins_are_the_oracles(case: JoinCase, seed: int, ordered: bool) -> None:
    _check_outer(case, seed, ordered)


def _check_outer(case: JoinCase, seed: int, ordered: bool) -> None:
    rows, standing = _run(case, seed, ordered)
    released = standing.counts[0] if case.spec.self_join else sum(standing.counts)
    through = JoinCase(case.spec, case.match, case.schemas, case.events[:released], ())
    wanted = expected(through)
    _check(rows, wanted, ordered)
    waiting = {row[0] if row[1] is None else row[1]: row[0] is None for row in wanted[len(rows) :]}
    assert case.spec.how != "semi" or not waiting
    windows = bind(case.spec, *case.schemas).windows
    for i, event in enumerate(through.events):
        if waiting.get(event.row["id"]) == event.right:
            window = windows[event.right]
            if window.kind == "count":
                assert sum(e.right == event.right for e in through.events[i + 1 :]) < window.size
            else:
                assert all(e.ts <= event.ts + window.size for e in through.events)
                assert (
                    case.spec.how == "full" and windows[0] != windows[1]
                ) or event.ts + window.size >= standing.bound[0]


@LIGHT
@given(case=as_of_cases("event_time"), seed=st.integers(0, 99), ordered=st.booleans())
def test_as_of_rows_and_their_order_are_the_oracles(case: JoinCase, seed: int, ordered: bool) -> None:
    _check_as_of(case, seed, ordered)


@settings(LIGHT, max_examples=examples(90))
@given(case=tied_as_of_cases(), seed=st.integers(0, 99), ordered=st.booleans())
def test_of_partners_at_one_time_the_contract_says_which(case: JoinCase, seed: int, ordered: bool) -> None:
    _check_as_of(case, seed, ordered)


@pytest.mark.parametrize(
    ("match", "partner"),
    [
        (sj.AsOf("forward", 5), 10),
        (sj.AsOf("backward", 5), 11),
        (sj.AsOf("nearest", 5), 11),
        (sj.AsOf("forward", 5, exact=False), 12),
    ],
)
def test_an_as_of_join_by_a_band_takes_the_first_ahead_and_the_last_behind(
    match: sj.AsOf, partner: int, tmp_path: Path
) -> None:
    plan = gated_plan(gated_spec(on=sj.Band("x", "x", 2), window=None, match=match, how="left"))
    right = gated_table((5, 85, 10), (5, 83, 11), (6, 84, 12), (6, 84, 13), (99, 0, 14))
    sent = {(0, 0): gated_table((5, 84, 0), (99, 0, 1)), (1, 0): right}
    assert conformance.ids(gated_batch(plan, tmp_path, 0, sent)) == [(0, partner)]


def _check_as_of(case: JoinCase, seed: int, ordered: bool) -> None:
    rows, standing = _run(case, seed, ordered)
    match = bind(case.spec, *case.schemas).match
    assert match is not None
    reach = 0 if match.direction == "backward" else match.tolerance or 0
    decided = {e.row["id"] for e in case.events if not e.right and e.ts + reach < standing.bound[0]}
    wanted = [row for row in expected(case) if row[0] in decided]
    assert len(rows) == len(wanted)
    _check(rows, wanted, ordered)


@LIGHT
@given(case=interval_kind_cases(), seed=st.integers(0, 99), ordered=st.booleans())
def test_every_kind_on_intervals_is_the_oracles(case: JoinCase, seed: int, ordered: bool) -> None:
    if case.spec.match is None:
        _check_outer(case, seed, ordered)
    else:
        _check_as_of(case, seed, ordered)


@LIGHT
@given(
    case=extreme_cases(kind_cases("event_time") | kind_cases("event_time", self_join=True) | as_of_cases()),
    seed=st.integers(0, 99),
    ordered=st.booleans(),
)
def test_times_at_the_ends_of_int64_are_the_oracles(case: JoinCase, seed: int, ordered: bool) -> None:
    if case.spec.match is None:
        _check_outer(case, seed, ordered)
    else:
        _check_as_of(case, seed, ordered)


@pytest.mark.parametrize(
    ("how", "on", "match"),
    [
        ("full", sj.Overlaps(("x", "y"), ("x", "y")), lambda a, b: a["x"] <= b["y"] and b["x"] <= a["y"]),
        ("semi", sj.Within("x", "x", "y"), lambda a, b: b["x"] <= a["x"] <= b["y"]),
        ("full", sj.Band("x", "x", 1), lambda a, b: abs(a["x"] - b["x"]) <= 1),
        ("semi", sj.Band("x", "x", 1), lambda a, b: abs(a["x"] - b["x"]) <= 1),
        ("full", "l.x + r.x > 150", lambda a, b: a["x"] + b["x"] > 150),
    ],
)
def test_tuples_that_match_in_a_range_of_others_are_marked(
    how: How, on: sj.JoinPredicate | str, match: oracle.Match, tmp_path: Path
) -> None:
    """Ranges of a few words, or parts of one: many matches cross a border, with stored and with new tuples."""
    spec = sj.JoinSpec(on, (sj.TimeWindow(25), sj.TimeWindow(40)), "t", "event_time", how)
    rng = random.Random(3)
    rows: list[dict[str, int]] = []
    for i in range(160):
        t, x = (rows[-1]["t"] if rows else 0) + rng.choice([0, 0, 1, 2]), rng.randint(0, 90)
        rows.append({"t": t, "x": x, "id": i, "y": x + (0, 1, 40)[i % 3]})
    schema = SCHEMA.append(pa.field("y", pa.int64()))
    events = oracle.event_time_order([oracle.Event(rng.random() < 0.5, row, row["t"]) for row in rows])
    sources = (PLANS[:1], PLANS[:1])
    result: list[conformance.IdPair] = []
    for batch, partitions in enumerate((12, 7, 16, 12, 7)):
        part = events[32 * batch : 32 * batch + 32]
        sent = {(s, 0): conformance.table([e.row for e in part if e.right == bool(s)], schema) for s in (0, 1)}
        result += _batch(gated_blueprint(spec, (schema, schema), partitions, sources), tmp_path, batch, sent, 1)
    case = JoinCase(spec, match, (schema, schema), tuple(events), ())
    assert len(result) > 20
    assert result == expected(case)[: len(result)]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_new_interval_longer_than_all_stored_may_match_and_leave_in_one_batch(earlier: bool, tmp_path: Path) -> None:
    """Its partner, before it or after it, begins in another range, and neither is unmatched."""
    spec = sj.JoinSpec(sj.Overlaps(("x", "y"), ("x", "y")), sj.TimeWindow(5), "t", "event_time", "full")
    schema = SCHEMA.append(pa.field("y", pa.int64()))
    plan = gated_blueprint(spec, (schema, schema), 12, (PLANS[:1], PLANS[:1]))

    def rows(*given: tuple[int, int, int, int]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(("t", "x", "y", "id"), row, strict=True)) for row in given], schema)

    short = [[(1, 10 * i + 5 * side, 10 * i + 5 * side + 1, 100 * side + i) for i in range(40)] for side in (0, 1)]
    assert _batch(plan, tmp_path, 0, {(side, 0): rows(*short[side]) for side in (0, 1)}, 1) == []
    long, partner = (50, -9, 900, 50), (50 - earlier, 333, 334, 150)
    found = _batch(plan, tmp_path, 1, {(0, 0): rows(long, (90, 0, 0, 51)), (1, 0): rows(partner, (90, 9, 9, 151))}, 1)
    assert [pair for pair in found if 50 in pair or 150 in pair] == [(50, 150)]
    assert len(found) == 81


@pytest.mark.parametrize("gone", [False, True])
def test_marks_in_files_of_their_own_are_read_and_not_taken_for_none(gone: bool, tmp_path: Path) -> None:
    """As earlier versions wrote them. Without its mark a tuple would come out as unmatched although it matched."""
    now = gated_plan(gated_spec(how="left", window=sj.TimeWindow(3)))
    assert now.gate is not None
    plan = replace(now, gate=replace(now.gate, shared=False))
    publish = WindowLog.publish

    def publish_apart(log: WindowLog, batch: int, partition: int, *piece: Any) -> None:
        *rest, marks = piece
        path = tmp_path / f"versions/{batch:010}/{log.epoch:08}.{partition:05}.marks"
        write_piece(path, ([], []), log._signed(batch, {}), marks)
        publish(log, batch, partition, *rest)

    first = {(0, 0): gated_table((1, 7, 0), (2, 9, 1)), (1, 0): gated_table((1, 7, 10), (2, 8, 11))}
    with mock.patch.object(WindowLog, "publish", publish_apart):
        assert conformance.ids(gated_batch(plan, tmp_path, 0, first)) == [(0, 10)]
    marks = next(tmp_path.glob("versions/0000000000/*.marks"))
    later = {(0, 0): gated_table((50, 5, 2)), (1, 0): gated_table((51, 6, 12))}
    if not gone:
        assert conformance.ids(gated_batch(now, tmp_path, 1, later)) == [(1, None)]
        return
    marks.unlink()
    with pytest.raises(sj.CheckpointError, match=f"{marks.name} of the window log is missing"):
        gated_batch(now, tmp_path, 1, later)
