"""What sources push before the schemas of both sides are known: kept in order, and handed to the runner then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pyarrow as pa

from streamjoin.joins.live.runner import Runner
from streamjoin.model.errors import BackPressureError


class Replaced(Exception):  # noqa: N818 - never leaves the live join
    """The runner is known now: call it instead."""


class WaitingInput:
    """Takes the calls of sources until there is a runner."""

    def __init__(self, most_rows: int) -> None:
        self._changed = threading.Condition()
        self._calls: list[Callable[[Runner], None]] = []
        self._most_rows = most_rows
        self.rows = 0
        self._replaced = False

    def push(self, side: int, name: str, rows: pa.Table, arrived: int, timeout: float | None = None) -> None:
        """Keep tuples; waits while there are too many."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self.rows >= self._most_rows and not self._replaced:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    other = ("right", "left")[side]
                    raise BackPressureError(
                        f"{self.rows:,} tuples wait until the columns of the {other} side are known: push it, or give "
                        f"{other}_schema= to live"
                    )
                self._changed.wait(left)
            self._keep(lambda runner: runner.push(side, name, rows, arrived))
            self.rows += rows.num_rows

    def add_source(self, side: int, name: str) -> None:
        """Keep the opening of a source."""
        self._keep_call(lambda runner: runner.add_source(side, name))

    def finish(self, side: int, name: str) -> None:
        """Keep the end of a source."""
        self._keep_call(lambda runner: runner.finish(side, name))

    def rest(self, side: int, name: str) -> None:
        """Keep that a source is idle."""
        self._keep_call(lambda runner: runner.rest(side, name))

    def advance(self, side: int, name: str, time: int) -> None:
        """Keep the time of a source."""
        self._keep_call(lambda runner: runner.advance(side, name, time))

    def hand_over(self, runner: Runner, switch: Callable[[], None]) -> None:
        """Make the calls that were kept, then call `switch`; every later call raises Replaced."""
        with self._changed:
            for call in self._calls:
                call(runner)
            self._calls = []
            self.rows = 0
            switch()
            self._replaced = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Have the calls that wait for room raise Replaced: the join has ended."""
        with self._changed:
            self._replaced = True
            self._changed.notify_all()

    def _keep_call(self, call: Callable[[Runner], None]) -> None:
        with self._changed:
            self._keep(call)

    def _keep(self, call: Callable[[Runner], None]) -> None:
        if self._replaced:
            raise Replaced
        self._calls.append(call)
