"""As-of lookups by key: one pass over both sides in the order of time.

Keys are small integers. `last[key]` is the newest right tuple so far, which is all that looking back needs
(`pair_behind`). A left tuple that may still find a closer partner ahead waits in a chain of its key, newest first:
`head[key]`, then `following[p]`. A right tuple settles all waiting left tuples of its key at once, so the work is
linear in the number of tuples. Every change of older state goes to a journal, which `undo` plays back.
"""

from __future__ import annotations

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.flags import kernel
from streamjoin.kernels.kinds.keyed import hash_of
from streamjoin.kernels.positions import merge_sides
from streamjoin.kernels.searching import gallop
from streamjoin.kernels.times import MAX, MIN, NO_LIMIT, after, distance, is_within

NONE = -1
DECIDED = MIN
"""The deadline of a left tuple whose partner is known."""

# What a journal entry restores.
_LAST, _HEAD, _BEST, _DEADLINE, _FOLLOWING = 0, 1, 2, 3, 4
_PATIENCE = 8


@kernel
def pair_behind(
    left_ticks: Array, left_keys: Array, right_ticks: Array, right_keys: Array, begin: int, exact: bool, tolerance: int,
    last: Array, best: Array, journal: Array, cursor: Array,
) -> None:  # fmt: skip
    """best[i]: the newest right tuple of left tuple i's key that is not later than it, or earlier without `exact`.

    Right tuples before place `begin` are in `last` already. cursor[3] becomes the number of journal entries; an empty
    journal means that the caller has a copy of `last`. `tolerance` is a length (`kernels.times`).
    """
    comes_first = np.empty(left_ticks.size + right_ticks.size - begin, np.bool_)
    if exact:
        merge_sides(right_ticks[begin:], left_ticks, comes_first)
    else:
        merge_sides(left_ticks, right_ticks[begin:], comes_first)
    cursor[3] = _look_back(comes_first, exact, left_keys, right_keys, begin, last, best, journal)
    if tolerance != NO_LIMIT:
        for i in range(left_ticks.size):
            if best[i] != NONE and not is_within(left_ticks[i], right_ticks[best[i]], tolerance):
                best[i] = NONE


@kernel
def _look_back(
    comes_first: Array, left_value: bool, left_keys: Array, right_keys: Array, begin: int, last: Array, best: Array,
    journal: Array,
) -> int:  # fmt: skip
    """`pair_behind` for merged tuples: comes_first[place] is `left_value` for those of the left side."""
    i, j, n = 0, begin, 0
    keeps = journal.shape[0] > 0
    # Nothing branches on the side that comes next, which can't be predicted: a left tuple's partner is written again
    # until its turn comes.
    for place in range(comes_first.size):
        if i == left_keys.size or j == right_keys.size:
            break
        is_left = comes_first[place] == left_value
        left_key, right_key = left_keys[i], right_keys[j]
        key = left_key if is_left else right_key
        known = NONE
        if key >= 0:
            known = last[key]
            if keeps and not is_left:
                journal[n, 0], journal[n, 1], journal[n, 2] = _LAST, key, known
                n += 1
            last[key] = known if is_left else j
        best[i] = known
        i += is_left
        j += not is_left
    while i < left_keys.size:
        best[i] = last[left_keys[i]] if left_keys[i] >= 0 else NONE
        i += 1
    while j < right_keys.size:
        key = right_keys[j]
        if key >= 0:
            if keeps:
                journal[n, 0], journal[n, 1], journal[n, 2] = _LAST, key, last[key]
                n += 1
            last[key] = j
        j += 1
    return n


@kernel
def pair_nearest(
    left_ticks: Array, left_keys: Array, left_base: int, right_ticks: Array, right_keys: Array,
    cursor: Array, tick: int, everything: bool, backward: bool, exact: bool, tolerance: int,
    last: Array, head: Array, best: Array, deadline: Array, following: Array, journal: Array,
) -> None:  # fmt: skip
    """Process the tuples before `tick`, or all of them: partners ahead, and with `backward` behind as well.

    cursor is (next left, next right, first left that has not come out, journal entries), as places in the arrays;
    cursor[2] moves behind the last left tuple that is decided together with all before it. `tolerance` is a length
    (`kernels.times`).
    """
    li, ri, front, n = cursor[0], cursor[1], cursor[2], 0
    rights_first = exact and backward
    # A right tuple of the same time is ahead only where looking back does not find it.
    looks_ahead = tolerance != 0 or (exact and not backward)
    while True:
        has_left = li < left_ticks.size and (everything or left_ticks[li] < tick)
        has_right = ri < right_ticks.size and (everything or right_ticks[ri] < tick)
        if not has_left and not has_right:
            break
        if has_left and (
            not has_right
            or left_ticks[li] < right_ticks[ri]
            or (left_ticks[li] == right_ticks[ri] and not rights_first)
        ):
            now, key = left_ticks[li], left_keys[li]
            best[li], deadline[li], following[li] = NONE, DECIDED, NONE
            if key >= 0:
                waits, reach = looks_ahead, np.int64(tolerance)
                if backward and last[key] != NONE and is_within(now, right_ticks[last[key]], tolerance):
                    best[li] = last[key]
                    behind = distance(now, right_ticks[last[key]])
                    # Only one that is closer counts now.
                    waits = behind > np.uint64(1)
                    reach = np.int64(behind - np.uint64(1)) if waits else reach
                if waits:
                    deadline[li] = after(now, reach)
                    following[li] = head[key]
                    journal[n, 0], journal[n, 1], journal[n, 2] = _HEAD, key, head[key]
                    n += 1
                    head[key] = left_base + li
            li += 1
            continue
        now, key = right_ticks[ri], right_keys[ri]
        if key >= 0:
            journal[n, 0], journal[n, 1], journal[n, 2] = _LAST, key, last[key]
            n += 1
            last[key] = ri
            if head[key] != NONE:
                skipped, p = NONE, head[key]
                while p >= left_base + front and not exact and left_ticks[p - left_base] == now:
                    skipped, p = p, following[p - left_base]
                if skipped == NONE:
                    journal[n, 0], journal[n, 1], journal[n, 2] = _HEAD, key, head[key]
                    head[key] = NONE
                else:
                    journal[n, 0], journal[n, 1], journal[n, 2] = _FOLLOWING, skipped, p
                    following[skipped - left_base] = NONE
                n += 1
                while p >= left_base + front:
                    at = p - left_base
                    if now <= deadline[at]:
                        journal[n, 0], journal[n, 1], journal[n, 2] = _BEST, p, best[at]
                        n += 1
                        best[at] = ri
                    journal[n, 0], journal[n, 1], journal[n, 2] = _DEADLINE, p, deadline[at]
                    n += 1
                    deadline[at] = DECIDED
                    p = following[at]
        ri += 1
    while front < li and (everything or deadline[front] < tick):
        front += 1
    cursor[0], cursor[1], cursor[2], cursor[3] = li, ri, front, n


@kernel
def order_by_time(keys: Array, places: Array, ticks: Array, ranks: Array, out_ticks: Array) -> bool:
    """Put the places of each key in the order of their ticks, equal ones in that of their `ranks`, and fill in ticks.

    Places of one key are adjacent, and nearly in order where tuples came nearly in order: an insertion sort, which
    gives up after a few moves per entry.
    """
    moves = _PATIENCE * keys.size
    for i in range(keys.size):
        place = places[i]
        tick, rank = ticks[place], ranks[place]
        j = i - 1
        while j >= 0 and keys[j] == keys[i]:
            if out_ticks[j] < tick or (out_ticks[j] == tick and ranks[places[j]] <= rank):
                break
            places[j + 1], out_ticks[j + 1] = places[j], out_ticks[j]
            j -= 1
        places[j + 1], out_ticks[j + 1] = place, tick
        moves -= i - 1 - j
        if moves < 0:
            return False
    return True


@kernel
def nearest_of_keys(
    keys: Array, ticks: Array, left_keys: Array, left_ticks: Array, ahead: bool, exact: bool, tolerance: int, out: Array
) -> None:  # fmt: skip
    """out[i]: the last entry of key left_keys[i] at or before left_ticks[i], with `ahead` the first at or after it.

    Entries are in the order of their keys and, within a key, of their ticks; without `exact` one of the same time does
    not count, and none that is further away than `tolerance` (`kernels.times`). Left tuples may come in any order;
    where those of a key are adjacent and the keys ascend, each search goes on from the one before it.
    """
    begin, end, at = 0, 0, 0
    present, last = np.int64(MIN), np.int64(MIN)
    for i in range(left_keys.size):
        key, own = left_keys[i], left_ticks[i]
        if i == 0 or key != present:
            begin = gallop(keys, end if i > 0 and key > present else 0, key)
            end = begin
            while end < keys.size and keys[end] == key:
                # Most keys have few entries.
                if end - begin == _PATIENCE:
                    end = keys.size if key == MAX else gallop(keys, end, key + 1)
                    break
                end += 1
            present, at = key, begin
        elif own < last:
            at = begin
        last = own
        # The first entry that is not before the left tuple, or that is after it.
        after_own = exact != ahead
        at = end if after_own and own == MAX else gallop(ticks[:end], at, own + after_own)
        found = at if ahead else at - 1
        out[i] = found if begin <= found < end else NONE
        if tolerance != NO_LIMIT and out[i] != NONE:
            theirs = ticks[found]
            later, earlier = (theirs, own) if ahead else (own, theirs)
            if not is_within(later, earlier, tolerance):
                out[i] = NONE


@kernel
def undo(
    journal: Array, n: int, left_base: int, last: Array, head: Array, best: Array, deadline: Array, following: Array
) -> None:
    """Play a journal back; entries of keys and tuples that are no longer there are left out."""
    for i in range(n - 1, -1, -1):
        what, at, old = journal[i, 0], journal[i, 1], journal[i, 2]
        if what <= _HEAD:
            values, place = (last if what == _LAST else head), at
        else:
            place = at - left_base
            values = best if what == _BEST else deadline if what == _DEADLINE else following
        if 0 <= place < values.size:
            values[place] = old


@kernel
def identify(words: Array, table: Array, keys: Array, count: Array, out: Array) -> bool:
    """out[i]: the number of key words[i], which gets the next one if it is new; count[0] is the number of keys.

    `table` is a hash table of key numbers by open addressing, its size a power of two; `keys` has the words by number.
    Returns False if the table is too full. The count changes together with the table: a caller that fails right behind
    this call would otherwise give a number twice.
    """
    mask = table.size - 1
    width = words.shape[1]
    for i in range(words.shape[0]):
        slot = np.int64(hash_of(words, i) & np.uint64(mask))
        while True:
            number = table[slot]
            if number == NONE:
                new = count[0]
                if 4 * (new + 1) > table.size or new == keys.shape[0]:
                    return False
                table[slot] = new
                keys[new] = words[i]
                out[i] = new
                count[0] = new + 1
                break
            same = keys[number, 0] == words[i, 0]
            for c in range(1, width):
                same = same and keys[number, c] == words[i, c]
            if same:
                out[i] = number
                break
            slot = (slot + 1) & mask
    return True


@kernel
def keep_nearest(
    left: Array, right: Array, left_ticks: Array, right_ticks: Array, left_base: int, right_base: int,
    arrival: bool, exact: bool, base: int, behind: Array, ahead: Array, left_behind: Array, left_ahead: Array,
    counts: Array,
) -> None:  # fmt: skip
    """Note for each left tuple the last partner behind it and the first ahead of it.

    `left_behind` and `left_ahead` get (position, old partner) where these change, `counts` the number of each.
    """
    n_behind, n_ahead = 0, 0
    for i in range(left.size):
        at, partner = left[i] - base, right[i]
        if at < 0:
            # A left tuple that came out may still be in its window.
            continue
        before, after = True, False
        if not arrival:
            theirs, own = right_ticks[partner - right_base], left_ticks[left[i] - left_base]
            before = theirs < own or (exact and theirs == own)
            after = theirs > own or (exact and theirs == own)
        if before and partner > behind[at]:
            left_behind[n_behind, 0], left_behind[n_behind, 1] = left[i], behind[at]
            n_behind += 1
            behind[at] = partner
        if after and (ahead[at] == NONE or partner < ahead[at]):
            left_ahead[n_ahead, 0], left_ahead[n_ahead, 1] = left[i], ahead[at]
            n_ahead += 1
            ahead[at] = partner
    counts[0], counts[1] = n_behind, n_ahead


@kernel
def choose_nearest(
    left_ticks: Array, right_ticks: Array, right_base: int, behind: Array, ahead: Array, tick: int, everything: bool,
    backward: bool, forward: bool, tolerance: int, partners: Array,
) -> int:  # fmt: skip
    """The partners of the left tuples that are decided where no time before `tick` follows, the first ones.

    With neither `backward` nor `forward` the nearer one counts, the one behind if both are equally far. `tolerance` is
    a length (`kernels.times`). Returns how many are decided.
    """
    n = 0
    while n < behind.size:
        back, next_ = behind[n], ahead[n]
        if not everything:
            now = left_ticks[n]
            if now >= tick:
                break
            if not backward:
                waits, reach = tolerance != 0, np.int64(tolerance)
                if not forward and back != NONE:
                    known = distance(now, right_ticks[back - right_base])
                    waits = known > np.uint64(1)
                    reach = np.int64(known - np.uint64(1)) if waits else reach
                # The farthest time at which a closer partner may come.
                if next_ == NONE and waits and after(now, reach) >= tick:
                    break
        if backward:
            partners[n] = back
        elif forward or back == NONE:
            partners[n] = next_
        elif next_ == NONE:
            partners[n] = back
        else:
            now = left_ticks[n]
            nearer = distance(right_ticks[next_ - right_base], now) < distance(now, right_ticks[back - right_base])
            partners[n] = next_ if nearer else back
        n += 1
    return n
