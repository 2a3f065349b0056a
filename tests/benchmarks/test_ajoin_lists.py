"""The experiment on lists of references: that its measuring changes no row, and what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import Context
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_lists import _BATCHES, _QUERIES, _WARM, AJoinLists, _once
from streamjoin.adhoc import Stream
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.shared_join import Partial
from streamjoin.queries.core.unshared import open_core
from tests.benchmarks.invented import invented


def test_measuring_changes_no_row(tmp_path: Path) -> None:
    cell = {"ways": 3, "keys": 30, "batch": 60}
    measured = AJoinLists().run(cell, Context(seed=1, quick=True, scratch=tmp_path))
    generator = ajoin.QueryGenerator(3, 50, seed=4, selectivity=0.7)
    core = open_core([Stream(name, ajoin.SCHEMA, ajoin.TIME) for name in generator.streams])
    core.apply([Create(f"q{n}", query.text) for n, query in enumerate(generator.queries(_QUERIES))])
    rows = 0
    for number in range(_BATCHES):
        tables = {
            name: ajoin.tuples(n, 60, 1, rate=100.0, first=60 * number, keys=30)
            for n, name in enumerate(generator.streams)
        }
        outputs = core.process(number, tables)
        rows += sum(table.num_rows for table in outputs.values()) if number >= _WARM else 0
    assert measured["rows"] == rows > 0
    assert 0 < measured["tuples_share"] <= 1 and 0 <= measured["most_saved"] < measured["probes"]


def test_a_tuple_is_probed_once_with_the_bits_of_all() -> None:
    refs = np.array([1, 2, 3, 3]), np.array([7, 5, 7, 5])
    once = _once(Partial(refs, np.array([[1], [2], [4], [8]], np.uint64)), 1)
    assert [ref.tolist() for ref in once.refs] == [[3, 3], [5, 7]]
    assert once.sets.tolist() == [[10], [5]]


def test_the_verdict_is_by_the_most_that_could_be_saved() -> None:
    experiment = AJoinLists()
    for saved, word in ((0.05, "can't pay"), (0.2, "could pay")):
        rows = invented(
            experiment, lambda _: 1.0, probing_share=0.3, tuples_share=0.5, enumerating_share=0.02, most_saved=saved
        )
        assert all(word in line for line in experiment.verdict(rows))
    figure = Figure()
    experiment.plot(rows, figure)
    assert figure.axes
