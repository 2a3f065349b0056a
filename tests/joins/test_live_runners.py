"""The runners of the papers' joins: the oracle's rows, long streams, errors in every thread, and how they end."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.jit.crew import STOP, lock
from streamjoin.joins.engine import push_plan
from streamjoin.joins.live import running as live_running
from streamjoin.joins.live.flow import TakenPairs
from streamjoin.joins.live.runner import Call, Delivery, Runner, Stopped
from streamjoin.joins.live.running import FlowRunner
from streamjoin.joins.live.windowed import SentChunk
from streamjoin.model.errors import BackPressureError, StateError
from streamjoin.pim_tree import live as pim
from streamjoin.pim_tree.kernels import work_queue
from tests.deadlock import no_deadlock
from tests.joins.runner_runs import SYSTEMS, Consumer, check, run_live, runner_of, setup_of
from tests.seeds import FRESH, examples
from tests.threads import YIELDS_FORCED, check_that_runs_hold

SCANNING = tuple(system for system in SYSTEMS if system[1] is None)
each = pytest.mark.parametrize("system", SCANNING, ids=lambda system: str(system[0]))
# In arrival order a driver thread runs `scalejoin`.
each_in_arrival_order = pytest.mark.parametrize(
    "system", [system for system in SCANNING if system[0] != "scalejoin"], ids=lambda system: str(system[0])
)
BAND = sj.JoinSpec(on=sj.Band("x", "x", 1), window=(sj.CountWindow(400), sj.TimeWindow(400)), time="t", order="arrival")


def numbers(n: int, seed: int, domain: int = 400) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({"x": rng.integers(0, domain, n), "y": np.zeros(n, int), "t": np.arange(n), "id": np.arange(n)})


def running(system: tuple[str, str | None], spec: sj.JoinSpec = BAND) -> FlowRunner:
    runner = runner_of(setup_of(spec, system, 2, {}))
    assert isinstance(runner, FlowRunner)
    return runner


class Sent:
    """A chunk; while somebody looks at it, another one is sent."""

    def __init__(self, chunks: deque[Any], begin: int) -> None:
        self._chunks, self._begin = chunks, begin

    @property
    def begin(self) -> int:
        self._chunks.append(Sent(self._chunks, 100))
        return self._begin


def test_chunks_are_sent_while_pairs_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = running(("low_latency_handshake", None))
    collector, chunks = runner._collector, deque[Any]()
    chunks += [Sent(chunks, 0), Sent(chunks, 10)]
    tested: list[tuple[Any, list[int]]] = []

    def test(sent: Any, later: Any, seqs: Any, holds: bool) -> tuple[Any, Any]:
        del holds
        tested.append((sent, later.tolist()))
        return later, seqs

    first, second = chunks
    monkeypatch.setattr(runner._run, "open", chunks)
    monkeypatch.setattr(collector._operator, "tested", test)
    pairs = collector._tested(TakenPairs(np.array([3, 12, 9]), np.array([0, 1, 2])))
    assert tested == [(first, [3, 9]), (second, [12])]
    assert pairs.later.tolist() == [3, 9, 12]
    runner.stop()


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: "-".join(filter(None, system)))
def test_random_runs_give_the_oracles_rows(system: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """With compiled steps for small pushes, and without."""
    with no_deadlock():
        check(examples(40), FRESH + 11, (system,))
        monkeypatch.setattr(push_plan.PushPlan, "of", lambda *_: None)
        check(examples(20), FRESH + 12, (system,))


@pytest.mark.slow
@pytest.mark.thorough
def test_runs_hold_with_yields_forced_at_every_shared_access() -> None:
    check_that_runs_hold(YIELDS_FORCED, "tests.joins.runner_runs", "12", "5")


@each_in_arrival_order
def test_a_long_stream_gives_the_rows_of_push(system: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs, queues and shares are filled many times over, and memory stays what it was."""
    monkeypatch.setattr(pim, "SEGMENT", 2048)
    left, right = numbers(20_000, 1), numbers(20_000, 2)
    sizes: list[int] = []
    with sj.open(BAND, "sweep") as join:
        sides = np.tile(np.repeat([False, True], 50), 400)
        rows = join.push(left, right, interleave=sides)
        expected = list(zip(rows["id_left"].to_pylist(), rows["id_right"].to_pylist(), strict=True))

    with no_deadlock():
        runner = running(system)

        def feed(_: object) -> None:
            for begin in range(0, 20_000, 50):
                for side, table in enumerate((left, right)):
                    runner.push(side, "", table.slice(begin, 50), time.monotonic_ns())
                # What waits because a thread gets no time is not what memory is compared for.
                while sum(runner.metrics()[name] for name in ("waiting", "open_tuples")) > 1500:
                    os.sched_yield()
                sizes.append(runner.metrics()["bytes"])

        consumer = run_live(runner, feed)
    assert consumer.ids() == expected
    assert max(runner.metrics().get(name, 5) for name in ("flows", "runs")) >= 5
    assert max(sizes) <= 2 * max(sizes[: len(sizes) // 2])


@each
def test_punctuations_hold_when_the_gate_releases_many_tuples_at_once(system: tuple[str, str | None]) -> None:
    """A release of more tuples than a chunk has is complete only with its last chunk."""
    table = numbers(12_000, 7)
    spec = sj.JoinSpec(on=sj.Equi("x"), window=sj.TimeWindow(5), time="t", order="event_time")

    def feed(runner: Runner) -> None:
        runner.submit(Call("add", 0, "a"))
        runner.submit(Call("add", 1, "a"))
        runner.push(0, "a", table, 0)
        runner.push(1, "a", table, 0)

    with no_deadlock():
        runner = runner_of(replace(setup_of(spec, system, 2, {}), batch_rows=1000))
        consumer = run_live(runner, feed)
    with sj.open(spec, "sweep") as join:
        rows = pa.concat_tables([join.push(table, table), join.close()])
    assert consumer.ids() == list(zip(rows["id_left"].to_pylist(), rows["id_right"].to_pylist(), strict=True))
    assert consumer.most_rows <= 1000


@each_in_arrival_order
def test_an_error_in_a_thread_reaches_everybody(
    system: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Exception):
        pass

    def fail(*_: object) -> None:
        raise Broken("injected")

    for owner, name in (("_operator", "send"), ("_operator", "rows"), ("_flow", "run"), ("_flow", "take"), ("", "")):
        with no_deadlock():
            runner, consumer, failed = running(system), Consumer(False), threading.Event()
            if owner:
                monkeypatch.setattr(getattr(runner, owner), name, fail)

            def report(error: BaseException, consumer: Consumer = consumer, failed: threading.Event = failed) -> None:
                consumer.errors.append(error)
                failed.set()

            runner.start(consumer.deliver if owner else fail, report)
            table = numbers(200, 3)
            try:
                with pytest.raises((Broken, StateError)):
                    for _ in range(10_000):
                        runner.push(0, "", table, 0)
                        runner.push(1, "", table, 0)
                        if failed.is_set():
                            runner.drain()
                assert failed.wait(120)
            finally:
                runner.stop()
        assert [type(error) for error in consumer.errors] == [Broken], (owner, name)


@each_in_arrival_order
def test_a_slow_consumer_slows_the_sources_and_stop_ends_all(system: tuple[str, str | None]) -> None:
    runner, blocked = running(system), threading.Event()
    gate = threading.Event()

    def deliver(_: Delivery) -> None:
        blocked.set()
        gate.wait()
        raise Stopped("stopped")

    errors: list[BaseException] = []
    with no_deadlock():
        runner.start(deliver, errors.append)
        table = numbers(4096, 5, domain=8)
        with pytest.raises(BackPressureError, match="no room"):
            for _ in range(10_000):
                runner.push(0, "", table, 0, timeout=0.2)
                runner.push(1, "", table, 0, timeout=0.2)
        assert blocked.wait(120)
        waiting: list[BaseException] = []

        def push() -> None:
            try:
                while True:
                    runner.push(0, "", table, 0)
            except BaseException as error:
                waiting.append(error)

        pusher = threading.Thread(target=push)
        pusher.start()
        threading.Timer(0.1, gate.set).start()
        runner.stop()
        pusher.join()
        runner.stop()
    assert [type(error) for error in waiting] == [Stopped]
    assert not errors
    with pytest.raises(Stopped):
        runner.drain()


def test_pauses_complete_the_original_handshake_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pause drains the chain; what a drain has found is not found again when the tuples meet later."""
    monkeypatch.setattr(live_running, "PAUSE", 0.0)
    monkeypatch.setattr(live_running, "POLL", 0.001)
    left, right = numbers(600, 8, domain=60), numbers(600, 9, domain=60)
    runner, consumer, arrived = running(("handshake", None)), Consumer(False), threading.Condition()

    def deliver(delivery: Delivery) -> None:
        with arrived:
            consumer.deliver(delivery)
            arrived.notify_all()

    with no_deadlock():
        runner.start(deliver, consumer.errors.append)
        try:
            for begin in range(0, 600, 40):
                runner.push(0, "", left.slice(begin, 40), 0)
                runner.push(1, "", right.slice(begin, 40), 0)
                with arrived:
                    assert arrived.wait_for(lambda end=2 * begin + 80: consumer.reached == end, 120)  # type: ignore[misc]
            runner.drain()
        finally:
            runner.stop()
    with sj.open(BAND, "sweep") as join:
        rows = join.push(left, right, interleave=np.tile(np.repeat([False, True], 40), 15))
    assert consumer.ids() == list(zip(rows["id_left"].to_pylist(), rows["id_right"].to_pylist(), strict=True))
    assert runner.metrics()["flows"] > 10


def test_one_sided_input_does_not_grow_the_original_handshake_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left tuples that stay in their window do not keep right ones incomplete for ever."""
    monkeypatch.setattr(live_running, "MOST_OPEN", 1000)
    monkeypatch.setattr(live_running, "PAUSE", 1e9)
    spec = sj.JoinSpec(on=sj.Equi("x"), window=sj.CountWindow(50))
    left, right = numbers(50, 8, domain=60), numbers(20_000, 9, domain=60)

    def feed(runner: Runner) -> None:
        runner.push(0, "", left, 0)
        for begin in range(0, 20_000, 100):
            runner.push(1, "", right.slice(begin, 100), 0)

    with no_deadlock():
        runner = running(("handshake", None), spec)
        consumer = run_live(runner, feed)
    with sj.open(spec, "sweep") as join:
        rows = join.push(left, right)
    assert consumer.ids() == list(zip(rows["id_left"].to_pylist(), rows["id_right"].to_pylist(), strict=True))
    assert runner.metrics()["flows"] > 5


@each_in_arrival_order
def test_an_idle_join_delivers_what_it_has(system: tuple[str, str | None]) -> None:
    """Progress does not need further tuples."""
    done = threading.Event()
    rows: list[int] = []

    def deliver(delivery: Delivery) -> None:
        rows.extend(delivery.later.tolist())
        if delivery.reached == 20 and len(rows) == 10:
            done.set()

    errors: list[BaseException] = []
    runner = running(system)
    with no_deadlock():
        runner.start(deliver, errors.append)
        try:
            table = pa.table({"x": np.arange(10) * 10, "y": np.zeros(10, int), "t": np.arange(10), "id": np.arange(10)})
            runner.push(0, "", table, 0)
            runner.push(1, "", table, 0)
            assert done.wait(120)
        finally:
            runner.stop()
    assert not errors


COUNTED = sj.JoinSpec(on=sj.Band("x", "x", 1), window=sj.CountWindow(300))


def test_pushes_take_the_short_way_or_the_general_one_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """NULL, several chunks, and more tuples than the short way takes, between small pushes."""
    left, right = numbers(6_000, 1), numbers(6_000, 2)
    nulls = pa.array(np.where(np.arange(6_000) % 7, left["x"].to_numpy(), 0), mask=np.arange(6_000) % 7 == 0)
    left = left.set_column(0, "x", nulls)
    cuts = [0, 40, 41, 4_500, 4_600, 4_601, 6_000]
    pieces = [(side, t.slice(a, b - a)) for a, b in pairwise(cuts) for side, t in enumerate((left, right))]
    pieces[3] = 1, pa.concat_tables([right.slice(40, 0), pieces[3][1]])
    pieces[7] = 1, pa.concat_tables([right.slice(4_500, 50), right.slice(4_550, 50)])
    with sj.open(COUNTED, "sweep") as join:
        sides = np.concatenate([np.full(piece.num_rows, side == 1) for side, piece in pieces])
        rows = join.push(left, right, interleave=sides)
    with no_deadlock():
        runner = running(("low_latency_handshake", None), COUNTED)
        short: list[int] = []
        send_push = runner._operator.send_push

        def counted(side: int, table: pa.Table, arrived: int, begin: int) -> SentChunk | None:
            sent = send_push(side, table, arrived, begin)
            short.append(0 if sent is None else table.num_rows)
            return sent

        monkeypatch.setattr(runner._operator, "send_push", counted)

        def feed(_: object) -> None:
            for side, piece in pieces:
                runner.push(side, "", piece, 0)

        consumer = run_live(runner, feed)
    assert consumer.ids() == list(zip(rows["id_left"].to_pylist(), rows["id_right"].to_pylist(), strict=True))
    assert 0 in short
    assert 40 in short
    assert runner.metrics()["tuples_left"] == 6_000


def test_an_error_of_the_intake_in_a_sources_thread_reaches_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Exception):
        pass

    def fail(*_: object) -> None:
        raise Broken("injected")

    runner, consumer, failed = running(("low_latency_handshake", None), COUNTED), Consumer(False), threading.Event()
    monkeypatch.setattr(runner._operator, "send_push", fail)

    def report(error: BaseException) -> None:
        consumer.errors.append(error)
        failed.set()

    with no_deadlock():
        runner.start(consumer.deliver, report)
        try:
            with pytest.raises(StateError, match="Broken: injected") as caught:
                for _ in range(10_000):
                    runner.push(0, "", numbers(5, 3), 0)
            assert isinstance(caught.value.__cause__, Broken)
            assert failed.wait(120)
            with pytest.raises(StateError, match="injected"):
                runner.push(0, "", numbers(5, 3), 0)
        finally:
            runner.stop()
    assert [type(error) for error in consumer.errors] == [Broken]


@pytest.mark.parametrize("fails", [True, False], ids=["a failure", "a stop"])
def test_nobody_leaves_with_the_propagation_lock(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels wait for it without looking whether the join was stopped."""
    runner = running(("pim_parallel", None), COUNTED)
    flow = runner._flow
    assert isinstance(flow, pim.QueueFlow)
    queue = flow._shared.queue

    def full(*_: object) -> bool:
        lock(queue, work_queue.PROPAGATE_LOCK)
        flow.crew.words[STOP] = 1
        return False

    def keep(*_: object) -> None:
        raise MemoryError("injected")

    try:
        monkeypatch.setattr(work_queue, "propagate", full)
        if fails:
            queue[work_queue.OUT] = 1
            monkeypatch.setattr(flow, "_keep", keep)
            with pytest.raises(MemoryError):
                flow.take(SentChunk(0, 0, None, None, None, (0, 0), None))
        else:
            flow.take(SentChunk(0, 0, None, None, None, (0, 0), None))
        assert queue[work_queue.PROPAGATE_LOCK] == 0
    finally:
        runner.stop()
