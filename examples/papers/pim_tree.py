"""The PIM-Tree paper's index-based window join, small: one band join over a B+-tree, an IM-Tree and a PIM-Tree.

Keys are uniform, the band is such that a tuple meets two others, and tuples come one at a time from each side in turn.
Run it with `python examples/papers/pim_tree.py`; figures 10b and 12 of the paper with sixteen cores are in
docs/reproduction.md.
"""

import time
from typing import Any

import numpy as np
import pyarrow as pa

import streamjoin as sj

WINDOW, MATCHES, BATCH, BATCHES = 1 << 15, 2, 1 << 14, 12
DOMAIN = 1 << 30
band = MATCHES * DOMAIN // (2 * WINDOW)  # a window has MATCHES keys at a distance of at most this
spec = sj.JoinSpec(on=sj.Band("key", "key", band), window=sj.CountWindow(WINDOW))
SYSTEMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "B+-tree, one thread": ("indexed", 1, {"index": "btree"}),
    "IM-Tree, one thread": ("indexed", 1, {"index": "im_tree"}),
    "PIM-Tree, one thread": ("indexed", 1, {"index": "pim_tree"}),
    "PIM-Tree, two threads": ("pim_parallel", 2, {}),
}


def run(algorithm: str, workers: int, settings: dict[str, Any]) -> tuple[float, int, float]:
    """Million tuples a second once both windows are full, rows, and rows of a tuple."""
    random = np.random.default_rng(1)
    interleave = np.tile([False, True], BATCH)
    seconds, rows, full = 0.0, 0, 0
    with sj.open(spec, algorithm, workers, **settings) as join:
        for number in range(BATCHES):
            left, right = (pa.table({"key": random.integers(0, DOMAIN, BATCH)}) for _ in range(2))
            begin = time.perf_counter()
            found = join.push(left, right, interleave=interleave).num_rows
            rows += found
            if number * BATCH >= 2 * WINDOW:
                seconds, full = seconds + time.perf_counter() - begin, full + found
    tuples = 2 * BATCH * BATCHES - 4 * WINDOW
    return tuples / seconds / 1e6, rows, full / tuples


print(
    "the paper: IM-Tree 1.5 and PIM-Tree 1.6 times the B+-tree with one thread (figure 10b), and more with each thread"
)
measured = {name: run(*system) for name, system in SYSTEMS.items()}
slowest = measured["B+-tree, one thread"][0]
for name, (speed, rows, rate) in measured.items():
    print(f"{name}: {speed:.2f} million tuples/s, {speed / slowest:.2f} times; {rows:,} rows, {rate:.1f} a tuple")
