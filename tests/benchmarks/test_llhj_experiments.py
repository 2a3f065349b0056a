"""The experiments on the handshake joins: the runs they measure, their grids, a small cell of each, their verdicts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Cell, Context, Experiment, Row, named
from benchmarks.papers import llhj_fig17, llhj_table2, scalejoin_fig6
from benchmarks.papers.llhj_fig21 import held_for_the_latest
from benchmarks.papers.llhj_latency import model
from benchmarks.papers.llhj_run import HANDSHAKE, LOW_LATENCY, ChainRun, Outcome
from benchmarks.papers.llhj_streams import Stream
from streamjoin.handshake.chain import Chain, SideLog
from streamjoin.handshake.kernels.links import MIN_SEQ, OUT, SEQ, UPTO
from tests.benchmarks.invented import judged
from tests.deadlock import no_deadlock
from tests.seeds import thorough_but

ROOT = Path(__file__).parents[2]
NAMES = (
    "llhj_fig5",
    "llhj_fig17",
    "llhj_fig18",
    "llhj_fig19",
    "llhj_fig20",
    "llhj_fig21",
    "llhj_table2",
    "scalejoin_fig6",
)
EXPERIMENTS: dict[str, Experiment] = {
    name: named(name) for name in NAMES
}  # fmt: skip
Pairs = list[tuple[int, int]]


def all_pairs(stream: Stream) -> Pairs:
    """What the windows and the condition allow of the tuples that move, by brute force."""
    logs = (SideLog(stream.dtype), SideLog(stream.dtype))
    stream.fill(logs)
    words = [log.words[:, : stream.count].astype(np.int64) for log in logs]
    left, right = (log.facts[: stream.count] for log in logs)
    holds = np.ones((stream.count, stream.count), np.bool_)
    for term in range(stream.terms):
        low, span = words[0][2 + term][:, None], words[0][4 + term][:, None]
        holds &= (words[1][term] >= low) & (words[1][term] <= low + span)
    left_later = right[None, :, SEQ] < left[:, None, UPTO]
    live = np.where(
        left_later, right[None, :, SEQ] >= left[:, None, MIN_SEQ], left[:, None, SEQ] >= right[None, :, MIN_SEQ]
    )
    r, s = np.nonzero(holds & live)
    moved = (r >= stream.filled) | (s >= stream.filled)
    return sorted(zip(r[moved].tolist(), s[moved].tolist(), strict=True))


def found(outcome: Outcome) -> Pairs:
    return [(r, s) for r, s in outcome.pairs.tolist()]


def gates(pairs: Pairs) -> list[tuple[int, int]]:
    """Result order: the later tuple's place in gate order, then the earlier one's position."""
    return [(2 * r, s) if r > s else (2 * s + 1, r) for r, s in pairs]


# -- runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filled", [0, 150])
@pytest.mark.parametrize("output", ["collect", "punctuate", "sort"])
def test_the_low_latency_stream_finds_every_pair_once(output: str, filled: int) -> None:
    stream = Stream(700, (150, 90), values=60, filled=filled)
    wanted = all_pairs(stream)
    for nodes, batch in ((1, 64), (3, 1), (8, 4)):
        with no_deadlock(500):
            outcome = ChainRun(LOW_LATENCY, nodes, stream, batch=batch, output=output).run(paced=False)
        pairs = found(outcome)
        assert sorted(pairs) == wanted
        if output == "sort":
            assert gates(pairs) == sorted(gates(pairs))
            assert 0 < outcome.most_held <= len(pairs)
        later = np.array([gate for gate, _ in gates(pairs)])
        assert (len(outcome.punctuations) > 0) == (output != "collect")
        for before, least in outcome.punctuations:
            assert (later[before:] >= least).all(), "a result came after a punctuation that excluded it"


@pytest.mark.parametrize("index", ["hashed", "pim_tree"])
@pytest.mark.thorough
def test_nodes_with_an_index_find_the_same(index: str) -> None:
    stream = Stream(900, (200, 200), filled=200, keyed=True, values=40)
    with no_deadlock(500):
        outcome = ChainRun(LOW_LATENCY, 3, stream, batch=8, index=index).run(paced=False)
    assert sorted(found(outcome)) == all_pairs(stream)


@pytest.mark.thorough
def test_the_original_stream_finds_pairs_once_and_misses_only_what_has_not_met() -> None:
    stream = Stream(3000, (200, 200), values=60)
    wanted = all_pairs(stream)
    for nodes in (1, 2, 5):
        run = ChainRun(HANDSHAKE, nodes, stream, batch=1)
        with no_deadlock(500):
            pairs = found(run.run(paced=False))
        # How far tuples got before the end depends on the threads; who passed whom follows from where they are.
        left, right = (_stops(run._chain, side) for side in (0, 1))
        met = [(r, s) for r, s in wanted if left[r] + right[s] >= nodes - 1]
        assert sorted(pairs) == met, nodes
        assert met


def _stops(chain: Chain, side: int) -> list[int]:
    """For each tuple of a side, the nodes that it has left behind when the run ended."""
    left = chain.node_words(OUT + 8 * side)
    return [sum(place < bound for bound in left) for place in range(chain.logs[side].count)]


def test_a_paced_run_takes_its_time_and_stamps_what_it_finds() -> None:
    from streamjoin.indexes.base import ticks_per_ns

    stream = Stream(400, (100, 100), values=40, spacing=int(ticks_per_ns() * 1e9 / 4000))
    with no_deadlock(500):
        outcome = ChainRun(LOW_LATENCY, 2, stream, batch=4).run(paced=True)
    assert outcome.seconds >= 399 / 4000
    assert outcome.due.max() <= 400 / 4000
    assert (outcome.latency > 0).all()


def test_what_a_sort_without_punctuations_holds() -> None:
    due = np.array([0.0, 1.0, 2.0, 3.0])
    outcome = Outcome(
        np.zeros((4, 2), np.int64),
        np.array([2.0, 0.0, 0.5, 0.1]),
        due,
        np.zeros((0, 2), np.int64),
        0,
        4.0,
        np.zeros(2, np.int64),
    )
    assert held_for_the_latest(outcome) == 2


def test_the_model_is_that_of_the_paper() -> None:
    assert model(200, 200) == 100
    assert model(100, 200) == pytest.approx(66.67, abs=0.01)


# -- experiments ---------------------------------------------------------------------------------------


def small(cell: Cell) -> Cell:
    shrunk = {"window_r": 0.05, "window_s": 0.05, "window": 256}
    return {key: shrunk.get(key, value) for key, value in cell.items()}


@pytest.mark.parametrize("name", thorough_but(NAMES, "llhj_fig17", "llhj_fig19"))
def test_a_small_cell_of_each_system_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llhj_fig17, "_QUICK_COMPARISONS", 1 << 18)
    monkeypatch.setattr(llhj_table2, "_COMPARISONS", 1 << 18)
    monkeypatch.setattr(llhj_table2, "_TUPLES", 1 << 14)
    monkeypatch.setattr(scalejoin_fig6, "_COMPARISONS", {True: 1 << 18})
    experiment = EXPERIMENTS[name]
    seen: set[tuple[Any, ...]] = set()
    rows: list[Row] = []
    with no_deadlock(500):
        for cell in experiment.cells(quick=True):
            kind = (cell["system"], cell.get("index"))
            if kind not in seen:
                seen.add(kind)
                rows.append({**cell, **experiment.run(small(cell), Context(1, True, tmp_path))})
    assert all(row[experiment.measure] > 0 for row in rows)
    figure = Figure()
    experiment.plot(rows, figure)
    assert figure.axes


def made_up(name: str, figure: dict[str, float], **more: Any) -> list[Row]:
    """The whole grid with an invented figure a system."""
    experiment = EXPERIMENTS[name]
    cells = list(experiment.cells(quick=False))
    rows = [{**cell, "least": 1.0, "most": 2.0, **more, experiment.measure: figure[cell["system"]]} for cell in cells]
    for cell, row in zip(cells, rows, strict=True):
        base = experiment.baseline(cell)
        if base is not None:
            row["ratio"] = row[experiment.measure] / rows[cells.index(base)][experiment.measure]
    return rows


def test_verdicts_on_latency() -> None:
    for name in ("llhj_fig18", "llhj_fig20"):
        experiment = EXPERIMENTS[name]
        more = {"median_ms": 0.4, "p99_ms": 0.9, "max_ms": 0.9, "tuples_per_s": 1e4}
        good = made_up(name, {HANDSHAKE: 900.0, LOW_LATENCY: 0.5}, **more)
        assert set(judged(experiment, good, "1 ms or less")) == {"met"}
        assert set(judged(experiment, good, "batch 4: latency orders of magnitude")) == {"agrees"}
        bad = made_up(name, {HANDSHAKE: 900.0, LOW_LATENCY: 4.0}, **more)
        assert set(judged(experiment, bad, "1 ms or less")) == {"missed"}
        assert set(judged(experiment, bad, "batch 4: latency orders of magnitude")) == {"differs"}


def test_the_verdict_on_the_model() -> None:
    experiment = EXPERIMENTS["llhj_fig5"]
    rows = made_up("llhj_fig5", {"model": 1000.0, HANDSHAKE: 1000.0}, p99_ms=900.0, latency_ms=450.0)
    assert set(judged(experiment, rows, "windows of")) == {"agrees"}
    for row in rows:
        row["latency_ms"] = 450.0 if row["system"] == "model" else 45.0
    assert set(judged(experiment, rows, "the mean lies halfway")) == {"differs"}


def test_verdicts_on_throughput_and_buffer() -> None:
    speeds = {HANDSHAKE: 100.0, LOW_LATENCY: 100.0, llhj_fig17.PUNCTUATED: 97.0}
    for cost, word in ((0.03, "agrees"), (0.1, "differs")):
        rows = made_up("llhj_fig17", speeds, comparisons_per_s=1e10, cost=cost, rounds=9, uneven=0.02, results=500)
        assert set(judged(EXPERIMENTS["llhj_fig17"], rows, "punctuations")) == {word}
        assert set(judged(EXPERIMENTS["llhj_fig17"], rows, "as fast as the original")) == {"agrees"}
    held = {HANDSHAKE: 9000.0, LOW_LATENCY: 20.0}
    rows = made_up("llhj_fig21", held, results_a_window=20_000)
    assert {str(finding.judgement) for finding in EXPERIMENTS["llhj_fig21"].findings(rows)} == {"agrees"}
    for speed, word in ((120.0, "agrees"), (80.0, "differs")):
        rows = made_up("scalejoin_fig6", {HANDSHAKE: 100.0, LOW_LATENCY: 100.0, "scalejoin": speed}, results=500)
        assert set(judged(EXPERIMENTS["scalejoin_fig6"], rows, "more comparisons/s")) == {word}
    rows = made_up("llhj_table2", {HANDSHAKE: 100.0, LOW_LATENCY: 100.0}, results_per_tuple=1.0)
    assert set(judged(EXPERIMENTS["llhj_table2"], rows, "hash table per node")) == {"differs"}


def test_a_run_that_found_half_of_its_pairs_counts_by_half() -> None:
    def halved(name: str, speeds: dict[str, float], count: str, **more: float) -> list[Row]:
        rows = made_up(name, speeds, **more, **{count: 800})
        return [{**row, count: 400} if row["system"] == HANDSHAKE else row for row in rows]

    twice = {HANDSHAKE: 200.0, LOW_LATENCY: 100.0, llhj_fig17.PUNCTUATED: 100.0, "scalejoin": 101.0}
    figures = {"comparisons_per_s": 1e10, "cost": 0.0, "rounds": 9, "uneven": 0.0}
    rows = halved("llhj_fig17", twice, "results", **figures)
    assert set(judged(EXPERIMENTS["llhj_fig17"], rows, "as fast as the original")) == {"agrees"}
    rows = halved("llhj_table2", twice, "results_per_tuple")
    assert set(judged(EXPERIMENTS["llhj_table2"], rows, "as fast as the original")) == {"agrees"}
    rows = halved("scalejoin_fig6", twice, "results")
    assert set(judged(EXPERIMENTS["scalejoin_fig6"], rows, "more comparisons/s")) == {"agrees"}


@pytest.mark.thorough
def test_the_experiments_need_only_numpy_and_numba() -> None:
    program = (
        "import sys\n"
        "for name in ('pyarrow', 'pyspark', 'sqlglot', 'matplotlib', 'rich', 'typer', 'hypothesis'):\n"
        "    sys.modules[name] = None\n"
        "import importlib\n"
        "from benchmarks.harness import measure\n"
        f"for name in {NAMES!r}:\n"
        "    importlib.import_module(f'benchmarks.papers.{name}')\n"
        "rows = measure(importlib.import_module('benchmarks.papers.llhj_fig20').EXPERIMENT, quick=True)\n"
        "print(len(rows))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500, cwd=ROOT)
    assert done.stdout == "4\n", done.stderr
