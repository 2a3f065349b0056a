"""The slow twins that every index is compared with, in plain Python, and the shapes each kind is tested in."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

import benchmarks.papers.bw_tree.index
import benchmarks.papers.chain.index  # noqa: F401 - they register themselves
from streamjoin.indexes.base import I64
from streamjoin.indexes.registry import INDEXES
from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT, PROBES

SMALLEST, LARGEST = -(2**63), 2**63 - 1

# As they come, and so small that a few dozen entries make deep trees, many merges and many links.
SHAPES: dict[str, list[dict[str, Any]]] = {
    "scan": [{}],
    "hashed": [{}],
    "btree": [{}, {"fanout": 3}, {"fanout": 5}],
    "bw_tree": [{}, {"leaf_size": 4, "chain": 2}, {"leaf_size": 32, "chain": 16}],
    "b_chain": [{}, {"length": 5, "fanout": 4}],
    "ib_chain": [{}, {"length": 3, "fanout": 4, "leaf_size": 8, "immutable_fanout": 8}],
    "im_tree": [{}, {"merge_ratio": 0.5, "leaf_size": 8, "fanout": 8, "smallest_run": 4}],
    "pim_tree": [
        {},
        {"leaf_size": 8, "fanout": 8, "smallest_run": 4},
        {"merge_ratio": 1.0, "leaf_size": 8, "fanout": 8, "smallest_run": 40, "insertion_depth": 1},
        {"merge_ratio": 0.5, "width": 16, "leaf_size": 16, "fanout": 8, "smallest_run": 16},
    ],
}

CASES = [(name, shape) for name in INDEXES for shape in SHAPES[name]]


def case_id(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={setting}" for key, setting in value.items()) or "default"
    return str(value)


class Task(NamedTuple):
    """The columns of a task, in the order of the fused kernel."""

    ops: I64
    word: I64
    lo: I64
    hi: I64
    seq: I64
    min_seq: I64
    own_min: I64


def brute_force(task: Task, self_join: bool = False) -> list[tuple[int, int]]:
    """What the fused kernel must find, tuple by tuple."""
    held: list[list[tuple[int, int]]] = [[], []]
    found = []
    for i, row in enumerate(zip(*(column.tolist() for column in task), strict=True)):
        op, word, lo, hi, seq, min_seq, own_min = row
        own = op & ON_RIGHT
        other = own if self_join else 1 - own
        if op & PROBES:
            found += [(i, s) for w, s in held[other] if lo <= w <= hi and s >= min_seq]
        held[own] = [entry for entry in held[own] if entry[1] >= own_min]
        if op & INSERTS:
            held[own].append((word, seq))
    return found


def random_task(
    rng: Generator, size: int, windows: tuple[int, int], domain: int, width: int, self_join: bool = False
) -> Task:
    """Count windows over a random interleaving; one tuple in ten has a NULL key and takes part in nothing."""
    right = np.zeros(size, dtype=np.int64) if self_join else rng.integers(0, 2, size)
    word = rng.integers(0, domain, size)
    extreme = rng.random(size) < 0.02
    word[extreme] = rng.choice([SMALLEST, SMALLEST + 1, LARGEST, LARGEST - 1], int(extreme.sum()))
    lo = np.maximum(word, SMALLEST + width) - width
    hi = np.minimum(word, LARGEST - width) + width
    ops = right | np.where(rng.random(size) < 0.1, 0, PROBES | INSERTS)
    seq, min_seq, own_min = (np.zeros(size, dtype=np.int64) for _ in range(3))
    count = [0, 0]
    for i, side in enumerate(right.tolist()):
        other = side if self_join else 1 - side
        min_seq[i] = max(0, count[other] - windows[other])
        seq[i] = count[side]
        count[side] += 1
        own_min[i] = max(0, count[side] - windows[side])
    return Task(ops, word, lo, hi, seq, min_seq, own_min)
