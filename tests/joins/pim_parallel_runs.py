"""Random small joins by many threads over shared trees against a plain loop; a program in test builds as well."""

from __future__ import annotations

import hashlib
import sys
import threading
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT, PROBES
from streamjoin.pim_tree.crew import SharedJoin, Tuples
from streamjoin.pim_tree.kernels import work_queue as q
from streamjoin.pim_tree.shared import SharedPimTree
from tests.deadlock import no_deadlock

I64 = npt.NDArray[np.int64]
Pair = tuple[int, int, int]


@dataclass(frozen=True)
class Stream:
    """Tuples of both sides in order, with the positions that each may meet."""

    is_right: npt.NDArray[np.bool_]
    word: I64
    valid: npt.NDArray[np.bool_]
    seq: I64
    least: I64
    upto: I64
    reach: int
    self_join: bool
    grows: bool
    both_roles: bool = False
    """Of a self-join: every tuple comes as a left and as a right one, and both are looked up among the left ones."""

    @property
    def n(self) -> int:
        return int(self.word.size)


def random_stream(rng: np.random.Generator, n: int) -> Stream:
    self_join = bool(rng.random() < 0.3)
    is_right = np.zeros(n, bool) if self_join else rng.random(n) < rng.choice([0.5, 0.5, 0.1])
    distinct = int(rng.choice([2, 20, 1000, 1 << 40]))
    window = int(rng.integers(1, 120))
    counts = np.stack([np.cumsum(~is_right), np.cumsum(is_right)])
    own = np.where(is_right, counts[1], counts[0]) - 1
    upto = own if self_join else np.where(is_right, counts[0], counts[1])
    grows = bool(rng.random() < 0.7)
    least = upto - window
    if not grows:
        least = np.maximum(0, least + rng.integers(-50, 20, n))
    stream = Stream(
        is_right,
        rng.integers(0, distinct, n),
        rng.random(n) < rng.choice([1.0, 0.8]),
        own,
        least,
        upto,
        int(rng.choice([0, 1, distinct // 8])),
        self_join,
        grows,
    )
    return in_both_roles(stream, rng) if self_join and rng.random() < 0.5 else stream


def in_both_roles(stream: Stream, rng: np.random.Generator) -> Stream:
    """A self-join's stream with every tuple once more as a right one, whose window may be another."""
    word, valid, seq, least, upto = (
        np.repeat(column, 2) for column in (stream.word, stream.valid, stream.seq, stream.least, stream.upto)
    )
    least[1::2] = least[1::2] - int(rng.integers(-100, 100))
    is_right = np.tile([False, True], stream.n)
    return Stream(is_right, word, valid, seq, least, upto, stream.reach, True, stream.grows, both_roles=True)


def expected(stream: Stream) -> list[Pair]:
    """Every tuple against every position that it may meet."""
    lines = [np.flatnonzero(~stream.is_right), np.flatnonzero(stream.is_right)]
    found = []
    for i in np.flatnonzero(stream.valid):
        line = lines[0 if stream.self_join else 1 - int(stream.is_right[i])]
        for position in range(max(0, int(stream.least[i])), int(stream.upto[i])):
            j = line[position]
            if stream.valid[j] and abs(int(stream.word[j]) - int(stream.word[i])) <= stream.reach:
                found.append((int(i), position))
    return [(i, position, int(stream.is_right[i])) for i, position in found]


def piece(stream: Stream, tuples: Tuples, begin: int, end: int) -> None:
    """Lay the tuples from `begin` to `end` as one run."""
    cut = slice(begin, end)
    is_right = stream.is_right[cut]
    before = int(stream.is_right[:begin].sum())
    rights = int(is_right.sum())
    tuples.lay(end - begin, (begin - before, before), (end - begin - rights, rights))
    uses = np.where(stream.valid[cut], PROBES | INSERTS, 0)
    tuples.row(q.OPS)[:] = is_right * ON_RIGHT | uses
    if stream.both_roles:
        tuples.row(q.OPS)[is_right] &= ~INSERTS
    tuples.row(q.WORD)[:] = stream.word[cut]
    tuples.row(q.LO)[:] = stream.word[cut] - stream.reach
    tuples.row(q.HI)[:] = stream.word[cut] + stream.reach
    for row, values in ((q.SEQ, stream.seq), (q.MIN_SEQ, stream.least), (q.UPTO, stream.upto)):
        tuples.row(row)[:] = values[cut]
    for side, chosen in enumerate((~is_right, is_right)):
        tuples.lines[side][:] = stream.word[cut][chosen]
        tuples.counted[side][:] = stream.valid[cut][chosen]


def joined(stream: Stream, seed: int, threads: int, *, changing: bool = False, ordered: bool = True) -> list[Pair]:
    """The join by `threads` threads, with settings drawn from `seed`; `changing` adds and removes threads."""
    rng = np.random.default_rng(seed)
    task = int(rng.integers(1, 9))
    settings = {
        "merge_ratio": float(rng.choice([1 / 16, 1 / 4, 1.0])),
        "leaf_size": int(rng.choice([8, 16])),
        "smallest_run": int(rng.choice([1, 4, 32])),
        "insertion_depth": [None, 1, 2][int(rng.integers(3))],
    }
    sides = [SharedPimTree(None, task, **settings) for _ in range(2)]  # type: ignore[arg-type]
    if stream.self_join:
        sides[1] = sides[0]
    join = SharedJoin(
        sides[0], sides[1], threads, task=task,
        merge=str(rng.choice(["nonblocking", "nonblocking", "blocking", "one_thread"])),
        under_way=int(rng.choice([2, 64])), results=int(rng.choice([2, 16, 200])), out=int(rng.choice([2, 64, 4096])),
        slice_entries=int(rng.choice([8, 40, 1 << 14])), backlog=int(rng.choice([0, 50, 1 << 14])),
        most_results=[None, 50, 1 << 12][int(rng.integers(3))], ordered=ordered,
    )  # fmt: skip
    found: list[Pair] = []
    cuts = [0, *sorted(rng.integers(0, stream.n + 1, int(rng.integers(0, 4))).tolist()), stream.n]
    if stream.both_roles:
        cuts = [cut & ~1 for cut in cuts]
    over = threading.Event()

    def change() -> None:
        sizes = np.random.default_rng(seed)
        while not over.wait(1e-4):
            join.crew.resize(int(sizes.integers(1, threads + 1)))

    changer = threading.Thread(target=change)
    if changing:
        changer.start()
    tuples = Tuples(one_stream=stream.both_roles)
    for begin, end in pairwise(cuts):

        def take(probes: I64, positions: I64, begin: int = begin) -> None:
            sides_of = stream.is_right[begin + probes].tolist()
            found.extend(zip((begin + probes).tolist(), positions.tolist(), map(int, sides_of), strict=True))

        piece(stream, tuples, begin, end)
        join.run(tuples, take, grows=(stream.grows, stream.grows))
        for side in sides:
            side.check()
    over.set()
    if changing:
        changer.join()
    join.close()
    return found


def check(seed: int, threads: int, n: int, *, changing: bool = False) -> None:
    """One random join."""
    stream = random_stream(np.random.default_rng(seed), n)
    wanted = expected(stream)
    assert joined(stream, seed, threads, changing=changing) == wanted, f"seed {seed}, {threads} threads"
    if seed % 4 == 0:
        assert_tuples_in_order(joined(stream, seed, threads, changing=changing, ordered=False), wanted, seed)


def assert_tuples_in_order(found: list[Pair], wanted: list[Pair], seed: int) -> None:
    """Only the matches of one tuple may come in any order."""
    assert [pair[0] for pair in found] == [pair[0] for pair in wanted], f"seed {seed}"
    assert sorted(found) == sorted(wanted), f"seed {seed}"


def digest(seed: int, threads: int, n: int) -> str:
    """A hash of the output in its order."""
    stream = random_stream(np.random.default_rng(seed), n)
    return hashlib.sha256(repr(joined(stream, seed, threads)).encode()).hexdigest()


if __name__ == "__main__":
    check(0, 1, 20)  # compiled before the clock starts
    with no_deadlock(240):
        for seed in range(int(sys.argv[1])):
            check(seed, 1 + seed % 8, 150, changing=seed % 5 == 0)
    print("held")
