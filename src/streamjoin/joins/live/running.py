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
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.decisions import Key
from streamjoin.gate.merge import EventTimeGate
from streamjoin.joins.engine.intake import Intake
from streamjoin.joins.engine.late import LateRows
from streamjoin.joins.engine.ordered import Work
from streamjoin.joins.live.flow import POLL, Flow, TakenPairs, in_result_order, together
from streamjoin.joins.live.row_bytes import RowBytes
from streamjoin.joins.live.runner import Deliver, Delivery, Fail, Setup, Stopped
from streamjoin.joins.live.windowed import LiveOperator, ResultRows, SentChunk
from streamjoin.kernels.crew import STOP
from streamjoin.model.errors import BackPressureError, StateError

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


Item = tuple[str, int, str, Any, int]
"""A call that waits for the intake: its kind, side, source, argument and time of arrival."""


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
        # The inbox. While the gate is full, only the source that holds it back may push.
        self._most_waiting, self._most_bytes = setup.queue_rows, setup.queue_bytes
        self._batch_rows = setup.batch_rows
        self._row_bytes = [RowBytes(schema) for schema in (setup.bound.left_schema, setup.bound.right_schema)]
        self._items: deque[Item] = deque()
        self._waiting = self._waiting_bytes = 0
        self._in_gate = 0
        self._holder: Key | None = None
        self._sources_wait = 0
        # Held by the thread that does the intake's work.
        self._taking = threading.Lock()
        lock = threading.Lock()
        self._arrivals, self._room = threading.Condition(lock), threading.Condition(lock)
        # Chunks that were sent and are not complete.
        self._open: deque[SentChunk] = deque()
        self._sent = 0
        self._sent_time: int | None = None
        self._sent_some = threading.Event()
        self._unsettled = False
        self._settled_at = self._complete = 0
        self._flowing = flow.threads + 1
        self._delivered: tuple[int, int | None] = (0, None)
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
        self._call("add", side, name)

    def push(self, side: int, name: str, rows: pa.Table, arrived: int, timeout: float | None = None) -> None:
        """Take tuples of one source; waits while there is no room for them."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._arrivals:
            self._check()
            while self._is_full(side, name):
                rest = POLL if until is None else min(POLL, until - time.monotonic())
                if rest <= 0:
                    raise BackPressureError(self._fullness(timeout))
                self._sources_wait += 1
                self._room.wait(rest)
                self._sources_wait -= 1
                self._check()
            self._items.append(("push", side, name, rows, arrived))
            self._waiting += rows.num_rows
            self._waiting_bytes += self._row_bytes[side].of(rows)
        self._take_in_here()

    def advance(self, side: int, name: str, time: int) -> None:
        """Declare that a source has no tuples before `time`."""
        self._call("advance", side, name, time)

    def finish(self, side: int, name: str) -> None:
        """Declare that a source has ended."""
        self._call("finish", side, name)

    def rest(self, side: int, name: str) -> None:
        """Stop waiting for a source until its next tuples or `advance`."""
        self._call("rest", side, name)

    def drain(self) -> None:
        """End the input and wait until every result has been delivered."""
        with self._arrivals:
            self._check()
            self._input_ended = True
            self._arrivals.notify_all()
        self._finished.wait()
        if self._error is not None:
            raise self._error
        if self._stopping:
            raise Stopped(_STOPPED)

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
        with self._ordering:
            in_gate, gate_bytes = self._intake.waiting, self._intake.nbytes
        with self._operator.lock:
            stored = sum(store.nbytes for store in self._operator.stores)
        sent = self._sent >> 1 if self._self_join else self._sent
        collecting = {"gather", "deliver"}
        return {
            **figures,
            "waiting": self._waiting + in_gate,
            "queued": self._waiting,
            "gate": in_gate,
            "unsorted_rows": sum(piece.later.size for piece in list(self._unsorted)),
            "open_tuples": sent - self._delivered[0],
            "bytes": self._waiting_bytes + gate_bytes + stored + self._flow.nbytes,
            "seconds": seconds,
            "threads": {
                "intake": {name: value for name, value in seconds.items() if name not in collecting},
                "collector": {name: value for name, value in seconds.items() if name in collecting},
                **self._flow.work(),
            },
            **self._flow.counters(),
        }

    def _call(self, kind: str, side: int, name: str, argument: int | None = None) -> None:
        with self._arrivals:
            self._check()
            self._items.append((kind, side, name, argument, 0))
        self._take_in_here()

    def _is_full(self, side: int, name: str) -> bool:
        if self._waiting >= self._most_waiting or self._waiting_bytes >= self._most_bytes:
            return True
        return self._waiting + self._in_gate >= self._most_waiting and (side, name) != self._holder

    def _fullness(self, timeout: float | None) -> str:
        gate = ""
        if self._in_gate:
            behind = "a side without a source" if self._holder is None else f"source {self._holder[1]!r}"
            gate = f", {self._in_gate:,} in the gate, which waits for {behind}"
        return (
            f"no room for more tuples within {timeout} s: {self._waiting:,} wait for the join{gate}; push them again "
            "later, read the results faster, or open the join with larger queue_rows= and queue_bytes="
        )

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
        with self._arrivals:
            self._flowing -= 1
        self._sent_some.set()

    def _stopped(self) -> bool:
        return bool(self._crew.words[STOP])

    def _wake(self) -> None:
        with self._arrivals:
            self._arrivals.notify_all()
            self._room.notify_all()
        self._sent_some.set()
        self._flow.wake()

    # The intake.

    def _take_in(self) -> None:
        """The intake's thread: takes what sources could not send on themselves."""
        while True:
            with self._arrivals:
                pause = time.monotonic() + PAUSE
                while not self._items and not self._input_ended and not self._stopped():
                    self._arrivals.wait(POLL)
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
        while self._items and self._taking.acquire(blocking=False):
            try:
                rounds += 1
                if rounds > MOST_ROUNDS or not self._flow.has_room(self._waiting + self._in_gate):
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
        with self._arrivals:
            self._arrivals.notify()

    def _send_waiting(self) -> bool:
        """Order, store and send what waits, at most about a chunk of it; False if nothing does."""
        items, tuples = self._next_items()
        if not items:
            return False
        gate = self._intake.gate
        if gate is None and len(items) * LEAST_JOINED <= max(tuples, MOST_SINGLE * LEAST_JOINED):
            items = self._send_single(items)
            if not items:
                return True
        with self._ordering:
            self._late.trim()
            work = self._as_they_came(items) if gate is None else self._ordered(gate, items)
        self._send(work)
        return True

    def _next_items(self) -> tuple[deque[Item], int]:
        """The next items, up to a chunk of tuples, and how many tuples they have."""
        items: deque[Item] = deque()
        tuples = nbytes = 0
        with self._arrivals:
            while self._items and tuples < MOST_SENT:
                item = self._items.popleft()
                items.append(item)
                if item[0] == "push":
                    tuples += item[3].num_rows
                    nbytes += self._row_bytes[item[1]].of(item[3])
            self._waiting -= tuples
            self._waiting_bytes -= nbytes
            if self._sources_wait:
                self._room.notify_all()
        return items, tuples

    def _send_single(self, items: deque[Item]) -> deque[Item]:
        """Send each push by itself, as far as that goes without the general way; returns the items that need it."""
        while items:
            if items[0][0] == "push":
                _, side, _, rows, arrived = items[0]
                with self._counts.step("store"):
                    sent = self._operator.send_push(side, rows, arrived, self._sent)
                if sent is None:
                    break
                self._send_on(sent)
            items.popleft()
        return items

    def _as_they_came(self, items: deque[Item]) -> Work | None:
        pushes = [item for item in items if item[0] == "push"]
        if not pushes:
            return None
        inputs = [_one_table([item for item in pushes if item[1] == side]) for side in (0, 1)]
        sides = np.array([item[1] for item in pushes], np.bool_)
        return self._intake.feed(inputs, _by_tuple(sides, pushes), "", arrived=_by_tuple(_arrivals(pushes), pushes))

    def _ordered(self, gate: EventTimeGate, items: deque[Item]) -> Work | None:
        """Everything into the gate, the pushes of a source at once, then one release."""
        calls = {"add": gate.add, "finish": gate.leave, "rest": gate.rest}
        by_source: dict[Key, list[Item]] = {}
        for item in items:
            by_source.setdefault((item[1], item[2]), []).append(item)
        for (side, name), own in by_source.items():
            for is_push, run in groupby(own, lambda item: item[0] == "push"):
                if is_push:
                    pushes = list(run)
                    self._intake.collect(side, name, _one_table(pushes), _by_tuple(_arrivals(pushes), pushes))
                    continue
                for kind, _, _, argument, _ in run:
                    if kind == "advance":
                        gate.advance(side, name, argument)
                    else:
                        calls[kind](side, name)
        work = self._intake.release()
        # Tables whose bytes matter are as large in the gate as in the inbox: rows are enough to bound both.
        self._in_gate, self._holder = gate.waiting, gate.holder
        return work

    def _send(self, work: Work | None) -> None:
        if work is None:
            return
        gate = self._intake.gate
        bound = None if gate is None else gate.time
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
            pairs = self._flow.take(self._open[0]) if self._open else None
            self._hand_out(pairs, ended and pairs is None)
            if pairs is None:
                if ended:
                    return
                if not self._open or not self._flow.settles:
                    self._sent_some.wait(POLL)

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


def _one_table(pushes: list[Item]) -> pa.Table | None:
    if len(pushes) < 2:
        return pushes[0][3] if pushes else None
    return pa.concat_tables([item[3] for item in pushes])


def _arrivals(pushes: list[Item]) -> Array:
    return np.array([item[4] for item in pushes], np.int64)


def _by_tuple(values: Array, pushes: list[Item]) -> Array:
    """A value for each push as one for each of its tuples."""
    return np.repeat(values, [item[3].num_rows for item in pushes])
