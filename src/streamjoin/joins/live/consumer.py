"""A consumer of a live join: reads every result row, by iteration, asynchronously or with a callback.

Each consumer has a bounded queue of its own. A consumer that is closed, dropped or whose callback raises an error holds
up no other from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pyarrow as pa

from streamjoin.joins.live.broadcast import Broadcast, LiveBatch
from streamjoin.model.errors import StateError

_LOG = logging.getLogger("streamjoin")


class Consumer(Iterator[pa.RecordBatch], AsyncIterator[pa.RecordBatch]):
    """Iterates over the result as record batches, also with `async for`; `batches()` adds how far they reach."""

    def __init__(self, broadcast: Broadcast, check: Callable[[], None] = lambda: None) -> None:
        self._broadcast = broadcast
        self._check = check
        self._queue = broadcast.attach()
        self._dropped = weakref.finalize(self, broadcast.forget, self._queue)
        self._dropped.atexit = False
        self.reached = 0
        """No row follows whose later tuple has a gate position before this one."""
        self.time: Any = None
        """In event-time order, no row with an earlier time follows."""

    def read(self, timeout: float | None = None) -> LiveBatch | None:
        """The next batch, with rows or as a punctuation alone; None at the end.

        Raises:
            TimeoutError: there was none for `timeout` seconds.
        """
        self._check()
        return self._note(self._broadcast.take(self._queue, timeout))

    def batches(self) -> Iterator[LiveBatch]:
        """The batches, each with how far the result reaches; some are punctuations without rows."""
        while (batch := self.read()) is not None:
            yield batch

    def __next__(self) -> pa.RecordBatch:
        while (batch := self.read()) is not None:
            if batch.rows.num_rows:
                return batch.rows
        raise StopIteration

    def __iter__(self) -> Consumer:
        return self

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        while True:
            batch = await self.read_async()
            if batch.rows.num_rows:
                return batch.rows

    async def read_async(self) -> LiveBatch:
        """The next batch, with rows or as a punctuation alone.

        Raises:
            StopAsyncIteration: there are no more.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._check()
            ready = asyncio.Event()

            def wake(ready: asyncio.Event = ready) -> None:
                # A loop that was closed has no reader any more.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(ready.set)

            batch = self._broadcast.take_or_call(self._queue, wake)
            if batch is not None:
                self._note(batch)
                return batch
            await ready.wait()

    def close(self) -> None:
        """Read no more: the join does not wait for this consumer from now on. May be called twice, from any thread.

        Whoever waits for its next batch gets the end.
        """
        self._dropped.detach()
        self._broadcast.detach(self._queue)

    def _note(self, batch: LiveBatch | None) -> LiveBatch | None:
        if batch is not None:
            self.reached, self.time = batch.reached, batch.time
        return batch


class Subscription:
    """Calls a function with every record batch, in a thread of its own."""

    def __init__(self, consumer: Consumer, function: Callable[[pa.RecordBatch], object]) -> None:
        self._consumer = consumer
        self._function = function
        self.error: BaseException | None = None
        """What the function raised; it is not called any more then."""
        self.busy = 0.0
        """The seconds spent in the function."""
        self._thread = threading.Thread(target=self._run, name="streamjoin-callback", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self._function, "__qualname__", repr(self._function))

    @property
    def is_current(self) -> bool:
        """Whether this is called from the function."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Call the function no more."""
        self._consumer.close()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the function has had its last batch; returns whether it has."""
        if not self.is_current:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise an error if the function did."""
        if self.error is not None:
            raise StateError(
                f"the callback {self.name} raised {type(self.error).__name__}: {self.error}; it missed the rows after "
                "that, which the other consumers got"
            ) from self.error

    def _run(self) -> None:
        try:
            for rows in self._consumer:
                begin = time.perf_counter()
                try:
                    self._function(rows)
                except BaseException as error:
                    self.error = error
                    _LOG.warning(
                        "the callback %s of a live join raised %r and is not called any more", self.name, error
                    )
                    return
                finally:
                    self.busy += time.perf_counter() - begin
        except StateError:
            # The join has failed: sources, other consumers and the end of its block say so.
            return
        finally:
            self._consumer.close()
