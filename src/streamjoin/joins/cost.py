"""The cost per tuple of each index: the cost model of the PIM-Tree papers (arXiv version, equations 1 to 6).

A tuple is looked up, expired and inserted (equation 1). Each step costs a number of tree levels times the time per
level, plus a number of matches times the time to scan one. The heights follow from the window, the fan-outs and the
insertion depth D_I; the times are measured on this machine by `calibrate`, or are defaults whose ratios are right.

`auto` compares whole algorithms by `algorithm_cost`: what a push costs, and each of its tuples, for a number of
workers. `make bench EXPERIMENT=cost_model` puts these predictions beside measured times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from streamjoin.indexes.base import I64, Index
from streamjoin.indexes.registry import make_index
from streamjoin.windows.workers import least_shared

_LARGEST_CALIBRATION = 1 << 18
_SMALLEST_CALIBRATION = 1 << 12
_SLICES = 16


@dataclass(frozen=True)
class Constants:
    """Nanoseconds per level of a B+-tree, per level of an immutable tree, per match and per merged entry."""

    search: float = 22.0
    delete: float = 28.0
    insert: float = 28.0
    immutable_search: float = 14.0
    scan: float = 4.0
    merge: float = 5.0


@dataclass(frozen=True)
class Steps:
    """The three steps of equation 1, in nanoseconds per tuple."""

    lookup: float
    delete: float
    insert: float

    @property
    def total(self) -> float:
        """Equation 1."""
        return self.lookup + self.delete + self.insert


@dataclass(frozen=True)
class Workload:
    """`window` tuples per side, `matches` per lookup, and the indexes' parameters."""

    window: float
    matches: float = 2.0
    merge_ratio: float = 1 / 8
    chain_length: int = 2
    workers: int = 1
    fanout: float = 24.0
    """Keys of a B+-tree's node on average: they hold 30 at most."""
    immutable_fanout: float = 32.0
    leaf_size: float = 32.0
    insertion_depth: int | None = None
    """D_I, counted from the root of T_S; None: its leaves."""


def height(entries: float, fanout: float = Workload.fanout) -> float:
    """The height of a B+-tree with this many entries."""
    return max(1.0, math.log(max(entries, 2.0), fanout))


def immutable_height(work: Workload, entries: float) -> float:
    """The levels of an immutable tree with this many entries, its leaves included."""
    return 1.0 + max(0.0, math.log(max(1.0, entries / work.leaf_size), work.immutable_fanout))


def _insertion(work: Workload) -> tuple[float, float]:
    """The levels of T_S above the sub-indexes, and the levels of a sub-index by the time of a merge."""
    levels = immutable_height(work, work.window)
    if work.insertion_depth is None or work.insertion_depth >= levels:
        return levels, 1.0
    nodes = work.immutable_fanout**work.insertion_depth
    return float(work.insertion_depth), height(work.merge_ratio * work.window / nodes, work.fanout)


def model(work: Workload, c: Constants) -> dict[str, Steps]:
    """The cost of every index that the papers compare, and of the scan without one."""
    w, m, links = work.window, work.merge_ratio, max(2, work.chain_length)
    whole, link, pending = (height(entries, work.fanout) for entries in (w, w / links, m * w))
    runs, old_link = immutable_height(work, w), immutable_height(work, w / links)
    above, sub_index = _insertion(work)
    scan_time = work.matches * c.scan
    expired_in_chain = scan_time * (1 + 1 / (2 * (links - 1)))
    expired_in_run = scan_time * (1 + m / 2)
    # A merge moves the window and T_I, and comes once for every m * w tuples.
    merging = c.merge * (1 + m) / m
    return {
        "scan": Steps(w * 0.1, 0.0, 1.0),
        "btree": Steps(whole * c.search + scan_time, whole * c.delete, whole * c.insert),
        "b_chain": Steps(links * link * c.search + expired_in_chain, 0.0, link * c.insert),
        "ib_chain": Steps(
            link * c.search + (links - 1) * old_link * c.immutable_search + expired_in_chain,
            c.merge,
            link * c.insert,
        ),
        "round robin": Steps(
            work.workers * height(w / work.workers, work.fanout) * c.search + scan_time,
            height(w / work.workers, work.fanout) * c.delete,
            height(w / work.workers, work.fanout) * c.insert,
        ),
        "im_tree": Steps(runs * c.immutable_search + pending * c.search + expired_in_run, merging, pending * c.insert),
        "pim_tree": Steps(
            runs * c.immutable_search + sub_index * c.search + expired_in_run,
            merging,
            above * c.immutable_search + sub_index * c.insert,
        ),
    }


EQUATIONS = {"btree": 2, "b_chain": 3, "ib_chain": 3, "round robin": 4, "im_tree": 5, "pim_tree": 6}
PUSH_NS = 120_000.0
"""The cost of a push to the scan beyond an index, whose steps are compiled as one."""

# The costs below are those of whole pushes through the public API, rows gathered: fitted to `auto_regret` on two cores
# and to `cores` and `cost_model` on sixteen. They are compared with each other, not with `Constants`.


class Found(NamedTuple):
    """Pairs of a tuple, on average; the defaults are for joins of which nothing is known yet."""

    candidates: float = Workload.matches
    """Those whose words match; they are tested if the condition asks for more."""
    results: float = Workload.matches

    def weighed(self, tested: float) -> float:
        """Results, and other candidates at what testing one costs beside putting it in order and gathering it."""
        return self.results + tested * max(0.0, self.candidates - self.results)


UNKNOWN = Found()
_SWEEP_TESTED, _INDEX_TESTED = 0.6, 1.25
# Beyond this many tuples a window no longer fits the caches, and every doubling costs a tuple so much more.
_FITS = 1 << 17
_INDEX_STEPS, _INDEX_PUSH_NS, _INDEX_MISS_NS = 0.8, 30_000.0, 15.0
_INDEX_PAIR_NS, _INDEX_PAIR_MISS_NS = 28.0, 11.0
_SWEEP_PUSH_NS, _SWEEP_TUPLE_NS, _SWEEP_MISS_NS = 650_000.0, 65.0, 12.0
# Pairs of a sweep, and those of a hash table, lie far apart in windows that are larger than this.
_PAIRS_FIT = 1 << 14
_SWEEP_PAIR_NS, _SWEEP_PAIR_MISS_NS = 22.0, 3.0
# A tuple visits every run, and the more runs there are, the farther apart lie the words that it meets in the largest.
_SWEEP_RUNS_NS = 3.0
# Workers: handing steps over, per push and per worker; the share that one does alone; tuples that make waking one pay.
_SWEEP_CREW_NS, _SWEEP_WORKER_NS, _SWEEP_SERIAL, _SWEEP_SHARE = 200_000.0, 10_000.0, 0.2, 1 << 14
# Windows of fewer tuples cut large pushes into chunks of this many; an index joins chunks by steps that are slower.
_LEAST_CHUNK, _LEAST_CHUNK_INDEXED, _INDEX_CHUNKS_NS = 1 << 12, 1 << 14, 70.0
# A hash table is looked up in one step.
_HASHED_NS, _HASHED_MISS_NS, _HASHED_PAIR_NS, _HASHED_PAIR_MISS_NS = 100.0, 10.0, 27.0, 13.0
# The parallel join over PIM-Trees: a push, and waking each worker; what one thread does per tuple, and what they share.
_CREW_NS, _WORKER_NS, _CREW_TUPLE_NS, _SHARED_NS, _CREW_SHARE = 800_000.0, 40_000.0, 40.0, 160.0, 1 << 12
_SHARED_MISS_NS = 20.0
_ONE_TASK = 64  # tuples that are joined without waking anyone
# In small windows threads wait for each other's merges.
_MERGES_NS, _MERGES_WINDOW, _MERGES_POWER = 12.5, 1 << 14, 0.75

# A scan compares words in vector registers; of more tuples than this it sorts blocks. The interval index sweeps each
# class of lengths by itself.
_SCAN_TUPLE_NS, _SCAN_PAIR_NS, _SCAN_SORTED, _SCAN_SORTED_PAIR_NS = 400.0, 0.2, 1 << 13, 0.03
_CLASS_NS, _CLASS_TUPLE_NS, _INTERVAL_TUPLE_NS, _CANDIDATE_NS = 85_000.0, 12.0, 80.0, 4.5
_PAIR_NS = 40.0


def scan_cost(pairs: float, found: Found = UNKNOWN) -> float:
    """Nanoseconds per tuple of a scan by two terms that looks at `pairs` pairs of words for each tuple."""
    compared = min(pairs, _SCAN_SORTED)
    words = compared * _SCAN_PAIR_NS + (pairs - compared) * _SCAN_SORTED_PAIR_NS
    return _SCAN_TUPLE_NS + words + found.results * _PAIR_NS


def interval_cost(batch: float, classes: float, candidates: float, found: Found = UNKNOWN) -> float:
    """Nanoseconds per tuple of the interval index over `classes` classes, with `candidates` for each tuple."""
    each = _INTERVAL_TUPLE_NS + classes * _CLASS_TUPLE_NS + candidates * _CANDIDATE_NS
    return classes * _CLASS_NS / batch + each + found.results * _PAIR_NS


def sweep_cost(window: float, batch: float, workers: int = 1, found: Found = UNKNOWN) -> float:
    """Nanoseconds per tuple of the sweep for pushes of `batch` tuples that find the pairs `found`."""
    chunk = min(batch, max(_LEAST_CHUNK, 2 * window))
    runs = max(0.0, math.log2(max(window / chunk, 1.0)))
    # Most of a chunk that is larger than the window is compared in vain.
    vain = max(0.0, math.log2(chunk / (2 * window))) if chunk > 2 * window else 0.0
    each = _SWEEP_TUPLE_NS + _SWEEP_MISS_NS * _doublings(window, _FITS) + _SWEEP_RUNS_NS * (runs + vain) ** 2
    pair = _SWEEP_PAIR_NS + _SWEEP_PAIR_MISS_NS * _doublings(window, _PAIRS_FIT)
    each += found.weighed(_SWEEP_TESTED) * pair
    push = _SWEEP_PUSH_NS
    awake = 1.0
    if chunk >= least_shared(workers):
        push += _SWEEP_CREW_NS + _SWEEP_WORKER_NS * workers
        awake = max(1.0, min(workers, chunk / _SWEEP_SHARE))
    return push / chunk + each * (_SWEEP_SERIAL + (1 - _SWEEP_SERIAL) / awake)


def index_cost(index: str, window: float, found: Found = UNKNOWN) -> float:
    """Nanoseconds per tuple of an index, without what a push costs."""
    pairs = found.weighed(_INDEX_TESTED)
    if index == "hashed":
        far = _doublings(window, _PAIRS_FIT)
        return _HASHED_NS + _HASHED_MISS_NS * far + pairs * (_HASHED_PAIR_NS + _HASHED_PAIR_MISS_NS * far)
    return _traversal(index, window) + pairs * _index_pair(window)


@cache
def _traversal(index: str, window: float) -> float:
    """What the steps of equation 1 take without matches."""
    steps = model(Workload(window, matches=0.0), Constants())[index].total
    return _INDEX_STEPS * steps + _INDEX_MISS_NS * _doublings(window, _FITS)


def _index_pair(window: float) -> float:
    return _INDEX_PAIR_NS + _INDEX_PAIR_MISS_NS * _doublings(window, _FITS)


def parallel_cost(window: float, batch: float, workers: int, found: Found = UNKNOWN) -> float:
    """Nanoseconds per tuple of the parallel join over PIM-Trees for pushes of `batch` tuples."""
    push = _CREW_NS + (_WORKER_NS * workers if batch > _ONE_TASK else 0.0)
    awake = max(1.0, min(workers, batch / _CREW_SHARE))
    waiting = _MERGES_NS * workers * min(1.0, _MERGES_WINDOW / window) ** _MERGES_POWER if workers > 1 else 0.0
    shared = _SHARED_NS + _SHARED_MISS_NS * _doublings(window, _FITS)
    shared += found.weighed(_INDEX_TESTED) * _index_pair(window)
    return push / batch + _CREW_TUPLE_NS + shared / awake + waiting


COMPARED = ("sweep", "pim_parallel", "indexed")
"""The algorithms that `algorithm_cost` knows."""


def algorithm_cost(
    algorithm: str,
    window: float,
    batch: float,
    workers: int = 1,
    index: str = "pim_tree",
    found: Found = UNKNOWN,
) -> float:
    """Nanoseconds per tuple of one of the algorithms that `auto` compares."""
    if algorithm == "indexed":
        in_chunks = _INDEX_CHUNKS_NS if batch > max(_LEAST_CHUNK_INDEXED, 2 * window) else 0.0
        return _INDEX_PUSH_NS / batch + in_chunks + index_cost(index, window, found)
    cost = parallel_cost if algorithm == "pim_parallel" else sweep_cost
    return cost(window, batch, workers, found)


def _doublings(window: float, size: int) -> float:
    """How many times a window is twice as large as `size`."""
    return max(0.0, math.log2(max(window, 1.0) / size))


def calibrate(window: float) -> Constants:
    """The constants of this machine for a window of about this size, measured once."""
    size = 1 << math.ceil(math.log2(max(2.0, window)))
    return _calibrate(min(max(size, _SMALLEST_CALIBRATION), _LARGEST_CALIBRATION))


@cache
def _calibrate(n: int) -> Constants:
    """Time the steps of small indexes, a fraction of a second in all.

    Each step is timed in several slices and the fastest counts: the cycle counter includes the time of other processes.
    """
    rng = np.random.default_rng(0)
    levels, run_levels = height(n), immutable_height(Workload(n), n)
    words = rng.integers(0, 1 << 40, 2 * n)
    seqs = np.arange(2 * n)
    half = (1 << 40) // n

    def probe(index: Index, part: slice) -> int:
        return int(index.probe(words[part] - half, words[part] + half)[0].size)

    def fresh(name: str) -> Index:
        index = make_index(name, 2 * n)
        index.insert(words[:n], seqs[:n])
        return index

    tree, run, merged = fresh("btree"), make_index("im_tree", 2 * n), fresh("im_tree")
    # All of it at once: the part that takes single entries is empty.
    run.load(words[:n], seqs[:n])
    matches = [probe(tree, part) for part in _slices(n)]
    return Constants(
        search=_fastest(tree, n, "search", lambda part: probe(tree, part)) / levels,
        scan=_fastest(tree, n, "scan", lambda part: probe(tree, part)) * n / sum(matches),
        insert=_fastest(tree, n, "insert", lambda part: tree.insert(words[n:][part], seqs[n:][part])) / levels,
        delete=_fastest(tree, n, "delete", lambda part: tree.expire(part.stop)) / levels,
        immutable_search=_fastest(run, n, "search", lambda part: probe(run, part)) / run_levels,
        merge=_merging(merged, words[n:], seqs[n:]),
    )


def _slices(n: int) -> list[slice]:
    return [slice(begin, begin + n // _SLICES) for begin in range(0, n, n // _SLICES)]


def _fastest(index: Index, n: int, step: str, work: Callable[[slice], object]) -> float:
    """Nanoseconds of `step` for one tuple, in the fastest slice."""
    best = math.inf
    for part in _slices(n):
        index.time_steps()
        work(part)
        best = min(best, index.counters()[f"{step}_ns"] / (part.stop - part.start))
    index.time_steps(False)
    return best


def _merging(index: Index, words: I64, seqs: I64) -> float:
    """Nanoseconds to merge one entry, in the fastest merge."""
    best = math.inf
    for part in _slices(words.size):
        index.insert(words[part], seqs[part])
        moved = index.counters()["merge"]
        index.time_steps()
        index.merge()
        moved = index.counters()["merge"] - moved
        if moved:
            best = min(best, index.counters()["merge_ns"] / moved)
    return best
