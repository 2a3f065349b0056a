"""Calls on a join: serialized and atomic; the rows are returned at once or as a stream of tables.

A call saves the state before it begins (`_saved`, which is cheap) and restores it if it fails, for any reason: too many
rows, no memory, Ctrl-C. A Ctrl-C that comes during the restore is raised after it. If the restore fails too, the join
is broken: every later call raises an error that names the first failure. Invariant: no call ever sees the partial
effect of another.

A stream of tables (`Results`) is for results that do not fit in memory at once: its tuples are joined as it is read, in
steps that keep each table small. A step that has too many rows is undone and cut into smaller ones. Invariant: the
joined tuples and the returned tables are consistent, so a table that failed can be requested again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from streamjoin.joins.base import Overflow
from streamjoin.joins.engine.ordered import Work
from streamjoin.joins.engine.settings import check_rows
from streamjoin.model.errors import StateError, TooManyRowsError
from streamjoin.windows.buffer import Restore
from streamjoin.windows.interrupts import Deferred

T = TypeVar("T")
Begin = Callable[[], Work | None]
"""The first part of a call: its tuples in gate order, ready to be joined; None where there are none."""
Prepare = Callable[[], Begin]
"""Checks what a call was given, and changes nothing."""

BATCH_ROWS = 1_000_000

# A step with too many rows is cut into this many steps.
_CUT = 8
Step = Callable[[Work, int | None, int], None]
"""Has some work's next tuples joined and the rows kept, or leaves all as it was; the most rows, and the most tuples."""

_LEFT = (
    "the block ended with {} of the result not taken, of tuples that had waited for their turn: call close() "
    "inside the block and use the rows it returns, or give on_close= to open"
)
# The failure of a call that was neither completed nor undone, until another one is known.
_AT_WORK = KeyboardInterrupt()
_CALLS: weakref.WeakSet[Calls] = weakref.WeakSet()


class Results(Iterator[pa.Table]):
    """Tables of at most `batch_rows` rows, in result order. The join accepts no other call until the last is read."""

    def __init__(
        self,
        schema: pa.Schema | None,
        work: Work | None,
        batch_rows: int,
        following: Callable[[Results], pa.Table | None],
    ) -> None:
        self.schema = schema
        """The schema of the tables; None while a side's schema is not known, where there are no rows either."""
        self._work = work
        self._batch_rows = batch_rows
        self._following = following
        self._tuples = self.waiting
        self._ready: deque[pa.Table] = deque()

    def __next__(self) -> pa.Table:
        table = self._following(self)
        if table is None:
            raise StopIteration
        return table

    def to_reader(self) -> pa.RecordBatchReader:
        """The same rows as an Arrow reader, for example for DuckDB, Polars or a file writer."""
        schema = self.schema or pa.schema([])
        return pa.RecordBatchReader.from_batches(schema, (batch for table in self for batch in table.to_batches()))

    @property
    def waiting(self) -> int:
        """How many tuples are not joined yet."""
        return 0 if self._work is None else self._work.waiting

    def has_more(self) -> bool:
        """Whether there may be more rows."""
        return self.waiting > 0 or bool(self._ready)

    def saved(self) -> Restore:
        """Return a function that returns the tuples joined from now on to the waiting ones."""
        work = None if self._work is None else self._work.saved()

        def restore() -> None:
            self._ready.clear()
            if work is not None:
                work()

        return restore

    def fill(self, step: Step) -> None:
        """Join tuples until a table is ready, or none is left."""
        while not self._ready and self._work is not None and self._work.waiting:
            tuples = self._tuples
            try:
                # A single tuple has at most one row per tuple of the other window.
                step(self._work, self._batch_rows if tuples > 1 else None, tuples)
            except Overflow:
                self._tuples = max(1, self._work.tried // _CUT)

    def at_last(self) -> bool:
        """Whether at most one table is left."""
        return self.waiting == 0 and len(self._ready) < 2

    def pop(self) -> pa.Table | None:
        """The table that is ready, if there is one."""
        return self._ready.popleft() if self._ready else None

    def keep(self, work: Work, rows: pa.Table) -> None:
        """Cut the rows into tables and adapt the size of the next step to their number."""
        self._ready.extend(rows.slice(at, self._batch_rows) for at in range(0, rows.num_rows, self._batch_rows))
        if not work.tried:
            # A step without tuples says nothing about the next one's rows.
            return
        self._tuples = work.tried * sum(share * rows.num_rows <= self._batch_rows for share in (0, 2, 4, 4))


class Calls(ABC):
    """What all calls on a join share."""

    def __init__(self, max_rows: int | None, on_close: Callable[[pa.Table], object] | None) -> None:
        self._lock = threading.Lock()
        self._max_rows = max_rows
        self._on_close = on_close
        self._closed = False
        self._broken: BaseException | None = None
        self._forked = False
        # A weak reference shows when unread rows can no longer be read.
        self._results: weakref.ref[Results] | None = None
        # The rows of `close` until they are returned: if ending the threads fails, closing again returns them.
        self._tail: pa.Table | None = None
        _CALLS.add(self)

    # -- what a join defines -------------------------------------------------------------------------------

    @abstractmethod
    def _saved(self) -> Restore:
        """Return a function that restores the current state of the join."""

    @abstractmethod
    def _step(self, work: Work, limit: int | None, most: int | None) -> pa.Table:
        """Join at most `most` of the next tuples of some work; raises Overflow beyond `limit` rows."""

    @abstractmethod
    def _joined(self, results: list[pa.Table]) -> pa.Table:
        """One table of several."""

    @abstractmethod
    def _end_threads(self) -> None:
        """End all threads; does nothing if there are none."""

    @property
    @abstractmethod
    def _threaded(self) -> bool:
        """Whether the join has threads of its own."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The schema of the result, once both sides' schemas are known."""

    @abstractmethod
    def _closing(self) -> Begin:
        """The last call: release all waiting tuples."""

    # -- the end -------------------------------------------------------------------------------------------

    def close(self) -> pa.Table:
        """End the input and return the rows of waiting tuples. Closing again returns an empty table."""
        return self._whole(self._closing, last=True)

    def close_iter(self, *, batch_rows: int = BATCH_ROWS) -> Results:
        """`close` for any number of rows, read like those of `push_iter`; the threads end with the last table."""
        return self._streamed(self._closing, batch_rows, last=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # After an exception the waiting rows are dropped.
            if kind is None:
                self._close_block()
        finally:
            self._end()

    def _close_block(self) -> None:
        if self._is_closed():
            return
        if self._on_close is not None:
            for table in self.close_iter():
                self._on_close(table)
            return
        try:
            rows = self.close().num_rows
        except TooManyRowsError as error:
            raise StateError(_LEFT.format(f"more than {self._max_rows:,} rows")) from error
        if rows:
            raise StateError(_LEFT.format("1 row" if rows == 1 else f"{rows:,} rows"))

    # -- two kinds of calls --------------------------------------------------------------------------------

    def _whole(self, prepare: Prepare, last: bool = False) -> pa.Table:
        """All rows of one call at once; with `last`, the join is closed then."""

        def work() -> pa.Table:
            job, tables, rows = begin(), [], 0
            while job is not None and job.waiting:
                limit = None if self._max_rows is None else self._max_rows - rows
                tables.append(self._step(job, limit, None))
                rows += tables[-1].num_rows
            result = self._joined(tables)
            if last:
                self._closed, self._tail = True, result
            return result

        with self._lock:
            if last and self._is_closed():
                return self._take_tail()
            self._check_usable(last)
            begin = prepare()
            with contextlib.suppress(Overflow):
                result = self._attempt(work)
                return self._take_tail() if last else result
        # Not inside the handler: the traceback holds all pairs of the failed call.
        raise TooManyRowsError(
            f"this call has more than max_rows={self._max_rows:,} result rows and was not carried out: the join is as "
            "it was before; take the rows table by table with push_iter (or advance_iter, finish_iter, close_iter), "
            "push fewer tuples at a time, or open the join with a larger max_rows"
        )

    def _streamed(self, prepare: Prepare, batch_rows: int, last: bool = False) -> Results:
        """The rows of one call, joined as they are read; with `last`, the join is closed after them."""
        check_rows("batch_rows", batch_rows)

        def start(begin: Begin) -> Results:
            job = begin()
            results = Results(self.schema, job, batch_rows, self._next)
            self._closed = last
            self._results = weakref.ref(results) if results.has_more() else None
            return results

        with self._lock:
            if last and self._is_closed():
                return Results(self.schema, None, batch_rows, self._next)
            self._check_usable(last)
            begin = prepare()
            results = self._attempt(lambda: start(begin))
            if last and not results.has_more():
                self._end_threads()
            return results

    def _next(self, results: Results) -> pa.Table | None:
        """The next table of a call's rows."""

        def step(work: Work, limit: int | None, most: int) -> None:
            self._attempt(lambda: results.keep(work, self._step(work, limit, most)), results.saved())

        with self._lock:
            self._check_whole()
            if not results.has_more():
                return None
            if self._results is None or self._results() is not results:
                raise StateError("the join was closed before these rows were read")
            results.fill(step)
            if self._closed and results.at_last():
                self._end_threads()
            table = results.pop()
            if not results.has_more():
                self._results = None
            return table

    def _attempt(self, work: Callable[[], T], *also: Restore) -> T:
        """Do some work, or restore the state if it fails; a failed restore breaks the join."""
        return self._guard(work, self._saved(), *also)

    def _guard(self, work: Callable[[], T], *restores: Restore) -> T:
        """`_attempt` for work whose state is saved: call `restores` if it fails."""
        state = self._closed, self._results, self._tail
        try:
            self._broken = _AT_WORK
            result = work()
            # No function calls from here on: an interrupt after a call would lose the rows.
            self._broken = None
            return result
        except BaseException as error:
            try:
                # What is undone may be a step with too many rows: the first Ctrl-C must not break the join there.
                with Deferred():
                    for part in restores:
                        part()
                    self._closed, self._results, self._tail = state
                    self._broken = None
            except BaseException as another:
                if self._broken is not None:
                    self._broken = error
                    another.add_note("The call before it could not be undone: the join is broken.")
                raise
            raise

    # -- when a call is refused ----------------------------------------------------------------------------

    def _is_closed(self) -> bool:
        """Whether the join is closed; raises an error if rows were not read."""
        if self._closed and not self._forked:
            self._check_read()
            return True
        return False

    def _check_usable(self, last: bool = False) -> None:
        """Reject a call that is not allowed now; with `last`, a join that can't be used any more is closed too."""
        if self._closed and not self._forked:
            raise StateError("this join is closed; open a new one")
        try:
            self._check_whole()
            self._check_read()
        except StateError:
            if last and (self._forked or self._broken is not None):
                self._closed = True
                if not self._forked:
                    self._end_threads()
            raise

    def _check_alive(self) -> None:
        """`_check_usable` without the lock, while another call may be running."""
        if self._closed and not self._forked:
            raise StateError("this join is closed; open a new one")
        # Read once: the next call may begin at any moment.
        broken = self._broken
        self._check_sound(None if broken is _AT_WORK else broken)

    def _check_whole(self) -> None:
        """Reject any call if the state is inconsistent or belongs to another process."""
        self._check_sound(self._broken)

    def _check_sound(self, broken: BaseException | None) -> None:
        """`_check_whole`, with what has broken the join."""
        if self._forked:
            raise StateError(
                "this join had threads, or was at work, when this process was forked, and a forked process has "
                "neither; open a new join in it"
            )
        if broken is not None:
            reason = type(broken).__name__ + (f": {broken}" if str(broken) else "")
            raise StateError(
                f"this join was broken by {reason}: a call did not come to its end and could not be undone; "
                "open a new one"
            ) from broken

    def _check_read(self) -> None:
        """Reject a call if rows of the previous call are unread."""
        if self._results is None:
            return
        results = self._results()
        if results is not None and not results.has_more():
            self._results = None
            return
        if results is None:
            self._broken = StateError("an iterator over result rows was dropped before its end")
            self._check_whole()
        raise StateError(
            "the rows of the call before are not read to their end: read the iterator that push_iter, advance_iter, "
            "finish_iter or close_iter gave"
        )

    @property
    def _unread_tuples(self) -> int:
        """The number of tuples that wait to be joined, in a call whose rows are being read."""
        results = None if self._results is None else self._results()
        return 0 if results is None else results.waiting

    def _take_tail(self) -> pa.Table:
        self._end_threads()
        tail, self._tail = self._tail, None
        return self._joined([]) if tail is None else tail

    def _end(self) -> None:
        """Close at once and drop waiting tuples."""
        with self._lock:
            self._closed, self._results = True, None
            if not self._forked:
                self._end_threads()

    def _orphaned(self) -> None:
        """Called in a forked process, which has only the thread that forked."""
        self._forked = not self._closed and (self._threaded or self._lock.locked())
        self._lock = threading.Lock()


def _after_fork() -> None:
    for calls in list(_CALLS):
        calls._orphaned()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
