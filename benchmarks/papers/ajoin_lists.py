"""What lists of references could save an n-way join: each tuple of a step looked up once instead of once per prefix.

AJoin keeps the matches of a tuple as a list and enumerates combinations only for full results; the core enumerates
partial results, each with the bits of its queries. Every later step is run as it is, which gives the results;
beside that its probes alone, with all partial results, and with one for each tuple among them, which has the bits of
all; and the copying of partial results for a next step. The difference of the probes and the copying are the most that
lists could save, because that counts expanding them, and testing windows and bits when they are, as free.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final
from unittest.mock import patch

import numpy as np

from benchmarks.harness import Cell, Context, Experiment, Figure, Row
from benchmarks.papers import ajoin_workload as ajoin
from streamjoin.adhoc import Settings, Stream
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.queries.core import execution
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.shared_join import FirstJoinRun, JoinSide, Partial, RunProbe, _narrow
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.kernels.probe import BEFORE, NOT_AFTER

if TYPE_CHECKING:
    from streamjoin.queries.core.running_plan import Step

WORTH: Final = 0.1
"""The share of a batch from which on lists could pay."""
_QUERIES: Final = 20
_WARM, _BATCHES = 4, 10


class _ProbedTwice(FirstJoinRun):
    """A first join whose later steps are also probed by all partial results, and by each of their tuples once."""

    seconds: ClassVar[defaultdict[str, float]] = defaultdict(float)

    def _advance(self, step: Step, partial: Partial) -> None:
        if partial.n:
            self.seconds["probes"] += partial.n
            begun = time.thread_time()
            lookup = self._batch.lookup(step.tests)
            role = 0 if lookup is None else lookup.role
            once = _once(partial, role)
            self.seconds["tuples"] += once.n
            # The first to probe makes indexes and fills caches.
            self._probe_seconds(step, partial)
            for name, probes in (("prefixes", partial), ("lists", once)):
                self.seconds[name] += self._probe_seconds(step, probes)
            self.seconds["beside"] += time.thread_time() - begun
        super()._advance(step, partial)

    def _go_on(self, step: Step, pairs: Partial) -> None:
        if pairs.n and step.children:
            begin = time.thread_time()
            for child in step.children:
                Partial(tuple(ref.copy() for ref in pairs.refs), _narrow(pairs, self._mask(child.mask)).sets)
            spent = time.thread_time() - begin
            self.seconds["enumerating"] += spent
            self.seconds["beside"] += spent
        super()._go_on(step, pairs)

    def _probe_seconds(self, step: Step, partial: Partial) -> float:
        """How long the probes of a step take, their pairs thrown away."""
        tests, scratch = step.tests, self._scratch
        lookup, width = self._batch.lookup(tests), partial.sets.shape[1]
        begin = time.thread_time()
        partial, lo, hi = self._intervals(tests, lookup, partial)
        _, order = sort_entries(lo, np.arange(lo.size))
        gates = self._streams[tests.streams[0]].gates.at(partial.refs[0])
        ticks = self._streams[tests.streams[tests.anchor]].ticks.at(partial.refs[tests.anchor])
        far = JoinSide(step.stream, None if lookup is None else lookup.right, step.sets)
        probes = order, lo, hi, ticks, gates, partial.sets
        arrival = NOT_AFTER if tests.inclusive else BEFORE
        scratch.begin(width)
        for run in self._streams[step.stream].runs:
            self._probe(RunProbe((step,), tests, far, run, arrival, lambda: scratch.begin(width)), probes)
        return time.thread_time() - begin


def _once(partial: Partial, role: int) -> Partial:
    """One partial result for each tuple of a role, the latest, with the bits of all."""
    order = np.lexsort((partial.refs[0], partial.refs[role]))
    ends = np.flatnonzero(np.append(np.diff(partial.refs[role][order]) != 0, True))
    sets = np.bitwise_or.reduceat(partial.sets[order], np.concatenate([[0], ends[:-1] + 1]), axis=0)
    return Partial(tuple(ref[order[ends]] for ref in partial.refs), np.ascontiguousarray(sets))


class AJoinLists(Experiment):
    """The share of a batch's time that lists of references could save, at the most."""

    title = "ad-hoc core: n-way joins by prefixes, and what lists of references could save"
    claim = "AJoin, section 3.4: results of n-way joins are kept as lists by key and materialized at the sink alone"
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 3
    warmups = 1

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Ways by the number of keys: the paper's 500, and few, so that each tuple has many partners."""
        batch = 200 if quick else 1_000
        return [{"ways": ways, "keys": keys, "batch": batch} for ways in (3, 4, 5) for keys in (500, 40 * ways)]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Create the queries, fill the windows, and measure the batches after."""
        generator = ajoin.QueryGenerator(cell["ways"], 50, seed=context.seed + cell["ways"], selectivity=0.7)
        streams = [Stream(name, ajoin.SCHEMA, ajoin.TIME) for name in generator.streams]
        core = open_core(streams, Settings(threads=1))
        core.apply([Create(f"q{n}", query.text) for n, query in enumerate(generator.queries(_QUERIES))])
        seconds = _ProbedTwice.seconds
        rows, took = 0, 0.0
        with patch.object(execution, "FirstJoinRun", _ProbedTwice):
            for number in range(_BATCHES):
                first = number * cell["batch"]
                tables = {
                    stream.name: ajoin.tuples(
                        n, cell["batch"], context.seed, rate=100.0, first=first, keys=cell["keys"]
                    )
                    for n, stream in enumerate(streams)
                }
                if number == _WARM:
                    seconds.clear()
                begin = time.thread_time()
                outputs = core.process(number, tables)
                if number >= _WARM:
                    took += time.thread_time() - begin
                    rows += sum(table.num_rows for table in outputs.values())
        took -= seconds["beside"]
        return {
            "tuples_per_s": len(streams) * cell["batch"] * (_BATCHES - _WARM) / took,
            "rows": rows,
            "probes": seconds["probes"],
            "tuples_share": seconds["tuples"] / max(1, seconds["probes"]),
            "probing_share": seconds["prefixes"] / took,
            "enumerating_share": seconds["enumerating"] / took,
            "most_saved": max(0.0, seconds["enumerating"] + seconds["prefixes"] - seconds["lists"]) / took,
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """The share that could be saved."""
        axes = figure.subplots()
        axes.bar([f"{row['ways']}-way\n{row['keys']} keys" for row in rows], [row["most_saved"] for row in rows])
        axes.axhline(WORTH, color="grey", linestyle="--")
        axes.set(ylabel="share of a batch saved at the most")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """Whether lists could pay."""
        lines = []
        for row in rows:
            word = "could pay" if row["most_saved"] >= WORTH else "can't pay"
            lines.append(
                f"{row['ways']}-way, {row['keys']} keys: later steps take {row['probing_share']:.0%} of a batch to "
                f"probe (different tuples: {row['tuples_share']:.0%}), {row['enumerating_share']:.0%} to copy partial "
                f"results; lists save {row['most_saved']:.0%} at the most: {word} (from {WORTH:.0%})"
            )
        return lines


EXPERIMENT = AJoinLists()
