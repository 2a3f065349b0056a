"""How the threads of ScaleJoin over a chunk agree on how far a run goes, without waiting for each other.

A chunk is cut into pieces. The first thread at a piece opens it for all, unless another number of threads was
requested; then it closes the run there, for all. Invariant: OPENED only grows until the run is closed, and never
changes after, so every thread takes the same pieces.
"""

from __future__ import annotations

from streamjoin.jit.atomics import load, store, swap_if
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64

OPENED = 0  # pieces opened; twice their number, and one more when the run is closed
WANTED = 8  # threads wanted
CONTROL_WORDS = 16


@kernel
def begin_run(control: I64) -> None:
    """Start a run without open pieces."""
    store(control, OPENED, 0)


@kernel
def want(control: I64, threads: int) -> None:
    """Request another number of threads, from any thread."""
    store(control, WANTED, threads)


@kernel
def wanted(control: I64) -> int:
    """The requested number of threads."""
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
        # The first piece is always taken, so that a run makes progress even if the number keeps changing.
        if piece > 0 and load(control, WANTED) != threads:
            swap_if(control, OPENED, opened, opened | 1)
        else:
            swap_if(control, OPENED, opened, opened + 2)


@kernel
def pieces_opened(control: I64) -> int:
    """How many pieces the run took."""
    return load(control, OPENED) >> 1
