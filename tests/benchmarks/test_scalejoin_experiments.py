"""The experiments on ScaleJoin: their stream against a plain join, grids, quick runs, verdicts on made-up rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Cell, Experiment, Row, measure, named
from benchmarks.papers.scalejoin import GROUP
from benchmarks.papers.scalejoin_skew import constant, peaks, stream_of, wave
from benchmarks.papers.scalejoin_stream import BAND, Stream, alternating, make_pool, run_stream, scalejoin_comparisons
from tests.benchmarks.invented import invented, judged
from tests.deadlock import no_deadlock
from tests.seeds import thorough_but

ROOT = Path(__file__).parents[2]
NAMES = tuple(f"scalejoin_fig{figure}" for figure in ("5", "7a", "7b", "8a", "8b", "8c"))
EXPERIMENTS: dict[str, Experiment] = {
    name: named(name) for name in NAMES
}  # fmt: skip


def made_up(name: str, figure: Callable[[Cell], float], **more: Any) -> list[Row]:
    """The rows of a whole grid with invented figures."""
    return invented(EXPERIMENTS[name], figure, **more)


# -- the stream ----------------------------------------------------------------------------------------


def pairs_of(streams: list[Stream], window: int, seed: int) -> int:
    """How many pairs a join of all tuples by their times gives, counted plainly."""
    pool, _ = make_pool(streams, seed)
    left, right = (np.flatnonzero(pool.side == side) for side in (0, 1))
    x, y, time = (column.astype(np.int64) for column in (pool.x, pool.y, pool.time))
    near = np.abs(x[left, None] - x[None, right]) <= BAND
    near &= np.abs(y[left, None] - y[None, right]) <= BAND * 1024
    near &= np.abs(time[left, None] - time[None, right]) <= window
    return int(near.sum())


def test_the_stream_finds_every_pair_in_one_sequence() -> None:
    rng = np.random.default_rng(2)
    streams = [Stream(side, np.sort(rng.integers(0, 20_000, 1_500))) for side in (0, 1, 1, 0)]
    wanted = pairs_of(streams, 6_000, seed=4)
    assert wanted > 10
    with no_deadlock(120):
        seen = {
            (ran.results, ran.digest, ran.comparisons)
            for threads in (1, 2, 3, 8, 3)
            for ran in [run_stream(threads, streams, 6_000, seed=4)]
        }
    assert len(seen) == 1
    assert next(iter(seen))[0] == wanted


def test_a_full_window_makes_its_comparisons() -> None:
    with no_deadlock(120):
        for threads in (1, 3):
            ran = scalejoin_comparisons(threads, 2_000, target=1e6)
            # A window of 2 w ticks holds w tuples of the other side, or one more.
            assert ran.comparisons == pytest.approx(2_000 * ran.tuples, rel=0.01)
            assert ran.spread < 1


def test_a_paced_stream_takes_its_time_and_notes_delays() -> None:
    with no_deadlock(120):
        ran = run_stream(2, alternating(2_000), 8_000, held=4_000, rate=20_000.0)
    assert ran.seconds >= 0.095
    assert ran.delays_ms.size == ran.results > 0
    assert (ran.delays_ms > 0).all()


def test_a_stream_paced_by_its_own_times_takes_as_long_as_they_span() -> None:
    streams = [Stream(0, np.array([0, 10, 90_000])), Stream(1, np.array([5, 50_000]))]
    with no_deadlock(120):
        ran = run_stream(2, streams, 100_000, per_tick_ns=1_000.0)
    assert ran.seconds >= 0.09
    assert ran.delays_ms.size == ran.results
    assert (ran.delays_ms > 0).all()


def test_windows_go_round_in_their_arrays() -> None:
    """More tuples pass than the arrays hold: live ones are moved to the front."""
    n = 40 * GROUP
    streams = alternating(n)
    with no_deadlock(120):
        ran = run_stream(2, streams, 400, held=200, seed=1)
    assert ran.comparisons == pytest.approx(200 * n, rel=0.01)


@pytest.mark.parametrize("rate", [constant(50), wave(60, 40, 7), peaks(40, 5, 10, 1)])
def test_sources_send_at_their_rates(rate: Callable[[Any], Any]) -> None:
    times = stream_of(0, rate, 20, 0.5).times / 1e6
    assert (np.diff(times) >= 0).all()
    sent = np.histogram(times, 20, (0, 20))[0]
    due = rate(np.arange(0, 20, 0.001)).reshape(20, -1).mean(axis=1)
    assert np.abs(sent - due).max() <= 1.5


# -- grids, runs, verdicts -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", thorough_but(NAMES, "scalejoin_fig7a"))
def test_a_quick_run_measures_draws_and_judges(name: str) -> None:
    with no_deadlock(120):
        rows = measure(EXPERIMENTS[name], quick=True, seed=1)
    assert all(row[EXPERIMENTS[name].measure] > 0 for row in rows)
    assert EXPERIMENTS[name].verdict(rows)
    figure = Figure()
    EXPERIMENTS[name].plot(rows, figure)
    assert figure.axes


def test_scaling_meets_its_aims_or_says_so() -> None:
    experiment = EXPERIMENTS["scalejoin_fig5"]
    good = made_up("scalejoin_fig5", lambda c: 1.1e10 * c["threads"], spread_percent=0.2)
    assert {str(finding.judgement) for finding in experiment.findings(good)} == {"agrees", "met"}
    flat = made_up("scalejoin_fig5", lambda c: 9e9, spread_percent=5.0)
    for claim in ("grow linearly", "differs by 4 %"):
        assert set(judged(experiment, flat, claim)) == {"differs"}
    assert judged(experiment, flat, "one thread makes 10 G") == ["missed"]
    assert judged(experiment, flat, "do not depend on the window") == ["agrees"]


def test_the_gate_meets_its_aim_or_says_so() -> None:
    experiment = EXPERIMENTS["scalejoin_fig7a"]
    grows = made_up("scalejoin_fig7a", lambda c: 6e6 + c["sources"], reads_per_s=6e6)
    assert judged(experiment, grows, "grows with the sources") == ["agrees", "agrees"]
    assert judged(experiment, grows, "5 M tuples/s") == ["met"]
    slow = made_up("scalejoin_fig7a", lambda c: 4e6 / c["readers"] / c["sources"], reads_per_s=4e6)
    assert judged(experiment, slow, "5 M tuples/s") == ["missed"]
    assert judged(experiment, slow, "150 thousand") == ["agrees"]


@pytest.mark.parametrize("figure", ["8a", "8b", "8c"])
def test_even_work_agrees_and_uneven_does_not(figure: str) -> None:
    name = f"scalejoin_fig{figure}"
    more = {"std_percent": 0.1, "worst_std_percent": 0.9, "least_a_slice": 1e6, "most_a_slice": 2e6, "late_ms": 4.0}
    even = made_up(name, lambda _: 1e9, **more)
    assert judged(EXPERIMENTS[name], even, "the balance holds") == ["agrees"]
    assert judged(EXPERIMENTS[name], even, "in real time") == ["agrees"]
    uneven = made_up(name, lambda _: 1e9, **{**more, "std_percent": 0.5, "worst_std_percent": 1.1, "late_ms": 6.0})
    for claim in ("the balance holds", "spread by about", "in real time"):
        assert judged(EXPERIMENTS[name], uneven, claim) == ["differs"]


def test_latency_is_compared_with_the_papers() -> None:
    more = {"p99_ms": 9.0, "overran": 1.0, "tuples_per_s": 1e6}
    for mean_ms, overran, word in ((2.0, 1.0, "agrees"), (100.0, 1.0, "differs"), (2.0, 1.5, "differs")):
        rows = made_up("scalejoin_fig7b", lambda _: 500.0, mean_ms=mean_ms, **{**more, "overran": overran})
        assert judged(EXPERIMENTS["scalejoin_fig7b"], rows, "does not exceed 70 ms") == [word]


PROGRAM = """
import sys, types
for name in ("pyarrow", "pyspark", "sqlglot", "matplotlib", "rich"):
    sys.modules[name] = None
package = types.ModuleType("streamjoin")
package.__path__ = [sys.argv[1]]
sys.modules["streamjoin"] = package
import importlib
for name in sys.argv[2:]:
    experiment = importlib.import_module("benchmarks.papers." + name).EXPERIMENT
print("imported", len(sys.argv) - 2)
"""


def test_they_need_numpy_and_numba_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "src" / "streamjoin"), *NAMES],
        capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout == f"imported {len(NAMES)}\n", done.stderr
