"""The C++ rival joins the same rows as a join here would, and the verdict compares with the aims."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import Context
from benchmarks.product.push_cost import TABLES, PushCost
from benchmarks.rivals.btree_rival import RIVAL, compiler


@pytest.mark.thorough
def test_every_system_finds_as_many_rows(tmp_path: Path) -> None:
    experiment, context = PushCost(), Context(0, True, tmp_path)
    systems = {cell["system"] for cell in experiment.cells(quick=True)}
    assert (RIVAL in systems) == (compiler() is not None)
    for system in systems:
        figures = experiment.run({"window": 1 << 12, "rows": 32, "system": system}, context)
        assert 1.7 < figures["rows_per_tuple"] < 2.3, system
        assert figures["tuples_per_s"] > 0


def test_the_verdict_compares_with_the_aims() -> None:
    rows = [
        {"system": TABLES, "rows": 32, "times_tables": 3.5, "tuples_per_s": 1.5e6},
        {"system": RIVAL, "rows": 32, "times_tables": None, "tuples_per_s": 1e6},
    ]
    lines = PushCost().verdict(rows)
    assert lines[0].endswith("cost 3.5 times what their tables cost; aim 4: met")
    assert lines[1].endswith("1.50 times the tuples/s of C++; aim 2: missed")
