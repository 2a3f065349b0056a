"""The control words of a parallel join's threads: a stop word, the requested number of threads, each thread's state.

Every waiting loop calls `idle`: it yields the processor at first, sleeps after a while, and reports when the crew was
stopped, so no thread waits for one that has died. Before it waits, a thread records its state (`stand`), which costs a
store to its own cache line; a dump of a stuck crew reads it.
"""

from __future__ import annotations

from streamjoin.jit.atomics import exchange, give_way, load, pause, store
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64

STOP = 0  # not 0: leave as soon as possible
WANTED = 8  # threads numbered from here on leave at their next task
STANDS = 16  # one cache line per thread; its first word is the thread's state
LINE = 8

RUNNING = 0

_YIELDS = 128
_NAP_US = 50


@kernel
def stand(crew: I64, me: int, where: int) -> None:
    """Record the state of thread `me`."""
    store(crew, STANDS + LINE * me, where)


@kernel
def stopped(crew: I64) -> bool:
    """Whether all threads should leave."""
    gone: bool = load(crew, STOP) != 0
    return gone


@kernel
def dismissed(crew: I64, me: int) -> bool:
    """Whether thread `me` should leave before its next task."""
    gone: bool = load(crew, STOP) != 0 or load(crew, WANTED) <= me
    return gone


@kernel
def idle(crew: I64, tries: int) -> bool:
    """Yield or sleep; False if the crew was stopped. `tries` counts consecutive attempts without work."""
    if load(crew, STOP) != 0:
        return False
    if tries < _YIELDS:
        give_way()
    else:
        pause(_NAP_US)
    return True


@kernel
def nap(crew: I64) -> bool:
    """Sleep for a moment; False if the crew was stopped."""
    pause(_NAP_US)
    return load(crew, STOP) == 0


@kernel
def try_lock(mem: I64, at: int) -> bool:
    """Take the test-and-set lock at `at` if it is free."""
    return load(mem, at) == 0 and exchange(mem, at, 1) == 0


@kernel
def lock(mem: I64, at: int) -> None:
    """Take the lock at `at`; a waiting thread yields the processor, since the holder may need it."""
    while not try_lock(mem, at):
        give_way()


@kernel
def unlock(mem: I64, at: int) -> None:
    """Free the lock at `at`."""
    store(mem, at, 0)
