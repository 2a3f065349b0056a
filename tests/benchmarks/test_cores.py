"""`cores`: its grid, the account of a small cell, and the verdict on invented rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import Context
from benchmarks.product import cores
from benchmarks.product.cores import SYSTEMS, Cores


def test_the_grid_goes_up_to_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cores", lambda: 12)
    cells = Cores().cells(quick=False)
    assert {cell["workers"] for cell in cells} == {1, 2, 4, 8, 12}
    assert {cell["system"] for cell in cells} > set(SYSTEMS)
    assert {cell["workers"] for cell in Cores().cells(quick=True)} == {1, 2}


@pytest.mark.thorough
def test_the_steps_of_a_sweep_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_SECONDS", 0.0)
    monkeypatch.setitem(SYSTEMS, "sweep", ("sweep", None, 14, 14))
    figures = Cores().run({"system": "sweep", "workers": 3}, Context(0, True, tmp_path))
    assert figures["rows_per_tuple"] == pytest.approx(2, rel=0.3)
    steps = [figures[f"{name}_ns"] for name in ("encode", "store", "sort", "sweep", "merge", "order_pairs", "gather")]
    assert min(steps) > 0
    assert sum(steps) + figures["other_ns"] == pytest.approx(figures["ns"])
    assert "pair_ns" not in figures


def test_the_verdict_names_the_steps_that_do_not_gain() -> None:
    rows = [
        {"system": "sweep", "workers": 1, "per_s": 1e6, "sort_ns": 90.0, "gather_ns": 10.0, "other_ns": 1.0},
        {"system": "sweep", "workers": 2, "per_s": 1.5e6, "sort_ns": 85.0, "gather_ns": 5.0, "other_ns": 1.0},
        {"system": "pim_parallel", "workers": 2, "per_s": 4e6},
        {"system": "pim_parallel, harness", "workers": 2, "per_s": 8e6},
    ]
    lines = Cores().verdict(rows)
    assert any("1.50 times one; aim 8: missed; sort 90 -> 85 ns, gather 10 -> 5 ns" in line for line in lines)
    assert lines[-1] == "pim_parallel at push: 0.50 of the harness; aim 0.8: missed"
