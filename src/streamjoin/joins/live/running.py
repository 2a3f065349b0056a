"""A runner of joins that work continuously: an intake, the join's own threads, a collector.

Sources hand tuples to the intake, which brings them into gate order, stores them and sends them to the join's threads,
its *flow*. The collector takes the pairs that the flow finds, gathers their rows and delivers them. Nothing is drained
between pushes: tuples of many chunks are on their way at the same time. `InboxIntake` is the intake of most joins: an
inbox, which a thread of its own empties, or the thread of a source.

Back-pressure goes against the flow: `deliver` waits, so the collector takes no more pairs, so the flow's threads find
no room for more, so the intake waits, so the inbox fills and `push` waits. Invariant: every wait ends when the crew
stops.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

import numpy as np
import pyarrow as pa

from streamjoin.gate.merge import EventTimeGate
from streamjoin.jit.crew import STOP
from streamjoin.joins.engine.intake import Intake
from streamjoin.joins.engine.late import LateRows
from streamjoin.joins.engine.ordered import Work
from streamjoin.joins.live.flow import COLLECTOR, INTAKE, POLL, Flow, HeldPairs, TakenPairs, together
from streamjoin.joins.live.inbox import PushedRows, SourceInbox, collect
from streamjoin.joins.live.latency import Histogram
from streamjoin.joins.live.runner import Call, Deliver, Delivery, Fail, Setup, Stopped
from streamjoin.joins.live.windowed import LiveOperator, ResultRows, SentChunk
from streamjoin.model.errors import NotSupportedError, StateError
from streamjoin.windows.crew import Crew
from streamjoin.windows.interrupts import Deferred

PAUSE = 0.2
"""Seconds without input after which a flow that needs further input to find all pairs is settled."""
MOST_OPEN = 1 << 16
"""How many tuples may be incomplete, at the least, before such a flow is settled."""
MOST_SENT = 1 << 12
"""How many tuples are sent as one chunk at the most."""
MOST_WAY = 0.004
"""How long the intake's thread leaves the interpreter to the others after a round, in seconds, at the most."""
MOST_SINGLE, LEAST_JOINED = 8, 256
"""Up to `MOST_SINGLE` pushes, or more with `LEAST_JOINED` tuples on average, go one by one; others as one chunk."""
MOST_ROUNDS = 4
"""How often a source that does the intake's work looks for more of it."""
_STOPPED = "the live join was stopped"


class Run:
    """What the parts of one running join share: its crew, how it ends, and the chunks that are on their way."""

    def __init__(self, operator: LiveOperator, crew: Crew) -> None:
        self.operator, self.crew = operator, crew
        self.counts = operator.counts
        self.late = LateRows()
        # Held where the gate and the late rows are used.
        self.ordering = threading.Lock()
        # Chunks that were sent and are not complete.
        self.open: deque[SentChunk] = deque()
        self.sent = self.complete = 0
        """The gate positions up to which tuples were sent, and joined."""
        self.sent_time: int | None = None
        self.flowing = 0
        """How many threads of the intake, and of a flow that is not elastic, have not returned."""
        self.sent_some = threading.Event()
        self.input_ended = self.stopping = False
        self.error: BaseException | None = None
        self.wakers: tuple[Callable[[], None], ...] = ()
        """Called when the join ends: each ends waits of some threads."""

    @property
    def stopped(self) -> bool:
        """Whether the crew stops."""
        return bool(self.crew.words[STOP])

    def check(self) -> None:
        """Reject a call if the join takes no more input."""
        if self.stopping or isinstance(self.error, Stopped):
            # A delivery may have ended the threads before `stop` has come here.
            raise Stopped(_STOPPED)
        if self.error is not None:
            raise _ended_by(self.error) from self.error
        if self.input_ended:
            raise StateError("the input of the live join has ended")

    def wake(self) -> None:
        """End all waits, once the crew stops."""
        for wake in self.wakers:
            wake()

    def fail(self, error: BaseException) -> NoReturn:
        """End the join by an error in the thread of a source."""
        self.crew.stop(error)
        self.wake()
        if not isinstance(error, Exception):
            raise error
        raise _ended_by(error) from error


def _ended_by(error: BaseException) -> StateError:
    return StateError(f"the live join was ended by {type(error).__name__}: {error}")


class LiveIntake(Protocol):
    """Where the calls of sources enter a running join; `Run.check` comes before each."""

    queued: Histogram
    """Nanoseconds from a tuple's push until it left the queue."""
    released: Histogram
    """Nanoseconds from a tuple's push until it was ready."""

    def push(self, call: Call, timeout: float | None) -> None:
        """Take tuples; waits while there is no room for them."""

    def submit(self, call: Call) -> None:
        """Take a call that is not a push."""

    def adopt(self, call: Call) -> None:
        """Take any call, whether there is room or not; returns at once."""

    def admit(self) -> None:
        """Let in the pushes that wait for room, and all later ones."""

    def end(self) -> None:
        """End the input."""

    def run(self) -> None:
        """The intake's thread, until the input has ended."""

    def wake(self) -> None:
        """Called when the join ends: end all waits."""

    def store_ready(self) -> None:
        """Store and send what the flow takes by itself; the collector's."""

    def await_sent(self) -> None:
        """Wait until the flow may have found more; the collector's."""

    def sizes(self) -> tuple[int, int, int]:
        """The number of tuples in front of the gate and in it, and the bytes of both."""
        ...


class InboxIntake:
    """Orders, stores and sends what sources put into an inbox."""

    def __init__(self, run: Run, setup: Setup, flow: Flow) -> None:
        self._run, self._operator, self._flow = run, run.operator, flow
        self._intake = Intake(run.operator.bound, run.operator, ((), ()), run.counts, run.late)
        self._inbox = SourceInbox(
            setup.queue_rows,
            setup.queue_bytes,
            (setup.bound.left_schema, setup.bound.right_schema),
            # The thread that pushes does the intake's work itself where it can.
            wakes=False,
        )
        # Held by the thread that does the intake's work.
        self._taking = threading.Lock()
        self._unsettled = False
        self._settled_at = 0
        self.queued, self.released = Histogram(), Histogram()

    def push(self, call: Call, timeout: float | None) -> None:
        """Put tuples into the inbox, and send them on if no other thread does."""
        self._inbox.push(call, timeout)
        self._take_in_here()

    def submit(self, call: Call) -> None:
        """Put a call into the inbox, and send on what waits if no other thread does."""
        self._inbox.put(call)
        self._take_in_here()

    def adopt(self, call: Call) -> None:
        """Leave a call to the intake's thread."""
        self._inbox.put(call)
        self._inbox.wake()

    def admit(self) -> None:
        """Let in the pushes that wait for room."""
        self._inbox.admit()

    def end(self) -> None:
        """End the input."""
        self._run.input_ended = True
        self._inbox.end()

    def wake(self) -> None:
        """Drop what waits, and end all waits."""
        self._inbox.stop()

    def store_ready(self) -> None:
        """Do nothing: everything was stored before it was sent."""

    def await_sent(self) -> None:
        """Wait until a chunk is sent, unless the flow has some and waits by itself."""
        if not self._run.open or not self._flow.settles:
            self._run.sent_some.wait(POLL)

    def sizes(self) -> tuple[int, int, int]:
        """The number of tuples in the inbox and in the gate, and the bytes of both."""
        with self._run.ordering:
            return self._inbox.rows, self._intake.waiting, self._inbox.nbytes + self._intake.nbytes

    def run(self) -> None:
        """The intake's thread: takes what sources could not send on themselves."""
        while True:
            pause = time.monotonic() + PAUSE
            while not self._inbox.wait(POLL) and not self._run.stopped:
                if self._unsettled and time.monotonic() > pause:
                    break
            self._flow.await_room()
            make_way = 0.0
            while not self._taking.acquire(timeout=POLL):
                if self._run.stopped:
                    return
            try:
                if self._run.stopped:
                    return
                begin = time.perf_counter()
                # Before looking: a call that comes after the look, and the end after it, are for the next round.
                ended = self._run.input_ended
                if self._send_waiting():
                    if self._intake.gate is not None:
                        # Ordering takes many calls: a thread that takes up every tuple at once does little else than
                        # take turns with the sources.
                        make_way = min(time.perf_counter() - begin, MOST_WAY)
                    continue
                if ended:
                    with self._run.ordering:
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
        rounds, crowded = 0, False
        # An interrupt in the middle would end the join for everybody.
        with Deferred():
            try:
                # Whoever holds the lock looks again after releasing it, so nothing is left behind.
                while not crowded and self._inbox and self._taking.acquire(blocking=False):
                    rounds += 1
                    crowded = rounds > MOST_ROUNDS or not self._flow.has_room(sum(self._inbox.sizes()))
                    if not crowded:
                        self._send_waiting()
                    self._taking.release()
            except BaseException as error:
                # The lock stays locked, also where an interrupt came right behind `acquire`: the join can't go on.
                self._run.fail(error)
        if crowded:
            self._inbox.wake()

    def _send_waiting(self) -> bool:
        """Order, store and send what waits, at most about a chunk of it; False if nothing does."""
        calls, tuples = self._inbox.take_some(MOST_SENT)
        if not calls:
            return False
        gate = self._intake.gate
        if tuples:
            arrived = np.array([call.arrived for call in calls if call.rows is not None], np.int64)
            self.queued.since(arrived)
            if gate is None:
                self.released.since(arrived)
        if gate is None and len(calls) * LEAST_JOINED <= max(tuples, MOST_SINGLE * LEAST_JOINED):
            calls = self._send_single(calls)
            if not calls:
                return True
        with self._run.ordering:
            self._run.late.trim()
            work = self._as_they_came(calls) if gate is None else self._ordered(gate, calls)
        self._send(work)
        return True

    def _send_single(self, calls: list[Call]) -> list[Call]:
        """Send each push by itself, as far as that goes without the general way; returns the calls that need it."""
        for number, call in enumerate(calls):
            if call.rows is not None:
                with self._run.counts.step("store"):
                    sent = self._operator.send_push(call.side, call.rows, call.arrived, self._run.sent)
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
        bound = None if gate is None else gate.tick
        if gate is not None and work.ordered.arrived is not None:
            self.released.since(work.ordered.arrived)
        while work.waiting or bound != self._run.sent_time:
            sent = self._operator.send(work, self._run.sent, MOST_SENT, (self._run.sent_time, bound))
            self._run.sent_time = sent.time
            self._send_on(sent)
            if self._run.stopped:
                return

    def _send_on(self, sent: SentChunk) -> None:
        self._run.sent = sent.end
        self._run.open.append(sent)
        self._flow.send(sent)
        self._unsettled = not self._flow.settles
        if self._unsettled:
            self._settle_if_due(sent)
        self._run.sent_some.set()

    def _settle_if_due(self, sent: SentChunk) -> None:
        """Bound what is incomplete where that depends on further input, which may not come."""
        live = sum(store.count for store in self._operator.stores) - sum(sent.dropped)
        most = max(MOST_OPEN, 4 * live)
        if sent.end - max(self._settled_at, self._run.complete) > most:
            self._settled_at, self._unsettled = sent.end, False
            self._flow.settle()


class Collector:
    """Takes the pairs that a flow finds, tests what it has not decided, and delivers their rows."""

    def __init__(self, run: Run, setup: Setup, flow: Flow, intake: LiveIntake) -> None:
        self._run, self._operator, self._flow, self._intake = run, run.operator, flow, intake
        self._self_join, self._batch_rows = setup.bound.spec.self_join, setup.batch_rows
        # Pairs that are not complete wait for those before them, where order is requested.
        self._sorts = setup.ordered and not flow.in_order
        flow.eager = not self._sorts
        self.unsorted = HeldPairs(self._self_join)
        self.delivered: tuple[int, int | None] = (0, None)
        """How far the result is delivered: the gate position, and the time."""

    def start(self, deliver: Deliver) -> None:
        """Say where rows go; comes before `run`."""
        self._deliver = deliver

    def run(self) -> None:
        """The collector's thread, until everything is delivered."""
        while not self._run.stopped:
            self._run.sent_some.clear()
            ended = self._run.flowing == 0
            self._intake.store_ready()
            pairs = self._flow.take(self._run.open[0]) if self._run.open else None
            self._hand_out(pairs, ended and pairs is None)
            if pairs is None:
                if ended:
                    return
                self._intake.await_sent()

    def _hand_out(self, pairs: TakenPairs | None, everything: bool) -> None:
        """Deliver the rows of some pairs, and how far the result is complete."""
        if pairs is not None and self._operator.tests and not self._flow.refined:
            pairs = self._tested(pairs)
        closed = None
        while self._run.open and (everything or self._flow.reached(self._run.open[0])):
            closed = self._run.open.popleft()
        if self._sorts:
            pairs = self._sorted(pairs, closed)
        results: list[ResultRows] = []
        if pairs is not None:
            for begin in range(0, pairs.later.size, self._batch_rows):
                self._pass_on(results)
                part = slice(begin, begin + self._batch_rows)
                with self._run.counts.step("gather"):
                    results = [self._operator.rows(pairs.later[part], pairs.seqs[part])]
        if closed is not None:
            self._run.complete = closed.end
            self.delivered = (closed.end >> 1 if self._self_join else closed.end), closed.time
            results = results or [self._operator.no_result]
        self._pass_on(results)
        if closed is not None:
            self._operator.close_chunk(closed)
            self._flow.forget(closed)

    def _pass_on(self, results: list[ResultRows]) -> None:
        """Deliver rows with how far the result is complete."""
        reached, bound = self.delivered
        for result in results:
            with self._run.counts.step("deliver"):
                self._deliver(Delivery(result.rows, result.later, result.earlier, result.arrived, reached, bound))

    def _tested(self, pairs: TakenPairs) -> TakenPairs:
        """The pairs that hold, tested with the open chunks of their later tuples."""
        # A copy, which is made in one step: the intake sends more meanwhile.
        sent = list(self._run.open)
        begins = np.array([each.begin for each in sent], np.int64)
        numbers = np.searchsorted(begins, pairs.later, side="right") - 1
        chosen, places = np.unique(numbers, return_inverse=True)
        holds = self._flow.holds
        tested = [
            self._operator.tested(sent[int(number)], pairs.later[places == i], pairs.seqs[places == i], holds)
            for i, number in enumerate(chosen)
        ]
        return together([TakenPairs(*piece) for piece in tested])

    def _sorted(self, pairs: TakenPairs | None, closed: SentChunk | None) -> TakenPairs | None:
        """The pairs that are complete now, in result order; the others wait (LLHJ paper, section 6)."""
        if pairs is not None:
            self.unsorted.add(pairs)
        return None if closed is None or not self.unsorted.size else self.unsorted.take(closed.end)


class FlowRunner:
    """A `Runner` whose threads work between pushes."""

    def __init__(self, setup: Setup, run: Run, flow: Flow, intake: LiveIntake) -> None:
        self._run, self._operator, self._flow, self._intake = run, run.operator, flow, intake
        self._self_join = setup.bound.spec.self_join
        self._collector = Collector(run, setup, flow, intake)
        self.in_order = flow.in_order or setup.ordered
        run.crew.resize(flow.threads + 2)
        run.flowing, self._counting = 1 if flow.elastic else flow.threads + 1, threading.Lock()
        self._others = (INTAKE, COLLECTOR) if flow.elastic else (flow.threads, flow.threads + 1)
        run.wakers = intake.wake, run.sent_some.set, flow.wake
        self._finished = threading.Event()
        self._own_threads: set[int] = set()
        self._host: threading.Thread | None = None

    # -- calls from outside --------------------------------------------------------------------------------

    def start(self, deliver: Deliver, fail: Fail) -> None:
        """Start the threads."""
        self._fail = fail
        self._collector.start(deliver)
        self._host = threading.Thread(target=self._run_crew, name="streamjoin-live", daemon=True)
        self._host.start()

    def push(
        self, side: int, name: str, rows: pa.Table | pa.RecordBatch, arrived: int, timeout: float | None = None
    ) -> None:
        """Take tuples of one source; waits while there is no room for them."""
        self._run.check()
        try:
            self._intake.push(Call("push", side, name, arrived, rows), timeout)
        except Stopped:
            self._run.check()
            raise

    def submit(self, call: Call) -> None:
        """Take a call that is not a push."""
        self._run.check()
        self._intake.submit(call)

    def adopt(self, call: Call) -> None:
        """Take a call, whether there is room or not."""
        self._run.check()
        self._intake.adopt(call)

    def admit(self) -> None:
        """Let in the pushes that wait for room."""
        self._intake.admit()

    def drain(self) -> None:
        """End the input and wait until every result has been delivered."""
        self._run.check()
        self._intake.end()
        self._finished.wait()
        if self._run.error is not None:
            raise self._run.error
        if self._run.stopping:
            raise Stopped(_STOPPED)

    def stop(self) -> None:
        """End the threads at once."""
        self._run.stopping = True
        self._run.crew.stop(Stopped(_STOPPED))
        self._run.wake()
        if self._host is not None and threading.get_ident() not in self._own_threads:
            self._host.join()
        if self._host is None or threading.get_ident() not in self._own_threads:
            self._run.crew.close()

    def set_workers(self, n: int) -> None:
        """Use `n` threads for the flow, starting with their next task."""
        if not self._flow.elastic:
            raise NotSupportedError(
                f"the number of threads of {self._operator.algorithm.name!r} is fixed when a live join starts; start "
                f"it with workers={n}, or use algorithm='pim_parallel'"
            )
        self._run.crew.resize(n + len(self._others))
        self._flow.wake()

    def late(self) -> pa.Table:
        """Rows that were late or without a time since the last call."""
        with self._run.ordering:
            return self._run.late.take(self._operator.bound)

    def metrics(self) -> Mapping[str, Any]:
        """Counters, queue lengths and bytes, as plain numbers."""
        run, intake = self._run, self._intake
        queued, in_gate, gate_bytes = intake.sizes()
        seconds = {"order": 0.0, **run.counts.seconds}
        figures: dict[str, Any] = {name: value for name, value in vars(run.counts).items() if name != "seconds"}
        with run.ordering:
            figures |= {"late_bytes": run.late.nbytes, "late_dropped": run.late.dropped}
        with self._operator.lock:
            stored = sum(store.nbytes for store in self._operator.stores)
        sent = run.sent >> 1 if self._self_join else run.sent
        collecting = {"gather", "deliver"}
        return {
            **figures,
            "waiting": queued + in_gate,
            "queued": queued,
            "gate": in_gate,
            "unsorted_rows": self._collector.unsorted.size,
            "most_unsorted_rows": self._collector.unsorted.most,
            "open_tuples": sent - self._collector.delivered[0],
            "bytes": gate_bytes + stored + self._flow.nbytes,
            "seconds": seconds,
            "latency": {"queue": intake.queued.figures(), "gate": intake.released.figures()},
            "threads": {
                "intake": {name: value for name, value in seconds.items() if name not in collecting},
                "collector": {name: value for name, value in seconds.items() if name in collecting},
                **self._flow.work(),
            },
            **self._flow.counters(),
        }

    # -- the threads ---------------------------------------------------------------------------------------

    def _run_crew(self) -> None:
        run = self._run
        try:
            run.crew.run(self._step)
        except BaseException as error:  # handed to the live join
            run.error = error
            if not run.stopping and not isinstance(error, Stopped):
                self._fail(error)
        finally:
            self._finished.set()
            run.wake()

    def _step(self, k: int) -> object:
        self._own_threads.add(threading.get_ident())
        intake, collector = self._others
        if k == collector:
            self._collector.run()
            return None
        if k == intake:
            self._intake.run()
        else:
            outcome = self._flow.run(k)
            if self._flow.elastic:
                return outcome
        with self._counting:
            self._run.flowing -= 1
        self._run.sent_some.set()
        return None


def runner_of(setup: Setup, operator: LiveOperator, flow: Flow) -> FlowRunner:
    """The runner of a join whose sources put tuples into an inbox."""
    run = Run(operator, flow.crew)
    return FlowRunner(setup, run, flow, InboxIntake(run, setup, flow))
