"""The baselines experiment: its stream, that all systems find the same, a tiny cell of each, verdicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context, Row
from benchmarks.papers.cell_join import RepartitionedScan
from benchmarks.papers.parallel_baselines import EXPERIMENT, by_cell_join, by_nested_loop, by_three_step, stream
from streamjoin.windows.crew import Crew
from tests.benchmarks.invented import judged
from tests.deadlock import no_deadlock


def brute_force(window: int, tuples: int, seed: int) -> int:
    rng = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        x = rng.integers(1, 10_001, window + tuples // 2).astype(np.int64)
        sides.append((x, rng.uniform(1, 10_000, window + tuples // 2).astype(np.float32)))
    matches = 0
    for i in range(tuples):
        own, other = i % 2, 1 - i % 2
        x, y = (column[window + i // 2] for column in sides[own])
        arrived = slice(i // 2 + own, i // 2 + own + window)
        near = np.abs(sides[other][0][arrived] - x) <= 10
        near &= (sides[other][1][arrived] >= y - np.float32(10)) & (sides[other][1][arrived] <= y + np.float32(10))
        matches += int(near.sum())
    return matches


def test_every_system_finds_what_a_plain_loop_finds() -> None:
    given = stream(3000, 500, seed=5)
    assert given.comparisons == 500 * 3000
    wanted = brute_force(3000, 500, seed=5)
    assert wanted > 0
    with no_deadlock():
        assert by_three_step(given) == wanted
        for threads in (1, 3):
            crew, scan = Crew(threads), RepartitionedScan(threads)
            assert by_nested_loop(given, crew) == wanted
            assert by_cell_join(given, scan, 1) == by_cell_join(given, scan, 64) == wanted
            crew.close()
            scan.close()


@pytest.mark.parametrize("quick", [True, False])
def test_the_grid_has_its_baselines(quick: bool) -> None:
    cells = list(EXPERIMENT.cells(quick))
    for cell in cells:
        assert cells.count(cell) == 1
        base = EXPERIMENT.baseline(cell)
        assert base is None or base in cells
    assert {cell["system"] for cell in cells} == {"three_step", "nested_loop", "cell_join"}


@pytest.mark.thorough
def test_a_tiny_cell_of_each_runs(tmp_path: Path) -> None:
    with no_deadlock():
        for cell in EXPERIMENT.cells(quick=True):
            if cell["threads"] <= 2:
                answer = EXPERIMENT.run({**cell, "window": 256}, Context(seed=1, quick=True, scratch=tmp_path))
                assert answer["comparisons_per_s"] > 0
                assert 1 < answer["matches_per_m"] < 12  # 4 of a million


def test_the_verdict_compares_with_the_paper() -> None:
    def rows(loss: float) -> list[Row]:
        made: list[Row] = []
        for cell in EXPERIMENT.cells(quick=False):
            speed = 1e9 * cell["threads"]
            if cell["system"] == "cell_join" and cell["task"] == 1:
                speed = 1e8 * cell["threads"] ** loss
            made.append({**cell, "comparisons_per_s": speed})
        return made

    assert judged(EXPERIMENT, rows(0.5), "cutting the windows") == ["agrees"] * 2
    assert judged(EXPERIMENT, rows(1.5), "cutting the windows") == ["differs"] * 2
    assert judged(EXPERIMENT, rows(1.0), "comparing in blocks") == ["missed"] * 2
    figure = Figure()
    EXPERIMENT.plot(rows(1.0), figure)
    assert len(figure.axes) == 2
