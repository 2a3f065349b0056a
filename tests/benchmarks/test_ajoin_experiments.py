"""The experiments on the ad-hoc core: their grids, a small cell of each, the search for a rate, verdicts and plots."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.harness import Context, Experiment, named
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_fig20 import grouped
from benchmarks.papers.ajoin_fig21 import FOR, SKEW, Figure21, skewed
from benchmarks.papers.ajoin_fig22 import overlapping
from benchmarks.papers.ajoin_rate import RateExperiment
from benchmarks.papers.ajoin_runs import ALL, APART, SHARED, SYSTEMS, Outcome, Workload, run, sustained, template
from streamjoin.adhoc import Stream
from streamjoin.queries.language.sql import parse
from tests.benchmarks.invented import invented

NAMES = ("ajoin_fig16", "ajoin_fig17", "ajoin_fig19", "ajoin_fig20", "ajoin_fig21", "ajoin_fig22")
EXPERIMENTS: dict[str, Experiment] = {name: named(name) for name in NAMES}
each = pytest.mark.parametrize("name", NAMES)


@each
def test_a_quick_cell_of_each_is_measured(name: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name]
    found = experiment.run(experiment.cells(quick=True)[0], Context(seed=1, quick=True, scratch=tmp_path))
    assert found[experiment.measure] > 0


@each
def test_verdict_and_plot_of_a_whole_grid(name: str) -> None:
    experiment = EXPERIMENTS[name]
    shares = {f"{part}_share": 0.1 for part in ("arrive", "sets", "joins", "rows", "settle", "optimize", "changes")}
    sizes = {f"{part}_mb_per_s": 1.0 for part in ("tuples", "columns", "indexes", "sets")}
    sizes |= {"rows_per_s": 10.0, "rows_per_tuple": 3.0, "change_ms": 1.0, "batch_ms": 9.0}
    rows = invented(experiment, lambda cell: 100.0 + len(str(cell)), **shares, **sizes)
    lines = experiment.verdict(rows)
    assert lines and not any("nan" in line for line in lines)
    figure = Figure()
    experiment.plot(rows, figure)
    assert figure.axes


def test_the_search_ends_beside_the_highest_rate_kept_up_with() -> None:
    tried: list[float] = []

    def at(rate: float) -> Outcome:
        tried.append(rate)
        return Outcome(rate, seconds=1.0, worked=(rate / 7_000) ** 2)

    found = sustained(at, 1_000, 12)
    assert 7_000 / 1.15 <= found.rate <= 7_000
    assert len(tried) < 12
    assert 2_000 < sustained(at, 50_000, 12).rate <= 7_000
    assert sustained(at, 50_000, 1).load > 1, "nothing was kept up with"
    tried.clear()
    assert sustained(lambda rate: tried.append(rate) or Outcome(rate, 1.0, 2.0), 1_000, 50).load == 2
    assert len(tried) < 6, "a floor that no rate gets below"
    with pytest.raises(ValueError, match="at least one try"):
        sustained(at, 1, 0)


def test_a_run_counts_the_stream_and_stops_when_it_is_hopeless(tmp_path: Path) -> None:
    context = Context(seed=1, quick=True, scratch=tmp_path)
    queries = ajoin.QueryGenerator(2, 100, seed=1, selectivity=0.9).queries(3)
    changes = tuple(ajoin.scenario_1(queries, rate=4))
    streams = queries[0].streams
    found = run(Workload(streams, {}, changes), SYSTEMS[SHARED], 200, context, seconds=1.0, interval=0.25)
    assert found.seconds == 1.0 and found.tuples == 2 * 200
    assert found.rows > 0 and found.parts["changes"] > 0
    assert found.nbytes["tuples"] > 0 and found.held == 1200
    apart, shared = (
        run(template(2, 100, 4, 1), SYSTEMS[system], 100, context, seconds=0.5, interval=0.25)
        for system in (APART, SHARED)
    )
    assert apart.rows == shared.rows
    assert shared.nbytes["tuples"] < apart.nbytes["tuples"] <= 4 * shared.nbytes["tuples"]
    assert run(template(2, 50, 2, 1), SYSTEMS[ALL], 50, context, seconds=1.0, interval=1e-9, by_batches=True).load > 3
    slow = run(template(2, 50, 2, 1), SYSTEMS[ALL], 50, context, seconds=1e-6, interval=1e-9)
    assert slow.load > 3


@pytest.mark.parametrize("workload", [grouped(10, 20), skewed(20), overlapping(25, 20, 0), template(4, 50, 5, 0)])
def test_the_workloads_are_queries_of_ours(workload: Workload) -> None:
    streams = [Stream(name, ajoin.SCHEMA, ajoin.TIME) for name in workload.streams]
    for name, text in workload.queries.items():
        assert len(parse(text, streams, name).sources) >= 2


def test_groups_do_not_overlap_and_shares_are_what_they_say() -> None:
    table = ajoin.tuples(0, 4_000)["a5"].to_numpy()
    for groups in (1, 3, 10):
        bounds = {text.split("S1.a5 BETWEEN ")[1].split(" AND S2")[0] for text in grouped(groups, 20).queries.values()}
        ranges = sorted(tuple(map(int, pair.split(" AND "))) for pair in bounds)
        assert (ranges[0][0], ranges[-1][1]) == (0, 499)
        assert all(one[1] + 1 == two[0] for one, two in pairwise(ranges))
    for percent in (5, 75):
        passing = 0.0
        for text in overlapping(percent, 30, 1).queries.values():
            parts = text.split("WHERE (")[1].split(")")[0].split(" OR ")
            shares = [tuple(map(int, part.split("BETWEEN ")[1].split(" AND "))) for part in parts]
            passing += sum(((table >= a) & (table <= b)).mean() for a, b in shares) / 30
        assert passing == pytest.approx(percent / 100, abs=0.02)


def test_what_is_switched_off_is_off() -> None:
    experiment = Figure21()
    for workload, system in FOR.items():
        on, off = (experiment.settings({"workload": workload, "system": s}) for s in ("all on", system))
        assert on != off
    assert experiment.interval({"workload": SKEW}, False) == RateExperiment.interval(experiment, {}, False)
