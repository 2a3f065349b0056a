"""The experiments on live joins: a small run of each, and what their verdicts compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context, Experiment
from benchmarks.product.live_latency import LiveLatency
from benchmarks.product.live_papers import LivePapers
from benchmarks.product.live_rate import LiveRate
from benchmarks.product.live_soak import LiveSoak, soak
from benchmarks.product.live_threads import LiveThreads
from tests.benchmarks.invented import invented
from tests.deadlock import no_deadlock

FIGURES: dict[str, Any] = {
    "mean_ms": 0.9, "p50_ms": 0.9, "p99_ms": 4.5, "max_ms": 80.0, "rows_per_tuple": 0.7, "tuples": 1e6,
    "tuples_per_s": 1e5, "most_tuples_per_s": 2e5, "sustained": True,
    "open_push_ms": 0.1, "hand_over_ms": 0.1, "times_least": 3.0,
    "per_busiest_s": 1e8, "processor_ns": 1.5,
    "rss_mb": [200.0, 209.0, 230.0], "memory": [(1.0, 200.0), (2.0, 209.0)],
}  # fmt: skip


@pytest.mark.parametrize(
    "experiment", [LiveLatency(), LivePapers(), LiveRate(), LiveSoak(), LiveThreads()], ids=lambda e: e.title
)
def test_grids_verdicts_and_pictures(experiment: Experiment) -> None:
    for quick in (True, False):
        cells = list(experiment.cells(quick))
        assert all(experiment.baseline(cell) in (None, *cells) for cell in cells)
    rows = [{**FIGURES, **row} for row in invented(experiment, lambda cell: 0.9)]
    assert experiment.verdict(rows)
    figure = Figure()
    experiment.plot(rows, figure)
    assert figure.axes


def test_the_aims_are_judged() -> None:
    def latency(algorithm: str) -> dict[str, Any]:
        p50 = 100.0 if algorithm == "handshake" else 0.9
        return {**FIGURES, "algorithm": algorithm, "load": 80, "window": 512, "p50_ms": p50, "p99_ms": 5.5}

    door = {**FIGURES, "algorithm": "auto", "push_rows": 4, "every_ms": 2.0, "window": 512, "p99_ms": 5.5}
    many = {**door, "push_rows": 64, "p50_ms": 1.1}
    verdict = LiveLatency().verdict([door, many, *(latency(name) for name in ("handshake", "low_latency_handshake"))])
    became = [line.rpartition(": ")[2] for line in verdict]
    assert became == ["met", "missed", "missed", "not tested", "not tested", "met"]
    grown = {**FIGURES, "algorithm": "auto", "order": "arrival", "seconds": 300.0, "rss_mb": [200.0, 211.0, 230.0]}
    assert LiveSoak().verdict([grown])[0].endswith("missed")


@pytest.mark.thorough
def test_a_small_run_of_each_kind(tmp_path: Path) -> None:
    context = Context(seed=0, quick=True, scratch=tmp_path)
    with no_deadlock():
        latency = LiveLatency().run(
            {"algorithm": "low_latency_handshake", "load": 50, "window": 512, "seconds": 0.4}, context
        )
        assert 0 < latency["p50_ms"] <= latency["p99_ms"]
        door = LiveLatency().cells(True)[0]
        assert not door.keys() & LiveLatency().run(door, context).keys()
        windows = {"window_r": 0.2, "window_s": 0.2}
        papers = LivePapers().run({"system": "handshake", "workers": 1, "batch": 64, **windows}, context)
        assert papers["rows"] > 0
        threads = LiveThreads()
        for cell in threads.cells(quick=True):
            assert threads.run(cell, context)["per_busiest_s"] > 0
        rate = LiveRate()
        rows = [rate.run({**cell, "tuples": 1 << 13, "window": 1 << 9}, context) for cell in rate.cells(True)]
        assert all(0.6 < row["rows_per_tuple"] < 0.9 for row in rows)


@pytest.mark.parametrize(
    ("algorithm", "order"),
    [("auto", "arrival"), pytest.param("scalejoin", "event_time", marks=pytest.mark.thorough)],
)
def test_a_short_soak_loses_nothing(algorithm: str, order: str) -> None:
    with no_deadlock():
        seen = soak(algorithm, order, 1 << 10, 1.0, 0)
    assert seen["tuples"] > 0
    assert seen["sources_in_all"] > 4
    assert len(seen["memory"]) == 60
