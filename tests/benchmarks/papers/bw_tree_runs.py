"""Trees that many threads change at once, and checks of what is left; a program in test builds as well."""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt

from benchmarks.papers.bw_tree import memory
from benchmarks.papers.bw_tree.layout import BwTreeSizes, check_bw_tree, empty_tree, lay_tree, settle_pages
from benchmarks.papers.bw_tree.nodes import LEVEL_MASK
from benchmarks.papers.bw_tree.pages import scan
from benchmarks.papers.bw_tree.updates import leaf_for, leaf_to_change, update
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64
from streamjoin.kernels.trees.entries import LARGEST
from tests.deadlock import no_deadlock


@kernel
def change(mem: I64, me: int, kind: int, word: int, seq: int) -> bool:
    memory.rest(mem, me)
    return update(mem, me, leaf_to_change(mem, me, word, seq), kind, word, seq)


@kernel
def seek(mem: I64, me: int, lo: int, hi: int, out: I64) -> int:
    memory.rest(mem, me)
    return scan(mem, leaf_for(mem, lo, -1), lo, hi, -1, LARGEST, out, 0, out.size)


@kernel
def slide(mem: I64, me: int, words: I64, seqs: I64, begin: int, end: int, keep: int, out: I64) -> int:
    """Insert entries, delete each `keep` inserts later, and look for every one; -1: not found, -2: no page."""
    memory.come_online(mem, me)
    for i in range(begin, end + keep):
        if i < end:
            if not change(mem, me, memory.INSERTED, words[i], seqs[i]):
                return -2
            found = seek(mem, me, words[i], words[i], out)
            there = False
            for k in range(found):
                there |= out[k] == seqs[i]
            if not there:
                return -1
        if i - keep >= begin and not change(mem, me, memory.DELETED, words[i - keep], seqs[i - keep]):
            return -2
    memory.go_offline(mem, me)
    return 0


class Tree:
    """A tree for one thread of the test, or for several that the test starts."""

    def __init__(self, shape: BwTreeSizes, pages: int = 1_000, threads: int = 1) -> None:
        self.mem, _ = lay_tree(shape, pages, threads, 0)
        empty_tree(self.mem)
        memory.come_online(self.mem, 0)

    def try_insert(self, word: int, seq: int) -> bool:
        return bool(change(self.mem, 0, memory.INSERTED, word, seq))

    def insert(self, word: int, seq: int) -> None:
        assert self.try_insert(word, seq)

    def delete(self, word: int, seq: int) -> None:
        assert change(self.mem, 0, memory.DELETED, word, seq)

    def search(self, lo: int, hi: int) -> list[int]:
        out = np.empty(4_096, np.int64)
        return sorted(out[: seek(self.mem, 0, lo, hi, out)].tolist())

    def retired(self, me: int) -> int:
        return int(self.mem[memory.thread_at(self.mem, me) + memory.RETIRED_COUNT])

    @property
    def height(self) -> int:
        return int(self.mem[memory.ROOT]) & LEVEL_MASK


def drift(shape: BwTreeSizes, window: int, turns: int, rising: bool) -> list[int]:
    """Pages in use after each turn of a window over keys that only rise, or only fall."""
    tree, used = Tree(shape, pages=4_000), []
    for turn in range(turns):
        for k in range(turn * window, (turn + 1) * window):
            tree.insert(k if rising else -k, k)
            if k >= window:
                tree.delete(k - window if rising else window - k, k - window)
        used.append(settle_pages(tree.mem))
        assert len(check_bw_tree(tree.mem)) == window
    return used


def churn(seed: int, threads: int, n: int, keys: str = "uniform") -> None:
    """Each thread slides a window of its own over its part of the keys; a few entries stay in the end."""
    rng = np.random.default_rng(seed)
    leaf_size = int(rng.choice([4, 8, 32]))
    tree = Tree(BwTreeSizes(leaf_size, int(rng.choice([2, leaf_size // 2]))), pages=40 * n, threads=threads)
    memory.go_offline(tree.mem, 0)
    words: npt.NDArray[np.int64] = {
        "uniform": rng.integers(0, 1 << 30, n),
        "few": rng.integers(0, 3, n),
        "rising": np.arange(n) // 2,
    }[keys]
    seqs = rng.permutation(n)
    staying = [(int(rng.integers(0, 1 << 30)), n + k) for k in range(20)]
    memory.come_online(tree.mem, 0)
    for entry in staying:
        tree.insert(*entry)
    memory.go_offline(tree.mem, 0)
    answers = [1] * threads
    start = threading.Barrier(threads)

    def run(k: int) -> None:
        # Neighbouring keys belong to different threads.
        mine = slice(k, None, threads)
        own, own_seqs = words[mine].copy(), seqs[mine].copy()
        start.wait()
        for _ in range(4):
            answers[k] = slide(tree.mem, k, own, own_seqs, 0, own.size, int(1 + seed % 40), np.empty(n + 64, np.int64))

    running = [threading.Thread(target=run, args=(k,)) for k in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert answers == [0] * threads, f"seed {seed}: {answers}"
    assert [tuple(entry) for entry in check_bw_tree(tree.mem).tolist()] == sorted(staying), f"seed {seed}"
    # Leaves with an entry, the left edge, and what the last changes left behind.
    assert settle_pages(tree.mem) <= 4 * len(staying) + 6 * (tree.height + 1) + 4 * threads, f"seed {seed}"


if __name__ == "__main__":
    churn(0, 1, 20)  # compiled before the clock starts
    with no_deadlock(240):
        for seed in range(int(sys.argv[1])):
            churn(seed, 1 + seed % 8, 200, ("uniform", "few", "rising")[seed % 3])
    print("held")
