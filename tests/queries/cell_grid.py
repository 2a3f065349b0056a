"""A distributed engine without Spark: its cells run one after another, in this process."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from time import time_ns
from typing import Any

import pyarrow as pa

from streamjoin.adhoc import Settings, Stream
from streamjoin.model.errors import InputError
from streamjoin.queries.engine.journal import write_table
from streamjoin.queries.executors.distributed.cell import Cell, CellAssignment, CellResult, run_cell
from streamjoin.queries.executors.distributed.driver_core import DriverCore
from streamjoin.queries.executors.distributed.outputs import CellsWaiting, OutputTarget, read_groups, read_spool
from streamjoin.queries.executors.distributed.parts import PartWriter, ReadParts, filed_buckets
from streamjoin.queries.executors.distributed.sampling import add_key_counts
from streamjoin.queries.executors.distributed.sending import SentState
from streamjoin.windows.clock import NEVER
from tests.queries.core_cases import Rows, rows_of


class Grid:
    """A distributed engine without Spark: parts are written here, and cells run one after another."""

    def __init__(
        self, directory: Path, streams: list[Stream], cells: int, workers: int, clock: Any = time_ns, **options: Any
    ) -> None:
        self.directory, self.cells = directory, cells
        self.core = DriverCore(Settings(**options), clock)
        for stream in streams:
            self.core.add_stream(stream)
        self.sent = SentState(lambda whole: whole, cells)
        self.workers: list[dict[tuple[str, int], Cell]] = [{} for _ in range(workers)]
        self.random = random.Random(cells * 10 + workers)
        self.results: list[CellResult] = []
        self.assignments: list[CellAssignment] = []
        self.repeats = [1, 1, 1, 2]
        self.may_fail = False
        self.failures: dict[str, InputError] = {}
        self.grouped: dict[str, pa.Table] = {}
        """The rows of the last batch of queries with GROUP BY."""

    def resize(self) -> None:
        self.cells = self.random.randint(1, 6)
        self.sent.placements.resize(self.cells)

    def call_heavy(self, tables: Mapping[str, pa.Table]) -> None:
        """Say that some of the keys of new tuples are heavy, and those said before no longer."""
        words: dict[str, dict[str, dict[int, float]]] = {}
        for placement in self.sent.placements.current.values():
            for name, routes in placement.routes.items():
                for route in routes:
                    if route.key_column is not None and name in tables:
                        found = sorted(set(route.words(tables[name]).tolist()))
                        chosen = self.random.sample(found, min(2, len(found)))
                        words.setdefault(name, {})[route.key_column] = dict.fromkeys(chosen, 1.0)
        self.sent.placements.note_words(words)

    def batch(self, number: int, tables: Mapping[str, pa.Table]) -> dict[str, Rows]:
        batches = {name: self.read(name, number, table) for name, table in tables.items()}
        arrived = self.core.arrive(number, batches)
        for bucket in arrived.buckets.values():
            write_table(self.bucket(bucket.stream, number), bucket.to_table())
        state = self.core.snapshot()
        branches, members = self.core.asked_of(self.core.queries)
        targets = {name: OutputTarget(0 if name in members else None) for name in branches}
        self.sent.note(self.core.streams, branches, state.optimizer.plan.choices, targets, members=members)
        assignment = CellAssignment(
            self.sent.run,
            number,
            self.cells,
            self.sent.base,
            self.sent.deltas,
            {name: tuple(b.batch for b in held) for name, held in state.buckets.items()},
            str(self.directory / "buckets" / "{}-{}"),
            filed_buckets(arrived),
            str(self.directory / "spool"),
            str(self.directory / "waiting"),
            measures=self.core.measures,
            progress=arrived.clocks.progress,
            before=arrived.before,
            waiting=self.core.cells_waiting.of({name: e.created for name, e in branches.items()}),
        )
        self.assignments.append(assignment)
        schemas = {name: entry.query.schema for name, entry in state.registry.queries.items()}
        rows: dict[str, Rows] = {name: Rows() for name in schemas}
        failures: dict[str, InputError] = {}
        self.results = []
        for cell in range(self.cells):
            # Any worker may get any cell, and a task may be run twice.
            worker = self.random.choice(self.workers)
            for _ in range(self.random.choice(self.repeats)):
                result = run_cell(assignment, lambda: self.sent.whole, cell, worker)
            self.results.append(result)
            failures |= result.failures
            if result.rows.spool is not None:
                for name, table in read_spool(result.rows.spool, schemas).items():
                    rows[name] += rows_of(table)
        waiting = tuple(result.rows.waiting for result in self.results if result.rows.waiting is not None)
        self.core.take_cells_waiting(CellsWaiting(number, waiting))
        grouped = self.core.group(arrived, read_groups([result.rows for result in self.results]), failures)
        rows |= {name: rows_of(table) for name, table in grouped.items()}
        self.grouped, self.failures = grouped, failures
        assert self.may_fail or not failures
        if self.core.measures:
            samples = {name: sample for result in self.results for name, sample in result.samples.items()}
            counts = add_key_counts((result.distinct for result in self.results), self.sent.placements.current)
            self.core.take_samples(samples, counts)
            self.sent.placements.note_words({name: sample.words for name, sample in samples.items()})
        self.core.finish(arrived, failures)
        return {name: found for name, found in rows.items() if found}

    def bucket(self, stream: str, batch: int) -> Path:
        return self.directory / "buckets" / f"{stream}-{batch}"

    def read(self, name: str, number: int, table: pa.Table) -> ReadParts:
        bounds = self.core.time_bounds(name, NEVER)
        directory = str(self.directory / "tuples" / f"{name}-{number}")
        # Files are grouped for a placement that there was before, or for none.
        known = [p.groups(name, self.cells) for p in self.sent.placements.current.values() if name in p.routes]
        groups = self.random.choice([None, *known])
        writer = PartWriter(self.core.streams[name], *bounds, directory, groups=groups)
        tasks = self.random.randint(1, 3)
        edges = sorted(self.random.randint(0, table.num_rows) for _ in range(tasks - 1))
        cuts = [0, *edges, table.num_rows]
        # The oracle counts equal times by their order in the table: parts are cut where time rises.
        return ReadParts(
            tuple(
                writer.write(table.slice(cuts[n], cuts[n + 1] - cuts[n]).to_batches(), n, 0)
                for n in range(len(cuts) - 1)
            )
        )
