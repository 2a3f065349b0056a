"""A live join whose threads fail, at every place; and runners that deliver out of order."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.live import driven
from streamjoin.joins.live import live as live_module
from streamjoin.joins.live.broadcast import Broadcast
from streamjoin.joins.live.driven import DrivenJoin, DrivenRunner
from streamjoin.joins.live.runner import Deliver, Delivery, Fail, Setup
from streamjoin.joins.live.source import LiveSource
from streamjoin.testing import cases as generate
from streamjoin.testing.clock import ManualClock
from tests.joins.live_runs import check_punctuations, ending, opened, pairs_of, push_event_time
from tests.oracles.expected import expected
from tests.seeds import examples

SPEC = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(1_000), time="t", order="event_time")
TYPES = pa.schema([("k", pa.int64()), ("t", pa.int64())])
SCHEMAS: dict[str, Any] = {"left_schema": TYPES, "right_schema": TYPES}


class Broken(Exception):
    """What the tests raise."""


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """Every test ends, and leaves no thread of a live join."""
    with ending():
        yield


def at(*times: int) -> pa.RecordBatch:
    return pa.record_batch({"k": [1] * len(times), "t": list(times)}, schema=TYPES)


PLACES = {
    "the driver": (DrivenJoin, "run"),
    "the release of the gate": (DrivenJoin, "_collect"),
    "a step of the operator": (DrivenJoin, "_step"),
    "the delivery": (Broadcast, "_items"),
    "the end": (DrivenJoin, "end"),
    "the drain": (DrivenRunner, "drain"),
    "the watch for silent sources": (LiveSource, "rest_if_idle"),
}


@pytest.mark.parametrize("error", [Broken("on purpose"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_any_thread_reaches_everybody(
    place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What fails in the thread of a source is another matter: see test_live_here.py.
    monkeypatch.setattr(driven, "MOST_HERE", 0)
    owner, name = PLACES[place]
    usual, broken = getattr(owner, name), threading.Event()

    def fail(*args: Any) -> Any:
        if broken.is_set():
            raise error
        return usual(*args)

    monkeypatch.setattr(owner, name, fail)
    clock = ManualClock()
    with pytest.raises(sj.StateError) as raised, sj.live(SPEC, idle="1 hour", clock=clock, **SCHEMAS) as join:
        left, right = join.source("left"), join.source("right")
        readers = [join.consumer(), join.consumer()]
        called = join.on_rows(lambda rows: None)
        left.push(at(1, 10))
        right.push(at(2))
        assert readers[0].read() is not None
        broken.set()
        if "silent" in place:
            clock.turn(4_000)
        elif place in ("the end", "the drain"):
            join.close()
        else:
            right.push(at(20))
        for reader in readers:
            with pytest.raises(sj.StateError, match="this live join has failed") as seen:
                list(reader)
            assert seen.value.__cause__ is error
        with pytest.raises(sj.StateError) as refused:
            left.push(at(30))
        if not isinstance(refused.value.__cause__, type(error)):
            assert "close() was called" in str(refused.value)
        assert called.wait(120)
    assert raised.value.__cause__ is error


def test_rows_from_before_a_failure_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driven, "MOST_HERE", 0)
    with pytest.raises(sj.StateError), sj.live(SPEC, **SCHEMAS) as join:
        left, right, reader = join.source("left"), join.source("right"), join.consumer()
        left.push(at(1))
        right.push(at(2))
        left.push(at(3))
        while join.metrics()["rows"] < 1:
            join.wait(0.001)
        monkeypatch.setattr(DrivenJoin, "run", lambda *_: 1 / 0)
        left.push(at(4))
        assert join.wait(120)
        assert next(reader).num_rows == 1
        with pytest.raises(sj.StateError, match="ZeroDivisionError"):
            next(reader)


def test_sources_that_wait_for_room_hear_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, go_on = DrivenJoin.run, threading.Event()
    monkeypatch.setattr(driven, "MOST_HERE", 0)

    def fail_late(*args: Any) -> Any:
        go_on.wait()
        raise Broken

    with pytest.raises(sj.StateError), sj.live(SPEC, queue_rows=2, **SCHEMAS) as join:
        monkeypatch.setattr(DrivenJoin, "run", fail_late)
        left = join.source("left")
        waiting = threading.Event()
        errors: list[BaseException] = []

        def push() -> None:
            try:
                for number in range(50):
                    try:
                        left.push(at(number), wait=False)
                    except sj.BackPressureError:
                        waiting.set()
                        left.push(at(number))
            except sj.StateError as error:
                errors.append(error)

        thread = threading.Thread(target=push)
        thread.start()
        waiting.wait()
        go_on.set()
        thread.join()
        assert isinstance(errors[0].__cause__, Broken)
    assert usual is not DrivenJoin.run


# -- out of order ----------------------------------------------------------------------------------------------


class ShufflingRunner(DrivenRunner):
    """Delivers rows late, in pieces and out of order, but never a punctuation that lies."""

    in_order = False

    def __init__(self, setup: Setup, schemas: tuple[pa.Schema, pa.Schema], seed: int) -> None:
        super().__init__(setup, schemas)
        self._random = random.Random(seed)
        self._kept: list[Delivery] = []

    def start(self, deliver: Deliver, fail: Fail) -> None:
        """Start the driver, whose deliveries are shuffled."""

        def shuffle(delivery: Delivery) -> None:
            places = self._random.sample(range(delivery.rows.num_rows), delivery.rows.num_rows)
            for some in (places[::2], places[1::2]):
                self._kept.append(part(delivery, some))
            self._random.shuffle(self._kept)
            last = delivery.time is None or delivery.time == (1 << 63) - 1
            self._let_go(deliver, delivery, 0 if last else self._random.randrange(4))

        super().start(shuffle, fail)

    def _let_go(self, deliver: Deliver, newest: Delivery, kept: int) -> None:
        while len(self._kept) > kept:
            rows = self._kept.pop()
            waiting = [int(k.later.min()) for k in self._kept if k.later.size]
            deliver(Delivery(rows.rows, rows.later, rows.earlier, rows.arrived, min([newest.reached, *waiting]), None))


def part(delivery: Delivery, places: list[int]) -> Delivery:
    at = np.array(places, np.int64)
    return Delivery(
        delivery.rows.take(pa.array(at)), delivery.later[at], delivery.earlier[at] + (delivery.reached << 20),
        delivery.arrived[at], delivery.reached, delivery.time,
    )  # fmt: skip


@settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(case=generate.cases(order="event_time"), seed=st.integers(0, 999))
def test_rows_as_they_are_found_are_all_there_and_punctuations_hold(
    case: generate.JoinCase, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    schemas = case.schemas
    kind = SimpleNamespace(live=lambda setup: ShufflingRunner(setup, schemas, seed))
    monkeypatch.setattr(live_module, "KINDS", {"auto": kind})
    wanted = expected(case)
    with opened(case, AlgorithmRequest(), ordered=False) as join:
        push_event_time(join, case, seed)
        join.close()
        batches = list(join.batches())
    assert sorted(pair for batch in batches for pair in pairs_of(batch.rows)) == sorted(wanted)
    check_punctuations(case, batches)
