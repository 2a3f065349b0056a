"""What a join will need: arithmetic from what its stages count and what one machine took for it.

Frozen data in, figures out; nothing here runs a join or reads a clock. How often rows are rewritten follows from the
merge policy itself, which is asked batch by batch as tasks ask it. Constants are seconds of one core and bytes, which
`calibrate.py` measures; those under `assumed` nobody measured, and the file that has them says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from streamjoin.storage.manifest import SAMPLE
from streamjoin.storage.merging import MergePolicy, RunStatistics, due, first_folded, spent

GateKind = Literal["none", "facts", "every range", "one task"]
GATES: Mapping[GateKind, str] = {
    "none": "no gate",
    "facts": "no gate: ranges decide by facts of the routing tasks",
    "every range": "a gate in every range: each reads the times of all rows",
    "one task": "a gate of one task, which sees every row",
}
EVERY_RANGE = "the gate in every range"
LONGEST = 60.0
"""Seconds of a batch beyond which a join without a trigger does not keep up."""
ARROW_ROWS = 200_000
_TICKS, _MOST_BATCHES, _AGES = 1000, 600, 15
_MERGED, _MOST_RATE = 1 << 40, 1e13
# Of a batch besides its pieces: listings, the manifest, removals. A file is asked for its size before it is read.
_OWN_REQUESTS, _TO_FETCH = 7, 2


@dataclass(frozen=True)
class JoinShape:
    """What of a join decides what is counted.

    `one_range` says that all rows have one word that is not divided, `whole` that every batch rewrites the state.
    """

    gate: GateKind = "none"
    indexed: bool = True
    one_range: bool = False
    whole: bool = False
    ordered: bool = False


@dataclass(frozen=True)
class Seconds:
    """Seconds of one core: by task, by row, by byte.

    Args:
        route_task, route_row, route_part: a routing task, a row in it, and a part that it sends.
        join_task, join_run, join_row: the task of a range, a stored run in which it looks, and a row or a copy, with
            its results.
        folded_row: a stored row that a task writes again.
        gate_row: a row of the batch in every range, or in the one task of a gate.
        compared: a comparison, in a join whose condition finds no candidates.
        footer, manifest_byte: a piece whose footer is read, and a byte of the manifest, once a process and batch.
        merged_row: a row that the driver merges.
        batch: what Spark needs for a batch without rows.
        launch: what the driver needs to start and end a task.
        task: what an executor needs for a task without rows.
        shuffled_byte: writing and reading a byte that is shuffled.
    """

    route_task: float
    route_row: float
    route_part: float
    join_task: float
    join_run: float
    join_row: float
    folded_row: float
    gate_row: float
    compared: float
    footer: float
    manifest_byte: float
    merged_row: float
    batch: float
    launch: float
    task: float
    shuffled_byte: float


@dataclass(frozen=True)
class Bytes:
    """Bytes: of a part without rows, of a row in it, and of a stored row.

    `time_part` and `time` are those of what a task tells every range of the times of its rows, where it does.

    `entry` is a piece in the manifest, `sample` one of the words by which ranges are cut. `task_memory` is what a task
    takes without rows, `row_memory` for a row of its range, `gate_memory` for each row of the batch where every range
    decides.
    """

    part: float
    row: float
    time_part: float
    time: float
    stored_row: float
    entry: float
    sample: float
    task_memory: float
    row_memory: float
    gate_memory: float


@dataclass(frozen=True)
class Assumed:
    """What is not measured: what the network carries from one executor in a second, and what a store answers."""

    network_bytes: float = 1e9
    store_requests: float = 3500.0
    store_latency: float = 0.0


@dataclass(frozen=True)
class MachineConstants:
    """What one machine took for one join; `copies` is how many copies a row has for each cut between ranges."""

    shape: JoinShape
    seconds: Seconds
    bytes: Bytes
    copies: float = 0.0
    assumed: Assumed = Assumed()


@dataclass(frozen=True)
class Load:
    """What is asked: rows a second of both sides, a window in seconds, and what the cluster has.

    `inputs` is the number of routing tasks, `every` the seconds of a trigger; None for one batch after the other.
    """

    rate: float
    window: float
    executors: int
    cores: int
    ranges: int
    inputs: int
    every: float | None = None

    @property
    def all_cores(self) -> int:
        """The tasks that can run at a time."""
        return self.executors * self.cores


@dataclass(frozen=True)
class LogLoad:
    """The log by batch, on average: runs of a version, rows of the window, rows that tasks and the driver rewrite."""

    runs: float
    stored: float
    folded: float
    merged: float


@dataclass(frozen=True)
class BatchCounts:
    """What a batch counts, whatever it takes."""

    rows: float
    ranges: int
    parts: float
    markers: int
    copies: float
    shuffled: float
    told: float
    """Of the shuffled bytes, the times that every range gets."""
    written: float
    fetched: float
    """Bytes that hosts fetch of what others have written."""
    manifest: float
    requests: float
    log: LogLoad


@dataclass(frozen=True)
class Estimate:
    """What a batch takes, and what there is least of."""

    counts: BatchCounts
    seconds: float
    keeps_up: bool
    route_task: float
    join_task: float
    gate_task: float
    driver: float
    memory: float
    """Bytes of a task that joins, in its Python process."""
    task_requests: float
    used: Mapping[str, float]
    """By resource, the share of it that the rate takes."""

    @property
    def scarcest(self) -> str:
        """The resource that is used up first."""
        return max(self.used, key=self.used.__getitem__)

    @property
    def driver_share(self) -> float:
        """The driver's part of the time of a batch."""
        return self.driver / self.seconds


Span = tuple[float, float, float]
"""Rows between two times, evenly spread."""


def _cut(spans: Sequence[Span], horizon: float) -> tuple[Span, ...]:
    """What of the spans is not older than `horizon`."""
    kept = []
    for begin, end, rows in spans:
        first = max(begin, horizon)
        if first < end:
            kept.append((first, end, rows * (end - first) / (end - begin)))
    return tuple(kept)


def _rows(spans: Sequence[Span]) -> float:
    return sum(rows for _, _, rows in spans)


def _statistics(spans: Sequence[Span]) -> tuple[RunStatistics, RunStatistics]:
    """Both sides of a run, each with half of its rows."""
    total, ordered = _rows(spans), sorted(spans)
    if total < 1:
        return RunStatistics(0, 0, 0), RunStatistics(0, 0, 0)
    ages, passed, wanted = [], 0.0, 1
    for begin, end, rows in ordered:
        while wanted <= _AGES and passed + rows >= total * wanted / (_AGES + 1):
            ages.append(int(begin + (end - begin) * (total * wanted / (_AGES + 1) - passed) / rows))
            wanted += 1
        passed += rows
    half = round(total / 2)
    newest = max(end for _, end, _ in ordered)
    own = RunStatistics(half, int(ordered[0][0]), int(newest) - 1, tuple(ages))
    return own, own


@dataclass(frozen=True)
class _Run:
    """A run of the log: its number, where its rows lie in time, and what a manifest says of them."""

    key: int
    spans: tuple[Span, ...]
    statistics: tuple[RunStatistics, RunStatistics]

    @classmethod
    def of(cls, key: int, spans: Sequence[Span]) -> _Run:
        return cls(key, tuple(spans), _statistics(spans))


@functools.lru_cache(256)
def log_load(rows: float, window: float, policy: MergePolicy, *, whole: bool = False) -> LogLoad:
    """The log of a join with `rows` a batch and a window of so many batches, once the window is full.

    Both sides have half of the rows. Runs of a long window begin as a share of it each, and settle from there. What is
    due in the background is merged by the next batch but one.
    """
    length, whole = window * _TICKS, whole or policy.whole
    runs: list[_Run] = []
    batches = math.ceil(2 * window) + 50
    if batches > _MOST_BATCHES:
        batches, part = _MOST_BATCHES, length / policy.runs
        shares = [(-(i + 1) * part, -i * part, rows * window / policy.runs) for i in range(policy.runs)]
        runs = [_Run.of(-number, [span]) for number, span in enumerate(reversed(shares), 1)]
    pending: list[int] = []
    totals, counted = [0.0, 0.0, 0.0, 0.0], 0
    for batch in range(batches):
        now = batch * _TICKS
        before, after = (int(clock - length) for clock in (now, now + _TICKS))
        statistics = [run.statistics for run in runs]
        begin, end = 0, 0
        if not whole:
            end = first_folded(statistics, (before, before), round(rows), policy)
            begin = spent(statistics[:end], (after, after), round(rows), policy)
        live = [span for run in (*runs[:begin], *runs[end:]) for span in _cut(run.spans, after)]
        kept, merged = runs[begin:end], 0.0
        keys = [run.key for run in kept]
        at = keys.index(pending[0]) if pending and pending[0] in keys else len(keys)
        if pending and keys[at : at + len(pending)] == pending:
            spans = [span for run in kept[at : at + len(pending)] for span in _cut(run.spans, before)]
            merged = _rows(spans)
            kept[at : at + len(pending)] = [_Run.of(_MERGED + batch, spans)]
        new = _Run.of(batch, [*live, (float(now), float(now + _TICKS), rows)])
        runs = [*(run for run in kept if run.statistics[0].newest >= after), new]
        bounds = None if whole else due([run.statistics for run in runs], (after, after), policy)
        pending = [] if bounds is None else [run.key for run in runs[slice(*bounds)]]
        if batch >= batches // 2:
            counted += 1
            own = (len(runs), sum(_rows(run.spans) for run in runs), _rows(live), merged)
            totals = [a + b for a, b in zip(totals, own, strict=True)]
    return LogLoad(*(total / counted for total in totals))


def counts_of(
    constants: MachineConstants, load: Load, seconds: float, policy: MergePolicy | None = None
) -> BatchCounts:
    """What a batch of so many seconds of rows counts."""
    shape, size = constants.shape, constants.bytes
    rows, ranges = load.rate * seconds, 1 if shape.one_range else load.ranges
    log = log_load(rows, load.window / seconds, policy or MergePolicy(), whole=shape.whole)
    copies = min(constants.copies, 1.0) * (ranges - 1) * rows
    lone = shape.gate == "one task"
    # A gate of one task sends the rows of each side by itself.
    senders = 2 if lone else load.inputs
    batches = senders * max(1, math.ceil(rows / senders / ARROW_ROWS))
    parts = min(rows, batches * ranges) + min(copies, batches * ranges if copies else 0)
    # A gate of one task sends the rows once more than the others.
    collected = rows * size.row + load.inputs * size.part if lone else 0.0
    told = ranges * (rows * size.time + load.inputs * size.time_part) if shape.gate == "every range" else 0.0
    shuffled = (rows + copies) * size.row + (parts + senders * load.ranges) * size.part + collected + told
    written, manifest = (rows + log.folded) * size.stored_row, manifest_bytes(size, log.runs, ranges, rows)
    # A run is read in as many batches as there are runs, and two ranges reach a piece: any host may have them. Merged
    # runs are one file, which every host fetches whole.
    hosts = load.executors
    others = (hosts - 1) * (1 - (1 - 1 / hosts) ** (2 * log.runs))
    merged = (hosts - 1) * min(1.0, log.merged / rows)
    elsewhere = (load.inputs + ranges) * (1 - 1 / hosts)
    requests = _OWN_REQUESTS + ranges + elsewhere + _TO_FETCH * (ranges * others + hosts - 1 + merged)
    fetched = written * others + manifest * (hosts - 1) + log.merged * size.stored_row * (hosts - 1)
    marked = senders * load.ranges
    return BatchCounts(rows, ranges, parts, marked, copies, shuffled, told, written, fetched, manifest, requests, log)


def manifest_bytes(size: Bytes, runs: float, ranges: int, rows: float) -> float:
    """The manifest of so many runs: its pieces, and samples of the words of each run and of the newest rows."""
    return runs * ranges * size.entry + (runs + 1) * min(rows, max(SAMPLE, 2 * ranges)) * size.sample


def estimate(constants: MachineConstants, load: Load, policy: MergePolicy | None = None) -> Estimate:
    """What a batch takes: of the trigger's rows, or, one after the other, of those that came during the one before."""
    if load.every is not None:
        return _of_batch(constants, load, load.every, load.every, policy)
    seconds = 2 * constants.seconds.batch
    for _ in range(60):
        found = _of_batch(constants, load, seconds, seconds, policy)
        if found.seconds > LONGEST:
            return _of_batch(constants, load, LONGEST, LONGEST, policy)
        if abs(found.seconds - seconds) < 0.01 * seconds:
            break
        seconds = (seconds + found.seconds) / 2
    return _of_batch(constants, load, seconds, max(seconds, LONGEST), policy)


def _of_batch(
    constants: MachineConstants, load: Load, seconds: float, most: float, policy: MergePolicy | None
) -> Estimate:
    """A batch with the rows of so many seconds; what is scarce shows in one of `most` seconds."""
    took, counts = constants.seconds, counts_of(constants, load, seconds, policy)
    route, join, gate, driver, total = _times(constants, load, counts)
    size, by_range = constants.bytes, counts.rows / counts.ranges
    everywhere = constants.shape.gate == "every range"
    memory = size.task_memory + size.row_memory * (by_range + (counts.copies + counts.log.folded) / counts.ranges)
    memory += size.gate_memory * counts.rows * everywhere
    long = counts if most == seconds else counts_of(constants, load, most, policy)
    long_route, long_join, long_gate, long_driver, _ = _times(constants, load, long)
    work = load.inputs * long_route + long.ranges * long_join + long_gate
    by_gate = long.rows * (took.gate_row + size.time * took.shuffled_byte) * long.ranges * everywhere
    used = {
        EVERY_RANGE if by_gate > work / 2 else "cores": work / (load.all_cores * most),
        "driver": long_driver / most,
        "merges": long.log.merged * took.merged_row / most,
        "network": (long.shuffled + long.fetched) / (load.executors * constants.assumed.network_bytes * most),
        "store": long.requests / (constants.assumed.store_requests * most),
    }
    if constants.shape.gate == "one task":
        used["the gate's task"] = long_gate / most
    keeps_up = total <= seconds * 1.02 and max(used.values()) <= 1
    requests = counts.requests / max(1, counts.ranges)
    return Estimate(counts, total, keeps_up, route, join, gate, driver, memory, requests, used)


def _times(constants: MachineConstants, load: Load, counts: BatchCounts) -> tuple[float, float, float, float, float]:
    """Seconds of a routing task, of a join task, of the gate's task, of the driver, and of the whole batch."""
    took, size, shape = constants.seconds, constants.bytes, constants.shape
    # Every process reads the version before: the pieces of the newest run, or all as a manifest.
    version = counts.ranges * took.footer + counts.manifest * took.manifest_byte
    sent = (counts.shuffled - counts.told) / load.inputs
    route = took.task + took.route_task + version + counts.rows / load.inputs * took.route_row
    route += counts.parts / load.inputs * took.route_part + sent * took.shuffled_byte / 2
    own = (counts.rows + counts.copies) / counts.ranges
    compared = 0.0 if shape.indexed else own * counts.log.stored * took.compared
    join = (
        took.task
        + took.join_task
        + counts.log.runs * took.join_run
        + own * took.join_row
        + counts.log.folded / counts.ranges * took.folded_row
    )
    join += compared + (counts.shuffled / counts.ranges) * took.shuffled_byte / 2
    gate = 0.0
    if shape.gate == "every range":
        join += counts.rows * took.gate_row
    elif shape.gate == "one task":
        gate = took.task + version + counts.rows * (took.gate_row + size.row * took.shuffled_byte)
    stages = [(load.inputs, route), (1, gate), (load.ranges, join), (load.ranges * shape.ordered, took.task)]
    launched = sum(number for number, seconds in stages if seconds) * took.launch
    driver = took.batch + launched + constants.assumed.store_latency * _OWN_REQUESTS
    # The driver starts tasks while others run.
    working = sum(
        max(math.ceil(number / load.all_cores) * seconds, number * took.launch) for number, seconds in stages if number
    )
    moved = (
        (counts.shuffled + counts.fetched) / (load.executors * constants.assumed.network_bytes)
        if load.executors > 1
        else 0.0
    )
    total = took.batch + constants.assumed.store_latency * _OWN_REQUESTS + max(working, moved)
    return route, join, gate, driver, total


def sustained(constants: MachineConstants, load: Load, policy: MergePolicy | None = None) -> float:
    """About how many rows a second such a cluster takes; 0 if its tasks take too long without any."""

    def fits(rate: float) -> bool:
        seconds = load.every or LONGEST
        return max(_of_batch(constants, replace(load, rate=rate), seconds, seconds, policy).used.values()) <= 1

    least, most = 0.0, 1.0
    while most < _MOST_RATE and fits(most):
        least, most = most, most * 4
    for _ in range(12 if least else 0):
        middle = (least + most) / 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least
