"""What all index kernels share: the layout of an arena's head, step accounting, the order of a probe's matches.

An index lives in one int64 array, its arena. The first `HEAD_WORDS` hold its mutable scalars, among them the offsets
of the sections behind: one array is one pointer to pass, where a tuple of arrays would cost a reference count per
array in every function. Slots below `OWN` mean the same in every index; each kind names its own from there on,
and uses `SCRATCH` for places that it remembers between the stages of one block of tuples.
An entry is (word, seq); seq ascends in the order of insertion.
"""

from __future__ import annotations

from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, cycles, sort_8

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
_LANES = 8


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


@inlined
def order_matches(seqs: I64, spare: I64, begin: int, end: int) -> None:
    """Sort one probe's matches, nearly always a handful; what lies at the same places of `spare` is lost."""
    if end - begin <= _LANES and begin + _LANES <= seqs.size:
        sort_8(seqs, begin, end - begin)
    else:
        _order_many(seqs, spare, begin, end)


@kernel
def _order_many(seqs: I64, spare: I64, begin: int, end: int) -> None:
    """Leave what is in order, turn around what is in reverse (a hash chain), merge the rest from runs of eight."""
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
        _turn_around(seqs, begin, end)
        return
    for j in range(begin, end, _LANES):
        if j + _LANES <= seqs.size:
            sort_8(seqs, j, min(_LANES, end - j))
        else:
            _insert_in_order(seqs, j, end)
    width = _LANES
    in_spare = False
    while width < end - begin:
        for j in range(begin, end, 2 * width):
            middle = min(j + width, end)
            last = min(middle + width, end)
            if in_spare:
                _merge_neighbours(spare, seqs, j, middle, last)
            else:
                _merge_neighbours(seqs, spare, j, middle, last)
        in_spare = not in_spare
        width *= 2
    if in_spare:
        for j in range(begin, end):
            seqs[j] = spare[j]


@kernel
def _turn_around(seqs: I64, begin: int, end: int) -> None:
    left = begin
    right = end - 1
    while left < right:
        seqs[left], seqs[right] = seqs[right], seqs[left]
        left += 1
        right -= 1


@kernel
def _insert_in_order(seqs: I64, begin: int, end: int) -> None:
    """Sort a few words where fewer than eight can be read at once."""
    for j in range(begin + 1, end):
        value = seqs[j]
        k = j
        while k > begin and seqs[k - 1] > value:
            seqs[k] = seqs[k - 1]
            k -= 1
        seqs[k] = value


@kernel
def _merge_neighbours(source: I64, target: I64, begin: int, middle: int, end: int) -> None:
    """Merge two neighbouring runs; which one gives the next word is computed, not branched on."""
    left = begin
    right = middle
    to = begin
    while left < middle and right < end:
        first = source[left]
        second = source[right]
        from_left = first < second
        target[to] = min(first, second)
        left += from_left
        right += not from_left
        to += 1
    for j in range(left, middle):
        target[to] = source[j]
        to += 1
    for j in range(right, end):
        target[to] = source[j]
        to += 1
