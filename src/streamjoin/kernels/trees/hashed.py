"""Hash index for equality: a ring of entries in arrival order, threaded by bucket and by word.

Arena: head, buckets, entries of four words: word, seq, next word of the bucket, older entry of the same word. Links are
positions that only grow (plus one; 0 is none), masked on use. A bucket lists the newest entry of each of its distinct
words, latest arrival first, so a rare word never walks over the duplicates of a frequent one.

Invariant: along every link positions fall, so the first link that points before the front, whose slot may have
been reused, ends the list: expiry is moving the front, and leaves no tombstones.
"""

# ruff: noqa: ARG001 - the functions of every kind have one signature
from __future__ import annotations

from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, mix, prefetch
from streamjoin.kernels.trees.entries import DELETE, INSERT, MIN_SEQ, OWN, SCAN, SEARCH, SIZE, note
from streamjoin.kernels.trees.task import INSERTS, PROBES, fuse, no_approach

FRONT = OWN
BACK = OWN + 1
RING = OWN + 2  # offset of the entries
RING_MASK = OWN + 3
BUCKETS = OWN + 4  # offset of the buckets
BUCKET_BITS = OWN + 5
FOUND = OWN + 6  # the place that `locate` found

ENTRY = 4
SEQ = 1
NEXT_WORD = 2
OLDER = 3


@inlined
def bucket_of(mem: I64, word: int) -> int:
    """The offset of a word's bucket."""
    offset: int = mem[BUCKETS] + mix(word, mem[BUCKET_BITS])
    return offset


@inlined
def entry_at(mem: I64, position: int) -> int:
    """The offset of the entry at a position of the ring."""
    offset: int = mem[RING] + (position & mem[RING_MASK]) * ENTRY
    return offset


@inlined
def ready(mem: I64, own_min: int) -> bool:
    """Whether one more entry fits once everything below `own_min` is gone."""
    room: bool = mem[BACK] - mem[FRONT] <= mem[RING_MASK]
    if not room:
        room = mem[entry_at(mem, mem[FRONT]) + SEQ] < own_min
    return room


@inlined
def prepare(own: I64, other: I64, slot: int, op: int, word: int, lo: int) -> None:
    """Start loading both buckets."""
    if op & PROBES:
        prefetch(other, bucket_of(other, lo))
    if op & INSERTS:
        prefetch(own, bucket_of(own, word))


@inlined
def refine(own: I64, other: I64, slot: int, op: int, lo: int, hi: int) -> None:
    """Start loading the first entry of the probed bucket."""
    if op & PROBES:
        prefetch(other, entry_at(other, other[bucket_of(other, lo)] - 1))


@inlined
def locate(mem: I64, slot: int, lo: int) -> None:
    """Find the newest entry of a word."""
    link = mem[bucket_of(mem, lo)]
    steps = 1
    while link > mem[FRONT] and mem[entry_at(mem, link - 1)] != lo:
        link = mem[entry_at(mem, link - 1) + NEXT_WORD]
        steps += 1
    note(mem, SEARCH, steps)
    mem[FOUND] = link


@inlined
def collect(mem: I64, slot: int, lo: int, hi: int, min_seq: int, out_seq: I64, n_out: int) -> int:
    """Append the live seqs of a word, newest first."""
    bound = max(min_seq, mem[MIN_SEQ])
    link = mem[FOUND]
    steps = 1
    while link > mem[FRONT]:
        at = entry_at(mem, link - 1)
        if mem[at + SEQ] < bound:
            break
        if n_out == out_seq.size:
            return -1
        out_seq[n_out] = mem[at + SEQ]
        n_out += 1
        steps += 1
        link = mem[at + OLDER]
    note(mem, SCAN, steps)
    return n_out


@inlined
def expire_to(mem: I64, own_min: int) -> None:
    """Move the front past the entries that fell out of the window."""
    mem[MIN_SEQ] = max(mem[MIN_SEQ], own_min)
    front = mem[FRONT]
    while front < mem[BACK] and mem[entry_at(mem, front) + SEQ] < own_min:
        front += 1
    note(mem, DELETE, front - mem[FRONT])
    mem[FRONT] = front
    mem[SIZE] = mem[BACK] - front


@inlined
def insert_one(mem: I64, slot: int, word: int, seq: int) -> None:
    """Append an entry and put its word at the head of its bucket."""
    bucket = bucket_of(mem, word)
    holder = bucket
    link = mem[bucket]
    steps = 1
    while link > mem[FRONT] and mem[entry_at(mem, link - 1)] != word:
        holder = entry_at(mem, link - 1) + NEXT_WORD
        link = mem[holder]
        steps += 1
    older = 0
    if link > mem[FRONT]:
        older = link
        mem[holder] = mem[entry_at(mem, link - 1) + NEXT_WORD]
    at = entry_at(mem, mem[BACK])
    mem[at] = word
    mem[at + SEQ] = seq
    mem[at + NEXT_WORD] = mem[bucket]
    mem[at + OLDER] = older
    mem[BACK] += 1
    mem[bucket] = mem[BACK]
    mem[SIZE] += 1
    note(mem, INSERT, steps)


@kernel
def copy_entries(old: I64, new: I64) -> None:
    """Insert what another arena holds, oldest first."""
    for position in range(old[FRONT], old[BACK]):
        at = entry_at(old, position)
        insert_one(new, 0, old[at], old[at + SEQ])


task = fuse(
    "hashed",
    ready=ready,
    approach=no_approach,
    prepare=prepare,
    refine=refine,
    locate=locate,
    collect=collect,
    expire_to=expire_to,
    insert_one=insert_one,
)
