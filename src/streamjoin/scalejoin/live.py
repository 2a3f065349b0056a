"""ScaleJoin as it runs: every thread reads all tuples, and looks each up in its own share of the windows.

The intake is the sequencer: it appends chunks in gate order to a list that all threads read, each at its own pace.
Their matches meet in a second gate, a ScaleGate with one source per thread; the collector reads it. What all threads
have passed is complete, so results leave in result order.
"""

from __future__ import annotations

import threading
from collections import deque

from streamjoin.jit.crew import STOP, idle, stand
from streamjoin.joins.auto import choose
from streamjoin.joins.base import Pairs
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.live.flow import POLL, Flow, TakenPairs
from streamjoin.joins.live.runner import Runner, Setup
from streamjoin.joins.live.running import runner_of
from streamjoin.joins.live.windowed import LiveOperator, SentChunk
from streamjoin.scalejoin.join import Deal, ScaleJoin
from streamjoin.scalejoin.kernels.gate import add
from streamjoin.scalejoin.kernels.nodes import EVER
from streamjoin.scalejoin.live_gate import MatchGate, gated

_ROOM = 1  # a thread's state: it waits for room in the second gate
_RING = 1 << 13
_BLOCK = 1 << 14
# Chunks that the slowest thread may be behind the intake. More of them would be smaller, and a chunk costs each thread
# about as much as some hundred tuples.
_MOST_DEALS = 2


class ShareFlow(Flow):
    """The threads of a ScaleJoin, between the sequencer and the second gate."""

    in_order = True
    refined = True

    def __init__(self, join: ScaleJoin, operator: LiveOperator) -> None:
        self._join = join
        self._shares = join.shares
        self.crew = join.crew
        self.threads = self._shares.n
        self._matches = MatchGate(self.threads, _RING, _BLOCK, self_join=operator.bound.spec.self_join)
        # Chunks that some thread has not read: the first is number `_first`.
        self._deals: deque[tuple[SentChunk, Deal]] = deque()
        self._first = 0
        self._ended = False
        self._read = [0] * self.threads
        """The number of chunks that each thread has processed."""
        self._done = [0] * self.threads
        """The gate position up to which each thread's matches are in the second gate."""
        self._changed = threading.Condition()

    # -- the intake's ---------------------------------------------------------------------------------------

    def send(self, sent: SentChunk) -> None:
        """Assign the tuples to shares, and append the chunk for all threads to read."""
        deal = self._shares.deal(sent.tuples, 0, sent.tests)
        self._shares.dealt(sent.tuples, 0, sent.tuples.n)
        sent.mark[:] = sent.end
        with self._changed:
            self._deals.append((sent, deal))
            self._changed.notify_all()

    def await_room(self) -> None:
        """Wait until no thread is far behind: what comes meanwhile is one chunk then."""
        with self._changed:
            while len(self._deals) >= _MOST_DEALS and not self._stopped():
                self._changed.wait(POLL)

    def end(self) -> None:
        """Let every thread return behind the last chunk."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake all threads."""
        with self._changed:
            self._changed.notify_all()

    def _stopped(self) -> bool:
        return bool(self.crew.words[STOP])

    # -- the threads' ---------------------------------------------------------------------------------------

    def run(self, k: int) -> None:
        """Thread k: chunk after chunk."""
        while (item := self._next(k)) is not None:
            sent, deal = item
            pairs = self._shares.take(k, deal, 0, sent.tuples.n, sent.tests)
            if not self._put(k, pairs, sent):
                return
            self._shares.forget_in(k, *sent.dropped)
            with self._changed:
                self._done[k] = sent.end
                self._read[k] += 1
                while self._deals and self._first < min(self._read):
                    self._deals.popleft()
                    self._first += 1
                self._changed.notify_all()

    def _next(self, k: int) -> tuple[SentChunk, Deal] | None:
        with self._changed:
            while not self._stopped():
                place = self._read[k] - self._first
                if place < len(self._deals):
                    return self._deals[place]
                if self._ended:
                    return None
                self._changed.wait(POLL)
        return None

    def _put(self, k: int, pairs: Pairs, sent: SentChunk) -> bool:
        """Add matches to the second gate; False if the join was stopped."""
        later, gate, slot = pairs.probe + sent.begin, self._matches.gate, self._matches.slots[k]
        at = tries = 0
        while at < later.size:
            end = add(gate.mem, slot, later, pairs.seq, at, later.size)
            if end == at:
                with self._changed:
                    self._changed.notify_all()
                stand(self.crew.words, k, _ROOM)
                if not idle(self.crew.words, tries):
                    return False
            tries = 0 if end > at else tries + 1
            at = end
        stand(self.crew.words, k, 0)
        gate.advance(slot, sent.end)
        return True

    # -- the collector's ------------------------------------------------------------------------------------

    def take(self, oldest: SentChunk) -> TakenPairs | None:  # noqa: ARG002 - for chains
        """Read the second gate up to what all threads have passed."""
        with self._changed:
            complete = self._read_matches()
            if not self._matches.has_news(complete):
                self._changed.wait(POLL)
                complete = self._read_matches()
        return self._matches.take(complete)

    def _read_matches(self) -> int:
        """Read all that is ready; returns the gate position up to which that is complete."""
        complete = min(self._done)
        while self._matches.read() < EVER:
            pass
        return complete

    def reached(self, sent: SentChunk) -> bool:
        """Whether all threads have passed the chunk."""
        return bool(0 <= sent.mark[0] <= self._matches.complete)

    def forget(self, sent: SentChunk) -> None:
        """Do nothing: each thread drops the tuples of its own share."""

    def counters(self) -> dict[str, int]:
        """The shares' counters."""
        return self._shares.counters()

    def work(self) -> dict[str, dict[str, int]]:
        """The chunks that each thread has processed."""
        return {f"thread {k}": {"chunks": n} for k, n in enumerate(self._read)}

    @property
    def nbytes(self) -> int:
        """Bytes held by all shares and the second gate."""
        return self._shares.nbytes + int(self._matches.gate.mem.nbytes)


def run_shares(setup: Setup) -> Runner:
    """The runner of a ScaleJoin."""
    choice = choose(setup.bound, setup.request)
    operator = LiveOperator(setup.bound, choice, setup.workers, Counts())
    if not isinstance(operator.algorithm, ScaleJoin):
        raise AssertionError(f"{choice.name} is not a ScaleJoin")
    runner = gated(setup, operator, operator.algorithm)
    return runner or runner_of(setup, operator, ShareFlow(operator.algorithm, operator))
