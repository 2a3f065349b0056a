"""Tuples that arrive at a node against what lies there: a blocked scan, the exact tests, the node's results.

Blocks of stored words stay in the first-level cache while all arriving tuples are compared with them, as in
`nested`; a (tuple, block) without a match costs one vectorised count. Whether a pair that matches is within its
windows is tested for each, whichever of the two came later: the chain only makes sure that every pair that could
be meets once. So is the residual, if it has a program (`kernels.conditions`), with the rows in both logs; without terms
to scan for, its program runs over blocks. Results go to a ring of the node's own. Invariant: a scan that returns False
has written whole (tuple, block)s, and goes on behind them when it is called again with the same arguments.
"""

from __future__ import annotations

from typing import NamedTuple

from streamjoin._arrays import Array
from streamjoin.handshake.kernels.links import (
    AT_BLOCK,
    AT_PROBE,
    BASES,
    COMPARED,
    MIN_SEQ,
    NODES,
    RESULTS_HEAD,
    RESULTS_TAIL,
    SEQ,
    TERMS,
    UNDECIDED,
    UPTO,
)
from streamjoin.jit.atomics import load, store
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, borrow
from streamjoin.kernels.batch.nested import BLOCK, count_one, count_two
from streamjoin.kernels.conditions import BLOCK as TESTED
from streamjoin.kernels.conditions import RESULT as PROGRAM_RESULT
from streamjoin.kernels.conditions import load_block, test_block

# Rows of a log's words: two terms' words, low ends and widths, all unsigned.
WORD = 0
LOW = 2
SPAN = 4
WORD_ROWS = 6

# A block with a match is searched in pieces, most of which a count rules out.
_PIECE = 64

# A result: both places.
RESULT = 2


class NodeTests(NamedTuple):
    """How a node tests the residual, by the side that arrives; empty programs test nothing."""

    programs: tuple[I64, I64]
    rows: tuple[I64, I64]
    """Of each side's log, what the programs read."""
    registers: tuple[I64, I64]
    """The node's own."""


@kernel
def within(own: Array, i: int, other: Array, j: int) -> bool:
    """Whether the earlier of two tuples was live when the later came."""
    other_seq = other[j, SEQ]
    if other_seq < own[i, UPTO]:
        return bool(other_seq >= own[i, MIN_SEQ])
    own_seq = own[i, SEQ]
    return bool(own_seq < other[j, UPTO] and own_seq >= other[j, MIN_SEQ])


@kernel
def results_room(mem: I64, at: int, out: Array) -> int:
    """How many more results the node's ring takes."""
    free: int = out.shape[0] - (mem[at + RESULTS_TAIL] - load(mem, at + RESULTS_HEAD))
    return free


@kernel
def write_result(mem: I64, at: int, side: int, own: int, other: int, out: Array) -> None:
    """Put a pair into the node's ring, where there is room."""
    tail = mem[at + RESULTS_TAIL]
    row = tail & (out.shape[0] - 1)
    out[row, side] = own
    out[row, 1 - side] = other
    store(mem, at + RESULTS_TAIL, tail + 1)


@kernel
def holds(mem: I64, tests: NodeTests, side: int, i: int, j: int) -> bool:
    """Whether row i of one side's log and row j of the other's satisfy the residual, or that is undecided.

    For residuals that have a program. Loops ask before they begin whether there is one: asked here, for each pair that
    matches, the scan around it took 1.4 times as long without a program.
    """
    program, registers = tests.programs[side], tests.registers[side]
    load_block(program, tests.rows[1 - side], j, 1, 1, registers)
    hits = test_block(program, tests.rows[side][i], 1, registers)
    if hits < 0:
        store(mem, UNDECIDED, 1)
    return hits != 0


@kernel
def _meet_tested(
    mem: I64, at: int, side: int, probes_begin: int, probes_end: int, facts: Array, other_facts: Array, begin: int,
    end: int, stride: int, first: int, homes_below: int, out: Array, tests: NodeTests,
) -> bool:  # fmt: skip
    """`meet` by the residual alone."""
    program, registers, rows = tests.programs[side], tests.registers[side], borrow(tests.rows[side])
    result = registers[program[0, PROGRAM_RESULT]]
    base, other_base, nodes = mem[BASES + side], mem[BASES + 1 - side], mem[NODES]
    facts, other_facts = borrow(facts), borrow(other_facts)
    block, probe = begin, probes_begin
    if mem[at + AT_BLOCK] >= 0:
        block, probe = mem[at + AT_BLOCK], mem[at + AT_PROBE]
    else:
        mem[at + COMPARED] += (end - begin) * (probes_end - probes_begin)
    while block < end:
        count = min(TESTED, end - block)
        load_block(program, tests.rows[1 - side], first + stride * block - other_base, stride, count, registers)
        for p in range(probe, probes_end):
            hits = test_block(program, rows[p - base], count, registers)
            if hits == 0:
                continue
            if results_room(mem, at, out) < (count if hits < 0 else hits):
                mem[at + AT_BLOCK], mem[at + AT_PROBE] = block, p
                return False
            if hits < 0:
                store(mem, UNDECIDED, 1)
            for k in range(count):
                place = first + stride * (block + k)
                if (
                    (hits < 0 or result[k] != 0)
                    and place % nodes < homes_below
                    and within(facts, p - base, other_facts, place - other_base)
                ):
                    write_result(mem, at, side, p, place, out)
        block += count
        probe = probes_begin
    mem[at + AT_BLOCK] = -1
    return True


@kernel
def meet(
    mem: I64,
    at: int,
    side: int,
    probes_begin: int,
    probes_end: int,
    words: Array,
    facts: Array,
    other_facts: Array,
    stored: Array,
    begin: int,
    end: int,
    stride: int,
    first: int,
    homes_below: int,
    out: Array,
    tests: NodeTests,
) -> bool:
    """Compare places probes_begin to probes_end of `side` with rows begin to end of the other side's `stored` words.

    Row j holds place first + stride * j; only places whose home node is below `homes_below` count.
    """
    if begin >= end or probes_begin >= probes_end:
        return True
    terms, tested = mem[TERMS], tests.programs[side].size > 0
    if tested and terms == 0:
        return _meet_tested(
            mem, at, side, probes_begin, probes_end, facts, other_facts, begin, end, stride, first, homes_below, out,
            tests,
        )  # fmt: skip
    unsigned = words.dtype.type
    nodes = mem[NODES]
    base, other_base = mem[BASES + side], mem[BASES + 1 - side]
    words1 = borrow(stored[WORD])
    words2 = borrow(stored[WORD + 1])
    facts = borrow(facts)
    other_facts = borrow(other_facts)
    words = borrow(words)
    block = begin
    probe = probes_begin
    if mem[at + AT_BLOCK] >= 0:
        block = mem[at + AT_BLOCK]
        probe = mem[at + AT_PROBE]
    else:
        mem[at + COMPARED] += (end - begin) * (probes_end - probes_begin)
    while block < end:
        stop = min(block + BLOCK, end)
        for p in range(probe, probes_end):
            i = p - base
            lo1, lo2 = words[LOW, i], words[LOW + 1, i]
            span1, span2 = words[SPAN, i], words[SPAN + 1, i]
            if terms == 2:
                hits = count_two(words1[block:stop], words2[block:stop], lo1, span1, lo2, span2)
            elif terms == 1:
                hits = count_one(words1[block:stop], lo1, span1)
            else:
                hits = stop - block
            if hits == 0:
                continue
            if results_room(mem, at, out) < hits:
                mem[at + AT_BLOCK] = block
                mem[at + AT_PROBE] = p
                return False
            for piece in range(block, stop, _PIECE):
                last = min(piece + _PIECE, stop)
                if terms > 0 and count_one(words1[piece:last], lo1, span1) == 0:
                    continue
                for j in range(piece, last):
                    if terms > 0 and unsigned(words1[j] - lo1) > span1:
                        continue
                    if terms > 1 and unsigned(words2[j] - lo2) > span2:
                        continue
                    place = first + stride * j
                    if (
                        place % nodes < homes_below
                        and within(facts, i, other_facts, place - other_base)
                        and (not tested or holds(mem, tests, side, i, place - other_base))
                    ):
                        write_result(mem, at, side, p, place, out)
        block = stop
        probe = probes_begin
    mem[at + AT_BLOCK] = -1
    return True
