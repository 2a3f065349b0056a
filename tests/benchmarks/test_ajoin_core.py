"""The experiment on the ad-hoc core: its grid, a tiny cell of each system, that disagreement stops it, verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context, Row
from benchmarks.papers.ajoin_core import ALL, APART, FIGURE_14, NONE, ONE_THREAD, SHARED, AJoinCore


@pytest.mark.parametrize("quick", [True, False])
def test_the_grid_has_every_cell_once_and_its_baseline(quick: bool) -> None:
    experiment = AJoinCore()
    cells = list(experiment.cells(quick))
    for cell in cells:
        assert cells.count(cell) == 1
        base = experiment.baseline(cell)
        assert base is None or base in cells
    assert {cell["system"] for cell in cells} == {SHARED, ALL, APART, ONE_THREAD}


def test_a_tiny_cell_of_each_gives_the_same_rows(tmp_path: Path) -> None:
    experiment = AJoinCore()
    context = Context(seed=1, quick=True, scratch=tmp_path)
    cell = {"queries": 3, "batch": 300, "selections": FIGURE_14, "system": SHARED}
    answers = [experiment.run({**cell, "system": system}, context) for system in (SHARED, ALL, APART, ONE_THREAD)]
    assert len({answer["rows_per_tuple"] for answer in answers}) == 1
    assert answers[0]["rows_per_tuple"] > 0
    for answer in answers:
        assert answer["overall_per_s"] == pytest.approx(3 * answer["tuples_per_s"])
    assert answers[0]["megabytes"] < answers[2]["megabytes"]
    assert 0 < answers[0]["joins_share"] < 1
    assert answers[0]["of_one_query"] > 0 and answers[0]["of_everything"] > 0
    assert not any("of_one_query" in answer for answer in answers[1:])
    all_pairs = experiment.run({**cell, "selections": NONE}, context)
    assert all_pairs["rows_per_tuple"] > answers[0]["rows_per_tuple"]
    experiment._rows[FIGURE_14, 3] += 1
    with pytest.raises(AssertionError, match="another system"):
        experiment.run(cell, context)
    experiment.close()
    assert not experiment._rows


def rows(rate: dict[tuple[str, int], float]) -> list[Row]:
    return [
        {
            "selections": selections,
            "system": system,
            "queries": count,
            "tuples_per_s": per_s,
            "overall_per_s": per_s * count,
            "per_processor_s": per_s,
            "rows_per_tuple": 0.5,
            "rows_per_s": 7.0,
            "reading_share": 0.5,
            "ns_per_row": 3.0,
            "of_one_query": per_s / 200,
            "of_everything": per_s / 100,
            "ratio": 2.0,
        }
        for selections in (FIGURE_14, NONE)
        for (system, count), per_s in rate.items()
    ]


def test_verdicts_and_plot() -> None:
    experiment = AJoinCore()
    given = {(system, count): 100.0 for system in (SHARED, ALL, APART, ONE_THREAD) for count in (1, 100)}
    assert "aim 0.25: met" in experiment.verdict(rows(given))[1]
    assert "aim 0.25: missed" in experiment.verdict(rows({**given, (SHARED, 100): 24.0}))[1]
    assert "0.50 by processor time" in experiment.verdict(rows(given))[1]
    assert "aim 0.97: met" in experiment.verdict(rows(given))[-2]
    assert "aim 0.97: missed" in experiment.verdict(rows({**given, (SHARED, 100): 96.0}))[-2]
    assert "100 times" in experiment.verdict(rows(given))[0]
    assert "2.00 times no sharing" in experiment.verdict(rows(given))[-1]
    assert "1.00 times one thread" in experiment.verdict(rows(given))[-1]
    assert "--quick" in experiment.verdict(rows({(SHARED, 1): 1.0, (SHARED, 5): 1.0}))[1]
    figure = Figure()
    experiment.plot(rows(given), figure)
    assert len(figure.axes) == 2
