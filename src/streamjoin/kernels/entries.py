"""What all index kernels share: the layout of an arena's head, step accounting, the order of a probe's matches.

An index lives in one int64 array, its arena. The first `HEAD_WORDS` hold its mutable scalars, among them the offsets
of the sections behind: one array is one pointer to pass, where a tuple of arrays would cost a reference count an
array in every function. Slots below `OWN` mean the same in every index; each kind names its own from there on,
and uses `SCRATCH` for places that it remembers between the stages of one block of tuples.
An entry is (word, seq); seq ascends in the order of insertion.
"""

from __future__ import annotations

from streamjoin.kernels.flags import inlined, kernel
from streamjoin.kernels.machine import I64, cycles

MIN_SEQ = 0  # entries below are dead, whether or not they are still held
SIZE = 1  # entries held, dead ones included
TIMED = 2  # 1: accumulate cycles by step
STEPS = 3  # five step counters, in the order of STEP_NAMES
TICKS = 8  # five cycle counters, in the same order
OWN = 16
SCRATCH = 128
BLOCK = 64  # tuples located together before the first of them is processed
HEAD_WORDS = SCRATCH + 3 * BLOCK

SEARCH, SCAN, INSERT, DELETE, MERGE = range(5)
STEP_NAMES = ("search", "scan", "insert", "delete", "merge")

LARGEST = (1 << 63) - 1
_GAPS = (701, 301, 132, 57, 23, 10, 4, 1)


@inlined
def note(mem: I64, step: int, amount: int) -> None:
    """Count `amount` units of work of one step."""
    mem[STEPS + step] += amount


@inlined
def now(mem: I64) -> int:
    """The cycle counter when this index is timed, else 0: the instruction alone costs as much as a scan."""
    return cycles() if mem[TIMED] else 0


@inlined
def charge(mem: I64, step: int, since: int) -> None:
    """Add the cycles that passed since `since` to a step's account."""
    if mem[TIMED]:
        mem[TICKS + step] += cycles() - since


@kernel
def order_group(seqs: I64, begin: int, end: int) -> None:
    """Sort one probe's matches: nearly always a handful, or one run that is already in order.

    A hash chain gives them newest first; large groups from several runs get a shell sort, which needs
    no memory of its own.
    """
    rising = True
    falling = True
    for j in range(begin + 1, end):
        if seqs[j] < seqs[j - 1]:
            rising = False
        else:
            falling = False
    if rising:
        return
    if falling:
        left = begin
        right = end - 1
        while left < right:
            seqs[left], seqs[right] = seqs[right], seqs[left]
            left += 1
            right -= 1
        return
    for gap in _GAPS:
        for j in range(begin + gap, end):
            value = seqs[j]
            k = j
            while k >= begin + gap and seqs[k - gap] > value:
                seqs[k] = seqs[k - gap]
                k -= gap
            seqs[k] = value
