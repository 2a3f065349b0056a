"""Many two-way queries in one process: the AJoin workload over the shared core, beside the other ways to share.

Streams of six integers 0..499, queries of figure 14 at 50 % similarity, windows of 1 to 3 seconds. Results stay lists
of tuples, as they are not read; what gathering all their columns takes besides is told. The input rate counts tuples of
both streams; the overall rate counts a tuple once for each query.
All systems get the same tuples and must give the same number of rows.

What sharing by cost is judged beside, one query and everything shared, runs beside it too, batch by batch in turns in
one thread, by processor time: cells that run one after the other differ by what else the machine does meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from statistics import median
from typing import Any, Final

import pyarrow as pa

from benchmarks.harness import Cell, Context, Experiment, Figure, Row, human, met
from benchmarks.papers import ajoin_workload as ajoin
from streamjoin.adhoc import Stream
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.row_lists import read
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import Unshared, open_core

SHARED, ALL, APART, ONE_THREAD = "shared by cost", "share everything", "no sharing", "shared, one thread"
_SETTINGS: Final = {
    SHARED: Settings(),
    ALL: Settings(sharing="everything"),
    APART: Settings(sharing="nothing"),
    ONE_THREAD: Settings(threads=1),
}
AIM: Final = 0.25
"""The input rate at 100 queries beside that at one."""
SHARING_AIM: Final = 0.97
"""The input rate by sharing by cost beside that by sharing everything, which is the same plan here."""
FIGURE_14, NONE = "figure 14", "none"
"""The template's selections; or none, as in the paper's figure 15, where many queries are the same."""
_RATE: Final = 100.0
_WARM, _BATCHES, _TURNS = 9, 17, 96
"""The first look at the plan, in the eighth batch, is not measured: it comes once."""


class AJoinCore(Experiment):
    """Input and overall rate by the number of queries."""

    title = "ad-hoc core: two-way queries at 50 % similarity, in one process"
    claim = "AJoin, figure 15: overall throughput grows with the number of queries; sharing everything falls behind"
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 3
    warmups = 1

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], int] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Numbers of queries by system; no sharing ends at 100, where it takes as long as the rest together."""
        counts = (1, 5) if quick else (1, 5, 20, 100, 500)
        batch = 500 if quick else 5_000
        return [
            {"queries": count, "batch": batch, "selections": selections, "system": system}
            for selections in (FIGURE_14, NONE)
            for count in counts
            for system in (_SETTINGS if selections == FIGURE_14 else (SHARED, ALL))
            if system != APART or count <= 100
        ]

    def baseline(self, cell: Cell) -> Cell | None:
        """The same queries without sharing; where that is not run, with everything shared."""
        other = APART if cell["selections"] == FIGURE_14 else ALL
        if cell["system"] == other or (other == APART and cell["queries"] > 100):
            return None
        return {**cell, "system": other}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Create the queries, fill the windows, and time the batches after."""
        count, batch = cell["queries"], cell["batch"]
        streams, texts = _workload(cell, context.seed)
        core, created = _opened(streams, texts, _SETTINGS[cell["system"]])
        rows, took, worked, reading = 0, 0.0, 0.0, 0.0
        parts: Counter[str] = Counter()
        for number in range(_BATCHES):
            tables = _tables(streams, batch, number, context.seed)
            begin, began = time.perf_counter(), time.process_time()
            arrived = core.arrive(number, tables)
            found, failures = core.results(arrived)
            core.finish(arrived, failures)
            if number >= _WARM:
                end = time.perf_counter()
                took += end - begin
                worked += time.process_time() - began
                rows += sum(read(listed).num_rows for listed in found.values())
                reading += time.perf_counter() - end
                parts.update(core.report.seconds)
        if self._rows.setdefault((cell["selections"], count), rows) != rows:
            raise AssertionError(f"{cell['system']} gives {rows} rows, another system another number")
        tuples = 2 * batch * (_BATCHES - _WARM)
        total = sum(parts.values())
        return {
            "tuples_per_s": tuples / took,
            "overall_per_s": count * tuples / took,
            "per_processor_s": tuples / worked,
            "rows_per_tuple": rows / tuples,
            "rows_per_s": rows / took,
            **({f"{part}_share": parts[part] / total for part in ("sets", "joins", "rows")} if total else {}),
            "reading_share": reading / took,
            "create_ms": created * 1e3,
            "megabytes": sum(core.nbytes.values()) / 1e6,
            "ns_per_row": worked * 1e9 / max(1, rows),
            **(_beside(streams, texts, batch, context.seed) if cell["system"] == SHARED and count > 1 else {}),
        }

    def close(self) -> None:
        """Forget the counts: another seed gives others."""
        self._rows.clear()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Input and overall rate against the number of queries, with the template's selections."""
        chosen = [row for row in rows if row["selections"] == FIGURE_14]
        for axes, key, name in zip(
            figure.subplots(1, 2), ("tuples_per_s", "overall_per_s"), ("input", "overall"), strict=True
        ):
            for system in _SETTINGS:
                points = sorted((row["queries"], row[key]) for row in chosen if row["system"] == system)
                axes.plot(*zip(*points, strict=True), marker="o", label=system)
            axes.set(xscale="log", yscale="log", xlabel="queries", ylabel=f"{name} rate (tuples/s)")
            axes.grid(True, alpha=0.3)
            axes.legend(fontsize="small")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """Whether the overall rate grows, and the aim for the input rate at 100 queries."""
        found = {(row["selections"], row["system"], row["queries"]): row for row in rows}
        lines = []
        for selections in (FIGURE_14, NONE):
            most = max(row["queries"] for row in rows)
            one, last = found[selections, SHARED, 1], found[selections, SHARED, most]
            grown = last["overall_per_s"] / one["overall_per_s"]
            lines.append(
                f"selections {selections}: overall rate at {most} queries {human(grown)} times that at one "
                "(paper: it grows)"
            )
            if (selections, SHARED, 100) not in found:
                lines.append("the aim is set at 100 queries: run without --quick")
                continue
            hundred = found[selections, SHARED, 100]
            share = hundred["tuples_per_s"] / one["tuples_per_s"]
            judged = met(share >= AIM)
            more = hundred["rows_per_tuple"] / max(1e-9, one["rows_per_tuple"])
            lines.append(
                f"selections {selections}: input rate at 100 queries {share:.2f} of that at one, "
                f"{hundred['of_one_query']:.2f} by processor time in turns; aim {AIM}: {judged}; "
                f"{human(more)} times the result rows a tuple, {human(hundred['rows_per_s'])} of them a second, "
                f"{human(hundred['ns_per_row'])} ns of a processor each with all else; to "
                f"read every row takes {hundred['reading_share']:.2f} times the batch besides"
            )
        shares = [row["of_everything"] for row in rows if "of_everything" in row]
        if shares:
            counts = [row["queries"] for row in rows if "of_everything" in row]
            lines.append(
                f"sharing by cost {min(shares):.2f} to {max(shares):.2f} times the input rate of sharing everything "
                f"by processor time in turns, at {min(counts)} to {max(counts)} queries; aim {SHARING_AIM}: "
                f"{met(min(shares) >= SHARING_AIM)}"
            )
        if (FIGURE_14, SHARED, 100) in found:
            hundred = found[FIGURE_14, SHARED, 100]
            beside = hundred["tuples_per_s"] / found[FIGURE_14, ALL, 100]["tuples_per_s"]
            alone = hundred["tuples_per_s"] / found[FIGURE_14, ONE_THREAD, 100]["tuples_per_s"]
            lines.append(
                f"100 queries: {hundred['ratio']:.2f} times no sharing, {beside:.2f} times sharing everything, "
                f"{alone:.2f} times one thread"
            )
        return lines


def _workload(cell: Cell, seed: int) -> tuple[list[Stream], list[str]]:
    """The streams and the queries of a cell."""
    generator = ajoin.QueryGenerator(2, 50, seed=seed)
    # At this similarity all queries read the pattern's two streams.
    streams = [Stream(name, ajoin.SCHEMA, ajoin.TIME) for name in generator.pattern.streams]
    texts = [query.text for query in generator.queries(cell["queries"])]
    return streams, [text.split("\nWHERE")[0] for text in texts] if cell["selections"] == NONE else texts


def _opened(streams: Sequence[Stream], texts: Sequence[str], settings: Settings) -> tuple[Shared | Unshared, float]:
    """A core with queries, and the seconds that creating them took."""
    core = open_core(streams, settings)
    begin = time.perf_counter()
    core.apply([Create(f"q{n}", text) for n, text in enumerate(texts)])
    return core, time.perf_counter() - begin


def _tables(streams: Sequence[Stream], batch: int, number: int, seed: int) -> dict[str, pa.Table]:
    """The tuples of a batch."""
    return {
        stream.name: ajoin.tuples(n, batch, seed, rate=_RATE, first=number * batch) for n, stream in enumerate(streams)
    }


def _beside(streams: Sequence[Stream], texts: Sequence[str], batch: int, seed: int) -> dict[str, float]:
    """The input rate beside that of one query, and of sharing everything: medians of what batches take, in turns."""
    alone = Settings(threads=1)
    cores = [
        _opened(streams, chosen, settings)[0]
        for chosen, settings in ((texts, alone), (texts[:1], alone), (texts, replace(alone, sharing="everything")))
    ]
    took: list[list[float]] = [[] for _ in cores]
    orders = list(permutations(range(len(cores))))
    for number in range(_WARM + _TURNS):
        tables = _tables(streams, batch, number, seed)
        # Whoever comes after another finds the memory as that one left it: all orders have as many batches.
        for place in orders[number % len(orders)]:
            core, began = cores[place], time.process_time()
            arrived = core.arrive(number, tables)
            _, failures = core.results(arrived)
            core.finish(arrived, failures)
            if number >= _WARM:
                took[place].append(time.process_time() - began)
    own, one, everything = (median(seconds) for seconds in took)
    return {"of_one_query": one / own, "of_everything": everything / own}


EXPERIMENT = AJoinCore()
