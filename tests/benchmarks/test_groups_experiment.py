"""The experiment on grouped queries: its grid, and that sharing changes no row."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context
from benchmarks.product.groups import APART, HUNDRED, JOIN, ONE, PARTNERS, Groups


@pytest.mark.thorough
def test_a_tiny_cell_of_each_gives_the_same_rows(tmp_path: Path) -> None:
    experiment = Groups()
    assert all(experiment.baseline(cell) in (None, *experiment.cells(True)) for cell in experiment.cells(True))
    context = Context(seed=1, quick=True, scratch=tmp_path)
    cells = [{"keys": 5, "rows": 60, "system": system} for system in (JOIN, ONE, HUNDRED, APART)]
    cells += [{"keys": keys, "rows": 60, "system": PARTNERS} for keys in (5, 1)]
    rows = [{**cell, **experiment.run(cell, context), "ratio": 1.0} for cell in cells]
    assert rows[2]["rows_out"] == rows[3]["rows_out"] > rows[1]["rows_out"] > 0
    told = experiment.verdict(rows)
    assert len(told) == 3 and told[-1].startswith("6 partners a tuple take ") and "what 1 take" in told[-1]
    experiment.plot(rows, Figure())
