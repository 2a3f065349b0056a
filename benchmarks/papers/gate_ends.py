"""The two ends of a ScaleGate as threads of a crew: a source that adds a whole column, a reader that takes all of it.

For the checks and the experiments: what the gate does under load, without a join behind it. Every wait goes through
`idle`, so an error elsewhere ends it.
"""

from __future__ import annotations

from streamjoin.jit.crew import idle, stand
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.scalejoin.kernels.gate import add, read
from streamjoin.scalejoin.kernels.members import finish

ADDS = 1
READS = 2
PLACES = {ADDS: "a source waits for room in the gate", READS: "a reader waits for a ready tuple"}


@kernel
def add_all(mem: I64, crew: I64, me: int, slot: int, times: I64, payload: I64, piece: int) -> None:
    """Add a column, `piece` tuples per call, and finish the source."""
    done = 0
    tries = 0
    while done < times.size:
        reached = add(mem, slot, times, payload, done, min(done + piece, times.size))
        if reached > done:
            done = reached
            tries = 0
            continue
        stand(crew, me, ADDS)
        if not idle(crew, tries):
            return
        tries += 1
    finish(mem, slot)


@kernel
def read_all(mem: I64, crew: I64, me: int, reader: int, slots: I64, payload: I64, times: I64, total: int) -> int:
    """Take `total` tuples, a block of the given columns at a time; returns how many came out of order."""
    count = 0
    tries = 0
    last = -(1 << 63)
    wrong = 0
    while count < total:
        n = read(mem, reader, slots, payload, times)
        for i in range(n):
            wrong += times[i] < last
            last = times[i]
        if n > 0:
            count += n
            tries = 0
            continue
        stand(crew, me, READS)
        if not idle(crew, tries):
            break
        tries += 1
    return wrong
