"""Writes the tuples of a chunk into the memory of a queue (`work_queue`), in gate order and each side in line."""

from __future__ import annotations

from streamjoin._arrays import Array
from streamjoin.kernels.flags import kernel, melted
from streamjoin.kernels.pim_parallel.work_queue import HI, LO, MIN_SEQ, OPS, SEQ, UPTO, WORD
from streamjoin.kernels.trees.task import ON_RIGHT


@melted
def _write(
    words: Array, stride: int, apart: int, row: int, line: int, place: int, use: int, op: int,
    word: Array, lo: Array, hi: Array, valid: Array,
) -> None:  # fmt: skip
    """One tuple's words, which are at `place` of its side; one that can't match does nothing."""
    counts = valid.size == 0 or valid[place]
    words[OPS * stride + row] = op | use if counts else op
    words[WORD * stride + row] = word[place]
    words[LO * stride + row] = lo[place]
    words[HI * stride + row] = hi[place]
    words[line] = word[place]
    words[line + apart] = 1 if counts else 0


@kernel
def write_tuples(
    words: Array,
    stride: int,
    apart: int,
    lines: Array,
    at: int,
    begin: int,
    end: int,
    use: int,
    is_right: Array,
    own_seq: Array,
    min_seq: Array,
    upto: Array,
    left_word: Array,
    left_lo: Array,
    left_hi: Array,
    left_valid: Array,
    left_first: int,
    right_word: Array,
    right_lo: Array,
    right_hi: Array,
    right_valid: Array,
    right_first: int,
) -> None:
    """Write the tuples `begin` to `end` of a chunk to the rows from `at` on.

    The rows of `lines` are where a side's line begins and the position of its first tuple; `use` is what tuples do that
    can match.
    """
    for i in range(begin, end):
        seq, row = own_seq[i], at + i
        words[SEQ * stride + row] = seq
        words[MIN_SEQ * stride + row] = min_seq[i]
        words[UPTO * stride + row] = upto[i]
        if is_right[i]:
            line = lines[1, 0] + seq - lines[1, 1]
            _write(
                words, stride, apart, row, line, seq - right_first, use, ON_RIGHT,
                right_word, right_lo, right_hi, right_valid,
            )  # fmt: skip
        else:
            line = lines[0, 0] + seq - lines[0, 1]
            _write(
                words, stride, apart, row, line, seq - left_first, use, 0, left_word, left_lo, left_hi, left_valid
            )  # fmt: skip
