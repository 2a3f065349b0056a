"""The fused kernel: a task of interleaved tuples of both sides, each probed, expired and inserted in turn.

One loop serves every index kind (SIGMOD paper, section 2.1: look up, delete expired, insert). `fuse`
binds it to a kind's own functions, and the compiler then sees one straight kernel. Invariant: a tuple is
either processed whole or not at all. Whatever could stop it halfway (no room for its matches, no room for
its entry, a merge that is due) is tested first, so a caller resumes at the tuple that was refused.

Nothing between two maintenance calls moves the immutable part of an index, so the tuples of a block are
located together before the first is processed: their cache misses overlap instead of adding up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamjoin.jit.flags import inlined, kernel, specialized
from streamjoin.jit.machine import I64, borrow, cycles
from streamjoin.kernels.trees.entries import (
    BLOCK,
    DELETE,
    INSERT,
    SCAN,
    SEARCH,
    TICKS,
    TIMED,
    charge,
    now,
    order_matches,
)

# The operations on a tuple: bits of `ops`.
ON_RIGHT = 1
PROBES = 2
INSERTS = 4

# Why the kernel returned.
DONE = 0
FULL = 1  # out_seq is full: take what is there and resume; if nothing is there, bring a larger one
MAINTAIN_LEFT = 2  # the left index must merge or grow before tuple `next`
MAINTAIN_RIGHT = 3

_NO_ROOM = -1
_NOT_READY = -2


@kernel
def no_approach(own: I64, other: I64, slot: int, op: int, word: int, lo: int) -> None:
    """For kinds that need no stage ahead of `prepare`."""


@kernel
def no_prepare(own: I64, other: I64, slot: int, op: int, word: int, lo: int) -> None:
    """For kinds whose places a single insert can move: nothing is worth locating ahead."""


@kernel
def no_refine(own: I64, other: I64, slot: int, op: int, lo: int, hi: int) -> None:
    """For kinds that need no second stage of prefetching."""


@kernel
def _charge_search(left: I64, right: I64, ops: I64, begin: int, end: int, spent: int) -> None:
    """Charge what locating a block took to the sides it was looked up on, by their numbers of tuples."""
    rights = 0
    for i in range(begin, end):
        rights += ops[i] & ON_RIGHT
    on_left = spent * rights // (end - begin)
    if left[TIMED]:
        left[TICKS + SEARCH] += on_left
    if right[TIMED]:
        right[TICKS + SEARCH] += spent - on_left


def _unbound(*arguments: Any) -> Any:
    raise NotImplementedError("only the loops that `fuse` has bound can run")


# Stand-ins that `fuse` replaces by the functions of a kind.
ready: Callable[..., bool] = _unbound
approach: Callable[..., None] = _unbound
prepare: Callable[..., None] = _unbound
refine: Callable[..., None] = _unbound
locate: Callable[..., None] = _unbound
collect: Callable[..., int] = _unbound
expire_to: Callable[..., None] = _unbound
insert_one: Callable[..., None] = _unbound
step: Callable[..., int] = _unbound


def _step(
    own: I64,
    other: I64,
    slot: int,
    op: int,
    word: int,
    lo: int,
    hi: int,
    seq: int,
    min_seq: int,
    own_min: int,
    out_probe: I64,
    out_seq: I64,
    n_out: int,
) -> int:
    if op & INSERTS and not ready(own, own_min):
        return _NOT_READY
    tail = n_out
    if op & PROBES and lo <= hi:
        clock = now(other)
        locate(other, slot, lo)
        charge(other, SEARCH, clock)
        clock = now(other)
        tail = collect(other, slot, lo, hi, min_seq, out_seq, n_out)
        if tail < 0:
            return _NO_ROOM
        if tail > n_out + 1:
            order_matches(out_seq, out_probe, n_out, tail)
        charge(other, SCAN, clock)
    clock = now(own)
    expire_to(own, own_min)
    charge(own, DELETE, clock)
    if op & INSERTS:
        clock = now(own)
        insert_one(own, slot, word, seq)
        charge(own, INSERT, clock)
    return tail


def _task(
    left: I64,
    right: I64,
    ops: I64,
    word: I64,
    lo: I64,
    hi: I64,
    seq: I64,
    min_seq: I64,
    own_min: I64,
    out_probe: I64,
    out_seq: I64,
    start: int,
    stop: int,
) -> tuple[int, int, int]:
    # Counting references costs two atomic instructions per array and call, as much as the rest of a tuple.
    left = borrow(left)
    right = borrow(right)
    out_probe = borrow(out_probe)
    out_seq = borrow(out_seq)
    # A plain 0 has a type of its own until the loop is typed, and all that it is passed to is compiled for that too.
    n_out = 0 * start
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        clock = max(now(left), now(right))
        for i in range(begin, end):
            if ops[i] & ON_RIGHT:
                approach(right, left, i - begin, ops[i], word[i], lo[i])
            else:
                approach(left, right, i - begin, ops[i], word[i], lo[i])
        for i in range(begin, end):
            if ops[i] & ON_RIGHT:
                prepare(right, left, i - begin, ops[i], word[i], lo[i])
            else:
                prepare(left, right, i - begin, ops[i], word[i], lo[i])
        for i in range(begin, end):
            if ops[i] & ON_RIGHT:
                refine(right, left, i - begin, ops[i], lo[i], hi[i])
            else:
                refine(left, right, i - begin, ops[i], lo[i], hi[i])
        if clock:
            _charge_search(left, right, ops, begin, end, cycles() - clock)
        for i in range(begin, end):
            slot = i - begin
            op = ops[i]
            key = word[i]
            low = lo[i]
            high = hi[i]
            bound = min_seq[i]
            own_bound = own_min[i]
            if ops[i] & ON_RIGHT:
                tail = step(right, left, slot, op, key, low, high, seq[i], bound, own_bound, out_probe, out_seq, n_out)
            else:
                tail = step(left, right, slot, op, key, low, high, seq[i], bound, own_bound, out_probe, out_seq, n_out)
            if tail == _NO_ROOM:
                return FULL, i, n_out
            if tail == _NOT_READY:
                return MAINTAIN_LEFT + (ops[i] & ON_RIGHT), i, n_out
            for j in range(n_out, tail):
                out_probe[j] = i
            n_out = tail
    return DONE, stop, n_out


@kernel
def read_cycles() -> int:
    """The cycle counter, for measuring how fast it runs."""
    return cycles()


def fuse(kind: str, **functions: Callable[..., Any]) -> Callable[..., tuple[int, int, int]]:
    """The fused kernel of one index kind.

    The loop is bound to the kind's functions through its globals, so that it reads as a function of this module.
    """
    step = specialized(_step, f"step_{kind}", inlined, **functions)
    task: Callable[..., tuple[int, int, int]] = specialized(_task, f"task_{kind}", kernel, **functions, step=step)
    return task
