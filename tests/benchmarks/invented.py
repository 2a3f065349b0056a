"""Rows with invented figures, for what an experiment says and draws about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness import Cell, Experiment, Finding, Row


def invented(experiment: Experiment, figure: Callable[[Cell], float], **more: Any) -> list[Row]:
    """The rows of a whole grid."""
    cells = list(experiment.cells(quick=False))
    rows: list[Row] = [
        {**cell, experiment.measure: (one := figure(cell)), "least": one, "most": one, **more} for cell in cells
    ]
    for cell, row in zip(cells, rows, strict=True):
        base = experiment.baseline(cell)
        if base is not None:
            row["ratio"] = row[experiment.measure] / rows[cells.index(base)][experiment.measure]
    return rows


def judged(experiment: Experiment, rows: Sequence[Row], claim: str) -> list[str]:
    """What became of the parts of a claim that mention `claim`; there must be some."""
    return [str(finding.judgement) for finding in mentioning(experiment, rows, claim)]


def mentioning(experiment: Experiment, rows: Sequence[Row], claim: str) -> list[Finding]:
    """The findings whose claim mentions `claim`; there must be some."""
    findings = [finding for finding in experiment.findings(rows) if claim in finding.claim]
    assert findings, f"no claim mentions {claim!r}"
    return findings
