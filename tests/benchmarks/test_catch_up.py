"""The experiment on catching up: its verdict, and a small run of both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context
from benchmarks.product.catch_up import BOUNDED, WHOLE, CatchUp
from tests.benchmarks.invented import invented


@pytest.mark.parametrize(("seconds", "word"), [(9.0, "met"), (11.0, "missed")])
def test_the_aim_is_judged_by_the_first_answer(seconds: float, word: str) -> None:
    experiment = CatchUp()
    rows = invented(
        experiment,
        lambda cell: 0.1 if cell["mode"] == BOUNDED else 0.01,
        answered_s=seconds,
        caught_up_s=50.0,
        longest_batch_s=1.0,
        memory_mb=300.0,
    )
    soon, cost = experiment.verdict(rows)
    assert soon == f"the engine answers after {seconds:.1f} s, 10.0 times as soon as with one batch; aim 10 s: {word}"
    assert "memory is 1.00 of that" in cost
    figure = Figure()
    experiment.plot(rows, figure)
    assert len(figure.axes) == 2
    cells = list(experiment.cells(True))
    assert [experiment.baseline(cell) for cell in cells] == [None, cells[0]]


@pytest.mark.slow
@pytest.mark.thorough
def test_a_small_pause_is_caught_up_with(tmp_path: Path) -> None:
    experiment = CatchUp()
    try:
        for mode in (WHOLE, BOUNDED):
            cell = {"mode": mode, "queries": 2, "rows": 50, "pause_s": 30}
            found = experiment.run(cell, Context(1, True, tmp_path))
            assert 0 < found["started_s"] <= found["answered_s"] <= found["caught_up_s"]
            assert found["memory_mb"] > 0 and not found["paused"]
    finally:
        experiment.close()
