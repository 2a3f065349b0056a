"""The handshake joins as they run: the intake feeds both ends of the chain, the collector empties the nodes' rings.

The logs are arrays of fixed size while the nodes run. When one is full, the intake ends the flow: every node returns
once all messages have passed it, the logs are compacted or grow, and the nodes go on. That happens once for as many
tuples as the windows hold, and takes as long as copying them.

A node without messages yields, then sleeps until the next one rings its bell. A chunk is followed by a message without
tuples on each side, so the high-water marks reach the end of every chunk. The original handshake join has no such
marks: there a pair is found when its tuple of side 0 leaves the chain, after its window has passed. While few tuples of
side 0 come, the chain is drained from time to time.
"""

from __future__ import annotations

import threading

import numpy as np

from streamjoin.handshake.chain import SLEEPS_LEAVING_US, SLEEPS_US
from streamjoin.handshake.handshake import ChainJoin, Handshake
from streamjoin.handshake.kernels.collect import await_results, await_room, take_results
from streamjoin.handshake.kernels.links import (
    BATCH,
    COMPARED,
    DONE,
    DRAINS,
    PUNCTUATES,
    SLEEPS,
    await_entry,
    drive,
    entry_waiting,
    ring_all,
    send_marked,
)
from streamjoin.jit.crew import STOP
from streamjoin.joins.auto import choose
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.live.flow import POLL, Flow, TakenPairs
from streamjoin.joins.live.runner import Runner, Setup
from streamjoin.joins.live.running import runner_of
from streamjoin.joins.live.windowed import LiveOperator, SentChunk

# Naps after which the collector returns to look whether the join has ended.
_NAPS = 32
# Messages that wait at either end of the chain when more are sent.
_MOST_AHEAD = 8
_MOST_TAKEN = 1 << 14
_NO_TUPLES = np.zeros(0, np.bool_)
_NO_PAIRS = TakenPairs(np.empty(0, np.int64), np.empty(0, np.int64))


class ChainFlow(Flow):
    """A chain whose nodes run between chunks."""

    def __init__(self, join: ChainJoin, index_row: int = -1) -> None:
        self._join, self._index_row = join, index_row
        self.crew = join.crew
        self.threads = join.chain.nodes
        self._leaving = isinstance(join, Handshake)
        self.settles = not self._leaving
        mem = join.chain.mem
        mem[[DRAINS, PUNCTUATES, SLEEPS]] = 0, not self._leaving, SLEEPS_LEAVING_US if self._leaving else SLEEPS_US
        self._out = np.empty((_MOST_TAKEN, 2), np.int64)
        self._marks = np.zeros(2, np.int64)
        # Places such that a drain has found all pairs below them; as of the newest one, and as of the last `take`.
        self._settled = self._taken_settled = np.zeros(2, np.int64)
        # Held where logs are read by the collector, or moved.
        self._logs = threading.Lock()
        self._changed = threading.Condition()
        self._flows = self._done = 0
        self._ended = False
        # Per side: positions that no open chunk needs; that no later chunk looks up.
        self._forgotten = self._dropped = (0, 0)
        self._open_flow(0)

    # -- the intake's ---------------------------------------------------------------------------------------

    def send(self, sent: SentChunk) -> None:
        """Log the chunk and send it to both ends of the chain, and the marks behind it."""
        logs = self._join.chain.logs
        counts = sent.counts
        if logs[0].room < counts[0] or logs[1].room < counts[1]:
            self._end_flow()
            if self._stopped():
                return
            self._open_flow(max(counts))
        before, self._dropped = self._dropped, sent.dropped
        if sent.chunk is None and sent.block is not None:
            block = sent.block
            self._join.send_block(
                block.words, block.counts[0], block.all_valid, self._index_row, sent.begin, before, sent.dropped,
                sent.mark,
            )  # fmt: skip
        else:
            is_right, begins = self._join.log(sent.tuples, sent.tests, sent.begin, before)
            left, right = logs
            sent.mark[:] = left.count, right.count
            send_marked(
                self.crew.words, self.threads, self._join.chain.mem, is_right, left.facts, right.facts, *begins,
                left.count, right.count, *sent.dropped,
            )  # fmt: skip

    def has_room(self, tuples: int) -> bool:
        """Whether the logs have room, and hardly anything waits at the ends of the chain.

        What comes while the nodes are busy is sent together then: they compare many tuples in less time than one by
        one.
        """
        chain = self._join.chain
        if self._leaving or min(log.room for log in chain.logs) < tuples:
            return False
        needed = tuples // int(chain.mem[BATCH]) + 2
        return needed <= chain.links and bool(entry_waiting(chain.mem) <= _MOST_AHEAD)

    def await_room(self) -> None:
        """Wait until hardly anything waits at the ends of the chain."""
        if not self._leaving:
            await_entry(self.crew.words, self.threads, self._join.chain.mem, _MOST_AHEAD)

    def settle(self) -> None:
        """In the original handshake join: let what has not met visit the rest of the chain, as at the end of a call."""
        self._drain()
        if not self._stopped():
            self._open_flow(0)

    def end(self) -> None:
        """End the flow, and find what has not met."""
        self._drain()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _drain(self) -> None:
        chain = self._join.chain
        chain.mem[DRAINS] = self._leaving
        self._end_flow()
        chain.mem[DRAINS] = 0
        if not self._stopped():
            self._join.ended()
            self._settled = np.array([log.count for log in chain.logs], np.int64)

    def _drive(self, is_right: np.ndarray, begins: tuple[int, int], *, ends: bool) -> None:
        left, right = self._join.chain.logs
        words, mem = self.crew.words, self._join.chain.mem
        drive(words, self.threads, mem, is_right, left.facts, right.facts, *begins, False, ends)

    def _end_flow(self) -> None:
        left, right = self._join.chain.logs
        self._drive(_NO_TUPLES, (left.count, right.count), ends=True)
        with self._changed:
            self._changed.notify_all()
            while self._done < self.threads and not self._stopped():
                self._changed.wait(POLL)

    def _open_flow(self, needed: int) -> None:
        with self._logs:
            self._join.forget(*self._forgotten)
            for log in self._join.chain.logs:
                log.reserve(needed)
            self._join.make_room(max(log.room for log in self._join.chain.logs))
            self._join.chain.open()
        with self._changed:
            self._done = 0
            self._flows += 1
            self._changed.notify_all()

    def _stopped(self) -> bool:
        return bool(self.crew.words[STOP])

    def wake(self) -> None:
        """Wake the threads."""
        ring_all(self._join.chain.mem)
        with self._changed:
            self._changed.notify_all()

    # -- the nodes' -----------------------------------------------------------------------------------------

    def run(self, k: int) -> None:
        """Node k, flow after flow."""
        flow = 0
        while not self._stopped():
            with self._changed:
                while self._flows == flow and not self._ended and not self._stopped():
                    self._changed.wait(POLL)
                if self._flows == flow:
                    return
                flow = self._flows
            self._run_flow(k)
            with self._changed:
                self._done += 1
                self._changed.notify_all()

    def _run_flow(self, k: int) -> None:
        chain = self._join.chain
        while True:
            code = self._join.run_node(k)
            if code == DONE or self._stopped():
                return
            await_room(self.crew.words, k, chain.mem, chain.results[k])

    # -- the collector's ------------------------------------------------------------------------------------

    def take(self, oldest: SentChunk) -> TakenPairs | None:
        """Empty the nodes' rings."""
        chain = self._join.chain
        before, moved = self._marks.copy(), False
        enough = 1 if self.eager else chain.results.shape[1] // 4
        # Each message moves a mark; the collector would take the interpreter from the sources for all of them.
        await_results(self.crew.words, self.threads + 1, chain.mem, oldest.mark, self._leaving, enough, _NAPS)
        settled = self._settled
        count = take_results(chain.mem, chain.results, self._out, self._marks, self._leaving)
        if count < _MOST_TAKEN:
            # The rings were emptied after the drain had ended.
            moved, self._taken_settled = settled is not self._taken_settled, settled
        if not count:
            return _NO_PAIRS if moved or not np.array_equal(before, self._marks) else None
        with self._logs:
            return TakenPairs(*chain.as_pairs(self._out[:count]))

    def reached(self, sent: SentChunk) -> bool:
        """Whether both marks are behind the chunk; of tuples that leave the chain, those of side 0 suffice.

        One that has left has met everything before it, and what came after it and within its window. That is not so
        for side 1: a message of side 0 still on its way may meet tuples of side 1 that have left.
        """
        if sent.mark[0] < 0:
            return False
        passed = self._marks >= sent.mark
        if not self._leaving:
            return bool(passed.all())
        return bool(passed[0] or (self._taken_settled >= sent.mark).all())

    def forget(self, sent: SentChunk) -> None:
        """Let the next compaction drop what only this chunk and those before it needed."""
        self._forgotten = sent.dropped

    @property
    def holds(self) -> bool:
        """Whether the nodes have tested the residual of all pairs taken so far."""
        return self._join.decides_residual

    def counters(self) -> dict[str, int]:
        """The pairs compared, and how often the flow was reopened."""
        return {**self._join.counters(), "flows": self._flows}

    def work(self) -> dict[str, dict[str, int]]:
        """The pairs that each node has compared."""
        compared = self._join.chain.node_words(COMPARED).tolist()
        return {f"node {k}": {"compared": n} for k, n in enumerate(compared)}

    @property
    def nbytes(self) -> int:
        """Bytes held by the chain."""
        return self._join.nbytes


def run_chain(setup: Setup) -> Runner:
    """The runner of a handshake join."""
    choice = choose(setup.bound, setup.request)
    operator = LiveOperator(setup.bound, choice, setup.workers, Counts())
    if not isinstance(operator.algorithm, ChainJoin):
        raise AssertionError(f"{choice.name} is not a handshake join")
    operator.builds_chunks = False
    return runner_of(setup, operator, ChainFlow(operator.algorithm, operator.index_row))
