"""A compiled caller of an index: many small tasks one after another, without the interpreter between them.

From Python a task of one tuple is mostly the call itself; a service written against the kernels, or a thread that
takes its tasks from a queue, does not pay it. Invariant: a task sees its own tuples alone. Each goes through the
kind's fused kernel by a call of its own and comes back with its matches before the next begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from streamjoin.indexes.base import Index, Matches
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, borrow
from streamjoin.kernels.trees.task import DONE, FULL, MAINTAIN_LEFT


def _unbound(*arguments: Any) -> Any:
    raise NotImplementedError("only the loops that `caller_of` has bound can run")


task: Callable[..., tuple[int, int, int]] = _unbound  # stands in for the fused kernel of a kind


def _call_tasks(
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
    size: int,
) -> tuple[int, int, int]:
    # The caller of this loop holds the arrays; a compiled caller has no reference counts to pay in every task.
    left = borrow(left)
    right = borrow(right)
    ops = borrow(ops)
    word = borrow(word)
    lo = borrow(lo)
    hi = borrow(hi)
    seq = borrow(seq)
    min_seq = borrow(min_seq)
    own_min = borrow(own_min)
    out_probe = borrow(out_probe)
    out_seq = borrow(out_seq)
    matches = 0
    for begin in range(start, stop, size):
        end = min(begin + size, stop)
        code, at, count = task(left, right, ops, word, lo, hi, seq, min_seq, own_min, out_probe, out_seq, begin, end)
        matches += count
        if code != DONE:
            return code, at, matches
    return DONE, stop, matches


@cache
def caller_of(fused: Callable[..., tuple[int, int, int]]) -> Callable[..., tuple[int, int, int]]:
    """The loop over tasks of `size` tuples for one kind's fused kernel.

    It takes the columns of `push_task`, start, stop and size, and returns why it came back, the tuple to resume at
    (in the middle of a task, if it was refused there) and how many matches there were. A task's matches are in
    `out_probe` and `out_seq` until the next begins.
    """
    name = f"call_{fused.__name__}"
    copy = FunctionType(_call_tasks.__code__, globals() | {"task": fused}, name)
    copy.__qualname__ = name
    copy.__module__ = __name__
    return kernel(copy)


def count_in_tasks(left: Index, right: Index, columns: tuple[I64, ...], out: Matches, size: int) -> int:
    """Process tuples in tasks of `size` by a compiled caller; returns the total number of matches.

    Each task is a separate call and leaves its matches in `out`, where the next overwrites them. Control returns to
    Python only for what a kernel can't do: maintaining an index, or allocating a larger output.
    """
    call = caller_of(type(left).task)
    at, matches = 0, 0
    while True:
        code, at, count = call(left.mem, right.mem, *columns, out.probe, out.seq, at, columns[0].size, size)
        matches += int(count)
        if code == DONE:
            return matches
        if code == FULL:
            out.double()
        else:
            (left if code == MAINTAIN_LEFT else right).maintain()
