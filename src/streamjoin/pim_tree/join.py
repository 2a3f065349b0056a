"""`pim_parallel`: threads take tasks from one queue and share one PIM-Tree per side (SIGMOD paper, section 4).

A thread takes the next task, looks its tuples up in the index and in the part of the window that is not indexed yet,
indexes them, and passes on completed results in order. A merge runs concurrently (`merge="nonblocking"`), while the
other threads wait (`"blocking"`), or as in the paper, by one thread while the others do not index (`"one_thread"`).
Threads may join and leave at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.calls import Each, KernelCalls
from streamjoin.joins.base import AlgorithmCapabilities, Chunk, Pairs, Refine
from streamjoin.joins.indexed import largest
from streamjoin.joins.registry import register_algorithm
from streamjoin.kernels.trees.task import INSERTS, ON_RIGHT, PROBES
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import SpecError
from streamjoin.pim_tree.crew import MERGES, SharedJoin, Tuples
from streamjoin.pim_tree.kernels import work_queue as q
from streamjoin.pim_tree.kernels.task import work
from streamjoin.pim_tree.shared import SETTINGS, SharedPimTree
from streamjoin.windows.buffer import Restore, copy_arrays
from streamjoin.windows.workers import Workers, cuts

if TYPE_CHECKING:
    from streamjoin.joins.live.runner import Runner, Setup

Pieces = list[tuple[Array, Array]]

OPTIONS = frozenset({"task", "merge"}) | SETTINGS
_TASK = 64
_LARGEST_TASK = 1 << 16
_REFINED_AT_ONCE = 1 << 16
_MOST_CANDIDATES = 1 << 22
_ALONE = Workers(1)
_ALL_VALID = np.empty(0, np.bool_)
# Below this many tuples of a side a second thread does not pay.
_LEAST_PART = 1 << 14


class PimParallel:
    """The parallel join over two shared PIM-Trees; over one in a self-join whose roles have the same words."""

    name: ClassVar[str] = "pim_parallel"
    capabilities: ClassVar[AlgorithmCapabilities] = AlgorithmCapabilities(shares_no_small_chunks=True)

    def __init__(self, bound: BoundSpec, options: Mapping[str, object], workers: Workers) -> None:
        task, merge, settings = _checked(options)
        sizes = [window.size if window.kind == "count" else None for window in bound.windows]
        # A self-join whose roles have the same words looks both up in one tree; a tuple enters it as a left one.
        self.one_tree = bound.has_equal_roles
        left = SharedPimTree(largest(sizes) if self.one_tree else sizes[0], task, **settings)
        right = left if self.one_tree else SharedPimTree(sizes[1], task, **settings)
        self.shared = SharedJoin(left, right, workers.n, task=task, merge=merge)
        self._workers = workers
        self._tuples = Tuples(one_stream=self.one_tree)
        self._mins = [0, 0]
        # Whether the bounds of a side's window never decrease between probes; times in arrival order may.
        gated = bound.spec.order == "event_time"
        self.grows = [gated or window.kind == "count" for window in bound.windows]
        if self.one_tree:
            self.grows = [all(self.grows)] * 2
        self.decides = bound.settled

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Join the chunk in tasks; undecided candidates are tested at the end, in parallel."""
        tuples = self._tuples
        tuples.lay(chunk.n, (chunk.left.first_seq, chunk.right.first_seq), (chunk.left.n, chunk.right.n))
        write(tuples, chunk, 0, self._workers)
        pairs: Pieces = []
        candidates: Pieces = []
        waiting = 0

        def take(probes: Array, seqs: Array) -> None:
            nonlocal waiting
            if not refine.tests:
                refine.count(probes.size)
                pairs.append((probes.copy(), seqs.copy()))
                return
            candidates.append((probes.copy(), seqs.copy()))
            waiting += probes.size
            # One thread at a time runs this. The tests here are not parallel, but memory stays bounded.
            if waiting > _MOST_CANDIDATES:
                pairs.extend((probe.copy(), seq.copy()) for probe, seq in _refined(candidates, refine, _ALONE))
                candidates.clear()
                waiting = 0

        self.shared.run(tuples, take, base=self._mins, grows=self.grows)
        pairs += _refined(candidates, refine, self._workers) if candidates else []
        return Pairs(*_joined(pairs, self._workers))

    def fill(self, side: int, words: Array, seqs: Array) -> None:
        """Store one side's live tuples, taken over from another algorithm."""
        if side == 0 or not self.one_tree:
            self.shared.sides[side].load(words, seqs)
            self.shared.renew_limits()

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop positions below these: they are outside every later window."""
        self._mins = [max(self._mins[0], left_min), max(self._mins[1], right_min)]

    @property
    def workers(self) -> int:
        """The requested number of threads."""
        return self.shared.crew.n

    def set_workers(self, n: int) -> None:
        """Use `n` threads, starting with their next task."""
        self.shared.crew.resize(n)

    def counters(self) -> dict[str, int]:
        """Tasks and merges."""
        return {"tasks": int(self.shared.queue[q.TASKS]), "merges": int(self.shared.queue[q.MERGES])}

    def saved(self) -> Restore | None:
        """Return None: the trees change in place, so they are rebuilt from the stores."""
        return None

    def close(self) -> None:
        """End the threads."""
        self.shared.close()

    @property
    def nbytes(self) -> int:
        """Bytes held by the trees, the queue and the tuples of the last chunk."""
        return self.shared.nbytes + self._tuples.words.nbytes


def write(tuples: Tuples, chunk: Chunk, at: int, workers: Workers = _ALONE) -> None:
    """Write a chunk's tuples from place `at` on, where there is room for them, and each side's words in line."""
    calls = []
    for side, (part, op) in enumerate(((chunk.left, 0), (chunk.right, ON_RIGHT))):
        index, valid, first = part.encoded.index, part.encoded.valid, part.first_seq
        if index is None:
            raise AssertionError("pim_parallel needs an index word")
        line = tuples.line_at[side] + first - tuples.first[side]
        use = (0 if chunk.stored_only else PROBES) | (0 if side and tuples.one_stream else INSERTS)
        where = np.array((tuples.stride, tuples.apart, at, line, first, op, use))
        begins, ends = zip(*cuts(part.n, min(workers.n, part.n // _LEAST_PART)), strict=True)
        columns = index.word, index.lo, index.hi, _ALL_VALID if valid is None else valid
        cut = len(begins), tuples.words, where, Each(begins), Each(ends)
        calls.append(KernelCalls(*cut, part.at, chunk.min_seq, chunk.upto, *columns))
    workers.call(q.write_side, *calls)


def _refined(candidates: Pieces, refine: Refine, workers: Workers) -> Pieces:
    probes, seqs = _joined(candidates, workers)
    parts = cuts(probes.size, -(-probes.size // _REFINED_AT_ONCE)) if probes.size else []
    return workers.spread(lambda cut: refine(probes[slice(*cut)], seqs[slice(*cut)]), parts)


def _joined(pieces: Pieces, workers: Workers) -> tuple[Array, Array]:
    """The pieces one after another."""
    ends = np.cumsum([0, *(probes.size for probes, _ in pieces)])
    columns = workers.memory.take(int(ends[-1])), workers.memory.take(int(ends[-1]))
    places = [slice(*cut) for cut in pairwise(ends)]
    copy_arrays([(columns[i][at], piece[i]) for piece, at in zip(pieces, places, strict=True) for i in (0, 1)], workers)
    return columns


def _checked(options: Mapping[str, object]) -> tuple[int, str, dict[str, Any]]:
    """The task size, the way to merge, and the settings of the trees."""
    task, merge = options.get("task", _TASK), options.get("merge", "nonblocking")
    if not isinstance(task, int) or isinstance(task, bool) or not 1 <= task <= _LARGEST_TASK:
        raise SpecError(f"options task={task!r} is not a number of tuples from 1 to {_LARGEST_TASK}")
    if not isinstance(merge, str) or merge not in MERGES:
        raise SpecError(f"options merge={merge!r} is not one of {', '.join(map(repr, MERGES))}")
    settings = {name: value for name, value in options.items() if name in SETTINGS}
    for name, value in settings.items():
        is_integer = name != "merge_ratio"
        if isinstance(value, bool) or not isinstance(value, int if is_integer else (int, float)):
            raise SpecError(f"options {name}={value!r} is not a {'whole ' if is_integer else ''}number")
    return task, merge, settings


def _live(setup: Setup) -> Runner:
    from streamjoin.pim_tree.live import run_queue

    return run_queue(setup)


register_algorithm(
    PimParallel.name,
    lambda bound, choice, workers: PimParallel(bound, choice.options, workers),
    needs_word=True,
    own_threads=True,
    options=OPTIONS,
    live=_live,
    kernel=lambda _: work,
)
