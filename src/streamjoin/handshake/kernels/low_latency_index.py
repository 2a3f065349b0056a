"""Low-latency handshake join over an index at each node for each side (LLHJ paper, sections 4.1 and 7.6).

The same messages and rules as `llhj`; stored copies are index entries (word, place) instead of rows to scan, and the
kind's fused kernel looks up every passing tuple and inserts those at home here. Tuples still on their way are few and
are compared one by one. Words lie in the logs as one unsigned term: the index word with its top bit flipped.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.handshake.kernels.links import (
    BASES,
    BEGIN,
    COMPARED,
    DONE,
    END,
    EXPIRED,
    FLUSHED,
    FULL,
    LOOKED_UP,
    MAINTAIN,
    NODES,
    PENDING,
    STAGE,
    STOPPED,
    WRITTEN,
    node_at,
    rest,
)
from streamjoin.handshake.kernels.low_latency import (
    COPIES,
    FRESH,
    NO_ROOM,
    NOTHING,
    STORE,
    WORKED,
    copies_until,
    finish_message,
    meet_fresh,
    take_message,
)
from streamjoin.handshake.kernels.meet import LOW, SPAN, WORD, NodeTests, holds, results_room, within, write_result
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.kernels.trees import hashed
from streamjoin.kernels.trees.task import DONE as TASK_DONE
from streamjoin.kernels.trees.task import FULL as TASK_FULL
from streamjoin.kernels.trees.task import INSERTS, MAINTAIN_LEFT, ON_RIGHT, PROBES
from streamjoin.pim_tree.kernels import pim

# Rows of a node's columns for the fused kernel.
OPS, KEY, LO, HI, PLACE, LEAST, OWN_LEAST = range(7)
TASK_ROWS = 7
TOO_SMALL = 5  # the room for one lookup's matches must grow

_SIGN = np.uint64(1 << 63)


@kernel
def _signed(word: Any) -> int:
    """The index word behind an unsigned one."""
    return int(np.int64(np.uint64(word) ^ _SIGN))


@kernel
def _prepare(mem: I64, me: int, side: int, slot: int, words: Array, columns: Array) -> int:
    """A message's tuples as columns of the fused kernel; returns how many."""
    at = node_at(me)
    base, begin = mem[BASES + side], mem[slot + BEGIN]
    count: int = mem[slot + END] - begin
    for i in range(count):
        row = begin + i - base
        home = (begin + i) % mem[NODES] == me
        columns[OPS, i] = (PROBES | INSERTS if home else PROBES) | (ON_RIGHT if side else 0)
        columns[KEY, i] = _signed(words[WORD, row])
        columns[LO, i] = _signed(words[LOW, row])
        columns[HI, i] = _signed(np.uint64(words[LOW, row] + words[SPAN, row]))
        columns[PLACE, i] = begin + i
        columns[LEAST, i] = mem[at + EXPIRED + 1 - side]
        columns[OWN_LEAST, i] = mem[at + EXPIRED + side]
    return count


@kernel
def _write_matches(
    mem: I64, me: int, side: int, slot: int, facts: Array, other_facts: Array, probes: I64, places: I64, out: Array,
    tests: NodeTests,
) -> bool:  # fmt: skip
    """Write what the index found and the rules of the chain allow; False when the node's ring is full."""
    at = node_at(me)
    until = copies_until(mem, me, side, slot)
    base, other_base = mem[BASES + side], mem[BASES + 1 - side]
    tested = tests.programs[side].size > 0
    while mem[at + WRITTEN] < mem[at + PENDING]:
        if results_room(mem, at, out) < 1:
            return False
        m = mem[at + WRITTEN]
        own, other = mem[slot + BEGIN] + probes[m], places[m]
        if (
            other < until
            and within(facts, own - base, other_facts, other - other_base)
            and (not tested or holds(mem, tests, side, own - base, other - other_base))
        ):
            write_result(mem, at, side, own, other, out)
        mem[at + WRITTEN] = m + 1
    return True


def _unbound(*arguments: Any) -> Any:
    raise NotImplementedError("only the kernels that `fuse_node` has bound can run")


# Stand-ins that `fuse_node` replaces.
task: Callable[..., tuple[int, int, int]] = _unbound
receive: Callable[..., int] = _unbound


def _receive(
    mem: I64, me: int, side: int, words: Array, facts: Array, other_words: Array, other_facts: Array,
    left: I64, right: I64, columns: Array, probes: I64, places: I64, out: Array, tests: NodeTests,
) -> int:  # fmt: skip
    slot = take_message(mem, me, side)
    if slot < 0:
        return NOTHING
    at = node_at(me)
    if mem[at + STAGE] == COPIES:
        # What was looked up and what was found and is not written yet both survive a return.
        count = _prepare(mem, me, side, slot, words, columns)
        while True:
            if not _write_matches(mem, me, side, slot, facts, other_facts, probes, places, out, tests):
                return NO_ROOM
            if mem[at + LOOKED_UP] >= count:
                break
            code, looked_up, matches = task(
                left, right, columns[OPS], columns[KEY], columns[LO], columns[HI], columns[PLACE], columns[LEAST],
                columns[OWN_LEAST], probes, places, mem[at + LOOKED_UP], count,
            )  # fmt: skip
            mem[at + LOOKED_UP] = looked_up
            mem[at + PENDING] = matches
            mem[at + WRITTEN] = 0
            mem[at + COMPARED] += matches
            if matches == 0 and code == TASK_FULL:
                return TOO_SMALL
            if matches == 0 and code != TASK_DONE:
                return MAINTAIN + code - MAINTAIN_LEFT
        mem[at + LOOKED_UP] = 0
        mem[at + PENDING] = 0
        mem[at + WRITTEN] = 0
        mem[at + STAGE] = FRESH
    if side == 0 and not meet_fresh(mem, me, slot, words, facts, other_words, other_facts, out, tests):
        return NO_ROOM
    mem[at + STAGE] = STORE
    finish_message(mem, me, side, slot)
    return WORKED


def _node(
    crew: I64, me: int, mem: I64, words_r: Array, facts_r: Array, words_s: Array, facts_s: Array,
    left: I64, right: I64, columns: Array, probes: I64, places: I64, out: Array, tests: NodeTests,
) -> int:  # fmt: skip
    at = node_at(me)
    tries = 0
    while not (mem[at + FLUSHED] and mem[at + FLUSHED + 1]):
        worked = receive(
            mem, me, 0, words_r, facts_r, words_s, facts_s, left, right, columns, probes, places, out, tests
        )  # fmt: skip
        if worked > WORKED:
            return FULL if worked == NO_ROOM else worked
        code = receive(
            mem, me, 1, words_s, facts_s, words_r, facts_r, left, right, columns, probes, places, out, tests
        )  # fmt: skip
        if code > WORKED:
            return FULL if code == NO_ROOM else code
        if worked == WORKED or code == WORKED:
            tries = 0
        elif not rest(crew, me, mem, tries):
            return STOPPED
        else:
            tries += 1
    return DONE


def fuse_node(kind: str, fused: Callable[..., tuple[int, int, int]]) -> Callable[..., int]:
    """The node's kernel over one kind of index: bound through globals, as `task.fuse` does and for its reason."""
    bound = globals() | {"task": fused}

    def bind(function: Any, name: str) -> Any:
        copy = FunctionType(function.__code__, bound, name)
        copy.__qualname__ = name
        copy.__module__ = __name__
        return kernel(copy)

    bound["receive"] = bind(_receive, f"receive_{kind}")
    node: Callable[..., int] = bind(_node, f"node_{kind}")
    return node


NODES_OVER: dict[str, Callable[..., int]] = {
    "hashed": fuse_node("hashed", hashed.task),
    "pim_tree": fuse_node("pim_tree", pim.task),
}
"""Nodes by the index they keep: DONE, FULL, STOPPED, TOO_SMALL, or MAINTAIN plus the side whose index must."""
