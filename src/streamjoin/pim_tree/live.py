"""The parallel PIM-Tree join as it runs: the intake appends to the work queue while threads take tasks from it.

The queue's array of tuples is of fixed size. When it is full, the intake closes it: the threads finish what it holds
and a merge that goes on, and start again with an empty array. In between nothing waits: tasks, edges and merges go on
whatever the pushes are cut into. Matches are handed on in the order of the tasks, so results leave in result order.
Threads come and go: one that is dismissed leaves after its task, one that comes begins with the next task.

Invariants: a thread is in the kernel only while it is counted as inside, and none gets inside while an array is
replaced or a tree makes room. An array is replaced only when all its tasks were handed on (`HEAD` is `TASKS`) and their
matches taken from the output, since both name tuples by their places in it. That no thread is inside does not say so: a
thread that finds the propagation lock taken leaves its task to the holder, and the collector holds it for a while in
each round. No thread keeps that lock when its Python returns or fails: kernels wait for it without looking whether the
join was stopped.
"""

from __future__ import annotations

import threading

from streamjoin._arrays import Array
from streamjoin.jit.crew import STOP, lock
from streamjoin.joins.auto import choose
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.live.flow import COLLECTOR, POLL, Flow, HeldPairs, TakenPairs, together
from streamjoin.joins.live.runner import Runner, Setup
from streamjoin.joins.live.running import MOST_SENT, runner_of
from streamjoin.joins.live.windowed import LiveOperator, SentChunk
from streamjoin.pim_tree.crew import Tuples
from streamjoin.pim_tree.join import PimParallel, write
from streamjoin.pim_tree.kernels import work_queue as q
from streamjoin.pim_tree.kernels.task import ALONE, FLUSH, PARKED
from streamjoin.windows.crew import LEFT

SEGMENT = 4 * MOST_SENT
"""Tuples of one array, unless a chunk has more; a self-join has two for each of its own."""
# Attempts without work: the first 128 yield, the others sleep 50 us each.
_PARKS = 256
_TAKES = 256


class QueueFlow(Flow):
    """The threads of a parallel PIM-Tree join, between the work queue and its output."""

    elastic = True

    def __init__(self, join: PimParallel, *, self_join: bool, ordered: bool) -> None:
        self._join, self._shared = join, join.shared
        self._self_join, self.in_order = self_join, ordered
        self.crew = join.shared.crew
        self.threads = join.shared.crew.n
        self._capacity = SEGMENT
        self._tuples = Tuples(one_stream=join.one_tree)
        self._segment = 0
        """The gate position of the array's first tuple; changes under the propagation lock."""
        # Per side: the position after the last tuple of the array.
        self._ends: tuple[int, ...] = (0, 0)
        self._dropped = (0, 0)
        self._changed = threading.Condition()
        self._runs = self._inside = self._parked = 0
        self._is_open = self._ended = False
        # The collector's: matches that do not fit the output, absolute; how far the result is complete.
        self._taken: list[TakenPairs] = []
        self._complete = 0
        self._held = HeldPairs(self_join)
        self._shared.queue[q.PARKS], self._shared.queue[q.SORTS] = _PARKS, ordered
        self._open(0, (0, 0))

    # -- the intake's ---------------------------------------------------------------------------------------

    def send(self, sent: SentChunk) -> None:
        """Append the chunk to the queue."""
        chunk, at = sent.tuples, int(self._shared.queue[q.N])
        if at + chunk.n > self._capacity:
            self._close()
            if self._stopped():
                return
            self._capacity = max(self._capacity, chunk.n)
            self._open(sent.begin, (chunk.left.first_seq, chunk.right.first_seq))
            at = 0
        write(self._tuples, chunk, at)
        self._ends = tuple(part.first_seq + part.n for part in (chunk.left, chunk.right))
        self._dropped = sent.dropped
        sent.mark[:] = sent.end
        q.extend(self._shared.queue, at + chunk.n, self._ends[0], self._ends[1], 1)
        if self._parked:
            self.wake()

    def has_room(self, tuples: int) -> bool:
        """Whether the array has room."""
        return bool(self._shared.queue[q.N] + tuples <= self._capacity)

    def end(self) -> None:
        """Let the threads return once the queue is empty."""
        self._close()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _open(self, gate: int, first: tuple[int, int]) -> None:
        """Lay an empty array for tuples from a gate position on, and let the threads work."""
        queue = self._shared.queue
        lock(queue, q.PROPAGATE_LOCK)
        try:
            self._tuples.lay(self._capacity, first, (self._capacity, self._capacity))
            self._shared.begin(self._tuples, self._dropped, self._join.grows)
            self._segment, self._ends = gate, first
        finally:
            q.hand_back(queue)
        q.extend(queue, 0, first[0], first[1], 1)
        with self._changed:
            self._is_open = True
            self._runs += 1
            self._changed.notify_all()

    def _close(self) -> None:
        """Wait until all tuples of the array are joined, indexed and handed on, and no merge goes on."""
        queue = self._shared.queue
        q.extend(queue, int(queue[q.N]), self._ends[0], self._ends[1], 0)
        with self._changed:
            self._changed.notify_all()
            while not self._is_joined() and not self._stopped():
                self._changed.wait(POLL)
            self._is_open = False
        if not self._stopped():
            self._shared.make_room()
            self._hand_on_all()

    def _is_joined(self) -> bool:
        """Whether all tuples of the array are joined and indexed, no merge goes on, and no thread is inside."""
        queue = self._shared.queue
        return bool(not self._inside and queue[q.ACQUIRED] == queue[q.N] and not queue[q.MERGING] and not queue[q.HALT])

    def _hand_on_all(self) -> None:
        """Hand on what the threads have left, and take it from the output; no thread works."""
        queue = self._shared.queue
        while not self._stopped():
            if self._propagate():
                lock(queue, q.PROPAGATE_LOCK)
            try:
                self._take_output()
                if queue[q.HEAD] == queue[q.TASKS]:
                    return
            finally:
                q.hand_back(queue)

    def _propagate(self) -> bool:
        """Hand on completed tasks, unless another thread does; False, with the lock held, if the output is full."""
        return bool(q.propagate(self._shared.queue, self._tuples.words, self._shared.pool, *self._shared.out))

    def _stopped(self) -> bool:
        return bool(self.crew.words[STOP])

    def wake(self) -> None:
        """Wake the threads."""
        with self._changed:
            self._changed.notify_all()

    # -- the threads' ---------------------------------------------------------------------------------------

    def run(self, k: int) -> object:
        """Thread k of the crew, array after array, until it is dismissed."""
        run = 0
        while not self._stopped():
            with self._changed:
                while not self._gets_inside(k, run):
                    if self._ended or self._stopped():
                        return None
                    if self._is_dismissed(k):
                        return LEFT
                    self._changed.wait(POLL)
                run = self._runs
                self._inside += 1
            try:
                self._run_tasks(k)
            finally:
                with self._changed:
                    self._inside -= 1
                    if not self._inside and self._shared.queue[q.HALT] and not self._stopped():
                        self._shared.make_room()
                        self._runs += 1
                    self._changed.notify_all()
        return None

    def _gets_inside(self, k: int, run: int) -> bool:
        """Whether thread k, which was inside `run` last, may go on with the array; needs the lock."""
        return self._is_open and self._runs != run and not self._shared.queue[q.HALT] and not self._is_dismissed(k)

    def _is_dismissed(self, k: int) -> bool:
        return k >= self.crew.n

    def _run_tasks(self, k: int) -> None:
        """Work until the array is done, or a tree must be replaced."""
        queue = self._shared.queue
        while not self._stopped():
            code = self._shared.work(k, self._tuples)
            if code == PARKED:
                with self._changed:
                    self._parked += 1
                    while self._is_quiet() and not self._is_dismissed(k) and not self._stopped():
                        self._changed.wait(POLL)
                    self._parked -= 1
            elif code in (FLUSH, ALONE):
                # This thread holds the propagation lock.
                try:
                    if code == ALONE:
                        self._take_output()
                        self._shared.answer_alone(k, self._tuples, self._keep)
                finally:
                    q.hand_back(queue)
                self._await_collector(k)
            else:
                return

    def _is_quiet(self) -> bool:
        queue = self._shared.queue
        return bool(queue[q.ACQUIRED] == queue[q.N] and queue[q.OPEN] and not queue[q.MERGING])

    def _await_collector(self, k: int) -> None:
        """Wait until the collector has taken what there is."""
        while q.await_output(self.crew.words, k, self._shared.queue) and self._taken:
            with self._changed:
                self._changed.wait(POLL)

    def _take_output(self) -> None:
        """Move the output to what the collector takes; needs the propagation lock."""
        self._shared.flush(self._keep)

    def _keep(self, probes: Array, seqs: Array) -> None:
        self._taken.append(TakenPairs(probes + self._segment, seqs.copy()))

    # -- the collector's ------------------------------------------------------------------------------------

    def take(self, oldest: SentChunk) -> TakenPairs | None:  # noqa: ARG002 - for chains
        """Take the output, and hand on what was completed meanwhile."""
        queue = self._shared.queue
        if not self._taken:
            q.await_matches(self.crew.words, COLLECTOR, queue, self._complete - self._segment, _TAKES)
        before, pieces = self._complete, []
        lock(queue, q.PROPAGATE_LOCK)
        while True:
            pieces += self._take_all()
            if self._stopped() or self._propagate():
                break
        with self._changed:
            self._changed.notify_all()
        if not pieces and self._complete == before:
            return None
        return self._in_order(pieces)

    def _take_all(self) -> list[TakenPairs]:
        """All matches so far, and how far they are complete; gives up the propagation lock."""
        try:
            self._take_output()
            pieces, self._taken = self._taken, []
            self._complete = self._segment + int(self._shared.queue[q.PROPAGATED])
        finally:
            q.hand_back(self._shared.queue)
        return pieces

    def _in_order(self, pieces: list[TakenPairs]) -> TakenPairs:
        """The matches in result order. Both roles of a self-join's tuple must be complete for that."""
        if not (self._self_join and self.in_order):
            return together(pieces)
        for piece in pieces:
            self._held.add(piece)
        return self._held.take(self._complete & ~1)

    def reached(self, sent: SentChunk) -> bool:
        """Whether all tasks of the chunk were handed on."""
        return bool(0 <= sent.mark[0] <= self._complete)

    def forget(self, sent: SentChunk) -> None:
        """Do nothing: merges drop what has expired."""

    def counters(self) -> dict[str, int]:
        """Tasks and merges, and how many arrays of tuples there were."""
        return {**self._join.counters(), "runs": self._runs}

    @property
    def nbytes(self) -> int:
        """Bytes held by the trees, the queue and the tuples in it."""
        return self._shared.nbytes + self._tuples.words.nbytes


def run_queue(setup: Setup) -> Runner:
    """The runner of a parallel PIM-Tree join."""
    choice = choose(setup.bound, setup.request)
    operator = LiveOperator(setup.bound, choice, setup.workers, Counts())
    if not isinstance(operator.algorithm, PimParallel):
        raise AssertionError(f"{choice.name} is not a parallel PIM-Tree join")
    flow = QueueFlow(operator.algorithm, self_join=setup.bound.spec.self_join, ordered=setup.ordered)
    return runner_of(setup, operator, flow)
