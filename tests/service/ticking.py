"""The engine without Spark whose batches a test makes by hand (`tick`), or a thread makes at intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pyarrow as pa

from streamjoin.queries.core.settings import Settings
from streamjoin.queries.engine.engine import Engine
from streamjoin.queries.engine.inbox import SourceBatch
from streamjoin.queries.engine.info import BatchEvent
from tests.service import feeds


class TickingEngine(Engine):
    """Runs from the start on, over `feeds.STREAMS`; `source(number)` gives the tables of a tick."""

    def __init__(
        self,
        source: Callable[[int], Mapping[str, pa.Table]] = feeds.batch,
        settings: Settings | None = None,
        most_queries: int | None = None,
    ) -> None:
        super().__init__(settings=settings, most_queries=most_queries)
        for stream in feeds.STREAMS:
            self.register(stream.name, schema=stream.schema, time=stream.time)
        self._source = source
        self._ticks = 0
        self._ticking: threading.Thread | None = None
        self._end = threading.Event()
        self.start()

    def tick(self, malformed: Mapping[str, pa.Table] | None = None) -> BatchEvent:
        """One batch, with records that could not be decoded; returns when everyone who listens has heard of it."""
        heard = threading.Event()
        events: list[BatchEvent] = []

        def hear(event: BatchEvent) -> None:
            if event.rows_in:
                events.append(event)
                heard.set()

        # Added after all others, so it is called after them.
        cancel = self.on_batch(hear)
        bad = malformed or {}
        number, self._ticks = self._ticks, self._ticks + 1
        batches = [SourceBatch(name, number, rows, bad.get(name)) for name, rows in self._source(number).items()]
        self._inbox.put(*batches)
        for batch in batches:
            batch.done.result(60)
        assert heard.wait(60)
        cancel()
        return events[0]

    def tick_every(self, seconds: float) -> None:
        """Tick on a thread, until the stop."""

        def run() -> None:
            while not self._end.wait(seconds):
                self.tick()

        self._ticking = threading.Thread(target=run, daemon=True)
        self._ticking.start()

    def fail_stream(self, name: str, error: str, times: int = 3) -> None:
        """Let a stream be one that can't be read."""
        for _ in range(times):
            self._catalog.streams[name].fail(error, 1_767_225_600.0)
        self._stir()

    def overflow(self, name: str, sums: int) -> None:
        """Let a query be one with so many sums beyond their type."""
        self._catalog.entries[name].overflowed = sums

    def recover_stream(self, name: str) -> None:
        """Let a stream that failed be read again."""
        self._catalog.streams[name].recover()
        self._stir()

    def _stir(self) -> None:
        """Tell of a state; returns when everyone who listens has heard of it."""
        heard = threading.Event()
        # Added after all others, so it is called after them.
        cancel = self.on_state(heard.set)
        self._catalog.stir()
        assert heard.wait(60)
        cancel()

    def fail(self, error: Exception) -> None:
        """Let the engine be one that failed."""
        self._fail(error)  # type: ignore[arg-type]

    def stop(self) -> None:
        self._end.set()
        if self._ticking is not None:
            self._ticking.join()
        super().stop()
