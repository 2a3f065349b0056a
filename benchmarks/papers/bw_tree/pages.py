"""Reading a node of a Bw-Tree: the sorted base of its page and the chain of delta records in front of it.

Entries are ordered by (word, seq), which are unique together. The newest record of an entry decides about it: an entry
of the base is there unless the chain deletes it, an inserted one unless a newer record deletes it. A record may delete
what is not there. The first separator of an inner node stands below every entry, whatever the node's own lower bound.
"""

from __future__ import annotations

from benchmarks.papers.bw_tree.apart import stay_apart
from benchmarks.papers.bw_tree.memory import (
    BEFORE,
    CHAIN,
    CHILD,
    COUNT,
    DELETED,
    FROZEN,
    HEAD_MASK,
    HIGH_SEQ,
    HIGH_WORD,
    INNER_APART,
    KIND_SHIFT,
    LEVEL,
    NEXT,
    SEQ,
    SEQS_APART,
    SLOT,
    SLOTS,
    WORD,
    WORDS_AT,
    first_record,
    page_of,
    state_of,
)
from streamjoin.jit.flags import inlined, kernel
from streamjoin.jit.machine import I64, below_32, borrow, count_bits, move_words, prefetch, upto_32

_WIDE = 32


@inlined
def kind_of(mem: I64, record: int) -> int:
    """Whether a record inserts or deletes."""
    kind: int = mem[record + BEFORE] >> KIND_SHIFT
    return kind


@inlined
def link(before: int, kind: int) -> int:
    """The first word of a record of a kind, in front of another."""
    return before | (kind << KIND_SHIFT)


@inlined
def count_below(mem: I64, at: int, count: int, word: int) -> int:
    """How many of `count` sorted words are below `word`."""
    n = 0
    while n < count:
        hits = count_bits(below_32(mem, at + n, word) & ((1 << min(_WIDE, count - n)) - 1))
        n += hits
        if hits < _WIDE:
            break
    return n


@inlined
def count_upto(mem: I64, at: int, count: int, word: int) -> int:
    """How many of `count` sorted words are not above `word`."""
    n = 0
    while n < count:
        hits = count_bits(upto_32(mem, at + n, word) & ((1 << min(_WIDE, count - n)) - 1))
        n += hits
        if hits < _WIDE:
            break
    return n


@inlined
def place_of(mem: I64, at: int, apart: int, count: int, word: int, seq: int) -> int:
    """How many of `count` sorted entries are below (word, seq)."""
    k = count_below(mem, at, count, word)
    while k < count and mem[at + k] == word and mem[at + apart + k] < seq:
        k += 1
    return k


@inlined
def is_right_of(mem: I64, at: int, word: int, seq: int) -> bool:
    """Whether an entry belongs to a node on the right of the page's."""
    high: int = mem[at + HIGH_WORD]
    return mem[at + NEXT] != 0 and (high < word or (high == word and mem[at + HIGH_SEQ] <= seq))


@inlined
def child_for(mem: I64, at: int, state: int, word: int, seq: int) -> int:
    """The child that an inner node leads an entry to."""
    words = at + mem[WORDS_AT]
    apart = mem[INNER_APART]
    count = mem[at + COUNT]
    k = count_below(mem, words, count, word)
    while k < count and mem[words + k] == word and mem[words + apart + k] <= seq:
        k += 1
    k = max(k - 1, 0)
    child: int = mem[words + 2 * apart + k]
    before = first_record(state)
    if before:
        best = mem[words + k]
        best_seq = mem[words + apart + k]
        while before:
            record = at + SLOTS + SLOT * (before - 1)
            low = mem[record + WORD]
            low_seq = mem[record + SEQ]
            covers = low < word or (low == word and low_seq <= seq)
            if covers and (low > best or (low == best and low_seq > best_seq)):
                best = low
                best_seq = low_seq
                child = mem[record + CHILD]
            before = mem[record + BEFORE] & HEAD_MASK
    return child


@kernel
def has_child(mem: I64, at: int, state: int, child: int) -> bool:
    """Whether an inner node leads anything to `child`."""
    stay_apart()
    children = at + mem[WORDS_AT] + 2 * mem[INNER_APART]
    for k in range(mem[at + COUNT]):
        if mem[children + k] == child:
            return True
    before = first_record(state)
    while before:
        record = at + SLOTS + SLOT * (before - 1)
        if mem[record + CHILD] == child:
            return True
        before = mem[record + BEFORE] & HEAD_MASK
    return False


@kernel
def replay(mem: I64, at: int, state: int, to: int) -> int:
    """Write the entries of a node in order to the page at `to`; returns how many there are."""
    stay_apart()
    mem = borrow(mem)
    words = mem[WORDS_AT]
    inner = mem[at + LEVEL] > 0
    apart = mem[INNER_APART] if inner else mem[SEQS_APART]
    parts = 3 if inner else 2
    count = mem[at + COUNT]
    for part in range(parts):
        move_words(mem, to + words + part * apart, at + words + part * apart, count)
    order = 0
    length = 0
    before = first_record(state)
    while before:
        # Four bits for each record: the last that is put in is the oldest.
        order = (order << 4) | (before - 1)
        length += 1
        before = mem[at + SLOTS + SLOT * (before - 1) + BEFORE] & HEAD_MASK
    into = to + words
    for _ in range(length):
        record = at + SLOTS + SLOT * (order & 15)
        order >>= 4
        word = mem[record + WORD]
        seq = mem[record + SEQ]
        k = place_of(mem, into, apart, count, word, seq)
        if kind_of(mem, record) == DELETED:
            if k < count and mem[into + k] == word and mem[into + apart + k] == seq:
                for part in range(parts):
                    move_words(mem, into + part * apart + k, into + part * apart + k + 1, count - k - 1)
                count -= 1
        else:
            for part in range(parts):
                move_words(mem, into + part * apart + k + 1, into + part * apart + k, count - k)
            mem[into + k] = word
            mem[into + apart + k] = seq
            if inner:
                mem[into + 2 * apart + k] = mem[record + CHILD]
            count += 1
    return int(count)


@kernel
def _is_deleted(mem: I64, at: int, before: int, stop: int, word: int, seq: int) -> bool:
    """Whether a record from `before` on deletes an entry, up to the record `stop`."""
    stay_apart()
    while before and before != stop:
        record = at + SLOTS + SLOT * (before - 1)
        if mem[record + WORD] == word and mem[record + SEQ] == seq and kind_of(mem, record) == DELETED:
            return True
        before = mem[record + BEFORE] & HEAD_MASK
    return False


@inlined
def scan(
    mem: I64, node: int, lo: int, hi: int, least: int, before_seq: int, out: I64, to: int, end: int
) -> int:  # fmt: skip
    """Write the seqs from `least` to before `before_seq` of the words from `lo` to `hi` to out[to:end].

    It begins at a leaf from which the entries can be reached by going right; -1 when they do not fit.
    """
    while node:
        state = state_of(mem, node)
        at = page_of(mem, state)
        node = mem[at + NEXT]
        if state & FROZEN:
            continue
        words = at + mem[WORDS_AT]
        apart = mem[SEQS_APART]
        prefetch(mem, words)
        prefetch(mem, words + 8)
        count = mem[at + COUNT]
        before = first = first_record(state)
        deletes = False
        if to + mem[CHAIN] > end:
            return -1
        while before:
            record = at + SLOTS + SLOT * (before - 1)
            word = mem[record + WORD]
            if lo <= word <= hi:
                seq = mem[record + SEQ]
                if kind_of(mem, record) == DELETED:
                    deletes = True
                elif least <= seq < before_seq and not (deletes and _is_deleted(mem, at, first, before, word, seq)):
                    out[to] = seq
                    to += 1
            before = mem[record + BEFORE] & HEAD_MASK
        begin = count_below(mem, words, count, lo)
        stop = begin + count_upto(mem, words + begin, count - begin, hi)
        if to + stop - begin > end:
            return -1
        for k in range(begin, stop):
            seq = mem[words + apart + k]
            out[to] = seq
            kept = (seq >= least) & (seq < before_seq)
            if deletes and kept and _is_deleted(mem, at, first, 0, mem[words + k], seq):
                kept = False
            to += kept
        if hi < mem[at + HIGH_WORD]:
            break
    return to
