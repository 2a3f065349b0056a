"""Random count-window joins by many threads over shared Bw-Trees against a plain loop; a program in test builds."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np

from benchmarks.papers.bw_tree.crew import BwTreeJoin
from benchmarks.papers.bw_tree.side import SharedBwTree
from streamjoin.pim_tree.crew import Tuples
from tests.deadlock import no_deadlock
from tests.joins.pim_parallel_runs import I64, Pair, Stream, expected, piece

KEYS = ("uniform", "few", "rising", "falling", "drifting")


def count_stream(rng: np.random.Generator, n: int, window: int, keys: str) -> Stream:
    """Both sides have the same window; one tuple in ten has no key."""
    self_join = bool(rng.random() < 0.3)
    is_right = np.zeros(n, bool) if self_join else rng.random(n) < rng.choice([0.5, 0.5, 0.1])
    counts = np.stack([np.cumsum(~is_right), np.cumsum(is_right)])
    own = np.where(is_right, counts[1], counts[0]) - 1
    upto = own if self_join else np.where(is_right, counts[0], counts[1])
    word = {
        "uniform": rng.integers(0, 1 << 40, n),
        "few": rng.integers(0, 3, n),
        "rising": np.arange(n) * 5,
        "falling": -np.arange(n) * 5,
        "drifting": np.arange(n) * 2 + rng.integers(0, 4 * window, n),
    }[keys]
    reach = {"uniform": 1 << 36, "few": 0}.get(keys, 12)
    return Stream(is_right, word, rng.random(n) < 0.9, own, upto - window, upto, reach, self_join, True)


def joined(stream: Stream, window: int, seed: int, threads: int) -> list[Pair]:
    """The join by `threads` threads, with small nodes and other settings drawn from `seed`."""
    rng = np.random.default_rng(seed)
    task, under_way = int(rng.integers(1, 9)), int(rng.choice([2, 64]))
    leaf_size = int(rng.choice([4, 8, 32]))
    sides = [
        SharedBwTree(window, threads, under_way * task, leaf_size, int(rng.choice([2, leaf_size // 2])), retired=0)
        for _ in range(1 if stream.self_join else 2)
    ]
    join = BwTreeJoin(
        sides[0], sides[-1], threads, task=task, under_way=under_way,
        results=int(rng.choice([2, 16, 200])), out=int(rng.choice([2, 64, 4096])),
    )  # fmt: skip
    found: list[Pair] = []
    cuts = [0, *sorted(rng.integers(0, stream.n + 1, int(rng.integers(0, 4))).tolist()), stream.n]
    tuples = Tuples()
    for begin, end in pairwise(cuts):

        def take(probes: I64, positions: I64, begin: int = begin) -> None:
            sides_of = stream.is_right[begin + probes].tolist()
            found.extend(zip((begin + probes).tolist(), positions.tolist(), map(int, sides_of), strict=True))

        piece(stream, tuples, begin, end)
        join.run(tuples, take)
        for side, tree in enumerate(sides):
            tree.check()
            check_content(stream, tree, side, end, under_way * task)
    join.close()
    return found


def check_content(stream: Stream, tree: SharedBwTree, side: int, end: int, under_way: int) -> None:
    """A tree has the last tuples of its side that have keys: the window's, and no more than a few that are older."""
    places = np.flatnonzero((stream.is_right[:end] == bool(side)) & stream.valid[:end])
    entries = tree.entries()
    held = {(int(word), int(seq)) for word, seq in entries}
    of_side = int((stream.is_right[:end] == bool(side)).sum())
    oldest = min((seq for _, seq in held), default=of_side)
    wanted = {(int(stream.word[i]), int(stream.seq[i])) for i in places}
    assert held <= wanted
    assert {entry for entry in wanted if entry[1] >= max(of_side - tree.window, oldest)} <= held
    assert {entry for entry in wanted if entry[1] >= of_side - tree.window} <= held
    assert oldest >= of_side - tree.window - 2 * under_way - 64


def check(seed: int, threads: int, n: int) -> None:
    """One random join, many windows long."""
    rng = np.random.default_rng(seed)
    window = int(rng.integers(1, 60))
    stream = count_stream(rng, n, window, KEYS[seed % len(KEYS)])
    assert joined(stream, window, seed, threads) == expected(stream), f"seed {seed}, {threads} threads"


if __name__ == "__main__":
    check(0, 1, 20)  # compiled before the clock starts
    with no_deadlock(240):
        for seed in range(int(sys.argv[1])):
            check(seed, 1 + seed % 8, 300)
    print("held")
