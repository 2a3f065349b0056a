"""The experiment on the ad-hoc engine in process: its grid, and a tiny cell of each system with the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context
from benchmarks.product.adhoc_engine import CHECKPOINT, CORE, MEMORY, AdhocEngine


@pytest.mark.thorough
def test_a_tiny_cell_of_each_gives_the_same_rows(tmp_path: Path) -> None:
    experiment = AdhocEngine()
    assert all(experiment.baseline(cell) in (None, *experiment.cells(True)) for cell in experiment.cells(True))
    context = Context(seed=1, quick=True, scratch=tmp_path)
    cells = [{"queries": 3, "batch": 300, "system": system} for system in (CORE, MEMORY, CHECKPOINT)]
    rows = [{**cell, **experiment.run(cell, context), "ratio": 1.0} for cell in cells]
    assert len({row["rows"] for row in rows}) == 1 and rows[0]["rows"] > 0
    assert len(experiment.verdict(rows)) == 2
    experiment.plot(rows, Figure())
    experiment._rows[3] += 1
    with pytest.raises(AssertionError, match="another number"):
        experiment.run(cells[0], context)
