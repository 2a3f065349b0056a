"""Answers kept for a moment: what many clients ask of one batch is made once, so that asking costs the stream little.

The invariant: an answer is given again only while no batch ended and no change was made since it was begun, and never
for longer than a quarter of a second, because lags and rates go on without batches; dear ones, the plan and the
history, may be a second old. While one is being made, as the
plan is at the end of a batch, all who ask for it wait for the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from streamjoin.service.hub import Hub

LONGEST: Final = 0.25
LONGEST_DEAR: Final = 1.0


class Cached:
    """See the module; used on the event loop's thread alone."""

    def __init__(self, hub: Hub, longest: float = LONGEST, clock: Callable[[], float] = time.monotonic) -> None:
        self._hub = hub
        self._longest = longest
        self._clock = clock
        self._kept: dict[str, tuple[int, float, Response]] = {}
        self._begun: dict[tuple[str, int], asyncio.Future[Response]] = {}

    async def answer(self, key: str, make: Callable[[], Response], *, dear: bool = False) -> Response:
        """The answer under `key`; `make` runs on a thread of the pool.

        A dear one is made once a second, whatever batches end meanwhile, and anew after a change.
        """
        # Both are taken before: what happens meanwhile makes the answer old.
        version, now = self._hub.changes if dear else self._hub.version, self._clock()
        kept = self._kept.get(key)
        if kept is not None and kept[0] == version and now - kept[1] < (LONGEST_DEAR if dear else self._longest):
            return kept[2]
        made = self._begun.get((key, version))
        if made is None:
            made = asyncio.ensure_future(run_in_threadpool(make))
            self._begun[key, version] = made
            made.add_done_callback(lambda done: self._keep(key, version, now, done))
        # One that leaves does not take the answer from the others.
        return await asyncio.shield(made)

    def _keep(self, key: str, version: int, now: float, made: asyncio.Future[Response]) -> None:
        del self._begun[key, version]
        if not made.cancelled() and made.exception() is None:
            self._kept[key] = (version, now, made.result())
