"""The experiments on Spark besides spark_band: grids, verdicts on made-up rows, and one small run of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context, Experiment, Row
from benchmarks.spark import (
    spark_capacity,
    spark_disk,
    spark_floor,
    spark_kinds,
    spark_limit,
    spark_rescale,
    spark_shares,
    spark_skew,
    spark_window_growth,
)
from benchmarks.spark.spark_band import Plan
from benchmarks.spark.spark_runs import Timed, same_results, speed, steady

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXPERIMENTS: dict[str, Experiment] = {
    "spark_capacity": spark_capacity.EXPERIMENT,
    "spark_disk": spark_disk.EXPERIMENT,
    "spark_floor": spark_floor.EXPERIMENT,
    "spark_kinds": spark_kinds.EXPERIMENT,
    "spark_limit": spark_limit.EXPERIMENT,
    "spark_shares": spark_shares.EXPERIMENT,
    "spark_skew": spark_skew.EXPERIMENT,
    "spark_rescale": spark_rescale.EXPERIMENT,
    "spark_window_growth": spark_window_growth.EXPERIMENT,
}
FIGURES: dict[str, dict[str, float]] = {
    "spark_capacity": {f"{how}_{what}": 1.0 for how in ("computed", "measured") for what in ("s", "manifest_kb")},
    "spark_disk": {"rows_on_disk": 1.1, "state": 1.2, "runs": 9.0},
    "spark_limit": {"batch_ms": 300.0},
    "spark_floor": {"batch_ms": 300.0, **dict.fromkeys(spark_floor.PARTS, 50.0)},
    "spark_kinds": {"results": 1.0},
    "spark_shares": {
        "longest_share": 0.2,
        "lone_share": 0.0,
        "largest_range": 1.0,
        "first_largest": 8.0,
        "python_us_a_row": 2.0,
        "merge_us_a_row": 0.1,
        "written_a_row": 2.0,
        "growth": 1.0,
        "batch_ms": 300.0,
        "rows_per_s": 1e6,
    },
    "spark_skew": {"spread": 1.2, "match_rate": 20.0},
    "spark_rescale": {"pause_ms": 12.0, "batches": 30},
    "spark_window_growth": {"state": 1.3},
}


def _made_up(name: str) -> list[Row]:
    experiment = EXPERIMENTS[name]
    cells = list(experiment.cells(quick=False))
    rows: list[Row] = [{**cell, experiment.measure: 10.0 + i, **FIGURES[name]} for i, cell in enumerate(cells)]
    for cell, row in zip(cells, rows, strict=True):
        base = experiment.baseline(cell)
        if base is not None:
            row["ratio"] = row[experiment.measure] / rows[cells.index(base)][experiment.measure]
    return rows


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_verdict_and_picture_is_made_of_the_rows(name: str) -> None:
    rows = _made_up(name)
    lines = EXPERIMENTS[name].verdict(rows)
    assert len(lines) >= 2
    assert all(any(character.isdigit() for character in line) or "none was lost" in line for line in lines)
    figure = Figure()
    EXPERIMENTS[name].plot(rows, figure)
    assert figure.axes
    for quick in (True, False):
        cells = list(EXPERIMENTS[name].cells(quick))
        assert all(EXPERIMENTS[name].baseline(cell) in (None, *cells) for cell in cells)


def test_aims_are_judged() -> None:
    rows = _made_up("spark_floor")
    assert "1.00 times; aim 1.5: met" in spark_floor.EXPERIMENT.verdict(rows)[0]
    rows[0]["batch_ms"] = 600.0
    assert "2.00 times; aim 1.5: missed" in spark_floor.EXPERIMENT.verdict(rows)[0]
    skewed = _made_up("spark_skew")
    skewed[0]["ratio"] = 0.5
    first, second, _ = spark_skew.EXPERIMENT.verdict(skewed)
    assert "50% of the speed with uniform keys; aim 70%: missed" in first
    assert "met" in second
    limits = {finding.claim: finding.judgement for finding in spark_limit.EXPERIMENT.findings(_made_up("spark_limit"))}
    assert limits == {
        "a batch of 20 rows": "met",
        "ordered output, 20 rows": "met",
        "a batch of 100,000 rows": "met",
        "batches of 1,000,000 rows": "missed",
    }
    sizes = _made_up("spark_disk")
    sizes[0]["state"] = 1.3
    assert [str(finding.judgement) for finding in spark_disk.EXPERIMENT.findings(sizes)][:2] == ["missed", "met"]


@pytest.mark.parametrize("shape", spark_skew.SHAPES)
def test_both_kinds_of_keys_match_as_often(shape: str) -> None:
    rng = np.random.default_rng(0)
    window = spark_skew.window_of(shape)
    for skewed in (True, False):
        left, right = (spark_skew.keys(shape, skewed, side, 0, 20_000, 1) for side in ("left", "right"))
        on: Any = spark_skew.condition(shape, skewed)
        distance = getattr(on, "below", 0)
        places = rng.integers(0, 20_000, (2, 200_000))
        near = np.abs(left[places[0]] - right[places[1]]) <= distance
        drifts = skewed and shape == "drifting Gaussian"
        if drifts:
            # Rows far apart in time are far apart in value: only neighbours count.
            apart = [np.abs(left[:-shift] - right[shift:]) for shift in range(1, 400, 20)]
            near = np.concatenate(apart) <= distance
        assert 0.7 * spark_skew.MATCH_RATE < near.mean() * window < 1.4 * spark_skew.MATCH_RATE


def test_the_pause_is_what_a_batch_takes_more_than_its_neighbours() -> None:
    batches = [Timed(10, 0, seconds, {}) for seconds in (1.0, 1.0, 1.5, 1.0, 1.0)]
    assert spark_rescale._pause(batches, 2) == 500.0
    assert spark_rescale._pause(batches, 1) == 0.0


def test_what_is_measured_is_checked() -> None:
    batches = [Timed(10, 3, 2.0, {}), Timed(0, 0, 1.0, {}), Timed(20, 4, 1.0, {})]
    assert speed(steady(batches, 1)) == 20
    with pytest.raises(ValueError, match="leave none to measure"):
        steady(batches, 3)
    seen: dict[Any, list[int]] = {}
    same_results(seen, 1, batches, {})
    with pytest.raises(AssertionError, match=r"\[3\], but were \[3, 4\]"):
        same_results(seen, 1, batches[:1], {"a": 1})


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "cell"),
    [
        pytest.param("spark_disk", {"window": 2_000, "batch_percent": 75}, marks=pytest.mark.thorough),
        ("spark_floor", {"system": spark_floor.JOIN}),
        pytest.param("spark_kinds", {"batch": 2_000, "kind": "as-of by band"}, marks=pytest.mark.thorough),
        pytest.param(
            "spark_shares",
            {"by": "Spark", "batch": 2_000, "ranges": 2, "kind": "left", "batches": 5},
            marks=pytest.mark.thorough,
        ),
        pytest.param("spark_skew", {"shape": "half on one key", "keys": spark_skew.SKEWED}, marks=pytest.mark.thorough),
        pytest.param("spark_rescale", {"system": spark_rescale.RESCALED}, marks=pytest.mark.thorough),
        pytest.param("spark_window_growth", {"window": 10_000}, marks=pytest.mark.thorough),
    ],
)
def test_one_cell_of_each_runs(spark: SparkSession, tmp_path: Path, name: str, cell: dict[str, Any]) -> None:
    experiment: Any = type(EXPERIMENTS[name])()
    experiment._spark = spark
    answer = experiment.run(cell, Context(seed=1, quick=True, scratch=tmp_path))
    assert answer[experiment.measure] > 0
    if name == "spark_skew":
        assert 14 < answer["match_rate"] < 26
        assert answer["spread"] >= 1
    if name == "spark_window_growth":
        assert 0.9 < answer["state"] < 3
    if name == "spark_disk":
        assert 0.9 < answer["rows_on_disk"] < 2


@pytest.mark.spark
@pytest.mark.thorough
def test_plans_that_do_nothing_hand_over_as_many_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_limit, "plan", lambda *_: Plan(measured=1, settling=0))
    experiment = spark_limit.SparkLimit()
    experiment._spark = spark
    context = Context(seed=1, quick=True, scratch=tmp_path)
    for system in spark_limit.LIMITS:
        answer = experiment.run({"batch": 1_000, "system": system}, context)
        # Where Spark routes, a row near the end of a range has a copy.
        assert 2 <= answer["match_rate"] < 2.1
    assert not list((tmp_path / "rows").iterdir())
