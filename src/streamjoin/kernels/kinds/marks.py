"""Matched marks by position, and which unmatched tuples leave their windows within a chunk.

A mark is UNMATCHED, MATCHED or GONE. Lists of leaving tuples are (place, position) in ascending order: the place in the
chunk of the tuple that finds them gone, and their own position.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.kernels.searching import first_from, gallop
from streamjoin.kernels.times import MAX, after

UNMATCHED, MATCHED, GONE = 0, 1, 2
_FEW = 256


@kernel
def mark(marks: Array, base: int, positions: Array, fresh: Array, count: Array) -> None:
    """Mark positions as matched; `fresh` gets those that were not, count[0] their number."""
    n = 0
    for i in range(positions.size):
        at = positions[i] - base
        fresh[n] = positions[i]
        n += marks[at] == UNMATCHED
        marks[at] = max(marks[at], MATCHED)
    count[0] = n


@kernel
def mark_left(
    probes: Array, seqs: Array, is_right: Array, own_seq: Array, marks: Array, base: int, fresh: Array, count: Array
) -> None:
    """`mark` for the left tuples of pairs."""
    n = 0
    for i in range(probes.size):
        p = probes[i]
        position = seqs[i] if is_right[p] else own_seq[p]
        at = position - base
        fresh[n] = position
        n += marks[at] == UNMATCHED
        marks[at] = max(marks[at], MATCHED)
    count[0] = n


@kernel
def keep_first(
    probes: Array, seqs: Array, is_right: Array, own_seq: Array, self_join: bool, rank: int, firsts: Array, base: int,
    fresh: Array, count: Array,
) -> int:  # fmt: skip
    """Keep the pairs that may be the first one of their left tuple, in place; returns their number.

    firsts[p] is the smallest rank so far; `rank` is that of the chunk's first tuple. In a self-join all pairs of the
    smallest rank are kept. A lost update between threads only keeps a pair too many: every rank in `firsts` is that of
    a kept pair. `fresh` gets the positions whose rank changed, count[0] their number.
    """
    kept, n = 0, 0
    for i in range(probes.size):
        p, seq = probes[i], seqs[i]
        position = seq if is_right[p] else own_seq[p]
        known, own = firsts[position - base], rank + (p >> 1 if self_join else p)
        probes[kept], seqs[kept] = p, seq
        kept += own < known or (self_join and own == known)
        fresh[n] = position
        n += own < known
        firsts[position - base] = min(known, own)
    count[0] = n
    return kept


@kernel
def take_firsts(firsts: Array, base: int, positions: Array, ranks: Array, keep: Array) -> None:
    """keep[i]: whether pair i, in result order, is the first of its position; that position is done then."""
    for i in range(positions.size):
        at = positions[i] - base
        keep[i] = firsts[at] == ranks[i]
        if keep[i]:
            firsts[at] = -1


@kernel
def lower_places(position: Array, partner: Array, rows: Array, new_position: Array, new_partner: Array) -> None:
    """Set position and partner of each of `rows`, which are where its first pair is, to new ones that come before."""
    for i in range(rows.size):
        row = rows[i]
        first, second = new_position[i], new_partner[i]
        if first < position[row] or (first == position[row] and second < partner[row]):
            position[row] = first
            partner[row] = second


@kernel
def find_marks(words: Array, seqs: Array, marked_words: Array, marked_seqs: Array, found: Array) -> None:
    """Set found[i] where (words[i], seqs[i]) is among the marks; both are sorted by word, and by nothing else.

    The longer one is skipped through: a batch looks up few rows among the marks of a long window, or the other way
    round. Where many rows and marks have one word, the rows are sorted.
    """
    i, j = 0, 0
    while i < words.size:
        j = gallop(marked_words, j, words[i])
        if j == marked_words.size:
            break
        word = marked_words[j]
        if words[i] != word:
            i = gallop(words, i, word)
            continue
        i_end, j_end = i + 1, j + 1
        while i_end < words.size and words[i_end] == word:
            i_end += 1
        while j_end < marked_words.size and marked_words[j_end] == word:
            j_end += 1
        if i_end - i == 1 or (i_end - i) * (j_end - j) <= _FEW:
            for row in range(i, i_end):
                for mark_ in range(j, j_end):
                    found[row] |= seqs[row] == marked_seqs[mark_]
        else:
            order = np.argsort(seqs[i:i_end])
            sorted_seqs = seqs[i:i_end][order]
            for mark_ in range(j, j_end):
                at = first_from(sorted_seqs, 0, sorted_seqs.size, marked_seqs[mark_])
                if at < sorted_seqs.size and sorted_seqs[at] == marked_seqs[mark_]:
                    found[i + order[at]] = True
        i, j = i_end, j_end


@kernel
def leave_by_time(
    marks: Array,
    base: int,
    begin: int,
    ticks: Array,
    ticks_base: int,
    size: int,
    chunk_ticks: Array,
    places: Array,
    positions: Array,
    cursor: Array,
) -> int:
    """The unmatched tuples that sorted `chunk_ticks` leave behind; cursor[0] becomes the first that stays."""
    n, place, p = 0, 0, begin
    end = ticks_base + ticks.size
    while p < end:
        bound = after(ticks[p - ticks_base], size)
        while place < chunk_ticks.size and chunk_ticks[place] <= bound:
            place += 1
        if place == chunk_ticks.size:
            break
        if marks[p - base] == UNMATCHED:
            places[n] = place
            positions[n] = p
            n += 1
        p += 1
    cursor[0] = p
    return n


@kernel
def leave_by_clock(
    marks: Array,
    base: int,
    begin: int,
    ticks: Array,
    ticks_base: int,
    size: int,
    horizons: Array,
    horizon_places: Array,
    own_places: Array,
    own_first: int,
    stop: int,
    places: Array,
    positions: Array,
    changed: Array,
    cursor: Array,
) -> int:
    """The unmatched tuples that the other side's ascending horizons leave behind, in the order of their positions.

    A tuple is gone where a horizon passes its time plus `size`. All tuples from the first on that reaches `stop` stay;
    the largest int64 as `stop` may stand for a later one, which none reaches.
    Tuples that are gone are marked; `changed` gets (position, old mark) of these, cursor[1] their number, and cursor[0]
    the first position that is not gone.
    """
    n, n_changed, p = 0, 0, begin
    end = ticks_base + ticks.size
    last = horizons[horizons.size - 1]
    while p < end:
        bound = after(ticks[p - ticks_base], size)
        if bound >= stop and stop != MAX:
            break
        if marks[p - base] != GONE and last > bound:
            if marks[p - base] == UNMATCHED:
                low, high = 0, horizons.size - 1
                while low < high:
                    middle = (low + high) >> 1
                    if horizons[middle] > bound:
                        high = middle
                    else:
                        low = middle + 1
                place = horizon_places[low]
                if p >= own_first and own_places[p - own_first] > place:
                    place = own_places[p - own_first]
                places[n] = place
                positions[n] = p
                n += 1
            changed[n_changed, 0] = p
            changed[n_changed, 1] = marks[p - base]
            n_changed += 1
            marks[p - base] = GONE
        p += 1
    p = begin
    while p < end and marks[p - base] == GONE:
        p += 1
    cursor[0] = p
    cursor[1] = n_changed
    return n


@kernel
def merge_leaving(
    a_place: Array, a_rank: Array, a_left: Array, a_right: Array,
    b_place: Array, b_rank: Array, b_left: Array, b_right: Array,
    place: Array, rank: Array, left: Array, right: Array,
) -> None:  # fmt: skip
    """Merge two lists of leaving tuples by (place, rank)."""
    i, j = 0, 0
    for k in range(place.size):
        first = j == b_place.size or (
            i < a_place.size and (a_place[i] < b_place[j] or (a_place[i] == b_place[j] and a_rank[i] < b_rank[j]))
        )
        if first:
            place[k], rank[k], left[k], right[k] = a_place[i], a_rank[i], a_left[i], a_right[i]
            i += 1
        else:
            place[k], rank[k], left[k], right[k] = b_place[j], b_rank[j], b_left[j], b_right[j]
            j += 1


@kernel
def merge_rows(
    pair_place: Array, pair_left: Array, pair_right: Array,
    leave_place: Array, leave_left: Array, leave_right: Array,
    left: Array, right: Array,
) -> None:  # fmt: skip
    """The rows of a chunk: at each place the tuples that leave there, then the pairs of the tuple itself."""
    i, j = 0, 0
    for k in range(left.size):
        if j == leave_place.size or (i < pair_place.size and pair_place[i] < leave_place[j]):
            left[k], right[k] = pair_left[i], pair_right[i]
            i += 1
        else:
            left[k], right[k] = leave_left[j], leave_right[j]
            j += 1
