"""Rows with invented figures, for what an experiment says and draws about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.harness import Cell, Experiment, Row


def invented(experiment: Experiment, figure: Callable[[Cell], float], **more: Any) -> list[Row]:
    """The rows of a whole grid."""
    cells = list(experiment.cells(quick=False))
    rows: list[Row] = [{**cell, experiment.measure: figure(cell), **more} for cell in cells]
    for cell, row in zip(cells, rows, strict=True):
        base = experiment.baseline(cell)
        if base is not None:
            row["ratio"] = row[experiment.measure] / rows[cells.index(base)][experiment.measure]
    return rows
