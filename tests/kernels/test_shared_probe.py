"""The shared probe, and what makes and deals out query-sets, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamjoin._arrays import Array
from streamjoin.jit.flags import CHECKED
from streamjoin.kernels.times import NO_LIMIT
from streamjoin.queries.kernels import sets as shared_sets
from streamjoin.queries.kernels.probe import (
    ANY_ORDER,
    BEFORE,
    DONE,
    EARLIER,
    NOT_AFTER,
    SEEN,
    START,
    probe_shared,
)

NOT_READ = np.empty(0, np.int64)
ENDS = (-(2**63), 2**63 - 1)
WORDS = st.sampled_from([*range(4), *range(4), *ENDS])
TICKS = st.sampled_from([*range(12), *range(12), *ENDS])
BITS = st.sampled_from([0, 1, 3, 2**63])


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    width = draw(st.integers(1, 3))
    sets = st.lists(BITS, min_size=width, max_size=width)
    stored = draw(st.lists(st.tuples(WORDS, TICKS, sets), max_size=14))
    probes = draw(st.lists(st.tuples(WORDS, WORDS, TICKS, st.integers(0, 30), sets), max_size=10))
    ascending = draw(st.booleans())
    if ascending:
        stored.sort(key=lambda t: t[1])
    gates = np.sort(np.array(draw(st.permutations(range(30)))[: len(stored)], np.int64))
    reach = draw(st.sampled_from([0, 1, 4, 2**63 - 1]))
    limits = sorted(draw(st.sets(st.integers(0, min(reach, 5)), max_size=3)))
    return {
        "width": width,
        "stored": stored,
        "gates": gates,
        "probes": [(min(a, b), max(a, b), *rest) for a, b, *rest in probes],
        "reach": reach,
        "limits": limits,
        "keeps": draw(st.lists(sets, min_size=len(limits) + 1, max_size=len(limits) + 1)),
        "order": draw(st.sampled_from([BEFORE, NOT_AFTER, ANY_ORDER])),
        "ascending": ascending,
        "room": draw(st.sampled_from([1, 2, 500])),
        "most": draw(st.sampled_from([1, 3, 500])),
        "counted": draw(st.booleans()),
    }


def as_sets(rows: list[list[int]], width: int) -> Array:
    return np.array(rows, np.uint64).reshape(len(rows), width)


def naive(run: dict[str, Any]) -> tuple[set[tuple[int, int, tuple[int, ...]]], int]:
    found, earlier = set(), 0
    for p, (lo, hi, tick, gate, bits) in enumerate(run["probes"]):
        for row, (word, other, others) in enumerate(run["stored"]):
            distance = abs(tick - other)
            keeps = run["keeps"][sum(limit < distance for limit in run["limits"])]
            common = tuple(a & b & c for a, b, c in zip(bits, others, keeps, strict=True))
            before = run["gates"][row] < gate
            arrived = before or run["order"] == ANY_ORDER or (run["order"] == NOT_AFTER and run["gates"][row] == gate)
            if lo <= word <= hi and arrived and distance <= run["reach"] and any(common):
                found.add((p, row, common))
                earlier += other < tick
    return found, earlier


@settings(max_examples=400, deadline=None)
@given(runs())
@example({"width": 1, "stored": [], "gates": np.empty(0, np.int64), "probes": [(0, 0, 0, 1, [1])], "reach": 1,
          "limits": [], "keeps": [[1]], "order": BEFORE, "ascending": True, "room": 2,
          "most": 1, "counted": True})  # fmt: skip
def test_the_pairs_are_those_of_a_plain_loop(run: dict[str, Any]) -> None:
    stored, probes, width, room = run["stored"], run["probes"], run["width"], run["room"]
    words = np.array([word for word, _, _ in stored], np.int64)
    rows = np.argsort(words, kind="stable")
    columns = [np.array([probe[place] for probe in probes], np.int64) for place in range(4)]
    out = np.empty(room, np.int64), np.empty(room, np.int64), np.empty((room, width), np.uint64)
    read, cursor = np.zeros(len(probes) if run["counted"] else 0, np.int64), np.array(START)
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for _ in range(1000):
        before = int(cursor[SEEN])
        count = probe_shared(
            (np.argsort(columns[0], kind="stable"), *columns, as_sets([probe[4] for probe in probes], width)),
            (words[rows], rows, np.array([tick for _, tick, _ in stored], np.int64), run["gates"],
             as_sets([bits for _, _, bits in stored], width)),
            (run["reach"], np.array(run["limits"], np.uint64), as_sets(run["keeps"], width)),
            run["order"], run["ascending"], 0, (100, 1000), out, read, cursor, run["most"],
        )  # fmt: skip
        assert cursor[SEEN] - before <= run["most"] + len(stored)
        found += [(int(out[0][i]) - 100, int(out[1][i]) - 1000, tuple(map(int, out[2][i]))) for i in range(count)]
        if cursor[DONE] == len(probes):
            break
    wanted, earlier = naive(run)
    assert len(found) == len(wanted) and set(found) == wanted
    assert cursor[SEEN] >= len(found) and cursor[EARLIER] == earlier
    assert not run["counted"] or read.sum() == cursor[SEEN]


@pytest.mark.parametrize("seed", range(6))
def test_many_tuples_of_a_word_are_found_in_blocks_as_by_a_plain_loop(seed: int) -> None:
    random = np.random.default_rng(seed)
    stored, probing = (int(n) for n in random.integers(1, 90 if CHECKED else 900, 2))
    width, reach, span = int(random.integers(1, 4)), int(random.choice([0, 3, 40, NO_LIMIT])), 60
    ticks = np.sort(random.integers(0, span, stored)) if seed % 2 else random.integers(0, span, stored)
    # One word has most tuples, others some or one.
    word = np.minimum(random.geometric(0.3, stored), 20) * 3
    gates = np.sort(random.permutation(stored + probing)[:stored])
    sets, asked = (random.integers(0, 4, (n, width)).astype(np.uint64) for n in (stored, probing))
    low = np.minimum(random.geometric(0.3, probing), 20) * 3 - random.integers(0, 2, probing)
    high, tick = low + random.choice([0, 0, 0, 4], probing), random.integers(0, span, probing)
    gate, limits = random.permutation(stored + probing)[:probing], np.array([1, 9], np.uint64)
    keeps = random.integers(0, 4, (3, width)).astype(np.uint64)
    # No probe reaches the first of the rows.
    tick += span // 2
    since = int(ticks.searchsorted(tick.min() - reach)) if seed % 2 and reach != NO_LIMIT else 0
    rows, order = np.argsort(word, kind="stable"), np.lexsort((tick, low))
    probes, run = (order, low, high, tick, gate, asked), (word[rows], rows, ticks, gates, sets)

    apart = np.abs(tick[:, np.newaxis] - ticks)
    common = asked[:, np.newaxis] & sets & keeps[np.searchsorted(limits, apart.astype(np.uint64))]
    inside = (low[:, np.newaxis] <= word) & (word <= high[:, np.newaxis]) & common.any(axis=2)
    inside &= (apart <= reach) | (reach == NO_LIMIT)
    for arrival in (BEFORE, NOT_AFTER, ANY_ORDER):
        came = gates < gate[:, np.newaxis] + arrival if arrival != ANY_ORDER else np.True_
        wanted = {(int(p), int(row)) for p, row in zip(*np.nonzero(inside & came), strict=True)}
        for room, most in ((1 << 16, 1 << 20), (700, 50), (5, 1 << 20)):
            out = np.empty(room, np.int64), np.empty(room, np.int64), np.empty((room, width), np.uint64)
            cursor, found, calls = np.array(START), list[tuple[int, int]](), 0
            while calls == 0 or cursor[DONE] < probing:
                windows = reach, limits, keeps
                n = probe_shared(
                    probes, run, windows, arrival, bool(seed % 2), since, (0, 0), out, NOT_READ, cursor, most
                )
                found += zip(out[0][:n].tolist(), out[1][:n].tolist(), strict=True)
                assert (out[2][:n] == common[out[0][:n], out[1][:n]]).all()
                calls += 1
            assert len(found) == len(wanted) and set(found) == wanted
            assert cursor[EARLIER] == sum(int(ticks[row] < tick[p]) for p, row in wanted)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_sets_are_made_narrowed_and_dealt_out_as_by_a_plain_loop(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 3))
    one = st.lists(BITS, min_size=width, max_size=width)
    values = data.draw(st.lists(st.sampled_from([*range(-3, 9), *ENDS]), max_size=12))
    table = data.draw(st.lists(one, min_size=3, max_size=6))
    least, n = data.draw(st.integers(-2, 3)), len(values)
    sets = as_sets(data.draw(st.lists(one, min_size=n, max_size=n)), width)
    wanted = [
        tuple(int(bits) & table[min(max(value - least, 0), len(table) - 1)][w] for w, bits in enumerate(row))
        for value, row in zip(values, sets, strict=True)
    ]
    shared_sets.and_by_value(sets, np.array(values, np.int64), least, as_sets(table, width))
    assert [tuple(map(int, row)) for row in sets] == wanted
    assert shared_sets.count_live(sets) == sum(any(row) for row in wanted)

    mask = as_sets([data.draw(one)], width)[0]
    left = [(i, tuple(a & int(b) for a, b in zip(row, mask, strict=True))) for i, row in enumerate(wanted)]
    left = [(i, row) for i, row in left if any(row)]
    out, places = np.empty((n + 1, width), np.uint64), np.empty(n + 1, np.int64)
    count = shared_sets.narrow(sets, mask, out, places)
    assert [(int(places[i]), tuple(map(int, out[i]))) for i in range(count)] == left

    bits = [(64 * w + b, i) for i, row in left for w, word in enumerate(row) for b in range(64) if word >> b & 1]
    assert shared_sets.count_bits(sets, mask) == len(bits)
    owners, rows = np.empty(len(bits), np.int64), np.empty(len(bits), np.int64)
    shared_sets.list_owners(sets, mask, np.arange(64 * width) % 7, owners, rows)
    assert list(zip(owners.tolist(), rows.tolist(), strict=True)) == [(place % 7, i) for place, i in bits]
    counts = np.ones(7, np.int64)
    shared_sets.count_by_owner(sets, mask, np.arange(64 * width) % 7, counts)
    assert counts.tolist() == [1 + sum(owner == o for o in owners) for owner in range(7)]

    starts, dealt = np.cumsum([0, *np.bincount(owners, minlength=7)]), np.empty(len(bits), np.int64)
    shared_sets.deal(sets, mask, np.arange(64 * width) % 7, 5, starts[:-1].copy(), dealt)
    for owner in range(7):
        mine = [int(row) + 5 for o, row in zip(owners, rows, strict=True) if o == owner]
        assert dealt[starts[owner] : starts[owner + 1]].tolist() == mine
