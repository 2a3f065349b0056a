"""The window as a ring of entries in arrival order, scanned whole by every probe: the baseline without an index.

Arena: head, words, seqs. `FRONT` and `BACK` only grow and are masked on use. Invariant: seqs ascend from front to
back, and everything before the front is expired (SIGMOD paper, section 5.1, the nested-loop window join).
"""

# ruff: noqa: ARG001 - the functions of every kind have one signature
from __future__ import annotations

from streamjoin.jit.flags import inlined
from streamjoin.jit.machine import I64, below_8, count_bits, lowest_bit, upto_8
from streamjoin.kernels.trees.entries import DELETE, INSERT, MIN_SEQ, OWN, SCAN, SIZE, note
from streamjoin.kernels.trees.task import fuse, no_approach, no_prepare, no_refine

FRONT = OWN
BACK = OWN + 1
RING = OWN + 2  # offset of the words
RING_MASK = OWN + 3  # the seqs lie RING_MASK + 1 words behind


@inlined
def ready(mem: I64, own_min: int) -> bool:
    """Whether one more entry fits once everything below `own_min` is gone."""
    room: bool = mem[BACK] - mem[FRONT] <= mem[RING_MASK]
    if not room:
        room = mem[mem[RING] + mem[RING_MASK] + 1 + (mem[FRONT] & mem[RING_MASK])] < own_min
    return room


@inlined
def locate(mem: I64, slot: int, lo: int) -> None:
    """There is nothing to search."""


@inlined
def _scan_part(mem: I64, at: int, end: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    capacity = mem[RING_MASK] + 1
    for j in range(at, end, 8):
        inside = (1 << min(8, end - j)) - 1
        hits = upto_8(mem, j, hi) & ~below_8(mem, j, lo) & inside
        if n_out + count_bits(hits) > out_seq.size:
            return -1
        while hits:
            seq = mem[j + capacity + lowest_bit(hits)]
            out_seq[n_out] = seq
            n_out += seq >= min_seq
            hits &= hits - 1
    return n_out


@inlined
def collect(mem: I64, slot: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs of all words in the interval: the ring's two straight parts."""
    bound = max(min_seq, mem[MIN_SEQ])
    held = mem[BACK] - mem[FRONT]
    begin = mem[FRONT] & mem[RING_MASK]
    straight = min(held, mem[RING_MASK] + 1 - begin)
    at = mem[RING] + begin
    note(mem, SCAN, held)
    n_out = _scan_part(mem, at, at + straight, lo, hi, bound, out_seq, n_out)
    if n_out < 0 or straight == held:
        return n_out
    return _scan_part(mem, mem[RING], mem[RING] + held - straight, lo, hi, bound, out_seq, n_out)


@inlined
def expire_to(mem: I64, own_min: int) -> None:
    """Move the front past the entries that fell out of the window."""
    mem[MIN_SEQ] = max(mem[MIN_SEQ], own_min)
    seqs = mem[RING] + mem[RING_MASK] + 1
    front = mem[FRONT]
    while front < mem[BACK] and mem[seqs + (front & mem[RING_MASK])] < own_min:
        front += 1
    note(mem, DELETE, front - mem[FRONT])
    mem[FRONT] = front
    mem[SIZE] = mem[BACK] - front


@inlined
def insert_one(mem: I64, slot: int, word: int, seq: int) -> None:
    """Append at the back."""
    at = mem[RING] + (mem[BACK] & mem[RING_MASK])
    mem[at] = word
    mem[at + mem[RING_MASK] + 1] = seq
    mem[BACK] += 1
    mem[SIZE] += 1
    note(mem, INSERT, 1)


task = fuse(
    "scan",
    ready=ready,
    approach=no_approach,
    prepare=no_prepare,
    refine=no_refine,
    locate=locate,
    collect=collect,
    expire_to=expire_to,
    insert_one=insert_one,
)
