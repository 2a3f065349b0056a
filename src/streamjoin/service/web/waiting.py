"""Threads for requests that wait for the engine, separate from those of all other routes.

The engine answers waiting requests between two batches, so a request may wait as long as a batch takes. The invariants:
routes that answer from memory always find a thread, however many requests wait; and the number of waiting requests is
limited: the others are rejected and can retry.
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
_P = ParamSpec("_P")
_T = TypeVar("_T")


class WaitingRequests:
    """A thread pool with a bounded queue. `what` names the requests; used on the event loop's thread only."""

    def __init__(self, what: str, threads: int = THREADS, queued: int = QUEUED) -> None:
        self._what = what
        self._threads, self._most = threads, threads + queued
        self._limiter: tuple[asyncio.AbstractEventLoop, CapacityLimiter] | None = None
        self.open = 0
        """The number of requests, running or queued."""
        self.refused = 0

    async def run(self, function: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
        """The result of a function, called on one of these threads.

        Raises:
            Problem: too many requests are waiting.
        """
        if self.open >= self._most:
            self.refused += 1
            message = f"{self.open} {self._what} are waiting for the engine, which is the limit; try again soon"
            raise Problem(503, "engine-busy", message, headers={"Retry-After": "2"})
        self.open += 1
        try:
            call: Callable[[], Any] = partial(function, *arguments, **options)
            result: _T = await anyio.to_thread.run_sync(call, limiter=self._limits())
            return result
        finally:
            self.open -= 1

    def _limits(self) -> CapacityLimiter:
        # A limiter belongs to the loop that it was first used on.
        loop = asyncio.get_running_loop()
        if self._limiter is None or self._limiter[0] is not loop:
            self._limiter = loop, CapacityLimiter(self._threads)
        return self._limiter[1]
