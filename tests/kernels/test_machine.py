"""Each intrinsic against its plain Python twin."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from streamjoin.jit import machine
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64

EXTREMES = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]


@kernel
def masks(words: I64, base: int, key: int) -> tuple[int, int, int, int]:
    return (
        machine.below_8(words, base, key),
        machine.upto_8(words, base, key),
        machine.below_32(words, base, key),
        machine.upto_32(words, base, key),
    )


@kernel
def scalars(word: int, bits: int) -> tuple[int, int, int]:
    return machine.count_bits(word), machine.lowest_bit(word), machine.mix(word, bits)


@kernel
def shift(words: I64, target: int, source: int, count: int) -> None:
    machine.prefetch(words, source)
    machine.move_words(words, target, source, count)


@pytest.mark.parametrize("key", EXTREMES)
def test_lane_masks_compare_signed_words_at_any_alignment(key: int) -> None:
    words = np.random.default_rng(1).choice(np.array(EXTREMES), 64)
    for base in (0, 3, 8, 31):
        lanes = [sum(1 << j for j in range(width) if words[base + j] < key) for width in (8, 32)]
        equal = [sum(1 << j for j in range(width) if words[base + j] == key) for width in (8, 32)]
        assert masks(words, base, key) == (lanes[0], lanes[0] | equal[0], lanes[1], lanes[1] | equal[1])


@pytest.mark.parametrize("word", [1, 6, 2**40 + 8, -1, -(2**63), 12345678901])
def test_bit_counts_and_hashes_match_plain_python(word: int) -> None:
    unsigned = word & (2**64 - 1)
    count, lowest, hashed = scalars(word, 20)
    assert count == unsigned.bit_count()
    assert lowest == (unsigned & -unsigned).bit_length() - 1
    assert hashed == machine._plain_mix(word, 20) < 2**20


def test_hashes_of_neighbours_spread() -> None:
    buckets = {scalars(word, 12)[2] for word in range(1, 4097)}
    assert len(buckets) > 2400  # 2589 of 4096 are expected of a random function


@pytest.mark.parametrize(("target", "source"), [(5, 2), (2, 5), (4, 4)])
def test_moves_may_overlap(target: int, source: int) -> None:
    words = np.arange(16)
    expected = words.copy()
    expected[target : target + 6] = words[source : source + 6]
    shift(words, target, source, 6)
    assert words.tolist() == expected.tolist()


pack_by_steps = machine.choose(machine.packer(machine._compress_by_steps), machine._plain_pack_8)


@kernel
def pack(words: I64, target: int, source: int, mask: int) -> None:
    machine.pack_8(words, target, source, mask)


@kernel
def pack_without_the_instruction(words: I64, target: int, source: int, mask: int) -> None:
    pack_by_steps(words, target, source, mask)


@pytest.mark.parametrize("copy", [pack, pack_without_the_instruction, machine._plain_pack_8])
def test_chosen_words_are_packed(copy: Callable[[I64, int, int, int], None]) -> None:
    words = np.arange(100, 132)
    for mask in [0, 255, 1, 128, 0b10100110, *range(16, 64, 5)]:
        moved = words.copy()
        copy(moved, 3, 15, mask)
        chosen = [115 + lane for lane in range(8) if mask >> lane & 1]
        assert moved[3 : 3 + len(chosen)].tolist() == chosen
        outside = np.r_[0:3, 11:32]
        assert moved[outside].tolist() == words[outside].tolist()


emit_by_steps = machine.choose(machine.emitter(machine._compress_by_steps), machine._plain_emit_8)


@kernel
def emit(goal: I64, target: int, words: I64, source: int, mask: int, addend: int) -> None:
    machine.emit_8(goal, target, words, source, mask, addend)


@kernel
def emit_without_the_instruction(goal: I64, target: int, words: I64, source: int, mask: int, addend: int) -> None:
    emit_by_steps(goal, target, words, source, mask, addend)


@pytest.mark.parametrize("copy", [emit, emit_without_the_instruction, machine._plain_emit_8])
def test_chosen_words_are_emitted_with_a_number_added(copy: Callable[[I64, int, I64, int, int, int], None]) -> None:
    words = np.arange(100, 132)
    for mask in [0, 255, 1, 128, 0b10100110]:
        goal = np.zeros(16, np.int64)
        copy(goal, 3, words, 15, mask, -7)
        chosen = [108 + lane for lane in range(8) if mask >> lane & 1]
        assert goal[3 : 3 + len(chosen)].tolist() == chosen
        assert not goal[[0, 1, 2, 11, 12, 13, 14, 15]].any()


@kernel
def sort_across(goal: I64, words: I64, base: int, count: int) -> None:
    machine.sort_8_across(goal, words, base, count)


@pytest.mark.parametrize("sort", [sort_across, machine._plain_sort_8_across])
def test_words_are_sorted_into_another_array(sort: Callable[[I64, I64, int, int], None]) -> None:
    rng = np.random.default_rng(3)
    for count in range(9):
        words, goal = rng.choice(np.array(EXTREMES), 20), np.full(20, 5)
        before = words.copy()
        sort(goal, words, 4, count)
        assert goal[4 : 4 + count].tolist() == sorted(before[4 : 4 + count].tolist())
        assert goal[:4].tolist() == [5] * 4
        assert goal[12:].tolist() == [5] * 8
        assert words.tolist() == before.tolist()
