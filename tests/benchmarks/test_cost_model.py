"""The experiment on the cost model: a small cell of each algorithm, and what is said about invented rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context, Row
from benchmarks.product.cost_model import EXPERIMENT, INDEXED, PARALLEL, SWEEP
from tests.benchmarks.invented import judged, mentioning
from tests.deadlock import no_deadlock


def rows_with(measured: dict[str, float], predicted: dict[str, float]) -> list[Row]:
    return [
        {
            **cell,
            "measured_ns": measured[cell["algorithm"]],
            "predicted_ns": predicted[cell["algorithm"]],
            "predicted_over_measured": predicted[cell["algorithm"]] / measured[cell["algorithm"]],
        }
        for cell in EXPERIMENT.cells(quick=True)
    ]


@pytest.mark.thorough
def test_a_small_cell_of_each_algorithm_runs(tmp_path: Path) -> None:
    with no_deadlock():
        try:
            for name in (INDEXED, SWEEP, PARALLEL):
                cell = {"window": 1 << 9, "algorithm": name, "workers": 1 if name == INDEXED else 2, "push": 128}
                row = EXPERIMENT.run(cell, Context(seed=1, quick=True, scratch=tmp_path))
                assert row["measured_ns"] > 0
                assert row["predicted_ns"] > 0
        finally:
            EXPERIMENT.close()


def test_near_predictions_and_right_choices_meet_the_aims() -> None:
    costs = {INDEXED: 100.0, SWEEP: 200.0, PARALLEL: 300.0}
    rows = rows_with(costs, costs)
    assert {str(finding.judgement) for finding in EXPERIMENT.findings(rows)} == {"met"}
    figure = Figure()
    EXPERIMENT.plot(rows, figure)
    assert figure.axes


def test_wrong_predictions_are_told_with_what_they_cost() -> None:
    rows = rows_with({INDEXED: 100.0, SWEEP: 200.0, PARALLEL: 300.0}, {INDEXED: 500.0, SWEEP: 200.0, PARALLEL: 300.0})
    assert judged(EXPERIMENT, rows, "indexed: predictions") == ["missed"]
    (chosen,) = mentioning(EXPERIMENT, rows, "choosing by the prediction")
    assert chosen.judgement == "missed"
    assert "2.00 times, sweep for indexed" in chosen.ours
