"""Ends, idle sources and first pushes of live joins at awkward moments: every call returns, and no thread is left."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins.live import driven
from streamjoin.joins.live import live as live_module
from streamjoin.joins.live.driven import DrivenRunner
from streamjoin.joins.live.runner import Setup
from streamjoin.joins.live.running import FlowRunner, InboxIntake
from streamjoin.joins.live.source import WaitingInput
from streamjoin.testing.clock import ManualClock
from tests.joins.live_runs import ending

TIMED = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(1_000), time="t", order="event_time")
TYPES = pa.schema([("k", pa.int64()), ("t", pa.int64())])
SCHEMAS: dict[str, Any] = {"left_schema": TYPES, "right_schema": TYPES}
ALGORITHMS = ("auto", "pim_parallel", "handshake", "low_latency_handshake", "scalejoin")
each = pytest.mark.parametrize("algorithm", ALGORITHMS)


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """Every test ends, and leaves no thread of a live join."""
    with ending():
        yield


def at(*times: int) -> pa.RecordBatch:
    return pa.record_batch({"k": [1] * len(times), "t": list(times)}, schema=TYPES)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("streamjoin-")}


class Push(threading.Thread):
    """A push in a thread of its own, and how it ended."""

    def __init__(self, source: sj.LiveSource, *times: int) -> None:
        super().__init__(daemon=True)
        self._source, self._times = source, times
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._source.push(at(*self._times))
        except BaseException as error:
            self.error = error

    def await_start(self) -> None:
        """Return once the push is under way, which then waits for room if there is none."""
        while self.is_alive() and not self._source._lock.locked():
            self.join(0.001)


def fill(source: sj.LiveSource, begin: int) -> int:
    """Push until there is no room; returns the time of the last push."""
    with pytest.raises(sj.BackPressureError):
        while True:
            source.push(at(begin + 1), timeout=0.05)
            begin += 1
    return begin


# -- the end while sources wait for room ---------------------------------------------------------------------------


@each
@pytest.mark.parametrize("how", ["close", "block"])
def test_the_end_lets_in_the_pushes_that_wait_for_room(algorithm: str, how: str) -> None:
    """Only the end of the input makes the room that they wait for."""
    rows: list[tuple[int, int]] = []
    with sj.live(TIMED, algorithm, queue_rows=4, **SCHEMAS) as join:
        join.on_rows(
            lambda batch: rows.extend(zip(*(batch[c].to_pylist() for c in ("t_left", "t_right")), strict=True))
        )
        ahead, behind = join.source("left"), join.source("right")
        behind.push(at(1))
        last = fill(ahead, 1)
        push = Push(ahead, last + 1)
        push.await_start()
        if how == "close":
            join.close()
            assert join.wait(120)
    push.join()
    # It is taken or refused, and nothing in between.
    taken = last + (push.error is None)
    assert push.error is None or "close() was called" in str(push.error)
    assert rows == [(time, 1) for time in range(2, taken + 1)]
    assert join.metrics()["pushed_left"] == taken - 1


@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_end_refuses_pushes_that_wait_for_the_other_sides_columns(how: Any) -> None:
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(5), time="t", order="event_time", how=how)
    join = sj.live(spec, queue_rows=4)
    left = join.source("left")
    fill(left, 0)
    push = Push(left, 5)
    push.await_start()
    join.close()
    assert join.wait(120)
    push.join()
    assert isinstance(push.error, sj.StateError)
    if how == "inner":
        assert list(join) == []
    else:
        with pytest.raises(sj.StateError, match="unmatched tuples"):
            next(iter(join))


def test_a_source_that_never_stops_pushing_does_not_hold_up_the_end() -> None:
    with sj.live(TIMED, queue_rows=4, **SCHEMAS) as join:
        join.on_rows(lambda rows: None)
        ahead, errors = join.source("left"), []
        join.source("right").push(at(1))
        begun = threading.Event()

        def push() -> None:
            try:
                for time in range(2, 10_000_000):
                    ahead.push(at(time))
                    begun.set()
            except sj.StateError as error:
                errors.append(str(error))

        pushing = threading.Thread(target=push)
        pushing.start()
        assert begun.wait(120)
    pushing.join()
    assert "close() was called" in errors[0]
    # The queue, what the join had taken by then, and one push more.
    assert ahead.tuples < 100


# -- first pushes ------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("limits", [{"queue_bytes": 64}, {"queue_rows": 4}], ids=["bytes", "rows"])
def test_one_side_may_push_more_than_the_queue_holds_before_the_other_side_is_known(
    algorithm: str, limits: dict[str, int]
) -> None:
    rows: list[int] = []
    with sj.live(TIMED, algorithm, **limits) as join:
        join.on_rows(lambda batch: rows.extend(batch["t_left"].to_pylist()))
        left, right = join.source("left"), join.source("right")
        left.push(at(*range(40)))
        push = Push(left, 40)
        push.await_start()
        right.push(at(100))
        right.push(at(101))
        push.join()
        assert push.error is None
    assert rows == [*range(41)] * 2


def test_what_waits_for_the_other_sides_columns_is_limited_in_bytes() -> None:
    with sj.live(TIMED, queue_bytes=1_000) as join:
        left = join.source("left")
        with pytest.raises(sj.BackPressureError, match="columns of the right side"):
            for time in range(1_000):
                left.push(at(time), wait=False)
        assert left.tuples * 16 <= 1_000
        join.stop()


def test_a_join_that_fails_while_it_takes_over_first_pushes_fails_for_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The calls made so far are with the runner, or not: none may be made twice."""
    usual = DrivenRunner.adopt

    def fail(self: DrivenRunner, call: Any) -> None:
        usual(self, call)
        if call.rows is not None:
            raise MemoryError("injected")

    monkeypatch.setattr(DrivenRunner, "adopt", fail)
    with pytest.raises(sj.StateError, match="MemoryError: injected"), sj.live(TIMED) as join:
        left, right = join.source("left"), join.source("right")
        left.push(at(1))
        with pytest.raises(MemoryError):
            right.push(at(2))
        for call in (lambda: left.push(at(3)), lambda: right.push(at(3)), lambda: next(iter(join))):
            with pytest.raises(sj.StateError, match="MemoryError: injected"):
                call()


class Held:
    """Holds up the call of a function until it is let go."""

    def __init__(self, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._go_on = threading.Event(), threading.Event()
        usual = getattr(owner, name)

        def hold(*args: Any, **settings: Any) -> Any:
            self.reached.set()
            assert self._go_on.wait(120)
            return usual(*args, **settings)

        monkeypatch.setattr(owner, name, hold)

    def let_go(self) -> None:
        self._go_on.set()


@pytest.mark.parametrize("algorithm", ["auto", "pim_parallel"])
@pytest.mark.parametrize("place", ["build", "start", "hand_over"])
def test_stop_during_the_first_push_that_binds_leaves_no_thread(
    algorithm: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner: Any = DrivenRunner if algorithm == "auto" else FlowRunner
    owner, name = {"build": (Setup, "__init__"), "start": (runner, "start"), "hand_over": (WaitingInput, "hand_over")}[
        place
    ]
    join = sj.live(TIMED, algorithm)
    left, right = join.source("left"), join.source("right")
    left.push(at(1))
    held = Held(owner, name, monkeypatch)
    push = Push(right, 2)
    assert held.reached.wait(120)
    stopping = threading.Thread(target=join.stop)
    stopping.start()
    while not join._broadcast.stopped:
        stopping.join(0.001)
    held.let_go()
    stopping.join()
    push.join()
    # It was taken before, or refused.
    assert push.error is None or "was stopped" in str(push.error)
    assert not threads()
    with pytest.raises(sj.StateError, match="was stopped"):
        left.push(at(3))


class InterruptedLock:
    """A lock; once armed, the next source that takes it is interrupted behind that, and nobody takes it before."""

    def __init__(self, interrupt: Callable[[], object]) -> None:
        self._lock, self._interrupt, self._armed = threading.Lock(), interrupt, False
        self.release = self._lock.release

    def arm(self) -> None:
        with self._lock:
            self._armed = True

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._armed and not blocking:
            self._lock.acquire()
            self._armed = False
            self._interrupt()
            return True
        taken = self._lock.acquire(blocking, timeout)
        if taken and self._armed:
            self._lock.release()
            return False
        return taken

    def put_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have live joins take it for the work of their intake."""
        usual = InboxIntake.__init__

        def begin(intake: InboxIntake, *arguments: Any) -> None:
            usual(intake, *arguments)
            intake._taking = self  # type: ignore[assignment]

        monkeypatch.setattr(InboxIntake, "__init__", begin)


def interrupt_this_thread() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("algorithm", ["pim_parallel", "low_latency_handshake"])
def test_an_interrupt_behind_a_lock_that_was_taken_ends_the_join(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody releases that lock: the end waited for it for ever."""
    lock = InterruptedLock(interrupt_this_thread)
    lock.put_into(monkeypatch)
    join = sj.live(TIMED, algorithm, **SCHEMAS)
    source = join.source("left")
    lock.arm()
    with pytest.raises(KeyboardInterrupt):
        source.push(at(1))
    join.close()
    assert join.wait(120)
    with pytest.raises(sj.StateError, match="KeyboardInterrupt"):
        next(iter(join))
    join.stop()
    assert not threads()


@pytest.mark.parametrize("algorithm", ["pim_parallel", "low_latency_handshake"])
def test_ctrl_c_while_a_source_sends_tuples_on_leaves_the_join(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the join for all sources and consumers."""
    lock = InterruptedLock(lambda: signal.raise_signal(signal.SIGINT))
    lock.put_into(monkeypatch)
    with sj.live(TIMED, algorithm, **SCHEMAS) as join:
        left, right = join.source("left"), join.source("right")
        lock.arm()
        with pytest.raises(KeyboardInterrupt):
            left.push(at(1))
        right.push(at(1))
        join.close()
        rows = [row for table in join for row in table["t_left"].to_pylist()]
    assert rows == [1]


class InterruptedRelease:
    """A place in a condition's queue; the thread that wakes it is interrupted right behind that."""

    def __init__(self, waiter: Any) -> None:
        self._waiter, self._interrupts = waiter, 1

    def release(self) -> None:
        self._waiter.release()
        if self._interrupts:
            self._interrupts -= 1
            raise KeyboardInterrupt


def test_an_interrupt_that_leaves_a_place_in_the_queue_takes_nobodys_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end woke that place instead of the driver, which slept for ever."""
    rows: list[int] = []
    monkeypatch.setattr(driven, "MOST_HERE", 0)
    with sj.live(TIMED, **SCHEMAS) as join:
        join.on_rows(lambda batch: rows.extend(batch["t_left"].to_pylist()))
        left, right = join.source("left"), join.source("right")
        inbox = join._runner._inbox  # type: ignore[union-attr]

        def await_sleep() -> None:
            while not (inbox._asleep and not inbox._calls):
                join.wait(0.001)

        left.push(at(1))
        await_sleep()
        with inbox._lock:
            inbox._filled._waiters[0] = InterruptedRelease(inbox._filled._waiters[0])
        with pytest.raises(KeyboardInterrupt):
            right.push(at(1))
        await_sleep()
        join.close()
        assert join.wait(120)
    assert rows == [1]


# -- silence -----------------------------------------------------------------------------------------------------


@each
def test_sources_that_are_all_idle_with_a_full_gate_can_push_again(algorithm: str) -> None:
    """What is within the lateness stays in the gate, and only further tuples can empty it."""
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(5), time="t", order="event_time", lateness=100)
    clock, rows = ManualClock(), []
    with sj.live(spec, algorithm, queue_rows=4, idle="1 second", clock=clock, **SCHEMAS) as join:
        join.on_rows(lambda batch: rows.extend(batch["t_left"].to_pylist()))
        left, right = join.source("left"), join.source("right")
        left.push(at(1))
        right.push(at(1))
        fill(left, 1)
        clock.turn(2)
        while not (left._resting and right._resting):
            join.wait(0.001)
        for time in (150, 300, 450):
            left.push(at(time))
            right.push(at(time))
        join.close()
        assert join.wait(120)
    assert rows[-3:] == [150, 300, 450]
    assert join.late().num_rows == 0


@each
def test_a_side_without_a_source_fills_the_gate_and_not_the_memory(algorithm: str) -> None:
    with sj.live(TIMED, algorithm, queue_rows=10, **SCHEMAS) as join:
        left = join.source("left")
        said = ""
        for time in range(1_000):
            try:
                left.push(at(time), timeout=0.05)
            except sj.BackPressureError as error:
                said = str(error)
            if "a side without a source" in said:
                break
        assert "a side without a source" in said
        assert left.tuples < 50
        join.source("right").push(at(0))
        join.stop()


# -- consumers and threads at the end ------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", ["waits", "awaits"])
def test_closing_a_consumer_wakes_its_reader(reads: str) -> None:
    """Whoever holds the lock of the queues meanwhile."""
    with sj.live(TIMED, **SCHEMAS) as join:
        consumer, seen = join.consumer(), []

        async def read() -> None:
            with contextlib.suppress(StopAsyncIteration):
                seen.append(await consumer.read_async())

        reader = threading.Thread(
            target=lambda: seen.append(consumer.read()) if reads == "waits" else asyncio.run(read())
        )
        reader.start()
        queue = consumer._queue
        while not (queue.filled._waiters or queue.wakes):  # type: ignore[attr-defined]
            reader.join(0.001)
        with join._broadcast.lock:
            closing = threading.Thread(target=consumer.close)
            closing.start()
            while not queue.gone:
                closing.join(0.001)
            # A close that does not wait for the lock is over by now, and has woken nobody.
            closing.join(0.05)
        reader.join(120)
        assert not reader.is_alive()
        closing.join()
        assert seen in ([None], [])
        join.stop()


def test_a_consumer_may_be_closed_by_a_finalizer_inside_the_locked_part() -> None:
    with sj.live(TIMED, **SCHEMAS) as join:
        consumer = join.consumer()
        with join._broadcast.lock:
            consumer.close()
        assert consumer.read() is None
        join.stop()


@each
def test_no_thread_is_left_once_all_rows_were_delivered(algorithm: str) -> None:
    """Without `stop`, and without the end of a block."""
    join = sj.live(TIMED, algorithm, 2, idle="1 hour", **SCHEMAS)
    left, right = join.source("left"), join.source("right")
    left.push(at(1, 2))
    right.push(at(1, 2))
    assert threads()
    join.close()
    assert join.wait(120)
    assert not threads()
    assert sum(rows.num_rows for rows in join) == 4
    assert (join.metrics()["rows"], join.late().num_rows) == (4, 0)


def test_no_thread_is_left_after_an_end_without_a_runner() -> None:
    join = sj.live(TIMED, idle="1 hour")
    join.source("left").push(at(1))
    join.close()
    assert join.wait(120)
    assert not threads()


@each
def test_no_thread_is_left_after_a_failed_end(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    join = sj.live(TIMED, algorithm, 2, idle="1 hour", **SCHEMAS)
    join.source("left").push(at(1))

    def fail() -> None:
        raise ZeroDivisionError("injected")

    assert join._runner is not None
    monkeypatch.setattr(join._runner, "drain", fail)
    join.close()
    assert join.wait(120)
    assert not threads()
    with pytest.raises(sj.StateError, match="injected"):
        next(iter(join))


def test_no_thread_is_left_of_a_join_that_could_not_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(live_module, "IdleWatch", fail)
    with pytest.raises(RuntimeError, match="can't start"):
        sj.live(TIMED, "pim_parallel", idle="1 hour", **SCHEMAS)
    # The fixture finds whoever is left.
