"""A test that hangs in a parallel join ends with a dump of where every thread stands instead."""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from streamjoin.joins.live.live import Live, running
from streamjoin.model.errors import StateError
from streamjoin.windows.crew import live


@contextmanager
def no_deadlock(seconds: float = 300) -> Iterator[None]:
    """Give what runs inside this long; then say where every crew stands, and stop them all."""

    def give_up() -> None:
        standing = "\n".join(crew.standing() for crew in live())
        print(f"no end after {seconds} s\n{standing}", file=sys.__stderr__)
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        error = StateError(f"deadlock: no end after {seconds} s\n{standing}")
        for crew in live():
            crew.stop(error)
        for join in running():
            assert isinstance(join, Live)
            join._broadcast.fail(error)
            join._reap()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
