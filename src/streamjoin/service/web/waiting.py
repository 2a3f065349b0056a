"""Threads for requests that wait for the engine, separate from those of all other routes.

The engine answers waiting requests between two batches, so a request may wait as long as a batch takes. The invariants:
routes that answer from memory always find a thread, however many requests wait; and the number of waiting requests is
limited, as is the time that one waits for its turn: the others are rejected and can retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from streamjoin.service.web.problems import Problem

THREADS: Final = 16
QUEUED: Final = 64
PATIENCE: Final = 10.0
"""Seconds that a request waits for a thread."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class WaitingRequests:
    """A thread pool with a bounded queue. `what` names the requests; used on the event loop's thread only."""

    def __init__(self, what: str, threads: int = THREADS, queued: int = QUEUED, patience: float = PATIENCE) -> None:
        self._what, self._patience = what, patience
        self._threads, self._most = threads, threads + queued
        self._limiter: tuple[asyncio.AbstractEventLoop, CapacityLimiter] | None = None
        self.open = 0
        """The number of requests, running or queued."""
        self.refused = 0

    async def run(self, function: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
        """The result of a function, called on one of these threads.

        Raises:
            Problem: too many requests are waiting, or it waited too long for its turn.
        """
        if self.open >= self._most:
            raise self._refused(f"{self.open} {self._what} are waiting for the engine, which is the limit")
        self.open += 1
        limiter, borrower = self._limits(), object()
        try:
            try:
                async with asyncio.timeout(self._patience):
                    await limiter.acquire_on_behalf_of(borrower)
            except TimeoutError:
                words = f"the engine is busy with other {self._what} for more than {self._patience:g} seconds"
                raise self._refused(words) from None
            try:
                call: Callable[[], Any] = partial(function, *arguments, **options)
                # Those that have a turn are as many as there are threads.
                result: _T = await anyio.to_thread.run_sync(call, limiter=CapacityLimiter(1))
                return result
            finally:
                limiter.release_on_behalf_of(borrower)
        finally:
            self.open -= 1

    def _refused(self, words: str) -> Problem:
        self.refused += 1
        return Problem(503, "engine-busy", f"{words}; try again soon", headers={"Retry-After": "2"})

    def _limits(self) -> CapacityLimiter:
        # A limiter belongs to the loop that it was first used on.
        loop = asyncio.get_running_loop()
        if self._limiter is None or self._limiter[0] is not loop:
            self._limiter = loop, CapacityLimiter(self._threads)
        return self._limiter[1]
