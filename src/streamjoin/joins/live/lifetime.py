"""The end of live joins that nobody ended: dropped ones, the end of the process, and a fork.

A thread must not keep a dropped join alive, so what has to be stopped is held apart from it (`LiveThreads`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Protocol

from streamjoin.joins.live.broadcast import Broadcast
from streamjoin.joins.live.idle import IdleWatch
from streamjoin.joins.live.runner import Runner


class Stoppable(Protocol):
    """A live join as the process sees it."""

    _done: threading.Event
    """Set once it has ended."""

    def stop(self) -> None:
        """End at once."""
        ...

    def _orphan(self) -> None:
        """Called in a forked process, which has only the thread that forked."""
        ...


@dataclass
class LiveThreads:
    """What has to be stopped when a live join is dropped."""

    runner: Runner | None = None
    watch: IdleWatch | None = None

    def stop(self) -> None:
        """Stop the threads."""
        for part in (self.watch, self.runner):
            if part is not None:
                part.stop()


_ALL: weakref.WeakSet[Stoppable] = weakref.WeakSet()


def running() -> list[Stoppable]:
    """The live joins of this process that have not ended."""
    return [live for live in list(_ALL) if not live._done.is_set()]


def register(live: Stoppable, broadcast: Broadcast, threads: LiveThreads) -> weakref.finalize[..., Stoppable]:
    """Have a live join stopped when it is dropped, and when the process ends; returns what does the first."""
    _ALL.add(live)
    finalizer = weakref.finalize(live, _release, broadcast, threads)
    finalizer.atexit = False
    return finalizer


def _release(broadcast: Broadcast, threads: LiveThreads) -> None:
    """Stop a join that was dropped; in another thread, since the collector may run while this one holds a lock."""

    def stop() -> None:
        broadcast.stop()
        threads.stop()

    with contextlib.suppress(RuntimeError):
        threading.Thread(target=stop, name="streamjoin-end", daemon=True).start()


def _stop_all() -> None:
    for live in list(_ALL):
        live.stop()


def _after_fork() -> None:
    for live in list(_ALL):
        live._orphan()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
