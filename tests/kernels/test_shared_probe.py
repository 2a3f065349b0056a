"""The shared probe against a loop over all pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamjoin.kernels.shared_probe import probe_shared

Array = np.ndarray[Any, np.dtype[Any]]
ENDS = (-(2**63), 2**63 - 1)
WORDS = st.sampled_from([*range(4), *range(4), *ENDS])
TICKS = st.sampled_from([*range(12), *range(12), *ENDS])


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    width = draw(st.integers(1, 3))
    sets = st.lists(st.sampled_from([0, 1, 3, 2**63]), min_size=width, max_size=width)
    stored = draw(st.lists(st.tuples(WORDS, TICKS, sets), max_size=14))
    probes = draw(st.lists(st.tuples(WORDS, WORDS, TICKS, st.integers(0, 30), sets), max_size=10))
    stored.sort(key=lambda t: t[1])
    gates = np.sort(np.array(draw(st.permutations(range(30)))[: len(stored)], np.int64))
    return {
        "width": width,
        "stored": stored,
        "gates": gates,
        "probes": [(min(a, b), max(a, b), *rest) for a, b, *rest in probes],
        "reach": draw(st.sampled_from([0, 1, 4, 2**63 - 1])),
        "inclusive": draw(st.booleans()),
        "room": draw(st.sampled_from([0, 2, 500])),
    }


def as_sets(rows: list[list[int]], width: int) -> Array:
    return np.array(rows, np.uint64).reshape(len(rows), width)


def naive(run: dict[str, Any]) -> set[tuple[int, int, tuple[int, ...]]]:
    found = set()
    for p, (lo, hi, tick, gate, bits) in enumerate(run["probes"]):
        for row, (word, other, others) in enumerate(run["stored"]):
            common = tuple(a & b for a, b in zip(bits, others, strict=True))
            before = run["gates"][row] < gate or (run["inclusive"] and run["gates"][row] == gate)
            if lo <= word <= hi and before and abs(tick - other) <= run["reach"] and any(common):
                found.add((p, row, common))
    return found


@settings(max_examples=300, deadline=None)
@given(runs())
@example({"width": 1, "stored": [], "gates": np.empty(0, np.int64), "probes": [(0, 0, 0, 1, [1])], "reach": 1,
          "inclusive": False, "room": 2})  # fmt: skip
def test_the_pairs_are_those_of_a_plain_loop(run: dict[str, Any]) -> None:
    stored, probes, width, room = run["stored"], run["probes"], run["width"], run["room"]
    words = np.array([word for word, _, _ in stored], np.int64)
    rows = np.argsort(words, kind="stable")
    columns = [np.array([probe[place] for probe in probes], np.int64) for place in range(4)]
    out = np.empty(room, np.int64), np.empty(room, np.int64), np.empty((room, width), np.uint64)
    seen = np.zeros(1, np.int64)
    count = probe_shared(
        np.argsort(columns[0], kind="stable"), *columns, as_sets([probe[4] for probe in probes], width),
        words[rows], rows, np.array([tick for _, tick, _ in stored], np.int64), run["gates"],
        as_sets([bits for _, _, bits in stored], width), run["reach"], run["inclusive"], *out, seen,
    )  # fmt: skip
    wanted = naive(run)
    assert count == len(wanted)
    kept = min(count, room)
    found = {(int(out[0][i]), int(out[1][i]), tuple(map(int, out[2][i]))) for i in range(kept)}
    assert len(found) == kept and found <= wanted
    assert seen[0] >= count
