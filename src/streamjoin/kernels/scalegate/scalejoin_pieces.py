"""How the threads of a ScaleJoin agree on how far a run goes, without waiting for each other.

A chunk is cut into pieces. Whoever comes to a piece first opens it for all, unless another number of threads is wanted;
then it closes the run there, for all. Invariant: OPENED only grows until CLOSED is set, and never changes after, so
every thread takes the same pieces.
"""

from __future__ import annotations

from streamjoin.kernels.atomics import load, store, swap_if
from streamjoin.kernels.flags import kernel
from streamjoin.kernels.machine import I64

OPENED = 0  # pieces opened; twice their number, and one more when the run is closed
WANTED = 8  # threads wanted
CONTROL_WORDS = 16


@kernel
def begin_run(control: I64) -> None:
    """Nothing is open yet."""
    store(control, OPENED, 0)


@kernel
def want(control: I64, threads: int) -> None:
    """Ask for another number of threads, from any thread."""
    store(control, WANTED, threads)


@kernel
def wanted(control: I64) -> int:
    """How many threads are wanted."""
    return load(control, WANTED)


@kernel
def open_piece(control: I64, piece: int, threads: int) -> bool:
    """Whether piece number `piece` belongs to this run of `threads` threads."""
    while True:
        opened = load(control, OPENED)
        if opened >> 1 > piece:
            return True
        if opened & 1:
            return False
        # The first piece is taken in any case: a run gets on, however often the number changes.
        if piece > 0 and load(control, WANTED) != threads:
            swap_if(control, OPENED, opened, opened | 1)
        else:
            swap_if(control, OPENED, opened, opened + 2)


@kernel
def pieces_opened(control: I64) -> int:
    """How many pieces the run took."""
    return load(control, OPENED) >> 1
