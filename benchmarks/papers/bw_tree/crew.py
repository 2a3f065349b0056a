"""A window join by many threads over two shared Bw-Trees: the rival of `pim_parallel` in figures 8a and 12b.

Words and positions only, like the crew of `pim_parallel`, whose queue and tuples it takes: it is there to be measured,
and no algorithm of the engine. Windows are counts. Invariant: between two runs every tuple so far is indexed, and no
thread touches the trees.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.papers.bw_tree.join import DELETE_AT, DELETE_END, DESK_WORDS, look_up_alone, work
from benchmarks.papers.bw_tree.side import SharedBwTree
from streamjoin.indexes.base import I64
from streamjoin.jit.crew import unlock
from streamjoin.kernels.trees.entries import LARGEST
from streamjoin.pim_tree.crew import Take, Tuples
from streamjoin.pim_tree.kernels import work_queue as q
from streamjoin.pim_tree.kernels.task import ALONE, FLUSH, LEAVES, WAITS_FOR_TASK, WAITS_FOR_TURN
from streamjoin.windows.crew import LEFT, Crew

_PLACES: Mapping[int, str] = {
    WAITS_FOR_TASK: "waiting for a task",
    WAITS_FOR_TURN: "waiting for its turn to hand results on",
}
_GRANT = 64
_SHARE = 2  # grants per thread that the waiting tuples must be enough for
_LEAST_UNDER_WAY = 64
_LEAST_RESULTS = 1024
_RESULTS_A_TUPLE = 16


class BwTreeJoin:
    """The crew, its queue and the trees of both sides; a self-join passes the same side twice."""

    def __init__(
        self,
        left: SharedBwTree,
        right: SharedBwTree,
        n: int,
        *,
        task: int = 64,
        under_way: int | None = None,
        results: int | None = None,
        out: int = 1 << 16,
    ) -> None:
        """At most `under_way` (a power of two) tasks wait for propagation, `results` each; `out` is the output size."""
        granted = -(-_GRANT // task)
        under_way = under_way or max(_LEAST_UNDER_WAY, 1 << ((8 + granted) * n - 1).bit_length())
        self.sides = (left, right)
        for side in self.sides:
            side.fit(n, under_way * task)
        self.crew = Crew(n, _PLACES)
        capacity = results or max(_LEAST_RESULTS, _RESULTS_A_TUPLE * task)
        words = np.zeros(q.SLOTS + q.SLOT * under_way + 8, np.int64)
        self.queue = words[(-words.ctypes.data // 8) % 8 :]
        self.queue[q.TASK], self.queue[q.SELF] = task, left is right
        self.queue[q.GRANT], self.queue[q.SHARE] = max(task, _GRANT), _SHARE * n
        self.queue[q.RING_MASK], self.queue[q.CAPACITY] = under_way - 1, capacity
        # No merge is ever due.
        self.queue[[q.LIMIT, q.LIMIT + 1, q.CEILING, q.CEILING + 1]] = LARGEST
        self.pool = np.empty(under_way * 2 * (capacity + q.GAP_WORDS), np.int64)
        self.queue[q.OUT_ROOM] = room = max(out, capacity)
        self.out = np.empty(room, np.int64), np.empty(room, np.int64)
        self._desks = [np.full(DESK_WORDS, -1, np.int64) for _ in range(n)]
        for desk in self._desks:
            desk[DELETE_AT : DELETE_END + 2] = 0

    def run(self, tuples: Tuples, take: Take) -> None:
        """Join all tuples."""
        self._begin(tuples)
        while True:
            self.crew.run(lambda k: self._serve(k, tuples, take))
            if not self.queue[q.HALT]:
                break
            for side in self.sides:
                side.make_room()
            self.queue[q.HALT] = 0
        self._flush(take)

    def _begin(self, tuples: Tuples) -> None:
        queue = self.queue
        queue[[q.ACQUIRED, q.PROPAGATED, q.EDGE, q.EDGE + 1]] = 0
        queue[q.N], queue[q.STRIDE], queue[q.APART] = tuples.n, tuples.stride, tuples.apart
        for side in (0, 1):
            queue[q.LINE + side] = tuples.line_at[side]
            queue[q.FIRST + side] = tuples.first[side]
            queue[q.TOTAL + side] = tuples.first[side] + tuples.lines[side].size

    def _serve(self, k: int, tuples: Tuples, take: Take) -> object:
        while True:
            code = work(
                self.crew.words, k, self.queue, tuples.words, self._desks[k], self.pool, self.out[0], self.out[1],
                self.sides[0].mem, self.sides[1].mem,
            )  # fmt: skip
            if code not in (FLUSH, ALONE):
                return LEFT if code == LEAVES else None
            # In both cases this thread holds the propagation lock.
            self._flush(take)
            if code == ALONE:
                self._answer_alone(k, tuples, take)
            unlock(self.queue, q.PROPAGATE_LOCK)

    def _flush(self, take: Take) -> None:
        count = int(self.queue[q.OUT])
        if count:
            take(self.out[0][:count], self.out[1][:count])
            self.queue[q.OUT] = 0

    def _answer_alone(self, k: int, tuples: Tuples, take: Take) -> None:
        """Look up a tuple with more matches than its task's block holds; thread k has the propagation lock."""
        desk, sides = self._desks[k], self.sides
        matches, room = -1, 4 * int(self.queue[q.CAPACITY]) + 64
        while matches < 0:
            seqs: I64 = np.empty(room, np.int64)
            matches = look_up_alone(self.queue, tuples.words, desk, sides[0].mem, sides[1].mem, k, seqs)
            room *= 4
        at = int(desk[q.NEXT])
        take(np.full(matches, at, np.int64), seqs[:matches])
        desk[q.NEXT] = at + 1

    def close(self) -> None:
        """End the threads."""
        self.crew.close()

    @property
    def nbytes(self) -> int:
        """Bytes held by the trees and the other shared arrays."""
        sides = self.sides[:1] if self.queue[q.SELF] else self.sides
        return sum(side.nbytes for side in sides) + sum(a.nbytes for a in (self.queue, self.pool, *self.out))
