"""Rows on their way to sinks: a queue for each query, written by threads of its own, spooled where a sink is behind.

A batch waits a moment for the sinks that keep up. What a sink has not taken by then is spooled in the checkpoint, and
the batch is done; the queue goes on from the spool, after failures with growing pauses. The invariants: before a batch
counts as done, each of its rows is in its sink, in the spool, or counted as missed because the spool is full; a sink
gets the batches of its query in order; a sink that fails or hangs holds up no other one.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import pyarrow as pa

from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.engine.executor import pause_after
from streamjoin.adhoc.engine.figures import Passage, RunningQuery
from streamjoin.adhoc.engine.journal import Journal
from streamjoin.adhoc.sinks.base import FiledRows, Writer
from streamjoin.formats.table_files import RowsInFiles

WRITERS: Final = 4
"""Threads that write at the same time; those that hang are not counted."""
HANGS: Final = 0.25
"""Seconds after which a write may hang: another thread takes the place of its own."""
_GIVEN_UP: Final = 10.0
"""Seconds after which nobody waits for a write any more who wants all rows out."""
_IDLE: Final = 5.0
_GOODBYE: Final = 5.0
_log = logging.getLogger(__name__)


@dataclass
class _Waiting:
    """The rows of a batch; `rows` is None once they are in the spool alone."""

    rows: pa.Table | FiledRows | RowsInFiles | None
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
    closing: bool = False
    closed: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        """The query's name."""
        return self.entry.name

    def head(self) -> int:
        """The batch that is next."""
        return min(self.waiting)


class _Lane:
    """Queues whose sinks are written together; one thread at a time serves it."""

    def __init__(self) -> None:
        self.queues: list[SinkQueue] = []
        self.scheduled = False
        self.due_at: float | None = None
        """When it is looked at again, if nothing happens before."""
        self.running_since: float | None = None


class Deliveries:
    """Hands the rows of batches to the sinks of their queries."""

    def __init__(self, journal: Journal, settings: Settings) -> None:
        self._journal, self._settings = journal, settings
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
            queue = SinkQueue(entry, writer, lane, spooled)
            self._queues[entry.name] = queue
            lane.queues.append(queue)
            self._count(queue)
            self._schedule(lane)

    def replace(self, entry: RunningQuery, writer: Writer) -> None:
        """Give a query another sink, which gets what waits."""
        with self._changed:
            queue = self._queues.get(entry.name)
            if queue is not None:
                before, queue.writer = queue.writer, writer
                self._forgive(queue)
        if queue is None:
            self.add(entry, writer)
        else:
            _close(before, entry.name)

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
        outputs: Mapping[str, pa.Table | FiledRows | RowsInFiles],
        passage: Callable[[RunningQuery], Passage | None],
    ) -> None:
        """Put the rows of a batch into the queues of their queries.

        Files of rows have to be there until `settle` returns, and as long as `oldest_read` names their batch.
        """
        with self._changed:
            for name, rows in outputs.items():
                queue = self._queues.get(name)
                if queue is None:
                    continue
                # A batch that is computed again has the rows that the spool may have already.
                queue.waiting[batch] = _Waiting(rows, rows.num_rows, rows.nbytes, passage(queue.entry))
                self._count(queue)
                self._schedule(queue.lane)

    def settle(self) -> None:
        """Return when no row is in memory alone: sinks have a moment to take them, the rest is spooled or missed."""
        until = time.monotonic() + self._settings.sink_patience
        with self._changed:
            while any(self._waited_for(queue) for queue in self._open):
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, HANGS / 4))
                self._replace_hanging()
            unsafe = []
            for queue in self._open:
                queue.behind = queue.behind or not queue.failures
                unsafe += [(queue, batch) for batch, one in queue.waiting.items() if not one.spooled]
        for queue, batch in unsafe:
            self._spool(queue, batch)

    def _waited_for(self, queue: SinkQueue) -> bool:
        if queue.failures:
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
                del queue.waiting[batch]
                queue.entry.missed += one.count
                self._count(queue)
                _log.error(
                    "the spool of query %r is full: %d rows of batch %d are missed", queue.name, one.count, batch
                )
                return
            rows = one.rows
        self._journal.write_undelivered(queue.name, batch, self._loaded(rows))
        with self._changed:
            if queue.waiting.get(batch) is one:
                one.spooled, one.rows = True, None
                return
        # It was taken, or its query dropped, while it was written.
        self._journal.forget_undelivered(queue.name, batch)

    def _loaded(self, rows: pa.Table | FiledRows | RowsInFiles) -> pa.Table:
        """Rows in this process."""
        if isinstance(rows, pa.Table):
            return rows
        self.rows_loaded += rows.num_rows
        return rows.table()

    def drain(self) -> None:
        """Return when every sink has taken its rows, but those that fail or hang."""
        with self._changed:
            self._wait_while(lambda: any(not q.failures and not self._hangs(q, _GIVEN_UP) for q in self._open))

    def _wait_while(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        while condition() and (until is None or time.monotonic() < until):
            self._changed.wait(HANGS / 4)
            self._replace_hanging()

    def close(self) -> None:
        """Stop: sinks that work have a moment for what waits, and all writers are closed."""
        with self._changed:
            self._wait_while(
                lambda: any(not q.failures and not self._hangs(q, 4 * HANGS) for q in self._open), _GOODBYE
            )
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
        times = [0.0 if queue.closing else queue.retry_at for queue in lane.queues if queue.closing or queue.waiting]
        if not times or (self._stopping and not any(queue.closing for queue in lane.queues)):
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
            now = time.monotonic()
            due = [] if self._stopping else [queue for queue in lane.queues if queue.waiting and queue.retry_at <= now]
            batch = min((queue.head() for queue in due), default=-1)
            parts = [(queue, queue.waiting[batch].rows) for queue in due if queue.head() == batch]
            filed = int(any(isinstance(rows, FiledRows) for _, rows in parts))
            self._read[batch] += filed
        try:
            for queue in closing:
                _close(queue.writer, queue.name)
                queue.closed.set()
            self._write(batch, parts)
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

    def _write(self, batch: int, parts: list[tuple[SinkQueue, pa.Table | FiledRows | RowsInFiles | None]]) -> None:
        loaded: list[tuple[SinkQueue, Any]] = []
        for queue, rows in parts:
            try:
                if rows is None:
                    rows = self._journal.read_undelivered(queue.name, batch)
                elif not getattr(getattr(queue.writer, "opened", queue.writer), "takes_files", False):
                    rows = self._loaded(rows)
                loaded.append((queue, rows))
            except Exception as error:
                self._failed(queue, error)
        if len(loaded) > 1:
            try:
                writers: list[tuple[Any, Any]] = [
                    (getattr(queue.writer, "opened", queue.writer), rows) for queue, rows in loaded
                ]
                writers[0][0].write_all(batch, writers)
            except Exception:
                # One of them is the reason: each is tried on its own, and may send its rows twice.
                _log.info("queries %s can't be written together", [queue.name for queue, _ in loaded], exc_info=True)
            else:
                for queue, _ in loaded:
                    self._taken(queue, batch)
                return
        for queue, rows in loaded:
            try:
                queue.writer.write(batch, rows)
            except BaseException as error:
                # Also what a function raises to end a program: it ends no thread of ours.
                self._failed(queue, error)
            else:
                self._taken(queue, batch)

    def _taken(self, queue: SinkQueue, batch: int) -> None:
        with self._changed:
            one = queue.waiting.pop(batch, None)
            queue.failures, queue.retry_at, queue.taken_at = 0, 0.0, time.monotonic()
            queue.entry.sink_error = queue.entry.retry_at = None
            if not queue.waiting:
                queue.behind = False
            self._count(queue)
            if one is not None:
                queue.entry.delivered(one.count, one.passage)
        if one is not None and one.spooled:
            self._journal.forget_undelivered(queue.name, batch)

    def _failed(self, queue: SinkQueue, error: BaseException) -> None:
        with self._changed:
            pause = pause_after(queue.failures)
            queue.failures += 1
            queue.retry_at = time.monotonic() + pause
            queue.entry.sink_error, queue.entry.retry_at = _reason(error), time.time() + pause
            waiting = queue.entry.undelivered
        _log.error("the sink of query %r failed: %s; %d rows wait, next try in %g s", queue.name, error, waiting, pause)


def _sizes(waiting: Iterable[_Waiting]) -> tuple[int, int]:
    rows = size = 0
    for one in waiting:
        rows, size = rows + one.count, size + one.nbytes
    return rows, size


def _close(writer: Writer, name: str) -> None:
    try:
        writer.close()
    except Exception:
        _log.exception("the sink of query %r can't be closed", name)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
