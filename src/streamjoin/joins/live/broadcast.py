"""The output half of a live join: every consumer gets every row, at its own pace, from a bounded queue.

A runner hands over deliveries. A full queue makes the runner wait, and through it the sources. Rows wait for the first
consumer in a queue of their own, which it takes over. Invariants: all queues get the same batches in the same order;
a closed or dropped consumer holds up no thread; no other lock is taken under the lock of the queues, so any call
may wait for it. The finalizer of a consumer does not: it may run in a thread that has the lock of another join. One of
the user's may close a consumer in a thread that has this lock, so it can be taken twice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.live.inbox import RowBytes
from streamjoin.joins.live.latency import Histogram
from streamjoin.joins.live.runner import Delivery, Stopped
from streamjoin.model.errors import StateError
from streamjoin.windows.clock import NEVER
from streamjoin.windows.interrupts import wait

# A consumer that is dropped can't always notify: a thread that waits for room looks again after this many seconds.
_LOOK_AGAIN = 0.2
_NO_TIMES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class LiveBatch:
    """Result rows, and how far the result reaches with them; without rows, a punctuation alone."""

    rows: pa.RecordBatch
    reached: int
    """After this batch no row follows whose later tuple, or the one that decides it, has an earlier gate position."""
    time: Any = None
    """In event-time order, a value of the result's time: no row with an earlier one follows. None: not known yet."""


@dataclass(slots=True)
class QueuedBatch:
    """A batch in a queue."""

    batch: LiveBatch
    arrived: Array
    nbytes: int


@dataclass(eq=False, slots=True)
class ConsumerQueue:
    """The batches that one consumer has not read."""

    filled: threading.Condition
    items: deque[QueuedBatch] = field(default_factory=deque)
    rows: int = 0
    nbytes: int = 0
    claimed: bool = False
    gone: bool = False
    """The consumer closed, or was dropped."""
    unread: int | None = None
    """Counts rows instead of keeping them, once no thread can read them any more."""
    reader: int | None = None
    """The thread that read last."""
    wakes: list[Callable[[], None]] = field(default_factory=list)
    """Wake the asynchronous readers that wait, once."""

    def put(self, item: QueuedBatch) -> None:
        """Add a batch."""
        rows = item.batch.rows.num_rows
        if self.unread is not None:
            self.unread += rows
            return
        if not rows and self.items and not self.items[-1].batch.rows.num_rows:
            # Of punctuations alone the newest says it all.
            self.items.pop()
        self.items.append(item)
        self.rows += rows
        self.nbytes += item.nbytes
        self.notify()

    def notify(self) -> None:
        """Wake whoever reads; the lock is held."""
        self.filled.notify_all()
        wakes, self.wakes = self.wakes, []
        for wake in wakes:
            wake()

    def abandon(self) -> None:
        """Count the rows from now on: no thread reads them."""
        if self.unread is None:
            self.unread = self.rows
            self.clear()

    def clear(self) -> None:
        """Drop the batches."""
        self.items.clear()
        self.rows = self.nbytes = 0


class Broadcast:
    """Distributes the deliveries of one runner."""

    def __init__(self, result_rows: int, result_bytes: int, batch_rows: int) -> None:
        self.lock = threading.RLock()
        self._room = threading.Condition(self.lock)
        self._deliverers = 0
        # Deliveries are taken one at a time, so that all consumers get one order.
        self._turn = threading.Lock()
        self._result_rows, self._result_bytes, self._batch_rows = result_rows, result_bytes, batch_rows
        self._queues: list[ConsumerQueue] = [self._new_queue()]
        self.error: BaseException | None = None
        self.stopped = False
        self.ended = False
        self._leaving = False
        self._reached = 0
        self._time: Any = None
        self._ticks: int | None = None
        self._time_type: pa.DataType | None = None
        self._row_bytes: RowBytes | None = None
        self.rows = 0
        self.found, self.read = Histogram(), Histogram()
        self.waited = 0.0

    def begin(self, schema: pa.Schema, time_type: pa.DataType | None) -> None:
        """Prepare for the deliveries of a runner."""
        self._row_bytes, self._time_type = RowBytes(schema), time_type

    # -- the runner's side ---------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        """Hand rows to every consumer; waits while one of them has too many.

        Raises:
            Stopped: the join has ended.
        """
        with self._turn:
            self.found.since(delivery.arrived)
            items = self._items(delivery)
            for item in items:
                self._put(item)

    def has_room(self) -> bool:
        """Whether a delivery would not wait, for whoever makes the next one."""
        most_rows, most_bytes = self._result_rows, self._result_bytes
        return all(queue.gone or (queue.rows < most_rows and queue.nbytes < most_bytes) for queue in self._queues)

    def end(self) -> None:
        """Declare that the last row has been delivered."""
        with self.lock:
            self.ended = True
            self._notify()

    def fail(self, error: BaseException) -> None:
        """Have every consumer and source raise an error with this cause; the first failure counts."""
        with self.lock:
            if self.error is None and not self.stopped:
                self.error = error
            self._notify()

    def stop(self) -> None:
        """End at once: consumers read nothing more."""
        with self.lock:
            self.stopped = True
            for queue in self._queues:
                queue.clear()
            self._notify()

    def check(self) -> None:
        """Raise an error if the join has failed or was stopped."""
        if self.error is not None:
            raise failure(self.error)
        if self.stopped:
            raise StateError("this live join was stopped; open a new one")

    def _items(self, delivery: Delivery) -> list[QueuedBatch]:
        if self._row_bytes is None:
            raise AssertionError("a delivery before the schema is known")
        before, before_time = self._reached, self._time
        if delivery.time != self._ticks:
            self._ticks, self._time = delivery.time, time_value(delivery.time, self._time_type)
        moved = delivery.reached > before or self._time != before_time
        self._reached = max(before, delivery.reached)
        if not delivery.rows.num_rows:
            if not moved:
                return []
            empty = pa.RecordBatch.from_pylist([], schema=delivery.rows.schema)
            return [QueuedBatch(LiveBatch(empty, self._reached, self._time), _NO_TIMES, 0)]
        items, at = [], 0
        batches = [batch for batch in delivery.rows.to_batches(self._batch_rows) if batch.num_rows]
        for number, batch in enumerate(batches, 1):
            # Only with the last batch is the delivery complete.
            place = (self._reached, self._time) if number == len(batches) else (before, before_time)
            arrived = delivery.arrived[at : at + batch.num_rows]
            items.append(QueuedBatch(LiveBatch(batch, *place), arrived, self._row_bytes.of(batch)))
            at += batch.num_rows
        return items

    def _put(self, item: QueuedBatch) -> None:
        with self.lock:
            while self._is_full():
                began = time.perf_counter()
                self._deliverers += 1
                self._room.wait(_LOOK_AGAIN)
                self._deliverers -= 1
                self.waited += time.perf_counter() - began
            if self.stopped or self.error is not None:
                raise Stopped("this live join has ended")
            self.rows += item.batch.rows.num_rows
            for queue in self._queues:
                queue.put(item)

    def _is_full(self) -> bool:
        if any(queue.gone for queue in self._queues):
            self._queues = [queue for queue in self._queues if not queue.gone] or [self._new_queue()]
        if self.stopped or self.error is not None:
            return False
        full = [q for q in self._queues if q.rows >= self._result_rows or q.nbytes >= self._result_bytes]
        if self._leaving:
            # The block has ended: whoever has not begun to read by now may never do so.
            for queue in [queue for queue in full if queue.reader is None]:
                queue.abandon()
                full.remove(queue)
        return bool(full)

    def _notify(self) -> None:
        self._room.notify_all()
        for queue in self._queues:
            queue.notify()

    # -- the consumers' side -------------------------------------------------------------------------------

    def attach(self) -> ConsumerQueue:
        """A queue for a new consumer: the first gets all rows that wait, the others those from now on."""
        with self.lock:
            for queue in self._queues:
                if not queue.claimed and queue.unread is None:
                    queue.claimed = True
                    return queue
            queue = self._new_queue()
            queue.claimed = True
            self._queues.append(queue)
            return queue

    def detach(self, queue: ConsumerQueue) -> None:
        """Forget a consumer, and wake whoever reads from it."""
        queue.gone = True
        with self.lock:
            self._room.notify_all()
            queue.notify()

    def forget(self, queue: ConsumerQueue) -> None:
        """Forget a consumer that was dropped, from which no thread reads; may run at any moment, in any thread."""
        queue.gone = True
        if self.lock.acquire(blocking=False):
            try:
                self._room.notify_all()
            finally:
                self.lock.release()

    def take(self, queue: ConsumerQueue, timeout: float | None = None) -> LiveBatch | None:
        """The next batch of a consumer; None at the end.

        Raises:
            TimeoutError: there was none for `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            queue.reader = threading.get_ident()
            while not queue.items:
                if self.is_over(queue):
                    return None
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                wait(queue.filled, left)
            item = self._pop(queue)
        self.read.since(item.arrived)
        return item.batch

    def take_or_call(self, queue: ConsumerQueue, wake: Callable[[], None]) -> LiveBatch | None:
        """The next batch if there is one; otherwise None, and `wake` is called once it is worth asking again.

        Raises:
            StopAsyncIteration: there are no more.
        """
        with self.lock:
            queue.reader = threading.get_ident()
            if not queue.items:
                if self.is_over(queue):
                    raise StopAsyncIteration
                queue.wakes.append(wake)
                return None
            item = self._pop(queue)
        self.read.since(item.arrived)
        return item.batch

    def is_over(self, queue: ConsumerQueue) -> bool:
        """Whether nothing more comes into an empty queue; raises an error if the join failed. The lock is held."""
        if self.error is not None:
            raise failure(self.error)
        return self.ended or self.stopped or queue.gone or queue.unread is not None

    def _pop(self, queue: ConsumerQueue) -> QueuedBatch:
        item = queue.items.popleft()
        queue.rows -= item.batch.rows.num_rows
        queue.nbytes -= item.nbytes
        if self._deliverers:
            self._room.notify_all()
        return item

    def leave(self, thread: int) -> None:
        """Don't wait for consumers that only `thread` reads: it is at the end of its block.

        Their rows are counted as unread, as are those that no consumer has asked for. A consumer that was not read
        so far keeps its rows, and they count only if there are too many to keep.
        """
        with self.lock:
            self._leaving = True
            for queue in self._queues:
                if queue.reader == thread or not queue.claimed:
                    queue.abandon()
            self._room.notify_all()

    @property
    def unread(self) -> int:
        """The number of rows that consumers were not able to read."""
        with self.lock:
            return sum(queue.unread or 0 for queue in self._queues if not queue.gone)

    def figures(self) -> dict[str, Any]:
        """Rows delivered, lengths of queues and seconds spent waiting for consumers."""
        with self.lock:
            queues = [queue for queue in self._queues if not queue.gone]
            return {
                "rows": self.rows,
                "reached": self._reached,
                "consumers": sum(queue.claimed for queue in queues),
                "unread_rows": [queue.rows for queue in queues],
                "waited_for_consumers": self.waited,
            }

    def _new_queue(self) -> ConsumerQueue:
        return ConsumerQueue(threading.Condition(self.lock))


def failure(error: BaseException) -> StateError:
    """The error that tells a caller that the join has failed."""
    reason = type(error).__name__ + (f": {error}" if str(error) else "")
    raised = StateError(f"this live join has failed: {reason}; open a new one")
    raised.__cause__ = error
    return raised


def time_value(ticks: int | None, type_: pa.DataType | None) -> Any:
    """A bound in ticks as a value of the result's time; None for the beginning and the end of time."""
    if ticks is None or type_ is None or ticks in (NEVER, (1 << 63) - 1):
        return None
    if type_ == pa.uint64():
        return ticks - NEVER
    number = pa.int32() if type_.bit_width == 32 else pa.int64()
    try:
        return pa.array([ticks], number).view(type_)[0].as_py()
    except (OverflowError, ValueError, pa.ArrowException):
        # Beyond what Python's times can say.
        return None
