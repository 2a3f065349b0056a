"""`large_window`: a small cell turns its windows over, and the verdict compares the largest with the smallest."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import Context, Judgement
from benchmarks.product import large_window
from benchmarks.product.large_window import LargeWindow


def test_a_small_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_window, "_PUSH", 1000)
    figures = LargeWindow().run({"window": 20_000}, Context(0, True, tmp_path))
    assert figures["rows_per_tuple"] == pytest.approx(1, rel=0.1)
    assert 16 <= figures["bytes_per_tuple"] < 200


def test_the_verdict_needs_a_quarter_of_the_rate() -> None:
    def rows(largest: float) -> list[dict[str, float]]:
        beside = {"bytes_per_tuple": 50.0, "peak_gib": 2.0}
        return [{"window": 10, "tuples_per_s": 8e6, **beside}, {"window": 100, "tuples_per_s": largest, **beside}]

    assert [finding.judgement for finding in LargeWindow().findings(rows(3e6))] == [Judgement.MET]
    assert [finding.judgement for finding in LargeWindow().findings(rows(1e6))] == [Judgement.MISSED]
