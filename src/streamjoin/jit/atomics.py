"""Atomic loads, stores and exchanges on the elements of an int64 array, yielding the processor, and sleeping.

Memory orders are no stronger than needed: a load acquires, a store releases, a read-modify-write does both. A thread
that `load`s a stored value sees everything written before the `store`. `fence` is for the one pattern that this does
not order, a store followed by a load of another word. Invariant: a word that several threads change is accessed only
through these functions.

A test build (STREAMJOIN_FORCED_YIELDS=n in the environment when the package is imported) yields the processor at about
every n-th of these accesses, at random, to provoke rare interleavings. With the JIT off each function has a Python
equivalent, made atomic by one lock.
"""

# ruff: noqa: ARG001 - intrinsics are called with more than they use
from __future__ import annotations

import platform
import threading
import time
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from streamjoin.jit.flags import YIELDING
from streamjoin.jit.machine import I64, address, choose, read_counter

# Once per call of the kernel, also inside a loop.
_on_stack: Any = cgutils.alloca_once
_YIELD_EVERY = int(YIELDING or 0)

# Linux sleeps on a word of memory (futex); elsewhere a sleeper looks again from time to time.
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if platform.system() == "Linux" else None
_WAIT, _WAKE = 128, 129  # within this process
_EVERYONE = (1 << 31) - 1
_LOOK_AGAIN_US = 50


def _call(builder: Any, name: str, *args: Any) -> None:
    """Call a function of the C library that takes and returns ints."""
    prototype = ir.FunctionType(ir.IntType(32), [arg.type for arg in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, prototype, name)
    builder.call(function, args)


def _disturb(builder: Any) -> None:
    """In a test build, sometimes yield the processor before a shared access, by the low digits of the clock."""
    if _YIELD_EVERY:
        counter = builder.lshr(read_counter(builder), ir.IntType(64)(3))
        chosen = builder.urem(counter, ir.IntType(64)(_YIELD_EVERY))
        with builder.if_then(builder.icmp_unsigned("==", chosen, ir.IntType(64)(0))):
            _call(builder, "sched_yield")


@intrinsic
def _load(typing_context: Any, words: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _disturb(builder)
        return builder.load_atomic(address(context, builder, signature.args[0], args[0], args[1]), "acquire", 8)

    return types.int64(words, types.int64), codegen


@intrinsic
def _store(typing_context: Any, words: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _disturb(builder)
        pointer = address(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), codegen


@intrinsic
def _swap_if(typing_context: Any, words: Any, index: Any, expected: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _disturb(builder)
        pointer = address(context, builder, signature.args[0], args[0], args[1])
        outcome = builder.cmpxchg(pointer, args[2], args[3], "acq_rel", "acquire")
        return builder.extract_value(outcome, 1)

    return types.boolean(words, types.int64, types.int64, types.int64), codegen


def _change(operation: str) -> Any:
    @intrinsic
    def change(typing_context: Any, words: Any, index: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _disturb(builder)
            pointer = address(context, builder, signature.args[0], args[0], args[1])
            return builder.atomic_rmw(operation, pointer, args[2], "acq_rel")

        return types.int64(words, types.int64, types.int64), codegen

    return change


@intrinsic
def _fence(typing_context: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _give_way(typing_context: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _call(builder, "sched_yield")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _pause(typing_context: Any, microseconds: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _call(builder, "usleep", builder.trunc(args[0], ir.IntType(32)))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


def _futex(builder: Any, word: Any, operation: int, value: Any, timeout: Any) -> None:
    """The system call futex(word, operation, value, timeout)."""
    number = ir.IntType(64)
    prototype = ir.FunctionType(number, [number], var_arg=True)
    function = builder.module.globals.get("syscall") or ir.Function(builder.module, prototype, "syscall")
    none = ir.IntType(8).as_pointer()(None)
    builder.call(function, [number(_FUTEX), word, number(operation), value, timeout, none, number(0)])


@intrinsic
def _sleep_on(typing_context: Any, words: Any, index: Any, expected: Any, microseconds: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _FUTEX is None:
            _call(builder, "usleep", ir.IntType(32)(_LOOK_AGAIN_US))
            return context.get_dummy_value()
        number = ir.IntType(64)
        pointer = address(context, builder, signature.args[0], args[0], args[1])
        # A `timespec`: seconds, nanoseconds.
        until = _on_stack(builder, number, 2)
        builder.store(builder.udiv(args[3], number(1_000_000)), until)
        rest = builder.mul(builder.urem(args[3], number(1_000_000)), number(1_000))
        builder.store(rest, builder.gep(until, [ir.IntType(32)(1)]))
        _futex(builder, pointer, _WAIT, args[2], until)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64, types.int64), codegen


@intrinsic
def _wake(typing_context: Any, words: Any, index: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _FUTEX is not None:
            number = ir.IntType(64)
            pointer = address(context, builder, signature.args[0], args[0], args[1])
            _futex(builder, pointer, _WAKE, number(_EVERYONE), ir.IntType(8).as_pointer()(None))
        return context.get_dummy_value()

    return types.void(words, types.int64), codegen


_ONE_AT_A_TIME = threading.RLock()


def _plain_load(words: I64, index: int) -> int:
    with _ONE_AT_A_TIME:
        return int(words[index])


def _plain_store(words: I64, index: int, value: int) -> None:
    with _ONE_AT_A_TIME:
        words[index] = value


def _plain_swap_if(words: I64, index: int, expected: int, value: int) -> bool:
    with _ONE_AT_A_TIME:
        same = bool(words[index] == expected)
        if same:
            words[index] = value
        return same


def _plain_change(combine: Callable[[int, int], int]) -> Callable[[I64, int, int], int]:
    def change(words: I64, index: int, value: int) -> int:
        with _ONE_AT_A_TIME:
            before = int(words[index])
            words[index] = combine(before, value)
            return before

    return change


def _plain_give_way() -> None:
    time.sleep(0)


def _plain_pause(microseconds: int) -> None:
    time.sleep(microseconds / 1e6)


def _plain_sleep_on(words: I64, index: int, expected: int, microseconds: int) -> None:
    if _plain_load(words, index) == expected:
        time.sleep(min(microseconds, _LOOK_AGAIN_US) / 1e6)


def _plain_wake(words: I64, index: int) -> None:
    """Sleepers look again by themselves."""


load: Callable[[I64, int], int] = choose(_load, _plain_load)
"""The word at `index`, and all that its writer had written before."""
store: Callable[[I64, int, int], None] = choose(_store, _plain_store)
"""Write the word at `index`, after all that was written before."""
swap_if: Callable[[I64, int, int, int], bool] = choose(_swap_if, _plain_swap_if)
"""Compare and swap: write `value` if the word is `expected`; whether it was."""
add: Callable[[I64, int, int], int] = choose(_change("add"), _plain_change(int.__add__))
"""Fetch and add: the word before."""
exchange: Callable[[I64, int, int], int] = choose(_change("xchg"), _plain_change(lambda _, value: value))
"""Write the word; returns what it was."""
fence: Callable[[], None] = choose(_fence, lambda: None)
give_way = choose(_give_way, _plain_give_way)
pause = choose(_pause, _plain_pause)
sleep_on: Callable[[I64, int, int, int], None] = choose(_sleep_on, _plain_sleep_on)
"""Sleep while the word at `index` is `expected`, in its lower half, until `wake` or a timeout in microseconds."""
wake: Callable[[I64, int], None] = choose(_wake, _plain_wake)
"""Wake all that sleep on the word at `index`, after it was changed."""
