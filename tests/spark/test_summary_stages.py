"""Summaries on Spark, stage by stage without Spark: cuts, ranges, restarts and the end of input against the oracle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.spark.stages.figures import NAMES, standing
from streamjoin.spark.stages.undecided import undecided
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from tests.joins.summary_runs import MIN, SCHEMA, Case, rows_in, summary_cases, table_of
from tests.seeds import examples
from tests.spark.gated import PLANS, SOURCES, Sent, gated_batch, gated_blueprint, gated_plan, gated_spec, gated_table

LIGHT = settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
MATCH = {"n": "count(*)", "s": "sum(r.x)"}


def _dealt(case: Case, rng: random.Random) -> Iterator[Sent]:
    """The tuples of a case in batches of random sizes, until every source is empty."""
    sides = (0,) if case.spec.self_join else (0, 1)
    queues = {
        (side, i): [row for right, source, rows in case.pushes for row in rows if (right, source) == (side == 1, name)]
        for side in sides
        for i, name in enumerate(SOURCES)
    }
    while any(queues.values()):
        sizes = {key: rng.choice([0, 1, 3, 20]) for key in queues}
        yield {key: table_of(queue[: sizes[key]]) for key, queue in queues.items()}
        queues = {key: queue[sizes[key] :] for key, queue in queues.items()}


def _run(case: Case, rng: random.Random, root: Path, *, ordered: bool) -> list[list[Any]]:
    """The rows of a case under random cuts and numbers of ranges, with batches that run again."""
    plans = [gated_blueprint(case.spec, (SCHEMA, SCHEMA), p, (PLANS, PLANS), ordered=ordered) for p in (3, 1, 4)]
    batches = [*_dealt(case, rng), {}]
    rows: list[list[Any]] = []
    for batch, sent in enumerate(batches):
        plan, ends = plans[batch % len(plans)], batch == len(batches) - 1
        found = rows_in(gated_batch(plan, root, batch, sent, epoch=2 * batch + 1, ends=ends), case)
        if rng.random() < 0.2:
            again = rows_in(gated_batch(plan, root, batch, sent, epoch=2 * batch + 2, ends=ends), case)
            assert sorted(map(str, again)) == sorted(map(str, found))
        rows += found
    return rows


def _check(case: Case, seed: int, ordered: bool, root: Path) -> None:
    rows, wanted = _run(case, random.Random(seed), root, ordered=ordered), case.expected()
    if ordered:
        assert rows == wanted
    else:
        assert sorted(map(str, rows)) == sorted(map(str, wanted))


@LIGHT
@given(case=summary_cases(lateness=0, equalities=True, rising=True), seed=st.integers(0, 99), ordered=st.booleans())
def test_rows_and_their_order_are_the_oracles(
    case: Case, seed: int, ordered: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _check(case, seed, ordered, tmp_path_factory.mktemp("log"))


@LIGHT
@given(
    case=summary_cases(lateness=0, ends=True, plain=True, rising=True), seed=st.integers(0, 99), ordered=st.booleans()
)
def test_times_at_the_ends_of_int64_are_the_oracles(
    case: Case, seed: int, ordered: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # At the end of input the gate takes the least time of all for none.
    assume(any(row["t"] > MIN for *_, rows in case.pushes for row in rows))
    _check(case, seed, ordered, tmp_path_factory.mktemp("log"))


def test_a_left_row_waits_in_its_range_until_its_window_is_complete(tmp_path: Path) -> None:
    spec = gated_spec(window=None, how="left", match=sj.Summary(MATCH, between=(-5, 3)))
    plan = gated_plan(spec)
    first = {(0, 0): gated_table((10, 7, 0), (12, 9, 1), (14, 7, 2)), (1, 0): gated_table((6, 7, 10), (13, 7, 11))}
    rows = gated_batch(plan, tmp_path, 0, first)
    assert rows.num_rows == 0
    log = WindowLog(tmp_path, 1, plan)
    waiting = undecided(plan, log, 0)
    assert (waiting.gate, waiting.windows, waiting.total) == ((1, 0), 2, 3)
    assert str(waiting).endswith("2 left with a window that right ones may still fall into")
    later = {(0, 0): gated_table((20, 7, 3)), (1, 0): gated_table((14, 9, 12), (20, 1, 13))}
    rows = gated_batch(plan, tmp_path, 1, later)
    assert rows.to_pylist() == [
        {"t": 10, "x": 7, "id": 0, "n": 2, "s": 14},
        {"t": 12, "x": 9, "id": 1, "n": 1, "s": 9},
        {"t": 14, "x": 7, "id": 2, "n": 1, "s": 7},
    ]
    assert undecided(plan, log, 1).windows == 1
    assert gated_batch(plan, tmp_path, 2, {}, ends=True)["n"].to_pylist() == [0]


def test_aggregates_may_change_at_a_restart_and_the_window_may_not(tmp_path: Path) -> None:
    def plan(summaries: dict[str, str], low: int) -> Blueprint:
        return gated_plan(gated_spec(window=None, match=sj.Summary(summaries, between=(low, 0))))

    one = plan(MATCH, -5)
    gated_batch(one, tmp_path, 0, {(0, 0): gated_table((1, 7, 0)), (1, 0): gated_table((1, 7, 9), (2, 7, 9))})
    other = plan({"top": "max(r.id)"}, -5)
    assert other.fingerprint == one.fingerprint != plan(MATCH, -6).fingerprint
    rows = gated_batch(other, tmp_path, 1, {(0, 0): gated_table((2, 7, 1), (9, 7, 2)), (1, 0): gated_table((9, 0, 0))})
    assert rows["top"].to_pylist() == [9, 9]


def test_sums_beyond_their_type_are_counted_since_the_start_and_once(tmp_path: Path) -> None:
    plan = gated_plan(gated_spec(window=None, how="left", match=sj.Summary(MATCH, between=(-5, 0)), on="id"))
    log = WindowLog(tmp_path, 1, plan)
    counted = []
    for batch, t in enumerate((1, 20, 40)):
        right = gated_table((t, 2**63 - 1, 7), (t, 1, 7), (t, 2**63 - 1, 8))
        for epoch in (2 * batch + 1, 2 * batch + 2):
            gated_batch(plan, tmp_path, batch, {(0, 0): gated_table((t, 0, 7), (t, 0, 8)), (1, 0): right}, epoch=epoch)
        counted.append(log.version(batch).overflowed)
    assert counted == [0, 1, 2]
    figures = standing(1, log.version(2), 1, 0).column("figures")[0].as_py()
    assert figures[NAMES.index("overflowed")] == 2
