"""Values at addresses: how a kernel reads Arrow's memory and stored columns without an array for each of them.

Each intrinsic has a plain Python twin for runs without the JIT. Invariant: an address is that of a value that the
caller keeps alive; nothing here checks it. Values need not be aligned.
"""

# ruff: noqa: ARG001 - intrinsics are called with more than they use
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

from streamjoin.jit.flags import inlined
from streamjoin.jit.machine import choose

_WORD = ir.IntType(64)
_SIGNED = {8: ctypes.c_int8, 16: ctypes.c_int16, 32: ctypes.c_int32, 64: ctypes.c_int64}


def _loader(bits: int) -> Callable[[int], int]:
    """A function that reads a signed integer of `bits` bits as an int64."""

    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return value if bits == 64 else builder.sext(value, _WORD)

        return types.int64(types.int64), codegen

    def plain(address: int) -> int:
        return int(_SIGNED[bits].from_address(int(address)).value)

    return choose(load, plain)


def _storer(bits: int) -> Callable[[int, int], None]:
    """A function that writes the low bits of an int64."""

    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.IntType(bits)
            value = args[1] if bits == 64 else builder.trunc(args[1], kind)
            builder.store(value, builder.inttoptr(args[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    def plain(address: int, value: int) -> None:
        _SIGNED[bits].from_address(int(address)).value = int(value)

    return choose(store, plain)


@intrinsic
def _prefetch_at(typing_context: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        flag = ir.IntType(32)
        prototype = ir.FunctionType(ir.VoidType(), [target.type, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [target.type], prototype)
        builder.call(function, [target, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def _call_at(typing_context: Any, function: Any, argument: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_WORD])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _as_pointer(typing_context: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], _WORD.as_pointer())

    pointer: Any = types.CPointer
    return pointer(types.int64)(types.int64), codegen


_pointer_to: Any = _as_pointer


@inlined
def _words_at(address: int, n: int) -> Any:
    return carray(_pointer_to(address), (n,))


def _plain_words_at(address: int, n: int) -> Any:
    """The `n` words at an address as an array."""
    return np.ctypeslib.as_array((ctypes.c_int64 * int(n)).from_address(int(address)))


def _plain_call_at(function: int, argument: int) -> None:
    """Call a C function that takes an address and returns nothing."""
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(function))(int(argument))


def _plain_prefetch_at(address: int) -> None:
    return None


load_8, load_16, load_32, load_64 = (_loader(bits) for bits in (8, 16, 32, 64))
store_8, store_16, store_32, store_64 = (_storer(bits) for bits in (8, 16, 32, 64))
prefetch_at = choose(_prefetch_at, _plain_prefetch_at)
call_at = choose(_call_at, _plain_call_at)
words_at = choose(_words_at, _plain_words_at)
