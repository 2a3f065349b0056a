"""A runner of joins that work continuously: an intake, the join's own threads, a collector.

Sources put tuples into the inbox. The intake takes all that wait there, brings them into gate order, stores them and
sends them to the join's threads, its *flow*. The collector takes the pairs that the flow finds, gathers their rows and
delivers them. Nothing is drained between pushes: tuples of many chunks are on their way at the same time.

Back-pressure goes against the flow: `deliver` waits, so the collector takes no more pairs, so the flow's threads find
no room for more, so the intake waits, so the inbox fills and `push` waits. Invariant: every wait ends when the crew
stops.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.gate.merge import EventTimeGate
from streamjoin.joins.engine.intake import Intake
from streamjoin.joins.engine.late import LateRows
from streamjoin.joins.engine.ordered import Work
from streamjoin.joins.live.flow import POLL, Flow, TakenPairs, in_result_order, together
from streamjoin.joins.live.inbox import Call, PushedRows, SourceInbox, collect
from streamjoin.joins.live.latency import Histogram
from streamjoin.joins.live.runner import Deliver, Delivery, Fail, Setup, Stopped
from streamjoin.joins.live.windowed import LiveOperator, ResultRows, SentChunk
from streamjoin.kernels.crew import STOP
from streamjoin.model.errors import StateError

PAUSE = 0.2
"""Seconds without input after which a flow that needs further input to find all pairs is settled."""
MOST_OPEN = 1 << 16
"""How many tuples may be incomplete, at the least, before such a flow is settled."""
MOST_SENT = 1 << 12
"""How many tuples are sent as one chunk at the most."""
MOST_WAY = 0.004
"""How long the intake's thread leaves the interpreter to the others after a round, in seconds, at the most."""
MOST_SINGLE, LEAST_JOINED = 8, 256
"""So many waiting pushes are sent one by one, and more of them if they have so many tuples; others as one chunk."""
MOST_ROUNDS = 4
"""How often a source that does the intake's work looks for more of it."""
_STOPPED = "the live join was stopped"


class FlowRunner:
    """A `Runner` whose threads work between pushes."""

    def __init__(self, setup: Setup, operator: LiveOperator, flow: Flow) -> None:
        self._operator, self._flow, self._counts = operator, flow, operator.counts
        self._self_join = setup.bound.spec.self_join
        self._late = LateRows()
        self._intake = Intake(operator.bound, operator, ((), ()), operator.counts, self._late)
        # Held where the gate and the late rows are used.
        self._ordering = threading.Lock()
        self._crew = flow.crew
        self._crew.resize(flow.threads + 2)
        self.in_order = flow.in_order or setup.ordered
        # Pairs that are not complete wait for those before them, where order is requested.
        self._sorts = setup.ordered and not flow.in_order
        flow.eager = not self._sorts
        self._unsorted: list[TakenPairs] = []
        self._inbox = SourceInbox(
            setup.queue_rows,
            setup.queue_bytes,
            (setup.bound.left_schema, setup.bound.right_schema),
            # The thread that pushes does the intake's work itself where it can.
            wakes=False,
        )
        self._batch_rows = setup.batch_rows
        # Held by the thread that does the intake's work.
        self._taking = threading.Lock()
        # Chunks that were sent and are not complete.
        self._open: deque[SentChunk] = deque()
        self._sent = 0
        self._sent_time: int | None = None
        self._sent_some = threading.Event()
        self._unsettled = False
        self._settled_at = self._complete = 0
        self._flowing, self._counting = flow.threads + 1, threading.Lock()
        self._delivered: tuple[int, int | None] = (0, None)
        # Nanoseconds from a tuple's push until it left the queue, and until it was ready.
        self._queued, self._released = Histogram(), Histogram()
        self._input_ended = self._stopping = False
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._own_threads: set[int] = set()
        self._host: threading.Thread | None = None

    # -- calls from outside --------------------------------------------------------------------------------

    def start(self, deliver: Deliver, fail: Fail) -> None:
        """Start the threads."""
        self._deliver, self._fail = deliver, fail
        self._host = threading.Thread(target=self._run, name="streamjoin-live", daemon=True)
        self._host.start()

    def add_source(self, side: int, name: str) -> None:
        """Open a source; in event-time order the gate waits for it from now on."""
        self._submit(Call("add", side, name, 0))

    def push(self, side: int, name: str, rows: pa.Table, arrived: int, timeout: float | None = None) -> None:
        """Take tuples of one source; waits while there is no room for them."""
        self._check()
        try:
            self._inbox.push(Call("push", side, name, arrived, rows), timeout)
        except Stopped:
            self._check()
            raise
        self._take_in_here()

    def advance(self, side: int, name: str, time: int) -> None:
        """Declare that a source has no tuples before `time`."""
        self._submit(Call("advance", side, name, 0, None, time))

    def finish(self, side: int, name: str) -> None:
        """Declare that a source has ended."""
        self._submit(Call("finish", side, name, 0))

    def rest(self, side: int, name: str) -> None:
        """Stop waiting for a source until its next tuples or `advance`."""
        self._submit(Call("rest", side, name, 0))

    def drain(self) -> None:
        """End the input and wait until every result has been delivered."""
        self._check()
        self._end_input()
        self._finished.wait()
        if self._error is not None:
            raise self._error
        if self._stopping:
            raise Stopped(_STOPPED)

    def _end_input(self) -> None:
        self._input_ended = True
        self._inbox.end()

    def stop(self) -> None:
        """End the threads at once."""
        self._stopping = True
        self._crew.stop(Stopped(_STOPPED))
        self._wake()
        if self._host is not None and threading.get_ident() not in self._own_threads:
            self._host.join()
        if self._host is None or threading.get_ident() not in self._own_threads:
            self._crew.close()

    def late(self) -> pa.Table:
        """Rows that were late or without a time since the last call."""
        with self._ordering:
            return self._late.take(self._operator.bound)

    def metrics(self) -> Mapping[str, Any]:
        """Counters, queue lengths and bytes, as plain numbers."""
        seconds = dict(self._counts.seconds)
        figures: dict[str, Any] = {name: value for name, value in vars(self._counts).items() if name != "seconds"}
        queued, in_gate, gate_bytes = self._sizes()
        with self._operator.lock:
            stored = sum(store.nbytes for store in self._operator.stores)
        sent = self._sent >> 1 if self._self_join else self._sent
        collecting = {"gather", "deliver"}
        return {
            **figures,
            "waiting": queued + in_gate,
            "queued": queued,
            "gate": in_gate,
            "unsorted_rows": sum(piece.later.size for piece in list(self._unsorted)),
            "open_tuples": sent - self._delivered[0],
            "bytes": gate_bytes + stored + self._flow.nbytes,
            "seconds": seconds,
            "latency": {"queue": self._queued.figures(), "gate": self._released.figures()},
            "threads": {
                "intake": {name: value for name, value in seconds.items() if name not in collecting},
                "collector": {name: value for name, value in seconds.items() if name in collecting},
                **self._flow.work(),
            },
            **self._flow.counters(),
        }

    def _sizes(self) -> tuple[int, int, int]:
        """The number of tuples in the inbox and in the gate, and the bytes of both."""
        with self._ordering:
            return self._inbox.rows, self._intake.waiting, self._inbox.nbytes + self._intake.nbytes

    def _submit(self, call: Call) -> None:
        """Take a call that is not a push."""
        self._check()
        self._inbox.put(call)
        self._take_in_here()

    def _check(self) -> None:
        if self._stopping:
            raise Stopped(_STOPPED)
        if self._error is not None:
            raise StateError(f"the live join was ended by {type(self._error).__name__}: {self._error}") from self._error
        if self._input_ended:
            raise StateError("the input of the live join has ended")

    # -- the threads ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._crew.run(self._step)
        except BaseException as error:  # handed to the live join
            self._error = error
            if not self._stopping and not isinstance(error, Stopped):
                self._fail(error)
        finally:
            self._finished.set()
            self._wake()

    def _step(self, k: int) -> None:
        self._own_threads.add(threading.get_ident())
        if k > self._flow.threads:
            self._collect()
            return
        if k == self._flow.threads:
            self._take_in()
        else:
            self._flow.run(k)
        with self._counting:
            self._flowing -= 1
        self._sent_some.set()

    def _stopped(self) -> bool:
        return bool(self._crew.words[STOP])

    def _wake(self) -> None:
        self._inbox.stop()
        self._sent_some.set()
        self._flow.wake()

    # The intake.

    def _take_in(self) -> None:
        """The intake's thread: takes what sources could not send on themselves."""
        while True:
            pause = time.monotonic() + PAUSE
            while not self._inbox.wait(POLL) and not self._stopped():
                if self._unsettled and time.monotonic() > pause:
                    break
            self._flow.await_room()
            make_way = 0.0
            while not self._taking.acquire(timeout=POLL):
                if self._stopped():
                    return
            try:
                if self._stopped():
                    return
                begin = time.perf_counter()
                if self._send_waiting():
                    if self._intake.gate is not None:
                        # Ordering takes many calls: a thread that takes up every tuple at once does little else than
                        # take turns with the sources.
                        make_way = min(time.perf_counter() - begin, MOST_WAY)
                    continue
                if self._input_ended:
                    with self._ordering:
                        work = self._intake.release(everything=True)
                    self._send(work)
                    self._flow.end()
                    return
                if self._unsettled:
                    self._unsettled = False
                    self._flow.settle()
            finally:
                self._taking.release()
                time.sleep(make_way)

    def _take_in_here(self) -> None:
        """Do the intake's work in the thread of a source, if no other thread does and nothing has to wait for it.

        Waking another thread and handing it the interpreter takes longer than the work itself.
        """
        rounds = 0
        # Whoever holds the lock looks again after releasing it, so nothing is left behind.
        while self._inbox and self._taking.acquire(blocking=False):
            try:
                rounds += 1
                if rounds > MOST_ROUNDS or not self._flow.has_room(sum(self._inbox.sizes())):
                    break
                self._send_waiting()
            except BaseException as error:
                self._crew.stop(error)
                self._wake()
                if not isinstance(error, Exception):
                    raise
                raise StateError(f"the live join was ended by {type(error).__name__}: {error}") from error
            finally:
                self._taking.release()
        else:
            return
        self._inbox.wake()

    def _send_waiting(self) -> bool:
        """Order, store and send what waits, at most about a chunk of it; False if nothing does."""
        calls, tuples = self._inbox.take_some(MOST_SENT)
        if not calls:
            return False
        gate = self._intake.gate
        if tuples:
            waits = time.monotonic_ns() - np.array([call.arrived for call in calls if call.rows is not None], np.int64)
            self._queued.add(waits)
            if gate is None:
                self._released.add(waits)
        if gate is None and len(calls) * LEAST_JOINED <= max(tuples, MOST_SINGLE * LEAST_JOINED):
            calls = self._send_single(calls)
            if not calls:
                return True
        with self._ordering:
            self._late.trim()
            work = self._as_they_came(calls) if gate is None else self._ordered(gate, calls)
        self._send(work)
        return True

    def _send_single(self, calls: list[Call]) -> list[Call]:
        """Send each push by itself, as far as that goes without the general way; returns the calls that need it."""
        for number, call in enumerate(calls):
            if call.rows is not None:
                with self._counts.step("store"):
                    sent = self._operator.send_push(call.side, call.rows, call.arrived, self._sent)
                if sent is None:
                    return calls[number:]
                self._send_on(sent)
        return []

    def _as_they_came(self, calls: list[Call]) -> Work | None:
        pushes = PushedRows(calls)
        if not pushes.sizes:
            return None
        inputs = [pushes.table(side) for side in (0, 1)]
        return self._intake.feed(inputs, pushes.is_right, "", arrived=pushes.arrived)

    def _ordered(self, gate: EventTimeGate, calls: list[Call]) -> Work | None:
        """Everything into the gate, the pushes of a source at once, then one release."""
        collect(
            gate, calls, lambda side, name, pushes: self._intake.collect(side, name, pushes.table(side), pushes.arrived)
        )
        work = self._intake.release()
        self._inbox.release(gate.waiting, gate.holders)
        return work

    def _send(self, work: Work | None) -> None:
        if work is None:
            return
        gate = self._intake.gate
        bound = None if gate is None else gate.time
        if gate is not None and work.ordered.arrived is not None:
            self._released.add(time.monotonic_ns() - work.ordered.arrived)
        while work.waiting or bound != self._sent_time:
            sent = self._operator.send(work, self._sent, MOST_SENT, (self._sent_time, bound))
            self._sent_time = sent.time
            self._send_on(sent)
            if self._stopped():
                return

    def _send_on(self, sent: SentChunk) -> None:
        self._sent = sent.end
        self._open.append(sent)
        self._flow.send(sent)
        self._unsettled = not self._flow.settles
        if self._unsettled:
            self._settle_if_due(sent)
        self._sent_some.set()

    def _settle_if_due(self, sent: SentChunk) -> None:
        """Bound what is incomplete where that depends on further input, which may not come."""
        live = sum(store.count for store in self._operator.stores) - sum(sent.dropped)
        most = max(MOST_OPEN, 4 * live)
        if sent.end - max(self._settled_at, self._complete) > most:
            self._settled_at, self._unsettled = sent.end, False
            self._flow.settle()

    # The collector.

    def _collect(self) -> None:
        while not self._stopped():
            self._sent_some.clear()
            ended = self._flowing == 0
            self._store_ready()
            pairs = self._flow.take(self._open[0]) if self._open else None
            self._hand_out(pairs, ended and pairs is None)
            if pairs is None:
                if ended:
                    return
                self._await_sent()

    def _await_sent(self) -> None:
        """Wait until the collector may find more."""
        if not self._open or not self._flow.settles:
            self._sent_some.wait(POLL)

    def _store_ready(self) -> None:
        """Store tuples that the flow reads by itself; without such a flow, the intake has stored everything."""

    def _hand_out(self, pairs: TakenPairs | None, everything: bool) -> None:
        """Deliver the rows of some pairs, and how far the result is complete."""
        if pairs is not None and self._operator.tests and not self._flow.refined:
            pairs = self._tested(pairs)
        closed = None
        while self._open and (everything or self._flow.reached(self._open[0])):
            closed = self._open.popleft()
        if self._sorts:
            pairs = self._sorted(pairs, None if closed is None else closed.end)
        results: list[ResultRows] = []
        if pairs is not None:
            for begin in range(0, pairs.later.size, self._batch_rows):
                self._pass_on(results)
                part = slice(begin, begin + self._batch_rows)
                with self._counts.step("gather"):
                    results = [self._operator.rows(pairs.later[part], pairs.seqs[part])]
        if closed is not None:
            self._complete = closed.end
            self._delivered = (closed.end >> 1 if self._self_join else closed.end), closed.time
            results = results or [self._operator.no_result]
        self._pass_on(results)
        if closed is not None:
            self._operator.close_chunk(closed)
            self._flow.forget(closed)

    def _pass_on(self, results: list[ResultRows]) -> None:
        """Deliver rows with how far the result is complete."""
        reached, bound = self._delivered
        for result in results:
            with self._counts.step("deliver"):
                self._deliver(Delivery(result.rows, result.later, result.earlier, result.arrived, reached, bound))

    def _tested(self, pairs: TakenPairs) -> TakenPairs:
        """The pairs that hold, tested with the open chunks of their later tuples."""
        begins = np.fromiter((sent.begin for sent in self._open), np.int64, len(self._open))
        numbers = np.searchsorted(begins, pairs.later, side="right") - 1
        chosen, places = np.unique(numbers, return_inverse=True)
        tested = [
            self._operator.tested(self._open[int(number)], pairs.later[places == i], pairs.seqs[places == i])
            for i, number in enumerate(chosen)
        ]
        return together([TakenPairs(*piece) for piece in tested])

    def _sorted(self, pairs: TakenPairs | None, reached: int | None) -> TakenPairs | None:
        """The pairs that are complete now, in result order; the others wait (LLHJ paper, section 6)."""
        if pairs is not None and pairs.later.size:
            self._unsorted.append(pairs)
        if reached is None or not self._unsorted:
            return None
        pairs = together(self._unsorted)
        ready = pairs.later < reached
        self._unsorted = []
        if not ready.all():
            self._unsorted = [TakenPairs(pairs.later[~ready], pairs.seqs[~ready])]
            pairs = TakenPairs(pairs.later[ready], pairs.seqs[ready])
        return in_result_order(pairs, self._self_join)
