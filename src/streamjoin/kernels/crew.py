"""What the threads of one parallel join share besides its data: a stop word, how many are wanted, where each stands.

Every loop that waits goes through `idle`: it gives up the processor at once, sleeps after a while, and says when the
crew was stopped, so no thread waits for one that has died. Before it waits, a thread says what for (`stand`), which
costs a store to its own cache line; a dump of a stuck crew reads it.
"""

from __future__ import annotations

from streamjoin.kernels.atomics import exchange, give_way, load, pause, store
from streamjoin.kernels.flags import kernel
from streamjoin.kernels.machine import I64

STOP = 0  # not 0: leave as soon as you can
WANTED = 8  # threads numbered from here on leave at their next task
STANDS = 16  # a line for each thread; its first word says where it stands
LINE = 8

RUNNING = 0

_YIELDS = 128
_NAP_US = 50


@kernel
def stand(crew: I64, me: int, where: int) -> None:
    """Say where thread `me` stands."""
    store(crew, STANDS + LINE * me, where)


@kernel
def stopped(crew: I64) -> bool:
    """Whether everybody should leave."""
    gone: bool = load(crew, STOP) != 0
    return gone


@kernel
def dismissed(crew: I64, me: int) -> bool:
    """Whether thread `me` should leave before its next task."""
    gone: bool = load(crew, STOP) != 0 or load(crew, WANTED) <= me
    return gone


@kernel
def idle(crew: I64, tries: int) -> bool:
    """Let others run; False when the crew was stopped. `tries` counts how often in a row there was nothing to do."""
    if load(crew, STOP) != 0:
        return False
    if tries < _YIELDS:
        give_way()
    else:
        pause(_NAP_US)
    return True


@kernel
def try_lock(mem: I64, at: int) -> bool:
    """Take the test-and-set lock at `at` if it is free."""
    return load(mem, at) == 0 and exchange(mem, at, 1) == 0


@kernel
def lock(mem: I64, at: int) -> None:
    """Take the lock at `at`; whoever waits gives up the processor, since the holder may need it to go on."""
    while not try_lock(mem, at):
        give_way()


@kernel
def unlock(mem: I64, at: int) -> None:
    """Free the lock at `at`."""
    store(mem, at, 0)
