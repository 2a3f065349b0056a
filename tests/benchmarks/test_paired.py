"""Two trees measured in turns: which rows belong together, and what is said of them."""

from __future__ import annotations

import io

from rich.console import Console

from benchmarks import paired


def test_rows_are_compared_by_their_place_with_median_and_spread() -> None:
    older = [("window=1", 10.0), ("window=2", 0.0)]
    pairs = [(older, [("window=1", figure), ("window=2", 5.0)]) for figure in (9.0, 10.0, 12.0)]
    out = Console(width=120, file=io.StringIO(), record=True)
    out.print(paired._table("push_cost", pairs))
    text = out.export_text()
    assert "1.000" in text and "0.90 to 1.20" in text
    # A row without a figure on one side has no ratio.
    assert "window=2" not in text
