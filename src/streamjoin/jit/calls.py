"""Calls of a kernel as data, which threads carry out without going back to the interpreter in between.

A thread that returns from a kernel, or is about to call one, needs the interpreter's lock; with sixteen threads that
took longer than most steps of a join. Here helper threads stay in one kernel (`serve`) and take calls from a board. A
call is a block of words: the address of the kernel's machine code, room for its result, and the arguments as the code
expects them. A small function for each list of argument kinds, the trampoline, loads them and jumps.

Invariants: the word at `TICKET` counts the boards' rounds in its upper part and the calls that are not taken yet in its
lower part; whoever lowers it by one takes the call of that number, and only while the round is not over, so the other
words of the board are those of its round. `run` returns when all calls of its round are done; it takes calls itself
and needs no helper. An array among the arguments is kept alive by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, typeof
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from streamjoin._arrays import Array
from streamjoin.jit.atomics import add, give_way, load, sleep_on, store, swap_if, wake
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.jit.memory import call_at, load_64

TICKET, DONE, TRAMPOLINE, BLOCKS, SIZE, CALLS = 0, 8, 16, 17, 18, 19
"""The words of a board; the first two are changed by all threads and have cache lines of their own."""
BOARD_WORDS = 24
_ROUND_BITS = 16
MOST_CALLS = (1 << _ROUND_BITS) - 1
_LEAVE = -1
_YIELDS = 64
_SLEEP_US = 1_000_000

_FUNCTION, _RESULT, _ERROR, _STATUS, _ARGUMENTS = range(5)
# Of an array's words.
_SIZE, _DATA, _SHAPE = 2, 4, 5
_WORD = ir.IntType(64)
# Numba has no types.
_typeof: Any = typeof
_target: Any = cpu_target
_lock: Any = global_compiler_lock


@kernel
def _take(board: I64) -> bool:
    """Carry out one call of the board; False if there is none."""
    ticket = load(board, TICKET)
    while ticket > 0 and ticket & MOST_CALLS:
        trampoline, calls = board[TRAMPOLINE], board[CALLS]
        at = board[BLOCKS] + ((ticket & MOST_CALLS) - 1) * board[SIZE]
        if swap_if(board, TICKET, ticket, ticket - 1):
            call_at(trampoline, at)
            if add(board, DONE, 1) + 1 == calls:
                wake(board, DONE)
            return True
        ticket = load(board, TICKET)
    return False


@kernel
def serve(board: I64) -> None:
    """Take calls until the board is closed; between them, yield for a while, then sleep."""
    tries = 0
    while load(board, TICKET) != _LEAVE:
        if _take(board):
            tries = 0
            continue
        tries += 1
        if tries < _YIELDS:
            give_way()
            continue
        ticket = load(board, TICKET)
        if ticket != _LEAVE and ticket & MOST_CALLS == 0:
            sleep_on(board, TICKET, ticket, _SLEEP_US)


@kernel
def run(board: I64, trampoline: int, blocks: int, size: int, calls: int) -> int:
    """Put calls on the board, take part in them, and wait until all are done; the first that failed plus 1, or 0."""
    board[TRAMPOLINE], board[BLOCKS], board[SIZE], board[CALLS] = trampoline, blocks, size, calls
    store(board, DONE, 0)
    store(board, TICKET, (((load(board, TICKET) >> _ROUND_BITS) + 1) << _ROUND_BITS) | calls)
    wake(board, TICKET)
    while _take(board):
        pass
    tries = 0
    done = load(board, DONE)
    while done < calls:
        tries += 1
        if tries < _YIELDS:
            give_way()
        else:
            sleep_on(board, DONE, done, _SLEEP_US)
        done = load(board, DONE)
    for call in range(calls):
        if load_64(blocks + call * size + 8 * _STATUS) != 0:
            return call + 1
    return 0


@kernel
def close(board: I64) -> None:
    """Let all helpers leave."""
    store(board, TICKET, _LEAVE)
    wake(board, TICKET)


def new_board() -> Array:
    """A board without calls."""
    words = np.zeros(BOARD_WORDS + 8, np.int64)
    first = -words.ctypes.data // 8 % 8
    board = words[first : first + BOARD_WORDS]
    board[TICKET] = 1 << _ROUND_BITS
    return board


def are_possible() -> bool:
    """Whether kernels have machine code."""
    return not getattr(config, "DISABLE_JIT", False)


@dataclass(frozen=True)
class Each:
    """An integer of its own for each call."""

    values: Sequence[int] | Array

    def of(self, k: int) -> int:
        """That of call k."""
        return int(self.values[k])


@dataclass(frozen=True)
class Cut:
    """A range of one array for each call."""

    array: Array
    begins: Sequence[int] | Array
    ends: Sequence[int] | Array

    def of(self, k: int) -> Array:
        """That of call k."""
        return self.array[self.begins[k] : self.ends[k]]


@dataclass(frozen=True)
class Row:
    """A row of one array for each call; the array is contiguous."""

    array: Array

    def of(self, k: int) -> Array:
        """That of call k."""
        row: Array = self.array[k]
        return row


@dataclass(frozen=True)
class Own:
    """An array of its own, of the same type and in any layout, for each call."""

    arrays: Sequence[Array]

    def of(self, k: int) -> Array:
        """That of call k."""
        return self.arrays[k]


class KernelCalls:
    """Calls of a kernel, whose arguments are integers and arrays: the same in all calls, or of the classes above."""

    def __init__(self, n: int, *arguments: Any) -> None:
        self.n = n
        self._arguments = arguments

    def of(self, k: int) -> tuple[Any, ...]:
        """The arguments of call k."""
        return tuple(each.of(k) if isinstance(each, Each | Cut | Row | Own) else each for each in self._arguments)

    def blocks(self, kernel: Any) -> Array:
        """The block of each call."""
        samples = [_sample(argument) for argument in self._arguments]
        words = [_code(kernel, samples), 0, 0, 0]
        begins = []
        for sample in samples:
            begins.append(len(words))
            words += _words(sample)
        blocks = np.empty((self.n, len(words)), np.int64)
        blocks[:] = words
        for argument, begin in zip(self._arguments, begins, strict=True):
            if isinstance(argument, Each):
                blocks[:, begin] = argument.values
            elif isinstance(argument, Cut):
                first = np.asarray(argument.begins)
                size = argument.array.size // len(argument.array) if argument.array.size else 0
                lengths = np.asarray(argument.ends) - first
                blocks[:, begin + _DATA] += first * argument.array.strides[0]
                blocks[:, begin + _SHAPE], blocks[:, begin + _SIZE] = lengths, lengths * size
            elif isinstance(argument, Row):
                blocks[:, begin + _DATA] += np.arange(self.n) * argument.array.strides[0]
            elif isinstance(argument, Own):
                for block, array in zip(blocks, argument.arrays, strict=True):
                    block[begin : begin + _SHAPE + 2 * array.ndim] = _words(array)
        own = [argument.arrays for argument in self._arguments if isinstance(argument, Own)]
        if any(len({array.flags.num for array in arrays}) > 1 for arrays in own):
            # Code for contiguous arrays does not look at how far apart their values are.
            blocks[:, _FUNCTION] = [_code(kernel, self.of(k)) for k in range(self.n)]
        return blocks


def _sample(argument: Any) -> Any:
    """A value of an argument's type, whose words are those of the first call, or nearly."""
    match argument:
        case Each():
            return 0
        case Cut(array=array):
            return array
        case Row() | Own():
            return argument.of(0)
    return argument


def _words(argument: Any) -> tuple[int, ...]:
    """The words of an argument."""
    if not isinstance(argument, np.ndarray):
        return (int(argument),)
    # No owner: the reference count is left alone.
    return (0, 0, argument.size, argument.itemsize, argument.ctypes.data, *argument.shape, *argument.strides)


def run_calls(board: Array, kernel: Any, groups: Sequence[KernelCalls]) -> list[int]:
    """Carry out all calls; what they return, if that is an integer."""
    blocks = groups[0].blocks(kernel) if len(groups) == 1 else np.concatenate([each.blocks(kernel) for each in groups])
    trampoline = _trampoline(blocks.shape[1] - _ARGUMENTS)
    failed = run(board, trampoline, blocks.ctypes.data, blocks.strides[0], len(blocks))
    if failed:
        raise RuntimeError(f"{kernel.__name__} failed in call {failed} of {len(blocks)}")
    results: list[int] = blocks[:, _RESULT].tolist()
    return results


_codes: dict[tuple[Any, ...], int] = {}


def _code(kernel: Any, samples: Sequence[Any]) -> int:
    """The address of a kernel's machine code for such arguments."""
    key = kernel, *((s.dtype, s.ndim, s.flags.num) if isinstance(s, np.ndarray) else int for s in samples)
    code = _codes.get(key)
    if code is None:
        types = tuple(_typeof(sample if isinstance(sample, np.ndarray) else int(sample)) for sample in samples)
        with _lock:
            kernel.compile(types)
            overload = kernel.overloads[types]
            code = overload.library.get_pointer_to_function(overload.fndesc.llvm_func_name)
        _codes[key] = code
    return code


_libraries: list[Any] = []
"""What has machine code must not be collected."""


@cache
@_lock
def _trampoline(n: int) -> int:
    """The address of a function that takes a block and calls its code with the `n` words after the status."""
    library = _target.target_context.codegen().create_library(f"streamjoin_trampoline_{n}")
    module = library.create_ir_module(f"streamjoin_trampoline_{n}")
    # It is found by its name.
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD]), f"streamjoin_trampoline_{n}")
    builder = ir.IRBuilder(function.append_basic_block())
    block = builder.inttoptr(function.args[0], _WORD.as_pointer())

    def at(place: int) -> Any:
        return builder.gep(block, [_WORD(place)])

    # Pointers are passed like words. The code takes where its result and its error go, then the arguments.
    kind = ir.FunctionType(ir.IntType(32), [_WORD] * (n + 2))
    code = builder.inttoptr(builder.load(at(_FUNCTION)), kind.as_pointer())
    places = [builder.ptrtoint(at(place), _WORD) for place in (_RESULT, _ERROR)]
    status = builder.call(code, [*places, *(builder.load(at(_ARGUMENTS + i)) for i in range(n))])
    builder.store(builder.sext(status, _WORD), at(_STATUS))
    builder.ret_void()
    library.add_ir_module(module)
    library.finalize()
    _libraries.append(library)
    address: int = library.get_pointer_to_function(function.name)
    return address
