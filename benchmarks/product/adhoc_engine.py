"""The ad-hoc engine in process beside its bare core: what changes, journal, sinks and threads cost.

The workload of `ajoin_core`, pushed into `Engine()` without a checkpoint and into one with a checkpoint on local disk,
where each batch is synced before its rows are delivered. All get the same tuples and must give the same number of rows.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from benchmarks.harness import Cell, Context, Experiment, Figure, Row
from benchmarks.papers import ajoin_workload as ajoin
from streamjoin.adhoc import Engine, Stream
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.unshared import open_core

CORE, MEMORY, CHECKPOINT = "core", "engine", "engine with a checkpoint"
_RATE: Final = 100.0
_WARM, _BATCHES = 9, 17


class AdhocEngine(Experiment):
    """Input rate by the number of queries."""

    title = "ad-hoc engine in process, beside its core"
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 3
    warmups = 1
    against: ClassVar = {"system": CORE}

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Numbers of queries by system."""
        return [
            {"queries": count, "batch": 500 if quick else 5_000, "system": system}
            for count in ((1, 5) if quick else (1, 20, 100, 500))
            for system in (CORE, MEMORY, CHECKPOINT)
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Create the queries, fill the windows, and time the batches after."""
        generator = ajoin.QueryGenerator(2, 50, seed=context.seed)
        streams = [Stream(name, ajoin.SCHEMA, ajoin.TIME) for name in generator.pattern.streams]
        texts = [query.text for query in generator.queries(cell["queries"])]
        batches = [
            {
                stream.name: ajoin.tuples(n, cell["batch"], context.seed, rate=_RATE, first=number * cell["batch"])
                for n, stream in enumerate(streams)
            }
            for number in range(_BATCHES)
        ]
        measure = _core if cell["system"] == CORE else _engine
        place = context.scratch / uuid.uuid4().hex if cell["system"] == CHECKPOINT else None
        rows, seconds = measure(streams, texts, batches, place)
        if self._rows.setdefault(cell["queries"], rows) != rows:
            raise AssertionError(f"{cell['system']} gives {rows} rows, another system another number")
        return {"tuples_per_s": 2 * cell["batch"] * (_BATCHES - _WARM) / seconds, "rows": rows}

    def close(self) -> None:
        """Forget the counts: another seed gives others."""
        self._rows.clear()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Input rate against the number of queries."""
        axes = figure.subplots()
        for system in (CORE, MEMORY, CHECKPOINT):
            points = sorted((row["queries"], row["tuples_per_s"]) for row in rows if row["system"] == system)
            axes.plot(*zip(*points, strict=True), marker="o", label=system)
        axes.set(xscale="log", yscale="log", xlabel="queries", ylabel="input rate (tuples/s)")
        axes.legend(fontsize="small")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The share of the core's rate."""
        return [
            f"{row['queries']} queries, {row['system']}: {row['ratio']:.2f} of the core's rate"
            for row in rows
            if row["system"] != CORE
        ]


def _core(streams: list[Stream], texts: list[str], batches: Any, _: Any) -> tuple[int, float]:
    core = open_core(streams)
    core.apply([Create(f"q{number}", text) for number, text in enumerate(texts)])
    rows, took = 0, 0.0
    for number, tables in enumerate(batches):
        begin = time.perf_counter()
        outputs = core.process(number, tables)
        if number >= _WARM:
            took += time.perf_counter() - begin
            rows += sum(table.num_rows for table in outputs.values())
    return rows, took


def _engine(streams: list[Stream], texts: list[str], batches: Any, place: Any) -> tuple[int, float]:
    engine = Engine(checkpoint=place)
    for stream in streams:
        engine.register(stream.name, schema=stream.schema, time=stream.time)
    for text in texts:
        engine.create(text)
    took, before = 0.0, 0
    with engine:
        for number, tables in enumerate(batches):
            if number == _WARM:
                before = sum(info.rows for info in engine.queries())
            begin = time.perf_counter()
            engine.push_all(tables)
            if number >= _WARM:
                took += time.perf_counter() - begin
        return sum(info.rows for info in engine.queries()) - before, took


EXPERIMENT = AdhocEngine()
