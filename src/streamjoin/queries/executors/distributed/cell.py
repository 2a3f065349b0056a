"""What a task does with a batch: one cell's share of the tuples through the shared core, and its rows into files.

A worker process keeps the cores of its cell from batch to batch. That is a cache: everything follows from the part
files and from the queries that the task is sent. The invariant: for a batch a cell has the driver's queries and plan,
and of every placement the held tuples that lie in the cell, whatever batches it has missed.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.errors import InputError, InterruptedBatchError
from streamjoin.model.expression.nodes import Expression
from streamjoin.queries.core.arrivals import Arrived, Clocks, number_tuples
from streamjoin.queries.core.buckets import Bucket, IndexKey
from streamjoin.queries.core.budgets import ANY_AMOUNT, EngineBudget, Usage
from streamjoin.queries.core.changes import LiveQuery, QueryRegistry
from streamjoin.queries.core.groups.feeds import (
    FeedRows,
    GroupMember,
    PartialGroups,
    PartnerFeeds,
    join_key,
    overflowed_in,
    partial_groups,
)
from streamjoin.queries.core.kinds import KindState, joined_states, unpacked_states
from streamjoin.queries.core.probe_plan import Choice
from streamjoin.queries.core.retention import StreamProgress
from streamjoin.queries.core.row_lists import ListedRows, read
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared, ShareFigures, failure_of
from streamjoin.queries.engine.journal import read_table, safe_name, write_table
from streamjoin.queries.executors.distributed.outputs import (
    Flush,
    OutputTarget,
    WaitingTuples,
    WrittenRows,
    write_flushes,
    write_groups,
    write_rows,
)
from streamjoin.queries.executors.distributed.parts import (
    FiledBucket,
    PartRows,
    positions,
    read_filed_bucket,
    read_part,
    ticks_by_stream,
)
from streamjoin.queries.executors.distributed.placement import CellGroups, Placement, least_share
from streamjoin.queries.executors.distributed.sampling import KeyCounts, StreamSample, sample_stream
from streamjoin.queries.language.plan import Query, Stream, query_name
from streamjoin.queries.optimizer.plans import Plan
from streamjoin.storage.places import place


@dataclass(frozen=True)
class PlacedQuery:
    """A query as tasks get it: what runs, by which choice for each part, in which placement, and where its rows go."""

    entry: LiveQuery
    choices: Mapping[str, Choice]
    placement: int
    target: OutputTarget
    members: Mapping[str, LiveQuery] = field(default_factory=dict)
    """The queries that group its rows, which then go nowhere else."""

    @property
    def needs_rows(self) -> bool:
        """Whether the plan runs it: groups may be made without the rows of their join."""
        return not self.members or next(iter(self.members.values())).member.partners is None


@dataclass(frozen=True)
class CellDelta:
    """What changed from the version before: streams and placements, queries that came or changed, queries that went."""

    version: int
    streams: tuple[Stream, ...]
    placements: Mapping[int, Placement]
    came: Mapping[str, PlacedQuery]
    gone: tuple[str, ...]


@dataclass(frozen=True)
class CellAssignment:
    """A batch for tasks. `base` is the version of the whole state; `deltas` lead from it to this batch's."""

    run: str
    batch: int
    cells: int
    base: int
    deltas: tuple[CellDelta, ...]
    held: Mapping[str, tuple[int, ...]]
    """The batches before this one whose tuples are held, by stream, oldest first."""
    buckets: str
    """A pattern for the file that lists the parts of a stream's batch."""
    fresh: Mapping[str, FiledBucket]
    spool: str
    """The directory for rows that the driver reads."""
    wait_directory: str = ""
    """The directory for what waits."""
    flushes: tuple[Flush, ...] = ()
    """Queries whose rows of earlier batches get a file."""
    measures: bool = False
    """Whether the driver looks at the plan after this batch."""
    progress: StreamProgress | None = None
    """How far the streams are after this batch."""
    before: Mapping[str, int] = field(default_factory=dict)
    """Their bounds before it."""
    waiting: tuple[WaitingTuples, ...] = ()
    """What waited in all cells after the batch before."""
    budget: EngineBudget = ANY_AMOUNT
    """What the queries may hold together in one cell."""


@dataclass(frozen=True)
class CellResult:
    """What a cell did in a batch; `rows` says where the rows of each query are."""

    cell: int
    rows: WrittenRows
    failures: Mapping[str, InputError]
    usage: Mapping[str, Usage]
    """What each query that has a budget took."""
    seconds: float
    figures: tuple[ShareFigures, ...]
    rebuilt: bool
    state: Mapping[str, int]
    """The bytes that are held, by what holds them."""
    tuples: int
    """The tuples that are held; one that is in two placements counts twice."""
    read: int
    """The bytes of new tuples that were read."""
    samples: Mapping[str, StreamSample] = field(default_factory=dict)
    """Of the streams that this cell was to look at."""
    distinct: KeyCounts = field(default_factory=dict)


_cells: Final[dict[tuple[str, int], Cell]] = {}


def run_cell(
    assignment: CellAssignment, whole: Callable[[], bytes], cell: int, cells: dict[tuple[str, int], Cell] = _cells
) -> CellResult:
    """Run one cell of a batch in this process, with what it keeps in `cells`.

    `whole` gives the whole state at the assignment's base, pickled, when called.
    """
    key = assignment.run, cell
    for other in [known for known in cells if known[0] != assignment.run]:
        # Another run of the engine has replaced the one before.
        del cells[other]
    state = cells.get(key)
    if state is not None and assignment.batch < state.batch:
        # A straggler, whose rows are no longer awaited: a cell can't go back.
        return Cell(cell).run(assignment, whole)
    if state is None or state.cells != assignment.cells:
        state = cells[key] = Cell(cell, assignment.cells)
    try:
        return state.run(assignment, whole)
    except BaseException:
        # It may have taken in a part of what it follows; the next try begins from the files.
        cells.pop(key, None)
        raise


class Cell:
    """One cell of all placements in a worker process."""

    def __init__(self, number: int, cells: int = 1) -> None:
        self.number, self.cells = number, cells
        self._streams: dict[str, Stream] = {}
        self._placements: dict[int, Placement] = {}
        self._queries: dict[str, PlacedQuery] = {}
        self._version = -1
        self._parts: dict[int, PlacementCell] = {}
        self._changed: set[int] = set()
        self._budget = ANY_AMOUNT
        self.batch = -1

    def run(self, assignment: CellAssignment, whole: Callable[[], bytes]) -> CellResult:
        """The rows of the cell."""
        began = time.perf_counter()
        self.cells, self._budget = assignment.cells, assignment.budget
        self._follow(assignment, whole)
        self.batch = assignment.batch
        times: dict[str, list[Array]] = {}
        if any(self._placements[number].counted for number in self._active):
            times = ticks_by_stream(assignment.fresh)
        whole_parts: dict[str, PartRows] = {}
        rebuilt = False
        outputs: dict[str, pa.Table] = {}
        groups: list[PartialGroups] = []
        failures: dict[str, InputError] = {}
        usage: dict[str, Usage] = {}
        figures = []
        for number in self._active:
            queries = {name: found for name, found in self._queries.items() if found.placement == number}
            part = self._part(number, min((found.entry.created for found in queries.values()), default=0))
            rebuilt |= part.follow(queries if number in self._changed else None, assignment)
            self._changed.discard(number)
            rows, failed, counted = part.results(assignment, times, whole_parts)
            for name, found in rows.items():
                placed = self._queries[name]
                if placed.members and name not in failed:
                    rows_of = partial(FeedRows, placed.entry.query, rows=read(found))
                    groups += self._grouped(placed, rows_of, failures)
                elif found.num_rows:
                    # Of a UNION ALL the branches may be in several placements.
                    query, table = query_name(name), read(found)
                    outputs[query] = pa.concat_tables([outputs[query], table]) if query in outputs else table
            for placed in queries.values():
                if not placed.needs_rows and not placed.entry.paused:
                    groups += self._grouped(placed, partial(part.partners, placed.entry.query), failures)
            for name, error in failed.items():
                failures |= dict.fromkeys(self._queries[name].members or (name,), error)
            usage |= part.usage
            figures.append(counted)
        waiting = self._write_waiting(assignment, failures)
        outputs = {name: table for name, table in outputs.items() if name not in failures}
        targets = {name: self._queries[name].target for name in outputs}
        written = write_rows(outputs, targets, assignment.batch, self.number, assignment.spool, failures)
        flushed = write_flushes(assignment.flushes[self.number :: self.cells])
        made = write_groups(groups, assignment.batch, self.number, assignment.spool)
        written = replace(written, flushed=flushed.flushed, unflushed=flushed.unflushed, waiting=waiting, groups=made)
        parts = [self._parts[number] for number in self._active]
        state: dict[str, int] = {}
        for part in parts:
            for what, size in part.nbytes.items():
                state[what] = state.get(what, 0) + size
        return CellResult(
            self.number,
            written,
            failures,
            usage,
            time.perf_counter() - began,
            tuple(figures),
            rebuilt,
            state,
            sum(part.tuples for part in parts),
            sum(part.read for part in parts),
            self._samples(assignment) if assignment.measures else {},
            self._distinct() if assignment.measures else {},
        )

    def _grouped(
        self, feed: PlacedQuery, rows_of: Callable[..., FeedRows], failures: dict[str, InputError]
    ) -> Sequence[PartialGroups]:
        """The rows of a feed as groups; `failures` gets the queries for which that fails."""
        members = {name: entry.member for name, entry in feed.members.items()}
        try:
            groups, failed = partial_groups(members, rows_of(members=members))
        except (InterruptedBatchError, MemoryError):
            raise
        except Exception as error:
            groups, failed = [], dict.fromkeys(members, error)
        failures |= {name: failure_of(error) for name, error in failed.items()}
        return groups

    def _write_waiting(self, assignment: CellAssignment, failures: dict[str, InputError]) -> WaitingTuples | None:
        """Write what waits in this cell after the batch; `failures` gets the queries of which that fails."""
        parts = [self._parts[number] for number in self._active if self._placements[number].waits]
        if not parts:
            return None
        token = uuid.uuid4().hex
        states: dict[str, KindState] = {}
        tables: dict[str, pa.Table] = {}
        pins: dict[str, int] = {}
        for part in parts:
            named = part.name_waiting(token, failures)
            for name, state in named.items():
                try:
                    tables[name] = state.to_table(name)
                except Exception as error:
                    failures[query_name(name)] = failure_of(error)
            for stream, oldest in part.pins(named, failures):
                pins[stream] = min(oldest, pins.get(stream, oldest))
            states |= named
        states = {name: state for name, state in states.items() if query_name(name) not in failures}
        table, path = joined_states(tables[name] for name in states), None
        if table.num_rows:
            path = f"{assignment.wait_directory}/{assignment.batch:012}-{self.number:04}-{token[:8]}"
            write_table(place(path), table)
        overflowed = overflowed_in(states)
        return WaitingTuples(token, {name: state.n for name, state in states.items()}, path, pins, overflowed)

    def _samples(self, assignment: CellAssignment) -> dict[str, StreamSample]:
        """Samples of the streams that are this cell's turn."""
        conditions: dict[str, list[Expression]] = {}
        for placed in self._queries.values():
            query = placed.entry.query
            for source in query.sources:
                found = conditions.setdefault(source.stream.name, [])
                found += [predicate.condition for predicate in query.selection(source.alias)]
        samples = {}
        for name in sorted(assignment.fresh)[self.number :: self.cells]:
            if name in conditions:
                all_routes = [placement.routes.get(name, ()) for placement in self._placements.values()]
                by_column = {route.key_column: route for routes in all_routes for route in routes if route.key_column}
                samples[name] = sample_stream(
                    assignment.fresh[name],
                    self._streams[name],
                    conditions[name],
                    by_column.values(),
                    least_share(self.cells),
                )
        return samples

    def _distinct(self) -> dict[tuple[int, str], Mapping[IndexKey, int]]:
        return {
            (number, stream): counts
            for number in self._active
            for stream, counts in self._parts[number].distinct().items()
        }

    @property
    def _active(self) -> list[int]:
        """The placements of which this cell has something."""
        return [n for n, found in self._placements.items() if found.has(self.number, self.cells)]

    def _part(self, number: int, since: int) -> PlacementCell:
        """What a placement has in this cell, with the tuples from the batch `since` on."""
        part, placement = self._parts.get(number), self._placements[number]
        if part is None or not part.fits(placement, since):
            part = self._parts[number] = PlacementCell(self.number, placement, self._budget)
            self._changed.add(number)
        part.placement = placement
        for name in placement.routes:
            part.add_stream(self._streams[name])
        return part

    def _follow(self, assignment: CellAssignment, whole: Callable[[], bytes]) -> None:
        if self._version < assignment.base:
            self._queries, self._placements = {}, {}
            self._change(pickle.loads(whole()))  # noqa: S301 - written by the driver of this very run
        for delta in assignment.deltas:
            if delta.version > self._version:
                self._change(delta)

    def _change(self, delta: CellDelta) -> None:
        self._streams |= {stream.name: stream for stream in delta.streams}
        self._placements = dict(delta.placements)
        for name in delta.gone:
            found = self._queries.pop(name, None)
            if found is not None:
                self._changed.add(found.placement)
        # One that moves leaves a placement.
        self._changed |= {self._queries[name].placement for name in delta.came if name in self._queries}
        self._queries |= delta.came
        self._changed |= {found.placement for found in delta.came.values()}
        self._changed &= self._placements.keys()
        self._parts = {number: part for number, part in self._parts.items() if number in self._placements}
        self._version = delta.version


class PlacementCell:
    """The tuples of one placement that lie in a cell, in a core of their own."""

    SETTINGS: ClassVar = Settings(sharing="everything", threads=1)
    """A cell decides nothing: it runs by the plan that it is sent."""

    def __init__(self, cell: int, placement: Placement, budget: EngineBudget = ANY_AMOUNT) -> None:
        self._cell = cell
        self.placement = placement
        self._core = Shared([], replace(self.SETTINGS, engine_rows=budget.rows, engine_bytes=budget.bytes))
        self._partners = PartnerFeeds()
        self._clocks = Clocks.start({})
        self._newest: dict[str, int] = {}
        self._arrived: Arrived | None = None
        self._tokens: dict[str, str] = {}
        """Of the queries of which something waits, the writing after the last batch that is finished here."""
        self._written: dict[str, str] = {}
        """Likewise, after the batch that is not finished yet."""
        self._built = False
        self._since = 0
        """The batch in which the oldest query was created: nothing before it is needed."""
        self.read = 0

    def fits(self, placement: Placement, since: int) -> bool:
        """Whether what it has is right for a placement: streams may have been added to it, but no older queries."""
        own = self.placement
        return (
            since >= self._since
            and (own.counted, own.waits) == (placement.counted, placement.waits)
            and all(placement.routes.get(stream) == routes for stream, routes in own.routes.items())
        )

    def add_stream(self, stream: Stream) -> None:
        """Hold one more stream, if it does not yet."""
        if stream.name not in self._core.streams:
            self._core.add_stream(stream, 0)
            self._clocks = self._clocks.joined_by(stream.name, 0)

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes held, by what holds them."""
        sizes = self._core.nbytes
        return {**sizes, "indexes": sizes["indexes"] + self._partners.nbytes}

    @property
    def usage(self) -> dict[str, Usage]:
        """What each query that has a budget took of the batch."""
        return self._core.usage()

    def distinct(self) -> dict[str, dict[IndexKey, int]]:
        """The distinct keys of the new tuples by stream, where there is an index of them."""
        buckets = {} if self._arrived is None else self._arrived.buckets
        return {name: {key: bucket.distinct(key) for key in bucket.index_keys} for name, bucket in buckets.items()}

    @property
    def tuples(self) -> int:
        """The tuples held."""
        held = [bucket for buckets in self._core.snapshot().buckets.values() for bucket in buckets]
        fresh = [] if self._arrived is None else list(self._arrived.buckets.values())
        return sum(bucket.n for bucket in (*held, *fresh))

    def follow(self, queries: Mapping[str, PlacedQuery] | None, assignment: CellAssignment) -> bool:
        """Come to the state before a batch; `queries` if they changed. Returns whether it was made from files."""
        arrived, self._arrived = self._arrived, None
        if arrived is not None and arrived.batch < assignment.batch:
            # A batch that is run once more is not finished: its tuples go, and come again.
            self._finish(arrived, assignment)
        if queries is not None:
            self._since = min((found.entry.created for found in queries.values()), default=0)
        built, self._built = self._built, True
        missed: dict[int, list[str]] = {}
        for stream in self.placement.routes:
            newest = max(self._newest.get(stream, -1), self._since - 1)
            for batch in assignment.held.get(stream, ()):
                if batch > newest:
                    missed.setdefault(batch, []).append(stream)
        for batch in sorted(missed):
            lists = {s: read_filed_bucket(place(assignment.buckets.format(safe_name(s), batch))) for s in missed[batch]}
            times = ticks_by_stream(lists) if self.placement.counted else {}
            self._finish(self._arrive(batch, lists, times, assignment.cells), assignment)
            self._newest |= dict.fromkeys(lists, batch)
        if queries is not None:
            entries = {name: found.entry for name, found in queries.items() if found.needs_rows}
            choices = {part: choice for found in queries.values() for part, choice in found.choices.items()}
            self._core.follow(QueryRegistry(entries), Plan(choices))
            self._partners.keep({join_key(found.entry.query) for found in queries.values() if not found.needs_rows})
        if self.placement.waits:
            self._resume(assignment)
        return not built and bool(missed)

    def _resume(self, assignment: CellAssignment) -> None:
        """Come to what waited after the batch before: it is here, or read from the files of all cells."""
        stored: dict[str, list[KindState] | None] = {}
        tables: dict[str, pa.Table] = {}
        groups = {name: self.placement.groups(name, assignment.cells) for name in self.placement.routes}
        for name, entry in self._core.queries.items():
            if entry.paused:
                # What waits gives no row any more.
                self._tokens.pop(name, None)
                continue
            listed = [cell for cell in assignment.waiting if name in cell.queries]
            if listed and any(cell.token == self._tokens.get(name) for cell in listed):
                stored[name] = None
                continue
            if listed:
                paths = [cell.path for cell in listed if cell.path is not None]
                for path in paths:
                    tables[path] = tables[path] if path in tables else read_table(place(path))
                states = [unpacked_states(tables[path], {name: entry.query})[name] for path in paths]
                stored[name] = [self._own_share(entry, state, groups) for state in states]
            self._tokens.pop(name, None)
        self._core.resume_waiting(stored)

    def _own_share(self, entry: LiveQuery, state: KindState, groups: Mapping[str, CellGroups]) -> KindState:
        """A state with the copies of this cell alone; what else is not of this cell is found by its tuples."""
        held = {
            alias: tuples.keep(groups[entry.query.source(alias).stream.name].rows(tuples.rows, self._cell))
            for alias, tuples in state.held.items()
        }
        return replace(state, held=held)

    def name_waiting(self, token: str, failures: dict[str, InputError]) -> dict[str, KindState]:
        """What waits after the batch that ran, by the ids of tuples; `token` names it from now on."""
        states = self._core.waiting_by_ids(failures)
        self._written = dict.fromkeys(states, token)
        return states

    def pins(self, states: Mapping[str, KindState], failures: dict[str, InputError]) -> Iterator[tuple[str, int]]:
        """Streams, and the oldest tuple of each that must be held."""
        return self._core.pins(states, failures)

    def results(
        self, assignment: CellAssignment, times: Mapping[str, list[Array]], whole_parts: dict[str, PartRows]
    ) -> tuple[dict[str, ListedRows], dict[str, InputError], ShareFigures]:
        """The rows of the cell, queries that failed, and figures."""
        lists = {name: bucket for name, bucket in assignment.fresh.items() if name in self.placement.routes}
        self.read = 0
        arrived = self._arrive(assignment.batch, lists, times, assignment.cells, whole_parts)
        arrived = replace(arrived, progress=assignment.progress, before=assignment.before)
        self._core.limit(assignment.budget)
        outputs, failures = self._core.results(arrived)
        self._arrived = arrived
        return outputs, failures, self._core.share_figures()

    def partners(self, query: Query, members: Mapping[str, GroupMember]) -> FeedRows:
        """The rows of a feed, of the batch whose results were computed, where groups need none of the join's."""
        if self._arrived is None:
            raise AssertionError("results come first")
        key, streams = join_key(query), self._core.stored_streams
        return self._partners.rows(key, query, members, streams, self._arrived.buckets)

    def _finish(self, arrived: Arrived, assignment: CellAssignment) -> None:
        """Make the tuples of a batch part of the state, and let go of what the driver does not hold any more."""
        self._partners.settle()
        oldest = {stream: batches[0] for stream, batches in assignment.held.items() if batches}
        self._core.finish(arrived, {}, oldest)
        self._tokens, self._written = self._written, {}
        self._clocks = arrived.clocks
        for name in self._core.streams.keys() - self._clocks.counts.keys():
            # A stream that was added after the batch.
            self._clocks = self._clocks.joined_by(name, 0)
        self._newest |= dict.fromkeys(arrived.buckets, arrived.batch)

    def _arrive(
        self,
        batch: int,
        lists: Mapping[str, FiledBucket],
        times: Mapping[str, list[Array]],
        cells: int,
        whole_parts: dict[str, PartRows] | None = None,
    ) -> Arrived:
        """The tuples of a batch that lie in the cell, with numbers of their own: only their order matters here."""
        kept: dict[str, tuple[pa.Table, Array]] = {}
        numbers: dict[str, list[tuple[Array, dict[str, Array]]]] = {}
        names: dict[str, Array] = {}
        for name, bucket in lists.items():
            tables, ticks, own, ids = [], [], [], []
            first = np.cumsum([bucket.first, *(part.rows for part in bucket.parts)])
            groups = self.placement.groups(name, cells)
            for number, part in enumerate(bucket.parts):
                # Of the batch that runs, all cells have one mapping of each part, which was written just now.
                found = read_part(
                    part, self._core.streams[name].schema, groups, self._cell, whole_parts, whole_parts is None
                )
                self.read += found.read
                if not found.rows.size:
                    continue
                tables.append(found.table)
                ticks.append(found.ticks)
                ids.append(first[number] + found.rows)
                if self.placement.counted:
                    own.append(positions(bucket, times, number, found.rows, self.placement.routes))
            if tables:
                kept[name] = pa.concat_tables(tables), np.concatenate(ticks)
                numbers[name], names[name] = own, np.concatenate(ids)
        buckets, clocks = number_tuples(batch, kept, self._clocks)
        if self.placement.counted:
            buckets = {name: _positioned(bucket, kept[name][1], numbers[name]) for name, bucket in buckets.items()}
        if self.placement.waits:
            orders = {name: np.argsort(kept[name][1], kind="stable") for name in buckets}
            buckets = {name: replace(bucket, ids=names[name][orders[name]]) for name, bucket in buckets.items()}
        return Arrived(buckets, {}, {}, clocks, batch)


def _positioned(bucket: Bucket, ticks: Array, numbers: list[tuple[Array, dict[str, Array]]]) -> Bucket:
    """A bucket with the positions of its tuples, which came in the order of `ticks`."""
    order = np.argsort(ticks, kind="stable")
    own = np.concatenate([found for found, _ in numbers])[order]
    before = {name: np.concatenate([counts[name] for _, counts in numbers])[order] for name in numbers[0][1]}
    return replace(bucket, positions=own, before=before)
