"""Threads that join the tuples of one queue over two shared PIM-Trees; words and positions only.

It does not use predicates or tables: `pim_parallel` runs it for the engine, and the experiments run it directly.
Invariant: between two runs every tuple so far is indexed, no merge is running, and no thread touches the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from streamjoin.indexes.base import I64, arena
from streamjoin.jit.crew import STOP, unlock
from streamjoin.kernels.trees.entries import LARGEST
from streamjoin.pim_tree.kernels import work_queue as q
from streamjoin.pim_tree.kernels.merge import MERGING_NOW, set_limits
from streamjoin.pim_tree.kernels.shared_tree import DESK_WORDS
from streamjoin.pim_tree.kernels.task import (
    ALONE,
    FLUSH,
    LEAVES,
    WAITS_FOR_TASK,
    WAITS_FOR_TURN,
    look_up_alone,
    work,
)
from streamjoin.pim_tree.shared import GRANT, SharedPimTree
from streamjoin.windows.crew import LEFT, Crew, Step

Take = Callable[[I64, I64], None]
"""Hears (tuple, position on the other side) of the next matches in result order; the arrays are lent for the call."""

_PLACES = {
    WAITS_FOR_TASK: "waiting for a task",
    MERGING_NOW: "merging",
    WAITS_FOR_TURN: "waiting for its turn to hand results on",
    q.AWAITS_MATCHES: "waiting for matches",
    q.AWAITS_OUTPUT: "waiting until the output is taken",
}
MERGES = {"nonblocking": q.NONBLOCKING, "blocking": q.BLOCKING, "one_thread": q.ONE_THREAD}
"""How a merge goes on beside the join, by name."""
_SHARE = 2  # grants per thread that the waiting tuples must be enough for
_LEAST_UNDER_WAY = 64
_SLICE = 1 << 11
_MOST_SLICES = 1024
_BACKLOG = 1 << 14  # tuples
_LEAST_RESULTS = 256
_RESULTS_A_TUPLE = 4
_LEAST_OUT = 1 << 13
_MOST_RESULTS = 1 << 18
_PAGE = 512
_OFFSET = 56


class Tuples:
    """The tuples of one run in arrival order, and each side's words in line; buffers are reused between runs.

    With `one_stream` a right tuple is a left one in its other role: both sides' words are one line.
    """

    def __init__(self, *, one_stream: bool = False) -> None:
        self.one_stream = one_stream
        self.words: I64 = np.empty(0, np.int64)
        self.n = 0
        self.stride = 0
        self.lines: list[I64] = []
        self.counted: list[I64] = []
        self.first = [0, 0]

    def lay(self, n: int, first: Sequence[int], counts: Sequence[int]) -> None:
        """Make room for `n` tuples, `counts` of each side, whose positions begin at `first`."""
        self.n, self.first = n, list(first)
        # Rows at a multiple of the page size apart would map to the same few cache lines.
        self.stride = -(-n // _PAGE) * _PAGE + _OFFSET
        line = [counts[0] + q.PADDING, 0 if self.one_stream else counts[1] + q.PADDING]
        needed = q.ROWS * self.stride + 2 * sum(line)
        if self.words.size < needed:
            self.words = arena(max(needed, 512))
        self.line_at = [q.ROWS * self.stride] * 2
        if not self.one_stream:
            self.line_at[1] += line[0]
        self.apart = sum(line)
        self.lines = [self.words[at : at + count] for at, count in zip(self.line_at, counts, strict=True)]
        self.counted = [
            self.words[at + self.apart : at + self.apart + count]
            for at, count in zip(self.line_at, counts, strict=True)
        ]
        self.row(q.INDEXED)[:] = 0

    def row(self, name: int) -> I64:
        """One property of all tuples: `work_queue.OPS` and so on."""
        return self.words[name * self.stride : name * self.stride + self.n]


class SharedJoin:
    """The crew, its queue and the trees of both sides; a self-join over one index passes the same side twice."""

    def __init__(
        self,
        left: SharedPimTree,
        right: SharedPimTree,
        n: int,
        *,
        task: int = 64,
        merge: str = "nonblocking",
        under_way: int | None = None,
        results: int | None = None,
        most_results: int | None = None,
        out: int = 1 << 16,
        slice_entries: int = _SLICE,
        backlog: int = _BACKLOG,
        ordered: bool = True,
    ) -> None:
        """At most `under_way` (a power of two) tasks wait for propagation, `results` each; the output grows to `out`.

        Where that is too few, a task may have up to `most_results`, and fewer tasks wait: two per thread at least.
        A merge is cut into slices of about `slice_entries` entries, which threads share; slices take precedence over
        tasks while more than `backlog` tuples wait, and while fewer tuples than a task wait. Unless `ordered`, the
        matches of one tuple come in any order.
        """
        # Few, since pending tasks make lookups scan more of the window; but enough that no thread waits.
        granted = -(-GRANT // task)
        under_way = under_way or max(_LEAST_UNDER_WAY, 1 << ((8 + granted) * n - 1).bit_length())
        self.sides = (left, right)
        self.crew = Crew(n, _PLACES)
        capacity = results or max(_LEAST_RESULTS, _RESULTS_A_TUPLE * task)
        most = max(capacity, most_results or (0 if results else _MOST_RESULTS))
        fewest = min(under_way, 1 << (2 * n - 1).bit_length())
        # What is not used costs no memory.
        pool_words = 2 * max(under_way * (capacity + q.GAP_WORDS), fewest * (most + q.GAP_WORDS))
        slices_at = q.SLOTS + q.SLOT * under_way
        self.queue = np.zeros(slices_at + _MOST_SLICES + 1 + 8, np.int64)
        self.queue = self.queue[(-self.queue.ctypes.data // 8) % 8 :]
        self.queue[q.TASK], self.queue[q.MERGE_MODE] = task, MERGES[merge]
        self.queue[q.GRANT], self.queue[q.SHARE] = max(task, GRANT), _SHARE * n
        self.queue[q.SELF], self.queue[q.SORTS] = left is right, ordered
        self.queue[q.SLICES_AT], self.queue[q.MOST_SLICES] = slices_at, _MOST_SLICES
        self.queue[q.SLICE_ENTRIES], self.queue[q.BACKLOG] = slice_entries, backlog
        self.queue[q.RING_MASK], self.queue[q.CAPACITY] = under_way - 1, capacity
        self.queue[q.MOST_CAPACITY], self.queue[q.POOL_WORDS] = most, pool_words
        self.queue[q.OUT_ROOM] = max(min(out, _LEAST_OUT), capacity)
        self.pool = np.empty(pool_words, np.int64)
        self.out = np.empty(max(out, most), np.int64), np.empty(max(out, most), np.int64)
        self._desks: dict[int, I64] = {}
        self.renew_limits()

    def renew_limits(self) -> None:
        """Read from the trees which are in use and when to merge next; after they were created, loaded or replaced."""
        for side, tree in enumerate(self.sides):
            self.queue[q.CURRENT + side] = tree.current
            set_limits(self.queue, side, tree.tree)
            self.queue[q.INSERTED + side] = tree.pending()
        if self.queue[q.SELF]:
            self.queue[q.LIMIT + 1] = LARGEST
        else:
            # With equal windows both merges would be due together; the second comes half a period later.
            self.queue[q.INSERTED + 1] += self.queue[q.LIMIT + 1] // 2

    def run(
        self,
        tuples: Tuples,
        take: Take,
        *,
        base: Sequence[int] = (0, 0),
        grows: Sequence[bool] = (True, True),
    ) -> None:
        """Join all tuples; `base` has each side's first live position, `grows` whether its bounds never decrease."""
        self.begin(tuples, base, grows)

        def step(k: int) -> object:
            return self._serve(k, tuples, take)

        while True:
            if tuples.n <= self.queue[q.TASK] and not self.crew.words[STOP]:
                self._run_here(step)
            else:
                self.crew.run(step)
            if not self.make_room():
                break
        self.flush(take)

    def make_room(self) -> bool:
        """Once no thread works: whether a tree was too small for a merge, and was replaced."""
        for side, tree in enumerate(self.sides):
            tree.current = int(self.queue[q.CURRENT + (0 if self.queue[q.SELF] else side)])
        halted = int(self.queue[q.HALT])
        if halted:
            self.sides[halted - 1].make_room(int(self.queue[q.NEEDED]))
            self.queue[q.HALT] = 0
        return halted > 0

    def _run_here(self, step: Step) -> None:
        """Run a single task in the caller's thread, which is faster than waking another."""
        try:
            step(0)
        except BaseException as error:
            self.crew.stop(error)
            raise

    def begin(self, tuples: Tuples, base: Sequence[int], grows: Sequence[bool]) -> None:
        """Lay the tuples of a run into the queue."""
        queue = self.queue
        queue[[q.ACQUIRED, q.PROPAGATED, q.EDGE, q.EDGE + 1, q.SWAPPED, q.SWAPPED + 1]] = 0
        queue[q.N], queue[q.STRIDE], queue[q.APART] = tuples.n, tuples.stride, tuples.apart
        for side in (0, 1):
            queue[q.LINE + side] = tuples.line_at[side]
            queue[q.FIRST + side] = tuples.first[side]
            queue[q.TOTAL + side] = tuples.first[side] + tuples.lines[side].size
            queue[q.BASE + side] = base[side]
            queue[q.GROWS + side] = grows[side]

    def work(self, k: int, tuples: Tuples) -> int:
        """Thread k's kernel, until the caller must act: see `kernels.pim_parallel.task`."""
        left, right = (side.trees for side in self.sides)
        return work(
            self.crew.words, k, self.queue, tuples.words, self._desk(k), self.pool, self.out[0], self.out[1],
            left[0], left[1], right[0], right[1], self.sides[0].adaptive,
        )  # fmt: skip

    def _desk(self, k: int) -> I64:
        return self._desks.setdefault(k, np.full(DESK_WORDS, -1, np.int64))

    def _serve(self, k: int, tuples: Tuples, take: Take) -> object:
        while True:
            code = self.work(k, tuples)
            if code not in (FLUSH, ALONE):
                return LEFT if code == LEAVES else None
            # In both cases this thread holds the propagation lock.
            self.flush(take)
            if code == ALONE:
                self.answer_alone(k, tuples, take)
            unlock(self.queue, q.PROPAGATE_LOCK)

    def flush(self, take: Take) -> None:
        """Hand out what is in the output; the caller has the propagation lock, or no thread works."""
        count, capacity = int(self.queue[q.OUT]), int(self.queue[q.CAPACITY])
        if count + capacity > self.queue[q.OUT_ROOM]:
            # It was full, or nearly: the next time it is emptied less often.
            self.queue[q.OUT_ROOM] = min(self.out[0].size, 2 * max(capacity, int(self.queue[q.OUT_ROOM])))
        if count:
            take(self.out[0][:count], self.out[1][:count])
            self.queue[q.OUT] = 0

    def answer_alone(self, k: int, tuples: Tuples, take: Take) -> None:
        """Look up a tuple with more matches than its task's block holds; thread k has the propagation lock."""
        desk = self._desk(k)
        left, right = (side.trees for side in self.sides)
        matches, room = -1, 4 * int(self.queue[q.CAPACITY])
        while matches < 0:
            seqs = np.empty(2 * room, np.int64)
            matches = look_up_alone(self.queue, tuples.words, desk, left[0], left[1], right[0], right[1], seqs)
            room *= 4
        at = int(desk[q.NEXT])
        take(np.full(matches, at, np.int64), seqs[:matches])
        desk[q.NEXT] = at + 1

    def close(self) -> None:
        """End the threads."""
        self.crew.close()

    @property
    def nbytes(self) -> int:
        """Bytes held by the trees and the other shared arrays, without what their room to grow would take."""
        sides = self.sides[:1] if self.queue[q.SELF] else self.sides
        blocks = (self.queue[q.RING_MASK] + 1) * (self.queue[q.CAPACITY] + q.GAP_WORDS)
        used = 8 * 2 * int(blocks + self.queue[q.OUT_ROOM])
        return sum(side.nbytes for side in sides) + self.queue.nbytes + used
