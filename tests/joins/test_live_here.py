"""Pushes that are joined in the threads of their sources: rows, order, room, failures, interrupts and ends."""

from __future__ import annotations

import linecache
import random
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.engine.operator import Operator
from streamjoin.joins.live.broadcast import Broadcast
from streamjoin.joins.live.driven import DrivenJoin, DrivenRunner, JoinedRows
from streamjoin.joins.live.runner import Call
from streamjoin.testing import cases as generate
from tests.failing import PACKAGE, Fails
from tests.joins.live_runs import (
    check_punctuations,
    ending,
    opened,
    pairs_of,
    push_arrival,
    push_event_time,
)
from tests.oracles.expected import expected
from tests.seeds import FRESH, examples
from tests.threads import run_threads

COUNTED = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(1_000))
TIMED = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(1_000), time="t", order="event_time")
TYPES = pa.schema([("k", pa.int64()), ("t", pa.int64())])
SCHEMAS: dict[str, Any] = {"left_schema": TYPES, "right_schema": TYPES}
each = pytest.mark.parametrize("spec", [COUNTED, TIMED], ids=["counted", "timed"])


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """Every test ends, and leaves no thread of a live join."""
    with ending():
        yield


@pytest.fixture(autouse=True)
def joined_here(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Pushes are joined in the threads of their sources whenever no thread works; those that were."""
    usual, joined = DrivenJoin.push_whole, []

    def push_whole(join: DrivenJoin, call: Call) -> JoinedRows | None:
        rows = usual(join, call)
        joined.append(call)
        return rows

    monkeypatch.setattr(DrivenRunner, "_is_rare", lambda *_: True)
    monkeypatch.setattr(DrivenJoin, "push_whole", push_whole)
    return joined


def row(key: int, time: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"k": [key], "t": [time]}, schema=TYPES)


def await_idle(join: sj.Live) -> None:
    """Wait until the driver has taken what opened the sources."""
    inbox: Any = join._runner._inbox  # type: ignore[union-attr]
    while True:
        with inbox._lock:
            if not inbox._calls and inbox._worker is None:
                return
        join.wait(0.001)


@settings(
    deadline=None,
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(case=generate.cases(), seed=st.integers(0, 999), room=st.sampled_from([3, 1 << 19]))
def test_rows_are_the_oracles(case: generate.JoinCase, seed: int, room: int) -> None:
    """By more threads than cores; with little room the driver joins some."""
    with opened(case, AlgorithmRequest(), queue_rows=room, batch_rows=max(1, room // 2)) as join:
        reader = join.consumer()
        found: list[Any] = []
        reading = threading.Thread(target=lambda: found.extend(reader.batches()))
        reading.start()
        (push_event_time if case.spec.order == "event_time" else push_arrival)(join, case, seed)
        join.close()
        reading.join()
    assert [pair for batch in found for pair in pairs_of(batch.rows)] == expected(case)
    if case.spec.match is None:
        check_punctuations(case, found)


@each
def test_an_idle_join_needs_no_other_thread(spec: sj.JoinSpec, joined_here: list[Call]) -> None:
    with sj.live(spec, **SCHEMAS) as join:
        left, right, reader = join.source("left"), join.source("right"), join.consumer()
        await_idle(join)
        for number in range(20):
            left.push(row(number, number))
            right.push(row(number, number))
        # In event-time order the newest tuples may not be ready.
        rows = 0
        while rows < 19:
            rows += next(reader).num_rows
        assert len(joined_here) == 40
        figures = join.metrics()
        assert (figures["pushed_left"], figures["waiting"]) == (20, figures["gate"])
        join.stop()


class Held:
    """Holds up the pushes that are joined in their sources' threads, until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._go_on = threading.Event(), threading.Event()
        usual = DrivenJoin.push_whole

        def hold(join: DrivenJoin, call: Call) -> Any:
            self.reached.set()
            assert self._go_on.wait(120)
            return usual(join, call)

        monkeypatch.setattr(DrivenJoin, "push_whole", hold)

    def let_go(self) -> None:
        self._go_on.set()


def test_what_comes_meanwhile_is_joined_together(monkeypatch: pytest.MonkeyPatch) -> None:
    held, taken = Held(monkeypatch), []
    usual = DrivenJoin.run
    monkeypatch.setattr(DrivenJoin, "run", lambda join, calls: (taken.append(len(calls)), usual(join, calls))[1])
    with sj.live(COUNTED, **SCHEMAS) as join:
        left, right, reader = join.source("left"), join.source("right"), join.consumer()
        first = threading.Thread(target=lambda: left.push(row(1)))
        first.start()
        assert held.reached.wait(120)
        for number in range(1, 6):
            # They return at once, and wait.
            right.push(row(number % 2))
        assert join.metrics()["queued"] == 5
        held.let_go()
        first.join()
        join.close()
        assert sum(rows.num_rows for rows in reader) == 3
    assert taken == [5]


@pytest.mark.parametrize("how", ["stop", "close"])
def test_the_end_waits_for_a_push_that_is_being_joined(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held, rows = Held(monkeypatch), []
    with sj.live(COUNTED, **SCHEMAS) as join:
        join.on_rows(lambda batch: rows.extend(batch["k"].to_pylist()))
        left, right, errors = join.source("left"), join.source("right"), []
        # The driver adopts nothing here, so this one is held as well.
        held.let_go()
        left.push(row(1))
        held = Held(monkeypatch)

        def push() -> None:
            try:
                right.push(row(1))
            except sj.StateError as error:
                errors.append(str(error))

        pushing = threading.Thread(target=push)
        pushing.start()
        assert held.reached.wait(120)
        ending_ = threading.Thread(target=join.stop if how == "stop" else lambda: (join.close(), join.wait()))
        ending_.start()
        while not (join._broadcast.stopped if how == "stop" else left._input_ended):
            ending_.join(0.001)
        ending_.join(0.02)
        assert ending_.is_alive()
        held.let_go()
        ending_.join()
        pushing.join()
    assert (rows, ["was stopped" in error for error in errors]) == (([], [True]) if how == "stop" else ([1], []))


def test_no_push_waits_for_a_slow_consumer_in_its_own_thread(joined_here: list[Call]) -> None:
    with sj.live(COUNTED, result_rows=4, queue_rows=6, **SCHEMAS) as join:
        left, right, reader = join.source("left"), join.source("right"), join.consumer()
        left.push(row(7))
        taken = 0
        with pytest.raises(sj.BackPressureError):
            while True:
                right.push(row(7), wait=False)
                taken += 1
        assert 4 <= len(joined_here) <= 6 < taken
        assert sum(next(reader).num_rows for _ in range(4)) == 4
        join.close()
        assert sum(rows.num_rows for rows in reader) == taken - 4


class Failing(Fails):
    """Fails inside what `push_whole` calls: the line that leaves its lock is no place where an error comes from."""

    HANDING_ON = Fails.HANDING_ON | {"push_whole"}


@each
@pytest.mark.parametrize("seed", range(2))
def test_a_push_that_fails_leaves_the_join_as_it_was(
    spec: sj.JoinSpec, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any line, with another size before and after."""
    usual, rng, failures = DrivenJoin.push_whole, random.Random(FRESH + seed), 0
    line = 0

    def push_whole(join: DrivenJoin, call: Call) -> JoinedRows | None:
        with Failing(line, MemoryError("injected")):
            return usual(join, call)

    monkeypatch.setattr(DrivenJoin, "push_whole", push_whole)
    pushed: list[tuple[int, pa.Table]] = []
    with sj.live(spec, **SCHEMAS) as join:
        sources, reader = (join.source("left"), join.source("right")), join.consumer()
        for number in range(150):
            await_idle(join)
            line = rng.randrange(1, 200)
            try:
                sources[number % 2].push(row(0, number))
                pushed.append((number % 2, pa.table(row(0, number))))
            except MemoryError:
                failures += 1
            line = 0
            n = rng.choice((1, 2, 5))
            rows = pa.table({"k": [number // 4 % 5] * n, "t": [number] * n}, schema=TYPES)
            sources[number % 2].push(rows)
            pushed.append((number % 2, rows))
        join.close()
        found = pa.Table.from_batches(list(reader), schema=join.schema)
    with sj.open(spec, left_schema=TYPES, right_schema=TYPES) as whole:
        parts = [whole.push(**{("left", "right")[side]: rows}) for side, rows in pushed]
        parts.append(whole.close())
    assert found.to_pylist() == pa.concat_tables(parts).to_pylist()
    assert failures > 20


def test_a_push_that_can_not_be_undone_ends_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("injected")

    with pytest.raises(sj.StateError, match="ZeroDivisionError"), sj.live(COUNTED, **SCHEMAS) as join:
        left, reader = join.source("left"), join.consumer()
        left.push(row(1))
        monkeypatch.setattr(DrivenJoin, "_join_whole", fail)
        monkeypatch.setattr(DrivenJoin, "_join_at_once", fail)
        monkeypatch.setattr(Operator, "undo_push", fail)
        monkeypatch.setattr(Operator, "saved", lambda *_: fail)
        with pytest.raises(ZeroDivisionError):
            left.push(row(2))
        with pytest.raises(sj.StateError, match="ZeroDivisionError"):
            list(reader)


class Interrupts:
    """Sends Ctrl-C at the n-th line of the package that runs in this thread inside the block, or soon after it.

    Not at a line with a `with`: Python sends none between the end of its block and what leaves it, but a tracer would.
    """

    def __init__(self, n: int) -> None:
        self.left, self.sent, self.before = n, False, sys.gettrace()

    def __enter__(self) -> Interrupts:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.left -= 1
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if self.left <= 0 and not self.sent and not line.lstrip().startswith("with "):
                self.sent = True
                signal.raise_signal(signal.SIGINT)
        return self.trace


@each
def test_ctrl_c_at_any_line_of_a_push_leaves_a_whole_join(spec: sj.JoinSpec) -> None:
    """The push was taken or was not; each one that returned was, and nobody waits for ever."""
    with sj.live(spec, **SCHEMAS) as join:
        left, right, reader = join.source("left"), join.source("right"), join.consumer()
        returned, line, number = [], 0, 0
        while line < 4_000:
            line += 1 + line // 40
            number += 1
            interrupts = Interrupts(line)
            try:
                with interrupts:
                    left.push(row(number, number))
                    returned.append(number)
            except KeyboardInterrupt:
                pass
            right.push(row(number, number))
            await_idle(join)
            if not interrupts.sent:
                break
        assert not interrupts.sent
        join.close()
        found = [key for rows in reader for key in rows["k"].to_pylist()]
    assert set(returned) <= set(found)
    assert len(set(found)) == len(found)
    assert number > 20


def test_a_signal_may_stop_the_join_in_the_middle_of_a_push(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = DrivenJoin.push_whole
    with sj.live(COUNTED, **SCHEMAS) as join:
        left = join.source("left")
        left.push(row(1))

        def push_whole(driven: DrivenJoin, call: Call) -> JoinedRows | None:
            # One that is not put off.
            signal.raise_signal(signal.SIGWINCH)
            return usual(driven, call)

        monkeypatch.setattr(DrivenJoin, "push_whole", push_whole)
        before = signal.signal(signal.SIGWINCH, lambda *_: join.stop())
        try:
            with pytest.raises(sj.StateError, match="was stopped"):
                left.push(row(1))
        finally:
            signal.signal(signal.SIGWINCH, before)
        assert join._runner.join._closed  # type: ignore[union-attr]


def test_a_signal_may_ask_for_figures_in_the_middle_of_a_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need the lock that the push holds."""
    usual, seen = DrivenJoin._join_whole, []
    with sj.live(TIMED, **SCHEMAS) as join:
        left = join.source("left")
        await_idle(join)

        def join_whole(driven: DrivenJoin, call: Call) -> JoinedRows:
            signal.raise_signal(signal.SIGUSR1)
            return usual(driven, call)

        monkeypatch.setattr(DrivenJoin, "_join_whole", join_whole)
        before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(join.metrics()["tuples_left"]))
        try:
            left.push(row(1))
        finally:
            signal.signal(signal.SIGUSR1, before)
        join.stop()
    assert seen == [1]


def test_an_error_of_the_delivery_ends_the_join(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(sj.StateError, match="ZeroDivisionError"), sj.live(COUNTED, **SCHEMAS) as join:
        left = join.source("left")
        left.push(row(1))
        monkeypatch.setattr(Broadcast, "_items", lambda *_: 1 / 0)
        left.push(row(2))
        with pytest.raises(sj.StateError, match="ZeroDivisionError"):
            left.push(row(3))


def test_many_threads_push_and_read_at_once() -> None:
    """More threads than cores; sources come and go."""
    with sj.live(COUNTED, **SCHEMAS) as join:
        readers = [join.consumer() for _ in range(2)]
        found: list[list[int]] = [[], []]

        def feed(thread: int) -> None:
            for turn in range(4):
                with join.source(("left", "right")[thread % 2], str(turn)) as source:
                    for number in range(10):
                        source.push(row(thread // 2 * 1_000 + turn * 10 + number))

        def read(number: int) -> None:
            found[number].extend(key for rows in readers[number] for key in rows["k"].to_pylist())

        def feed_all() -> None:
            run_threads([partial(feed, thread) for thread in range(8)])
            join.close()

        run_threads([feed_all, lambda: read(0), lambda: read(1)])
    assert found[0] == found[1]
    assert sorted(found[0]) == [thread * 1_000 + number for thread in range(4) for number in range(40)]
