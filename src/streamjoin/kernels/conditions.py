"""Conditions that kernels test: a program over registers, each as long as a block of stored tuples.

A program is compiled once for all conditions: it is data, a row for each operation. One tuple, the *probe*, meets a
block of stored tuples at a time, so that reading a row costs little beside doing it for the whole block, 4 or 8 tuples
per instruction. What depends on the probe alone is computed once, in place 0, and then copied to all places.

A register holds whole numbers, the bits of floats, or 0 and 1. Logic is two-valued: an atom with a NULL is false, which
is enough since NOT was moved into the atoms before. Whole numbers never wrap: where a result might not be an int64 a
block is *undecided*. Then all its tuples count as hits and the caller has them tested otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64, borrow
from streamjoin.kernels.batch.nested import GROUP, live_ranges

BLOCK = 512
"""Stored tuples tested at a time; some tens of registers of this length stay in the first-level cache."""

# The first rows of a program: the numbers of registers and of stored columns, the register of the result; and where the
# rows for constants, for the probe alone and for copies to all places end.
HEADER = 2
REGISTERS, COLUMNS, RESULT = range(3)
CONSTANTS_END, OWN_END, COPIES_END = range(3)
# A row: operation, register of the result, two operands. Registers below the number of columns are the stored tuples'.
CODE, OUT, A, B = range(4)
(
    CONSTANT,  # out = the number A
    OWN,  # out = column A of the probe
    COPY,  # all places of out = its first
    AS_FLOAT,
    ADD,
    SUBTRACT,
    MULTIPLY,
    ABSOLUTE,
    EQUAL,
    UNEQUAL,
    LESS,
    LESS_EQUAL,
    FLOAT_ADD,
    FLOAT_SUBTRACT,
    FLOAT_MULTIPLY,
    FLOAT_DIVIDE,
    FLOAT_ABSOLUTE,
    FLOAT_EQUAL,
    FLOAT_UNEQUAL,
    FLOAT_LESS,
    FLOAT_LESS_EQUAL,
    IS_NAN,
    AND,
    OR,
    NOT,
) = range(25)
MOST_REGISTERS = 96
# Sums of two numbers of smaller magnitude are int64, and so is a smaller product.
_SAFE = 1 << 62


@kernel
def _magnitude(a: I64) -> int:
    """A number that no magnitude of some whole numbers exceeds, and less than twice the largest of these."""
    bits = 0
    for k in range(a.size):
        bits |= a[k] ^ (a[k] >> 63)
    return bits


@kernel
def _whole(code: int, a: I64, b: I64, out: I64) -> bool:
    """One operation on whole numbers, and on 0 and 1; False if a result might not be an int64."""
    n = out.size
    if code in (ADD, SUBTRACT):
        if max(_magnitude(a), _magnitude(b)) >= _SAFE:
            return False
        if code == ADD:
            for k in range(n):
                out[k] = a[k] + b[k]
        else:
            for k in range(n):
                out[k] = a[k] - b[k]
    elif code == MULTIPLY:
        if (1.0 + _magnitude(a)) * (1.0 + _magnitude(b)) >= _SAFE:
            return False
        for k in range(n):
            out[k] = a[k] * b[k]
    elif code == ABSOLUTE:
        if _magnitude(a) >= _SAFE:
            return False
        for k in range(n):
            out[k] = abs(a[k])
    elif code == EQUAL:
        for k in range(n):
            out[k] = a[k] == b[k]
    elif code == UNEQUAL:
        for k in range(n):
            out[k] = a[k] != b[k]
    elif code == LESS:
        for k in range(n):
            out[k] = a[k] < b[k]
    elif code == LESS_EQUAL:
        for k in range(n):
            out[k] = a[k] <= b[k]
    elif code == AND:
        for k in range(n):
            out[k] = a[k] & b[k]
    elif code == OR:
        for k in range(n):
            out[k] = a[k] | b[k]
    else:
        for k in range(n):
            out[k] = 1 - a[k]
    return True


@kernel
def _floats(code: int, a: Array, b: Array, out: Array) -> None:
    """One operation on floats; NaN is NULL, and dividing by 0 gives it."""
    n = out.size
    if code == FLOAT_ADD:
        for k in range(n):
            out[k] = a[k] + b[k]
    elif code == FLOAT_SUBTRACT:
        for k in range(n):
            out[k] = a[k] - b[k]
    elif code == FLOAT_MULTIPLY:
        for k in range(n):
            out[k] = a[k] * b[k]
    elif code == FLOAT_DIVIDE:
        for k in range(n):
            out[k] = np.nan if b[k] == 0 else a[k] / b[k]
    else:
        for k in range(n):
            out[k] = abs(a[k])


@kernel
def _compared(code: int, a: Array, b: Array, out: I64) -> None:
    """One comparison of floats, false where either is NULL."""
    n = out.size
    if code == FLOAT_EQUAL:
        for k in range(n):
            out[k] = a[k] == b[k]
    elif code == FLOAT_UNEQUAL:
        for k in range(n):
            out[k] = (a[k] < b[k]) | (a[k] > b[k])
    elif code == FLOAT_LESS:
        for k in range(n):
            out[k] = a[k] < b[k]
    elif code == FLOAT_LESS_EQUAL:
        for k in range(n):
            out[k] = a[k] <= b[k]
    else:
        for k in range(n):
            out[k] = a[k] != a[k]


@kernel
def _run(program: I64, begin: int, end: int, n: int, registers: I64) -> bool:
    """Some rows of a program for the first `n` places; False if they are undecided."""
    program, registers = borrow(program), borrow(registers)
    for row in range(begin, end):
        code = program[row, CODE]
        out = registers[program[row, OUT], :n]
        a, b = registers[program[row, A], :n], registers[program[row, B], :n]
        if code == AS_FLOAT:
            floats = out.view(np.float64)
            for k in range(n):
                floats[k] = a[k]
        elif FLOAT_ADD <= code <= FLOAT_ABSOLUTE:
            _floats(code, a.view(np.float64), b.view(np.float64), out.view(np.float64))
        elif FLOAT_EQUAL <= code <= IS_NAN:
            _compared(code, a.view(np.float64), b.view(np.float64), out)
        elif not _whole(code, a, b, out):
            return False
    return True


@kernel
def registers_of(program: I64) -> I64:
    """Registers for a program, with its constants in them."""
    registers = np.zeros((program[0, REGISTERS], BLOCK), np.int64)
    for row in range(HEADER, program[1, CONSTANTS_END]):
        registers[program[row, OUT], :] = program[row, A]
    return registers


@kernel
def load_block(program: I64, stored: I64, first: int, step: int, n: int, registers: I64) -> None:
    """Put `n` stored tuples into the registers: every `step`-th row from `first` on."""
    stored, registers = borrow(stored), borrow(registers)
    for column in range(program[0, COLUMNS]):
        register = registers[column]
        for k in range(n):
            register[k] = stored[first + step * k, column]


@kernel
def test_block(program: I64, own: I64, n: int, registers: I64) -> int:
    """Test a probe with the first `n` tuples in the registers; how many match, or -1 if that is undecided.

    The register of the result says which. `own` are the columns of the probe.
    """
    program, own, registers = borrow(program), borrow(own), borrow(registers)
    own_end, copies_end = program[1, OWN_END], program[1, COPIES_END]
    row = program[1, CONSTANTS_END]
    while row < own_end and program[row, CODE] == OWN:
        registers[program[row, OUT], 0] = own[program[row, A]]
        row += 1
    if not _run(program, row, own_end, 1, registers):
        return -1
    for copied in range(own_end, copies_end):
        register = registers[program[copied, OUT]]
        register[1:n] = register[0]
    if not _run(program, copies_end, program.shape[0], n, registers):
        return -1
    hits = 0
    result = registers[program[0, RESULT]]
    for k in range(n):
        hits += result[k]
    return hits


@kernel
def _scan_group(
    program: I64, own: I64, stored: I64, registers: I64, begin: int, size: int, ranges: tuple[I64, I64],
    pairs: tuple[I64, I64], undecided: I64,
) -> int:  # fmt: skip
    """The pairs of some probes with stored rows, as (probe, row) block by block; -1 if there is no room for them."""
    own = borrow(own)
    first, last = ranges
    low, high = first[begin], last[begin]
    for p in range(begin + 1, begin + size):
        low, high = min(low, first[p]), max(high, last[p])
    n = 0
    result = registers[program[0, RESULT]]
    for block in range(low, high, BLOCK):
        count = min(BLOCK, high - block)
        load_block(program, stored, block, 1, count, registers)
        for p in range(begin, begin + size):
            low_k, high_k = max(first[p] - block, 0), min(last[p] - block, count)
            if low_k >= high_k:
                continue
            hits = test_block(program, own[p], count, registers)
            if hits == 0:
                continue
            if hits < 0:
                undecided[0] += 1
            if n + (high_k - low_k if hits < 0 else hits) > pairs[0].size:
                return -1
            for k in range(low_k, high_k):
                if hits < 0 or result[k] != 0:
                    pairs[0][n], pairs[1][n] = p, block + k
                    n += 1
    return n


@kernel
def _in_order(pairs: tuple[I64, I64], n: int, begin: int, size: int, out_probe: I64, out_row: I64) -> None:
    """Write pairs whose rows ascend for each probe by probe."""
    places = np.zeros(size + 1, np.int64)
    for i in range(n):
        places[pairs[0][i] - begin + 1] += 1
    for p in range(size):
        places[p + 1] += places[p]
    for i in range(n):
        p = pairs[0][i] - begin
        out_probe[places[p]], out_row[places[p]] = pairs[0][i], pairs[1][i]
        places[p] += 1


@kernel
def condition_pairs(
    program: I64, own: I64, stored: I64, registers: I64, ranges: tuple[I64, I64], begin: int, end: int,
    undecided: I64, out_probe: I64, out_row: I64,
) -> tuple[int, int]:  # fmt: skip
    """`nested.nested_pairs` by a condition, for rows from ranges[0] to ranges[1] of each probe."""
    room = out_probe.size
    pairs = np.empty(room, np.int64), np.empty(room, np.int64)
    done, n, group = begin, 0, GROUP
    while done < end:
        size = min(group, end - done)
        left = (pairs[0][: room - n], pairs[1][: room - n])
        found = _scan_group(program, own, stored, registers, done, size, ranges, left, undecided)
        if found < 0:
            if size == 1:
                break
            group = size // 2
            continue
        _in_order(left, found, done, size, out_probe[n:], out_row[n:])
        n, done, group = n + found, done + size, min(GROUP, 2 * group)
    return done, n


@kernel
def test_rows(program: I64, own: I64, stored: I64, registers: I64, rows: I64, n: int) -> tuple[int, bool]:
    """Move those of the first `n` rows that match a probe to the front; how many, and whether all were decided."""
    kept, decided = 0, True
    result = registers[program[0, RESULT]]
    for begin in range(0, n, BLOCK):
        count = min(BLOCK, n - begin)
        for column in range(program[0, COLUMNS]):
            for k in range(count):
                registers[column, k] = stored[rows[begin + k], column]
        hits = test_block(program, own, count, registers)
        decided = decided and hits >= 0
        for k in range(count):
            if hits < 0 or result[k] != 0:
                rows[kept] = rows[begin + k]
                kept += 1
    return kept, decided


@kernel
def scan_condition(
    program: I64, own: I64, stored: I64, seqs: I64, usable: Array, at: Array, min_seq: I64, upto: I64, state: I64,
    out_probe: I64, out_seq: I64,
) -> Any:  # fmt: skip
    """`nested.scan_window` by a condition; state[3] counts the undecided blocks, whose pairs all come out.

    `own` has a row for each tuple that looks for matches, `stored` one for each position of `seqs`.
    """
    begin, end = state[0], state[1]
    ranges = live_ranges(seqs, usable, at, min_seq, upto, begin, end)
    done, n = condition_pairs(
        program, own[begin:end], stored, registers_of(program), ranges, 0, end - begin, state[3:], out_probe, out_seq
    )
    for i in range(n):
        out_probe[i], out_seq[i] = at[begin + out_probe[i]], seqs[out_seq[i]]
    for i in range(done):
        state[2] += ranges[1][i] - ranges[0][i]
    state[0] = begin + done
    return n
