"""The few machine instructions that NumPy notation cannot express, as Numba intrinsics.

Each has a plain Python twin that takes its place when the JIT is off, so that every kernel built on
them also runs as ordinary Python. Invariant: an intrinsic reads and writes only the words named by its
arguments; `prefetch` may name any address, since a prefetch never faults. Array indexes are never
negative here, which spares the wrap-around test that Numba puts on every subscript.
"""

# ruff: noqa: ARG001 - intrinsics are called with more than they use
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from llvmlite.binding import llvm_version_info
from numba import config, types
from numba.extending import intrinsic

I64 = npt.NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])

_WORD = ir.IntType(64)
_MASK_64 = (1 << 64) - 1
_FIRST_WITH_COMPRESS = 20  # the LLVM whose vector compression is an instruction where there is one
_MULTIPLIER = 0x9E3779B97F4A7C15


def address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """The pointer to an array's element, for intrinsics."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index], inbounds=True)


def choose(compiled: Any, plain: F) -> F:
    """The intrinsic, or its twin when the JIT is off."""
    chosen: F = plain if getattr(config, "DISABLE_JIT", False) else compiled
    return chosen


def _every_lane(builder: Any, word: Any, width: int) -> Any:
    """A vector of the same word in every lane."""
    vector = ir.VectorType(_WORD, width)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), word, ir.IntType(32)(0))
    order = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), order)


def _eight(context: Any, builder: Any, signature: Any, args: Any, array: int, index: int) -> Any:
    """The pointer to eight words, by the places of an array and of an index among the arguments."""
    pointer = address(context, builder, signature.args[array], args[array], args[index])
    return builder.bitcast(pointer, ir.VectorType(_WORD, 8).as_pointer())


def _chosen(builder: Any, mask: Any) -> Any:
    """The lowest eight bits of a word, one for each lane."""
    return builder.bitcast(builder.trunc(mask, ir.IntType(8)), ir.VectorType(ir.IntType(1), 8))


def _lane_mask(width: int, predicate: str) -> Callable[..., int]:
    """Compare `width` consecutive words with a key at once; bit j of the answer is lane j."""

    @intrinsic
    def lanes(typing_context: Any, words: Any, base: Any, key: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector = ir.VectorType(_WORD, width)
            pointer = address(context, builder, signature.args[0], args[0], args[1])
            loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=8)
            keys = _every_lane(builder, args[2], width)
            bits = builder.bitcast(builder.icmp_signed(predicate, loaded, keys), ir.IntType(width))
            return builder.zext(bits, _WORD)

        return types.int64(words, types.int64, types.int64), codegen

    def plain(words: I64, base: int, key: int) -> int:
        block = words[base : base + width]
        hits = block < key if predicate == "<" else block <= key
        return sum(1 << lane for lane in range(width) if hits[lane])

    return choose(lanes, plain)


def _unary(name: str) -> Callable[[int], int]:
    @intrinsic
    def apply(typing_context: Any, bits: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.ctpop(args[0]) if name == "ctpop" else builder.cttz(args[0], ir.IntType(1)(0))

        return types.int64(types.int64), codegen

    def plain(bits: int) -> int:
        bits = int(bits)
        return bits.bit_count() if name == "ctpop" else (bits & -bits).bit_length() - 1

    return choose(apply, plain)


below_8 = _lane_mask(8, "<")
below_16 = _lane_mask(16, "<")
below_32 = _lane_mask(32, "<")
upto_8 = _lane_mask(8, "<=")
upto_32 = _lane_mask(32, "<=")
count_bits = _unary("ctpop")
lowest_bit = _unary("cttz")


def _prefetcher(writes: int) -> Any:
    @intrinsic
    def start(typing_context: Any, words: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = address(context, builder, signature.args[0], args[0], args[1])
            target = builder.bitcast(pointer, ir.IntType(8).as_pointer())
            flag = ir.IntType(32)
            prototype = ir.FunctionType(ir.VoidType(), [target.type, flag, flag, flag])
            function = builder.module.declare_intrinsic("llvm.prefetch", [target.type], prototype)
            builder.call(function, [target, flag(writes), flag(3), flag(1)])
            return context.get_dummy_value()

        return types.void(words, types.int64), codegen

    return start


@intrinsic
def _borrow(typing_context: Any, words: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, args[0])
        view.meminfo = ir.Constant(view.meminfo.type, None)
        view.parent = ir.Constant(view.parent.type, None)
        return view._getvalue()

    return words(words), codegen


def read_counter(builder: Any) -> Any:
    """The cycle counter, for intrinsics."""
    name = "llvm.readcyclecounter"
    function = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(_WORD, []), name)
    return builder.call(function, [])


@intrinsic
def _cycles(typing_context: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return read_counter(builder)

    return types.int64(), codegen


@intrinsic
def _move_words(typing_context: Any, words: Any, target: Any, source: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        to, origin = (
            builder.bitcast(address(context, builder, signature.args[0], args[0], args[k]), byte) for k in (1, 2)
        )
        function = builder.module.declare_intrinsic("llvm.memmove", [byte, byte, _WORD])
        size = builder.shl(args[3], _WORD(3))
        builder.call(function, [to, origin, size, ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64, types.int64), codegen


def _compress(builder: Any, loaded: Any, chosen: Any) -> Any:
    """The chosen lanes of a vector moved together; one instruction with AVX-512."""
    name = "llvm.experimental.vector.compress.v8i64"
    prototype = ir.FunctionType(loaded.type, [loaded.type, chosen.type, loaded.type])
    function = builder.module.globals.get(name) or ir.Function(builder.module, prototype, name)
    return builder.call(function, [loaded, chosen, ir.Constant(loaded.type, ir.Undefined)])


def _compress_by_steps(builder: Any, loaded: Any, chosen: Any) -> Any:
    """The same for an LLVM without this instruction: each lane is written, and advances if it is chosen."""
    index = ir.IntType(32)
    buffer = builder.alloca(_WORD, 8)
    at = index(0)
    for lane in range(8):
        builder.store(builder.extract_element(loaded, index(lane)), builder.gep(buffer, [at]))
        at = builder.add(at, builder.zext(builder.extract_element(chosen, index(lane)), index))
    return builder.load(builder.bitcast(buffer, loaded.type.as_pointer()), align=8)


def packer(compress: Callable[..., Any]) -> Any:
    """The intrinsic that copies those of eight words whose bits are set."""

    @intrinsic
    def pack(typing_context: Any, words: Any, target: Any, source: Any, mask: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            to, origin = (_eight(context, builder, signature, args, 0, index) for index in (1, 2))
            packed = compress(builder, builder.load(origin, align=8), _chosen(builder, args[3]))
            builder.store(packed, to, align=8)
            return context.get_dummy_value()

        return types.void(words, types.int64, types.int64, types.int64), codegen

    return pack


def packer_across(compress: Callable[..., Any]) -> Any:
    """The same from one array to another."""

    @intrinsic
    def pack(typing_context: Any, goal: Any, target: Any, words: Any, source: Any, mask: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            to, origin = (_eight(context, builder, signature, args, array, array + 1) for array in (0, 2))
            packed = compress(builder, builder.load(origin, align=8), _chosen(builder, args[4]))
            builder.store(packed, to, align=8)
            return context.get_dummy_value()

        return types.void(goal, types.int64, words, types.int64, types.int64), codegen

    return pack


def emitter(compress: Callable[..., Any]) -> Any:
    """The intrinsic that copies those of eight words whose bits are set, with a number added to each."""

    @intrinsic
    def emit(typing_context: Any, goal: Any, target: Any, words: Any, source: Any, mask: Any, addend: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            to, origin = (_eight(context, builder, signature, args, array, array + 1) for array in (0, 2))
            total = builder.add(builder.load(origin, align=8), _every_lane(builder, args[5], 8))
            builder.store(compress(builder, total, _chosen(builder, args[4])), to, align=8)
            return context.get_dummy_value()

        return types.void(goal, types.int64, words, types.int64, types.int64, types.int64), codegen

    return emit


# Batcher's odd-even merge sort of eight lanes: the pairs of a layer are compared and exchanged at once.
_NETWORK = (
    ((0, 1), (2, 3), (4, 5), (6, 7)),
    ((0, 2), (1, 3), (4, 6), (5, 7)),
    ((1, 2), (5, 6)),
    ((0, 4), (1, 5), (2, 6), (3, 7)),
    ((2, 4), (3, 5)),
    ((1, 2), (3, 4), (5, 6)),
)


def _exchange(builder: Any, lanes: Any, pairs: tuple[tuple[int, int], ...]) -> Any:
    """Put the smaller of each pair of lanes into its first."""
    order = ir.VectorType(ir.IntType(32), 8)
    partner, source = list(range(8)), list(range(8))
    for low, high in pairs:
        partner[low], partner[high], source[high] = high, low, high + 8
    other = builder.shuffle_vector(lanes, ir.Constant(lanes.type, ir.Undefined), ir.Constant(order, partner))
    less = builder.icmp_signed("<", lanes, other)
    smaller, larger = builder.select(less, lanes, other), builder.select(less, other, lanes)
    return builder.shuffle_vector(smaller, larger, ir.Constant(order, source))


def _sorted(builder: Any, loaded: Any, count: Any) -> tuple[Any, Any]:
    """Which lanes are the first `count`, and a vector of those, sorted."""
    inside = _chosen(builder, builder.sub(builder.shl(_WORD(1), count), _WORD(1)))
    lanes = builder.select(inside, loaded, ir.Constant(loaded.type, [(1 << 63) - 1] * 8))
    for pairs in _NETWORK:
        lanes = _exchange(builder, lanes, pairs)
    return inside, lanes


@intrinsic
def _sort_8(typing_context: Any, words: Any, base: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _eight(context, builder, signature, args, 0, 1)
        loaded = builder.load(pointer, align=8)
        inside, lanes = _sorted(builder, loaded, args[2])
        builder.store(builder.select(inside, lanes, loaded), pointer, align=8)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), codegen


@intrinsic
def _sort_8_across(typing_context: Any, goal: Any, words: Any, base: Any, count: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, origin = (_eight(context, builder, signature, args, array, 2) for array in (0, 1))
        _, lanes = _sorted(builder, builder.load(origin, align=8), args[3])
        builder.store(lanes, to, align=8)
        return context.get_dummy_value()

    return types.void(goal, words, types.int64, types.int64), codegen


@intrinsic
def _mix(typing_context: Any, word: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        product = builder.mul(args[0], ir.Constant(_WORD, _MULTIPLIER))
        folded = builder.xor(product, builder.lshr(product, _WORD(32)))
        product = builder.mul(folded, ir.Constant(_WORD, _MULTIPLIER))
        return builder.lshr(product, builder.sub(_WORD(64), args[1]))

    return types.int64(types.int64, types.int64), codegen


def _plain_prefetch(words: I64, index: int) -> None:
    return None


def _plain_borrow(words: I64) -> I64:
    """The same array without an owner: its reference count, an atomic word, is left alone from here on."""
    return words


def _plain_cycles() -> int:
    return time.perf_counter_ns()


def _plain_move_words(words: I64, target: int, source: int, count: int) -> None:
    words[target : target + count] = words[source : source + count].copy()


def _plain_pack_8(words: I64, target: int, source: int, mask: int) -> None:
    """Copy those of eight words whose bits are set, in order; the rest of the eight words written is arbitrary."""
    chosen = [words[source + lane] for lane in range(8) if mask >> lane & 1]
    words[target : target + 8] = chosen + [0] * (8 - len(chosen))


def _plain_pack_8_across(goal: I64, target: int, words: I64, source: int, mask: int) -> None:
    """Copy those of eight words of one array whose bits are set to another, as `pack_8` does within one."""
    chosen = [words[source + lane] for lane in range(8) if mask >> lane & 1]
    goal[target : target + 8] = chosen + [0] * (8 - len(chosen))


def _plain_emit_8(goal: I64, target: int, words: I64, source: int, mask: int, addend: int) -> None:
    """Copy those of eight words whose bits are set, plus `addend`; the rest of the eight words written is arbitrary."""
    chosen = [words[source + lane] + addend for lane in range(8) if mask >> lane & 1]
    goal[target : target + 8] = chosen + [0] * (8 - len(chosen))


def _plain_sort_8_across(goal: I64, words: I64, base: int, count: int) -> None:
    """Sort `count` of the eight words from `base` on into another array; the rest of the eight written is arbitrary."""
    goal[base : base + count] = np.sort(words[base : base + count])


def _plain_sort_8(words: I64, base: int, count: int) -> None:
    """Sort the first `count` of eight words without a branch; the others are read, and written back as they were."""
    words[base : base + count] = np.sort(words[base : base + count])


def _plain_mix(word: int, bits: int) -> int:
    product = (int(word) * _MULTIPLIER) & _MASK_64
    product = ((product ^ (product >> 32)) * _MULTIPLIER) & _MASK_64
    return product >> (64 - int(bits))


prefetch = choose(_prefetcher(0), _plain_prefetch)
prefetch_to_write = choose(_prefetcher(1), _plain_prefetch)
borrow = choose(_borrow, _plain_borrow)
cycles = choose(_cycles, _plain_cycles)
move_words = choose(_move_words, _plain_move_words)
_COMPRESS = _compress if llvm_version_info[0] >= _FIRST_WITH_COMPRESS else _compress_by_steps
pack_8 = choose(packer(_COMPRESS), _plain_pack_8)
pack_8_across = choose(packer_across(_COMPRESS), _plain_pack_8_across)
emit_8 = choose(emitter(_COMPRESS), _plain_emit_8)
sort_8 = choose(_sort_8, _plain_sort_8)
sort_8_across = choose(_sort_8_across, _plain_sort_8_across)
mix = choose(_mix, _plain_mix)
