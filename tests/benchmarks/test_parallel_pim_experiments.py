"""The experiments on the parallel PIM-Tree join: grids, the join they run, a quick run of each, no Arrow needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Cell, Experiment, Row, measure, named
from benchmarks.papers.bw_tree_join import BW_TREE, BwTreeBandJoin
from benchmarks.papers.index_join import IndexJoin
from benchmarks.papers.index_keys import keys_for
from benchmarks.papers.parallel_join import ParallelJoin, RoundRobinJoin
from tests.benchmarks.invented import invented, judged, mentioning
from tests.deadlock import no_deadlock
from tests.seeds import thorough_but

NAMES = (
    "bw_tree_sizes", "pim_fig8a", "pim_fig9a", "pim_fig9d", "pim_fig11a", "pim_fig11b", "pim_fig12a", "pim_fig12b",
    "pim_fig12c", "pim_fig13",
)  # fmt: skip
EXPERIMENTS: dict[str, Experiment] = {
    name: named(name) for name in NAMES
}  # fmt: skip
WINDOW = 1 << 10


@pytest.mark.parametrize("name", thorough_but(NAMES, "pim_fig12b", "pim_fig13"))
def test_a_quick_run_has_rows_verdicts_and_a_picture(name: str) -> None:
    experiment = EXPERIMENTS[name]
    with no_deadlock(300):
        rows = measure(experiment, quick=True)
    assert all(row[experiment.measure] > 0 for row in rows)
    assert experiment.verdict(rows)
    figure = Figure()
    experiment.plot(rows, figure)
    assert figure.axes


@pytest.mark.parametrize("self_join", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_it_joins_the_same_tuples_as_the_baseline(self_join: bool, threads: int) -> None:
    keys = keys_for("uniform", WINDOW, match_rate=3.0)
    reference = IndexJoin("btree", (WINDOW, WINDOW), keys, self_join=self_join)
    for side, index in enumerate(reference.sides):
        index.insert(keys.keys("right" if side else "left", 0, WINDOW), np.arange(WINDOW))
    join = ParallelJoin((WINDOW, WINDOW), keys, threads, {"smallest_run": 16}, task=5, self_join=self_join)
    with no_deadlock():
        join.settle()
        reference.advance(join.arrived)
        found = join.run(5_000)
        assert found.matches == reference.run(5_000).matches
        assert found.merges > 0
        # Another crew goes on with the trees as they are, whichever of the two is in use.
        for others in (2, 1, 3):
            join.use(others, 7)
            assert join.run(1_500).matches == reference.run(1_500).matches
    join.close()


@pytest.mark.parametrize("self_join", [False, True])
def test_the_join_over_a_bw_tree_joins_the_same_tuples(self_join: bool) -> None:
    keys = keys_for("uniform", WINDOW, match_rate=3.0)
    reference = IndexJoin("btree", (WINDOW, WINDOW), keys, self_join=self_join)
    for side, index in enumerate(reference.sides):
        index.insert(keys.keys("right" if side else "left", 0, WINDOW), np.arange(WINDOW))
    join = BwTreeBandJoin((WINDOW, WINDOW), keys, 3, {"leaf_size": 8, "chain": 4}, task=5, self_join=self_join)
    with no_deadlock():
        join.settle()
        reference.advance(join.arrived)
        assert join.run(5_000).matches == reference.run(5_000).matches
        for threads in (2, 1, 4):
            join.use(threads, 7)
            assert join.run(1_500).matches == reference.run(1_500).matches
    for tree in join.trees:
        tree.check()
    join.close()


def test_the_claims_about_a_bw_tree_in_figure_8a() -> None:
    experiment, claim = EXPERIMENTS["pim_fig8a"], "over a Bw-Tree"

    def figure(better: float) -> Callable[[Cell], float]:
        def of(cell: Cell) -> float:
            speed: float = 1e6 * (1 + cell["threads"])
            return speed * float(better * cell["window"] / (1 << 17)) if cell["system"] == BW_TREE else speed

        return of

    rows = invented(experiment, figure(1.0))
    most = max(row["threads"] for row in rows)
    if most == 1:
        assert judged(experiment, rows, claim) == ["not tested"] * 3
        return
    for row in rows:
        if row["system"] == BW_TREE and row["threads"] == most:
            row["ratio"] = 1 + row["window"] / (1 << 20)
    assert judged(experiment, rows, claim) == ["agrees", "agrees", "agrees"]
    assert judged(experiment, invented(experiment, figure(100.0)), "65 % slower") == ["differs"]
    flat = invented(experiment, lambda _: 1e6)
    assert judged(experiment, flat, claim) == ["differs", "differs", "differs"]
    older = [row for row in rows if row["system"] != BW_TREE]
    assert judged(experiment, older, claim) == ["not tested"] * 3
    assert {finding.reason for finding in mentioning(experiment, older, claim)} == {
        "the result is older than the join over a Bw-Tree"
    }


def test_the_claims_about_a_bw_tree_in_figure_12b() -> None:
    experiment = EXPERIMENTS["pim_fig12b"]

    def rows_with(pim: float, bw: float) -> list[Row]:
        speeds = {"pim_parallel": pim, BW_TREE: bw}
        waits = {"p999_us": 10.0, "mean_us": 5.0, "arrivals_per_s": 1e6}
        return invented(experiment, lambda cell: speeds.get(cell["system"], 1e6), **waits)

    assert judged(experiment, rows_with(5e6, 2e6), "times a Bw-Tree") == ["agrees"]
    assert judged(experiment, rows_with(5e6, 2e6), "ahead of a Bw-Tree") == ["agrees"] * 3
    assert judged(experiment, rows_with(5e6, 2e6), "16 threads over a Bw-Tree") == ["agrees"]
    assert judged(experiment, rows_with(3e6, 1.5e6), "times a Bw-Tree") == ["differs"]
    assert judged(experiment, rows_with(3e6, 1.5e6), "16 threads over a Bw-Tree") == ["differs"]
    assert judged(experiment, rows_with(1e6, 2e6), "ahead of a Bw-Tree") == ["differs"] * 3
    older = [row for row in rows_with(5e6, 2e6) if row["system"] != BW_TREE]
    assert judged(experiment, older, "Bw-Tree") == ["not tested"] * 2
    small = [{**row, "window": 1 << 12} for row in rows_with(5e6, 2e6) if row["window"] == 1 << 14]
    assert judged(experiment, small, "Bw-Tree") == ["not tested"] * 2
    assert all(cell["system"] != BW_TREE for cell in EXPERIMENTS["pim_fig12c"].cells(quick=False))


def test_all_ways_to_merge_get_the_same_arrivals() -> None:
    experiment = EXPERIMENTS["pim_fig12c"]
    with no_deadlock(300):
        rows = measure(experiment, quick=True)
    paced = [row["arrivals_per_s"] for row in rows if "arrivals_per_s" in row]
    assert len(paced) == 3
    assert len(set(paced)) == 1


def test_locks_are_not_blamed_for_a_cost_that_is_not_there() -> None:
    experiment = EXPERIMENTS["pim_fig12a"]
    for locked, word in ((1.0, "not tested"), (0.5, "agrees")):
        rows = invented(experiment, lambda _: 1e6)
        for row in rows:
            row["on_cpu"], row["per_cpu_s"] = 1.0, 1e6 * (locked if row["system"] == "pim_parallel" else 1.0)
        assert judged(experiment, rows, "mainly by the locks") == [word] * 2


def test_what_a_drift_leaves_is_judged_by_its_speed() -> None:
    experiment = EXPERIMENTS["pim_fig13"]
    more = {"before_per_s": 1e6, "after_per_s": 0.7e6, "idle_share": 0.0, "sub_indexes": 1_025}
    rows = [
        {**row, "largest_share": 0.001 + row["drift"] / 1.5}
        for row in invented(experiment, lambda cell: 1e6 * (1 - 0.5 * min(1.0, cell["drift"])), **more)
    ]
    # The paper's r within ten windows, then within each of them.
    assert judged(experiment, rows, "costs almost nothing") == ["agrees", "differs"]
    assert judged(experiment, rows, "leaves 35 %") == ["differs", "differs", "agrees"]
    assert judged(experiment, rows, "leaves 16 %") == ["differs", "differs", "differs"]
    assert set(judged(experiment, rows, "recovers")) == {"differs"}
    assert judged(experiment, rows, "gets 77 %") == ["agrees", "agrees"]
    assert judged(experiment, rows, "get almost none") == ["differs", "differs"]
    assert len(mentioning(experiment, rows, "per window")) == 9
    assert judged(experiment, rows, "the faster the drift") == ["agrees"]


def test_round_robin_finds_what_one_index_finds() -> None:
    keys = keys_for("uniform", WINDOW, match_rate=3.0)
    found = []
    for threads in (1, 4):
        join = RoundRobinJoin("btree", WINDOW, keys, threads)
        join.settle()
        found.append(join.run(4_000).matches)
    assert found[0] == found[1] > 0


def test_paced_arrivals_give_latencies() -> None:
    join = ParallelJoin((WINDOW, WINDOW), keys_for("uniform", WINDOW), 2)
    with no_deadlock():
        join.settle()
        run = join.run(2_000, gap_ns=5_000)
    join.close()
    answer = run.answer()
    assert 0 < answer["p50_us"] <= answer["p999_us"]
    assert run.clock_ns >= 2_000 * 5_000


def test_they_are_measured_without_arrow_and_friends() -> None:
    """The machine with many cores has NumPy and Numba alone."""
    program = (
        "import sys\n"
        "for name in ('pyarrow', 'pyspark', 'sqlglot', 'matplotlib', 'rich', 'duckdb'): sys.modules[name] = None\n"
        "import importlib\n"
        "from benchmarks.harness import measure\n"
        f"for name in {NAMES}: importlib.import_module('benchmarks.papers.' + name)\n"
        "experiment = importlib.import_module('benchmarks.papers.pim_fig9a').EXPERIMENT\n"
        "print('\\n'.join(experiment.verdict(measure(experiment, quick=True))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    assert "depth" in done.stdout
