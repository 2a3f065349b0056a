"""Rows on their way to sinks: a queue for each query, written by threads of its own, spooled where a sink is behind.

A batch waits a moment for the sinks that keep up. What a sink has not taken by then is spooled in the checkpoint, and
the batch is done; the queue goes on from the spool, after failures with growing pauses. The invariants: before a batch
counts as done, each of its rows is in its sink, in the spool, or counted as missed because the spool is full; a sink
gets the batches of its query in order; a sink that fails or hangs holds up no other one.

A sink that gathers, such as one of files, is written to at intervals: at once if the last write is long ago, and else
its rows wait in the spool. Before a query is dropped, and before a stop, what waits is written.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeAlias

import pyarrow as pa

from streamjoin.formats.tables import RowsInFiles
from streamjoin.model.errors import InputError, StreamJoinError, reason_of
from streamjoin.queries.core.row_lists import ListedRows, RowList, read
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import failure_of
from streamjoin.queries.engine.executor import pause_after
from streamjoin.queries.engine.figures import Passage, RunningQuery
from streamjoin.queries.engine.journal import Journal
from streamjoin.queries.sinks.base import FiledRows, Writer, own_rows

WRITERS: Final = 4
"""Threads that write at the same time; those that hang are not counted."""
HANGS: Final = 0.25
"""Seconds after which a write may hang: another thread takes the place of its own."""
_GIVEN_UP: Final = 10.0
"""Seconds after which neither a batch nor a drain waits for a write."""
_LARGE: Final = 32 << 20
"""The bytes of rows that get a file of their own, however soon after the one before."""
NEVER: Final = float("-inf")
_IDLE: Final = 5.0
_GOODBYE: Final = 5.0
_log = logging.getLogger("streamjoin.adhoc")


Rows: TypeAlias = ListedRows | FiledRows | RowsInFiles
"""Rows in memory, gathered or not, in the checkpoint, or in data files of a table."""


@dataclass
class _Waiting:
    """The rows of a batch; `rows` is None once they are in the spool alone."""

    rows: Rows | None
    count: int
    nbytes: int
    passage: Passage | None = None
    spooled: bool = False


@dataclass(eq=False)
class SinkQueue:
    """What waits for the sink of one query, by batch."""

    entry: RunningQuery
    writer: Writer
    lane: Any
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    failures: int = 0
    """In a row."""
    retry_at: float = 0.0
    behind: bool = False
    """Whether batches don't wait for it, because it made one of them wait too long."""
    taken_at: float = 0.0
    pause: float = 0.0
    """Seconds between two writes of a sink that gathers the rows of several batches."""
    flushing: bool = False
    """Whether what waits is written now, though the pause is not over."""
    closing: bool = False
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        """The query's name."""
        return self.entry.name

    @property
    def opened(self) -> Any:
        """The sink's own writer, which may be opened only now."""
        return getattr(self.writer, "opened", self.writer)

    def head(self) -> int:
        """The batch that is next."""
        return min(self.waiting)

    @property
    def due_at(self) -> float:
        """When it is written next, by the monotonic clock."""
        if not self.pause or self.flushing or self.failures:
            return self.retry_at
        return max(self.retry_at, self.taken_at + self.pause)

    @property
    def gathers(self) -> bool:
        """Whether its rows wait for those of later batches, and for nothing else."""
        return bool(self.waiting) and not self.failures and self.due_at > time.monotonic()


class _Lane:
    """Queues whose sinks are written together; one thread at a time serves it."""

    def __init__(self) -> None:
        self.queues: list[SinkQueue] = []
        self.scheduled = False
        self.due_at: float | None = None
        """When it is looked at again, if nothing happens before."""
        self.running_since: float | None = None


class Deliveries:
    """Hands the rows of batches to the sinks of their queries; `stir` is called when one fails, hangs or recovers."""

    def __init__(self, journal: Journal, settings: Settings, stir: Callable[[], None] = lambda: None) -> None:
        self._journal, self._settings, self._stir = journal, settings, stir
        self._changed = threading.Condition()
        self._queues: dict[str, SinkQueue] = {}
        self._open: set[SinkQueue] = set()
        """Those with rows that wait."""
        self._running: set[_Lane] = set()
        self._lanes: dict[Any, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._later: list[tuple[float, int, _Lane]] = []
        self._numbers = count()
        self._workers = self._idle = 0
        self._watched = False
        self._stopping = False
        self._read: Counter[int] = Counter()
        """By batch, the writers that have been given files of rows and not returned."""
        self.rows_loaded = 0
        """Rows that were read from files of tasks, because their sink can't have tasks read them."""

    # Queries ------------------------------------------------------------------------------------------------------

    def add(self, entry: RunningQuery, writer: Writer, together: Any = None) -> None:
        """Serve the sink of a query, with what the spool has for it; sinks of equal `together` are written together."""
        spooled = {
            batch: _Waiting(None, rows.num_rows, rows.nbytes, spooled=True)
            for batch, rows in self._journal.undelivered(entry.name)
        }
        with self._changed:
            lane = self._lanes.setdefault(together if together is not None else (entry.name, id(entry)), _Lane())
            queue = SinkQueue(entry, writer, lane, spooled, taken_at=NEVER, pause=self._pause_of(entry))
            self._queues[entry.name] = queue
            lane.queues.append(queue)
            self._count(queue)
            self._schedule(lane)

    def _pause_of(self, entry: RunningQuery) -> float:
        return self._settings.file_seconds if entry.able.gathers else 0.0

    def replace(self, entry: RunningQuery, writer: Writer) -> None:
        """Give a query another sink, which gets what waits."""
        with self._changed:
            queue = self._queues.get(entry.name)
            if queue is not None:
                before, queue.writer = queue.writer, writer
                queue.pause = self._pause_of(entry)
                self._forgive(queue)
        if queue is None:
            self.add(entry, writer)
        else:
            close_writer(before, entry.name)

    def remove(self, name: str) -> None:
        """A query is dropped: forget what waits for it and close its sink."""
        with self._changed:
            queue = self._queues.pop(name, None)
            if queue is None:
                return
            queue.waiting.clear()
            self._count(queue)
            queue.closing = True
            self._schedule(queue.lane)
        self._journal.forget_undelivered(name)
        queue.closed.wait(self._settings.sink_patience)

    def retry(self, name: str) -> None:
        """Try a sink that failed again now."""
        with self._changed:
            if name in self._queues:
                self._forgive(self._queues[name])

    def _forgive(self, queue: SinkQueue) -> None:
        queue.retry_at, queue.behind = 0.0, False
        self._schedule(queue.lane)

    # Batches ------------------------------------------------------------------------------------------------------

    def put(
        self,
        batch: int,
        outputs: Mapping[str, Rows],
        passage: Callable[[RunningQuery], Passage | None],
    ) -> dict[str, InputError]:
        """Put the rows of a batch into the queues of their queries; returns the queries for which that fails.

        Files of rows have to be there until `settle` returns, and as long as `oldest_read` names their batch.
        """
        failures: dict[str, InputError] = {}
        with self._changed:
            for name, rows in outputs.items():
                queue = self._queues.get(name)
                if queue is None:
                    continue
                try:
                    # A batch that is computed again has the rows that the spool may have already.
                    queue.waiting[batch] = _Waiting(rows, rows.num_rows, rows.nbytes, passage(queue.entry))
                    self._count(queue)
                    if queue.pause and max(self._filled(queue), _sizes(queue.waiting.values())[1] / _LARGE) > 0.5:
                        queue.flushing = True
                except Exception as error:
                    failures[name] = failure_of(error)
                    queue.waiting.pop(batch, None)
                    queue.entry.missed += rows.num_rows
                    # By hand, for to count may be what failed: no thread waits for a queue without rows.
                    queue.entry.undelivered = _sizes(queue.waiting.values())[0]
                    if not queue.waiting:
                        self._open.discard(queue)
                self._schedule(queue.lane)
        return failures

    def settle(self) -> dict[str, InputError]:
        """Return when no row is in memory alone: sinks have a moment to take them, the rest is spooled or missed.

        Returns the queries whose rows can't be spooled though the disk takes them: they are missed.
        """
        until = time.monotonic() + self._settings.sink_patience
        failures: dict[str, InputError] = {}
        with self._changed:
            while self._awaited(failures):
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, HANGS / 4))
                self._replace_hanging()
            unsafe, hangs = [], False
            for queue in self._open:
                unsafe += [(queue, batch) for batch, one in queue.waiting.items() if not one.spooled]
                try:
                    queue.behind = queue.behind or not (queue.failures or queue.gathers)
                    hangs |= queue.entry.hangs
                except Exception as error:
                    failures[queue.entry.query.name] = failure_of(error)
        if hangs:
            self._stir()
        for queue, batch in unsafe:
            try:
                self._spool(queue, batch)
            except (StreamJoinError, OSError):
                raise
            except Exception as error:
                failures[queue.entry.query.name] = failure_of(error)
                with contextlib.suppress(Exception):
                    self._miss(queue, batch, f"they can't be spooled: {reason_of(error)}")
        return failures

    def _awaited(self, failures: dict[str, InputError]) -> bool:
        """Whether a sink is waited for; `failures` gets the queries of which that can't be told."""
        awaited = False
        for queue in self._open:
            try:
                awaited |= self._waited_for(queue)
            except Exception as error:
                failures[queue.entry.query.name] = failure_of(error)
        return awaited

    def _waited_for(self, queue: SinkQueue) -> bool:
        if queue.failures or queue.gathers:
            return False
        # One that is slower than its rows slows batches down before it loses any; one that takes nothing does not.
        slow = queue.behind and self._filled(queue) > 0.5 and time.monotonic() - queue.taken_at < _GIVEN_UP
        return not queue.behind or slow

    def _filled(self, queue: SinkQueue) -> float:
        rows, size = _sizes(queue.waiting.values())
        return max(rows / self._settings.spool_rows, size / self._settings.spool_bytes)

    def _spool(self, queue: SinkQueue, batch: int) -> None:
        with self._changed:
            one = queue.waiting.get(batch)
            if one is None or one.rows is None:
                return
            if self._filled(queue) > 1 and batch != queue.head():
                self._miss(queue, batch, "the spool is full")
                return
            rows = one.rows
        self._journal.write_undelivered(queue.name, batch, self._loaded(rows))
        with self._changed:
            if queue.waiting.get(batch) is one:
                one.spooled, one.rows = True, None
                return
        # It was taken, or its query dropped, while it was written.
        self._journal.forget_undelivered(queue.name, batch)

    def _miss(self, queue: SinkQueue, batch: int, why: str) -> None:
        with self._changed:
            one = queue.waiting.pop(batch, None)
            if one is None:
                return
            queue.entry.missed += one.count
            self._count(queue)
        _log.error("query %r: %d rows of batch %d are missed: %s", queue.name, one.count, batch, why)

    def _loaded(self, rows: Rows) -> pa.Table:
        """Rows in this process."""
        if isinstance(rows, pa.Table | RowList):
            return read(rows)
        self.rows_loaded += rows.num_rows
        return rows.table()

    def drain(self, names: Set[str] | None = None) -> None:
        """Return when the sinks of these queries, or all, have taken their rows, but those that fail or hang."""
        with self._changed:
            self._drain(names, _GIVEN_UP)

    def _drain(self, names: Set[str] | None, hangs: float, seconds: float | None = None) -> None:
        def waited_for() -> list[SinkQueue]:
            return [queue for queue in self._open if names is None or queue.name in names]

        for queue in waited_for():
            if queue.pause:
                queue.flushing = True
                self._schedule(queue.lane)
        self._wait_while(lambda: any(not q.failures and not self._hangs(q, hangs) for q in waited_for()), seconds)

    def _wait_while(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        while condition() and (until is None or time.monotonic() < until):
            self._changed.wait(HANGS / 4)
            self._replace_hanging()

    def close(self) -> None:
        """Stop: sinks that work have a moment for what waits, and all writers are closed."""
        with self._changed:
            self._drain(None, 4 * HANGS, _GOODBYE)
            self._stopping = True
            queues = list(self._queues.values())
            for queue in queues:
                queue.closing = True
                self._schedule(queue.lane)
            self._wait_while(
                lambda: any(not q.closed.is_set() and not self._hangs(q, 4 * HANGS) for q in queues), _GOODBYE
            )
            self._changed.notify_all()

    def _count(self, queue: SinkQueue) -> None:
        queue.entry.undelivered = _sizes(queue.waiting.values())[0]
        if queue.waiting:
            self._open.add(queue)
        else:
            self._open.discard(queue)

    # Threads --------------------------------------------------------------------------------------------------------

    def _schedule(self, lane: _Lane) -> None:
        if not lane.scheduled and lane.running_since is None:
            lane.scheduled = True
            self._ready.append(lane)
            self._replace_hanging()
            self._changed.notify_all()

    def _hangs(self, queue: SinkQueue, seconds: float) -> bool:
        since = queue.lane.running_since
        return since is not None and time.monotonic() - since > seconds

    def _replace_hanging(self) -> None:
        """Have a thread for what is ready, beside those that hang."""
        now = time.monotonic()
        hanging = sum(now - (lane.running_since or now) > HANGS for lane in self._running)
        if len(self._ready) <= self._idle:
            return
        if self._workers - hanging < WRITERS:
            self._workers += 1
            threading.Thread(target=self._work, daemon=True, name="adhoc sinks").start()
        if not self._watched:
            self._watched = True
            threading.Thread(target=self._watch, daemon=True, name="adhoc sinks watched").start()

    def _watch(self) -> None:
        """See to it that what is ready does not wait for threads that all hang."""
        with self._changed:
            self._wait_while(lambda: bool(self._ready))
            self._watched = False

    def _work(self) -> None:
        while True:
            with self._changed:
                lane = self._next()
                if lane is None:
                    self._workers -= 1
                    return
                lane.scheduled, lane.running_since = False, time.monotonic()
                self._running.add(lane)
            try:
                self._serve(lane)
            except BaseException as error:
                # It ends no thread: the queues of the lane are tried again, as after any failure of their sinks.
                _log.error("a sink can't be served", exc_info=error)
                with self._changed:
                    _note_failure(lane.queues, error)
            finally:
                with self._changed:
                    self._running.discard(lane)
                    lane.running_since = None
                    self._plan(lane)
                    self._changed.notify_all()

    def _next(self) -> _Lane | None:
        """What is ready, when something is; None when nothing was for a while."""
        until = time.monotonic() + _IDLE
        while True:
            now = time.monotonic()
            while self._later and self._later[0][0] <= now:
                at, _, lane = heapq.heappop(self._later)
                if lane.due_at == at:
                    lane.due_at = None
                    self._schedule(lane)
            if self._ready:
                return self._ready.popleft()
            if self._stopping or (now >= until and not self._later):
                return None
            left = until - now if not self._later else self._later[0][0] - now
            self._idle += 1
            self._changed.wait(max(0.0, left))
            self._idle -= 1

    def _plan(self, lane: _Lane) -> None:
        """Let a lane be served again when it has to."""
        closing = any(queue.closing for queue in lane.queues)
        times = list(_due_times([queue for queue in lane.queues if queue.waiting]).values())
        if closing:
            times.append(0.0)
        if not times or (self._stopping and not closing):
            return
        if min(times) <= time.monotonic():
            self._schedule(lane)
        elif lane.due_at is None or min(times) < lane.due_at:
            lane.due_at = min(times)
            heapq.heappush(self._later, (lane.due_at, next(self._numbers), lane))

    def _serve(self, lane: _Lane) -> None:
        """Write the oldest batch that is due, of all queues that have it, or close what is to be closed."""
        with self._changed:
            closing = [queue for queue in lane.queues if queue.closing]
            lane.queues = [queue for queue in lane.queues if not queue.closing]
            if not lane.queues:
                self._lanes = {key: other for key, other in self._lanes.items() if other is not lane}
            waiting = [] if self._stopping else [queue for queue in lane.queues if queue.waiting]
            now = time.monotonic()
            due = [queue for queue, at in _due_times(waiting).items() if at <= now]
            # Whoever gathers is alone in its lane.
            gathering = [(queue, _gathered(queue)) for queue in due if queue.pause]
            due = [queue for queue in due if not queue.pause]
            batch = min((queue.head() for queue in due), default=-1)
            due = [queue for queue in due if queue.head() == batch]
            filed = int(any(getattr(queue.waiting[batch].rows, "files_go", False) for queue in due))
            self._read[batch] += filed
        try:
            for queue in closing:
                close_writer(queue.writer, queue.name)
                queue.closed.set()
            for queue, batches in gathering:
                self._write_alone(queue, batches)
            self._write(batch, due)
        finally:
            with self._changed:
                self._read[batch] -= filed
                # Without the zeros.
                self._read = +self._read

    @property
    def oldest_read(self) -> int | None:
        """The oldest batch whose rows a writer may be reading from files now."""
        with self._changed:
            return min(self._read, default=None)

    def _write(self, batch: int, queues: Sequence[SinkQueue]) -> None:
        """Write a batch to the sinks of a lane, together if there are several."""
        if len(queues) > 1:
            try:
                for queue in queues:
                    queue.entry.writing_since = time.monotonic()
                together = [(queue.opened, rows) for queue in queues for _, rows in self._read_rows(queue, [batch])]
                if together:
                    together[0][0].write_all(batch, together)
            except Exception:
                # One of them is the reason: each is tried on its own, and may send its rows twice.
                _log.info("queries %s can't be written together", [queue.name for queue in queues], exc_info=True)
            else:
                for queue in queues:
                    self._taken(queue, batch)
                return
        for queue in queues:
            self._write_alone(queue, [batch])

    def _write_alone(self, queue: SinkQueue, group: Sequence[int]) -> None:
        """Write a batch to a sink, or several to one that gathers."""
        try:
            queue.entry.writing_since = time.monotonic()
            batches = self._read_rows(queue, group)
            if queue.pause and batches:
                queue.opened.write_batches(batches)
            elif batches:
                queue.writer.write(*batches[0])
        except BaseException as error:
            # Also what a function raises to end a program: it ends no thread of ours.
            self._failed(queue, error)
            return
        for batch in group:
            self._taken(queue, batch, waited=len(group) > 1)

    def _read_rows(self, queue: SinkQueue, batches: Iterable[int]) -> list[tuple[int, Rows]]:
        """The rows of batches as a writer takes them, without those that are forgotten because the query is dropped.

        A writer may hang: what it is given holds on to no other rows.
        """
        found: list[tuple[int, Rows]] = []
        for batch in batches:
            with self._changed:
                one = queue.waiting.get(batch)
                rows = None if one is None else one.rows
            if isinstance(rows, pa.Table | RowList):
                found.append((batch, own_rows(read(rows))))
            elif rows is not None:
                found.append((batch, rows if getattr(queue.opened, "takes_files", False) else self._loaded(rows)))
            elif one is not None:
                found.append((batch, self._journal.read_undelivered(queue.name, batch)))
        return found

    def _taken(self, queue: SinkQueue, batch: int, waited: bool = False) -> None:
        """Note that the sink has the rows; those that `waited` for others say nothing of how fast it is."""
        with self._changed:
            one = queue.waiting.pop(batch, None)
            recovers = queue.failures > 0 or queue.entry.hangs
            queue.failures, queue.retry_at, queue.taken_at = 0, 0.0, time.monotonic()
            queue.entry.sink_error = queue.entry.retry_at = queue.entry.writing_since = None
            if not queue.waiting:
                queue.behind = queue.flushing = False
            self._count(queue)
            if one is not None:
                queue.entry.delivered(None if waited else one.passage)
        if one is not None and one.spooled:
            self._journal.forget_undelivered(queue.name, batch)
        if recovers:
            self._stir()

    def _failed(self, queue: SinkQueue, error: BaseException) -> None:
        with self._changed:
            pause = _note_failure([queue], error)
            queue.entry.retry_at, queue.entry.writing_since = time.time() + pause, None
            waiting, why = queue.entry.undelivered, queue.entry.sink_error
        _log.error("the sink of query %r failed: %s; %d rows wait, next try in %g s", queue.name, why, waiting, pause)
        self._stir()


def _note_failure(queues: Sequence[SinkQueue], error: BaseException) -> float:
    """Have queues tried again later; returns the seconds until the last of them is."""
    now, longest = time.monotonic(), 0.0
    for queue in queues:
        pause = pause_after(queue.failures)
        queue.failures += 1
        queue.retry_at, longest = now + pause, max(longest, pause)
        queue.entry.sink_error = reason_of(error)
    return longest


def _due_times(queues: Sequence[SinkQueue]) -> dict[SinkQueue, float]:
    """When queues are to be served; one of which that can't be told has failed, and is tried again later."""
    times = {}
    for queue in queues:
        try:
            times[queue] = queue.due_at
        except Exception as error:
            _log.error("the sink of query %r can't be served", queue.entry.query.name, exc_info=error)
            _note_failure([queue], error)
            times[queue] = queue.retry_at
    return times


def _gathered(queue: SinkQueue) -> list[int]:
    """The batches that become one file: all that wait, as far as that is not too much."""
    size = 0
    group: list[int] = []
    for batch, one in sorted(queue.waiting.items()):
        size += one.nbytes
        if group and size > _LARGE:
            break
        group.append(batch)
    return group


def _sizes(waiting: Iterable[_Waiting]) -> tuple[int, int]:
    rows = size = 0
    for one in waiting:
        rows, size = rows + one.count, size + one.nbytes
    return rows, size


def close_writer(writer: Writer, name: str) -> None:
    """Close the writer of a query's sink, whatever it does."""
    try:
        writer.close()
    except (Exception, SystemExit):
        _log.exception("the sink of query %r can't be closed", name)
