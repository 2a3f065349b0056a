"""The experiment on the service: its grid and verdict, its client, and a small window of each kind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context
from benchmarks.product.service_client import ask
from benchmarks.product.service_load import ALONE, ASKED, EMBEDDED, SPARK, ServiceLoad
from tests.benchmarks.invented import invented
from tests.service.conftest import Live, live, start

__all__ = ["live", "start"]


@pytest.mark.parametrize(("rate", "p99", "word"), [(960.0, 99.0, "met"), (940.0, 101.0, "missed")])
def test_the_aims_are_judged_by_the_ratio_and_the_slowest_answers(rate: float, p99: float, word: str) -> None:
    experiment = ServiceLoad()
    rows = invented(
        experiment,
        lambda cell: rate if cell["requests_per_s"] else 1000.0,
        answers_per_s=199.0,
        failures=0,
        median_ms=2.0,
        p99_ms=p99,
        slowest_path_p99_ms=p99,
        cpu_ms=0.3,
    )
    lines = experiment.verdict(rows)
    for engine, (share, answers) in zip((EMBEDDED, SPARK), (lines[:2], lines[2:4]), strict=True):
        assert share.startswith(engine) and answers.startswith(engine)
        assert share.endswith(f"{rate / 1000:.3f} of its rate alone; aim 0.95: {word}")
        assert f"within {p99:.0f} ms; aim 100 ms: {word}" in answers
    figure = Figure()
    experiment.plot(rows, figure)
    assert figure.axes
    for quick in (True, False):
        cells = list(experiment.cells(quick))
        assert [experiment.baseline(cell) for cell in cells] == [None, cells[0], None, cells[2]]


def test_the_client_asks_at_its_rate(live: Live) -> None:
    for number in range(2):
        live.create(name=f"q{number}")
    host, port = live.url.removeprefix("http://").split(":")
    report = asyncio.run(ask(host, int(port), 100, 0.5)).as_data()
    assert (report["answers"], report["failures"]) == (50, 0)
    assert 0 < report["median_ms"] <= report["p99_ms"] <= report["slowest_path_p99_ms"]
    live.engine.drop("q1")
    assert asyncio.run(ask(host, int(port), 100, 0.5)).as_data()["failures"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", [EMBEDDED, pytest.param(SPARK, marks=pytest.mark.spark)])
@pytest.mark.thorough
def test_a_window_alone_and_one_with_requests(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    experiment = ServiceLoad(request.getfixturevalue("spark") if engine == SPARK else None)
    context = Context(seed=0, quick=True, scratch=tmp_path)
    try:
        for rate in (ALONE, ASKED):
            row = experiment.run({"engine": engine, "requests_per_s": rate, "seconds": 1, "rows": 500}, context)
            assert row["rows_per_s"] > 0
            assert row["batches"] >= 3
            assert (row["answers_per_s"] > 0) == (rate > 0)
            assert (row["cpu_ms"] > 0) == (rate > 0)
            assert row["failures"] == 0
    finally:
        experiment.close()
