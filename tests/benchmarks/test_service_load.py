"""The experiment on the service: its grid and verdict, its client, and a small window of each kind on Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context
from benchmarks.service_client import ask
from benchmarks.service_load import ALONE, ASKED, ServiceLoad
from tests.benchmarks.invented import invented
from tests.service.conftest import Live, live, start

__all__ = ["live", "start"]


@pytest.mark.parametrize(("rate", "word"), [(960.0, "met"), (940.0, "missed")])
def test_the_aim_is_judged_by_the_ratio(rate: float, word: str) -> None:
    experiment = ServiceLoad()
    rows = invented(
        experiment,
        lambda cell: rate if cell["requests_per_s"] else 1000.0,
        answers_per_s=199.0,
        failures=0,
        p99_ms=12.0,
        cpu_ms=0.3,
    )
    told = experiment.verdict(rows)
    assert told[0].endswith(f"{rate / 1000:.3f} of its rate alone; aim 0.95: {word}")
    figure = Figure()
    experiment.plot(rows, figure)
    assert figure.axes
    for quick in (True, False):
        cells = list(experiment.cells(quick))
        assert [experiment.baseline(cell) for cell in cells] == [None, cells[0]]


def test_the_client_asks_at_its_rate(live: Live) -> None:
    for number in range(2):
        live.create(name=f"q{number}")
    host, port = live.url.removeprefix("http://").split(":")
    told = asyncio.run(ask(host, int(port), 100, 0.5)).as_data()
    assert (told["answers"], told["failures"]) == (50, 0)
    assert 0 < told["median_ms"] <= told["p99_ms"]
    live.engine.drop("q1")
    assert asyncio.run(ask(host, int(port), 100, 0.5)).as_data()["failures"] > 0


@pytest.mark.spark
@pytest.mark.slow
def test_a_window_alone_and_one_with_requests(spark: Any, tmp_path: Path) -> None:
    experiment = ServiceLoad(spark)
    context = Context(seed=0, quick=True, scratch=tmp_path)
    try:
        for rate in (ALONE, ASKED):
            row = experiment.run({"requests_per_s": rate, "seconds": 1, "rows": 500}, context)
            assert row["rows_per_s"] > 0
            assert row["batches"] >= 3
            assert (row["answers_per_s"] > 0) == (rate > 0)
            assert (row["cpu_ms"] > 0) == (rate > 0)
            assert row["failures"] == 0
    finally:
        experiment.close()
