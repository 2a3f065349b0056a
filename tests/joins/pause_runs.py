"""Live joins with a thread paused at every line of every hand-over, against the oracle; run as a program as well.

A first run counts how often each line is run; further runs pause threads at some of these lines each, until all have
had their turn. Arrays, chunks and queues are tiny, so that every hand-over happens many times in a run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

import streamjoin as sj
from streamjoin.handshake.live import ChainFlow
from streamjoin.joins.live import running
from streamjoin.joins.live.broadcast import Broadcast, ConsumerQueue
from streamjoin.joins.live.consumer import Consumer as LiveConsumer
from streamjoin.joins.live.driven import DrivenRunner
from streamjoin.joins.live.inbox import SourceInbox
from streamjoin.joins.live.live import Live, LiveThreads
from streamjoin.joins.live.running import Collector, FlowRunner, InboxIntake, Run
from streamjoin.joins.live.source import LiveSource, WaitingInput
from streamjoin.joins.live.windowed import LiveOperator
from streamjoin.pim_tree import live as pim
from streamjoin.pim_tree.live import QueueFlow
from streamjoin.scalejoin import inlets
from streamjoin.scalejoin import live_gate as gated
from streamjoin.scalejoin.inlets import GateInlets
from streamjoin.scalejoin.live_gate import GateFlow, GateIntake, MatchGate
from streamjoin.testing import oracle
from streamjoin.windows.crew import Crew
from tests.deadlock import no_deadlock
from tests.joins.handshake_runs import CONDITIONS, events_of
from tests.joins.runner_runs import (
    SCHEMA,
    changing_workers,
    expected_pairs,
    feed_from_threads,
    feed_in_order,
    pushes,
    run_live,
    runner_of,
    setup_of,
    table,
)
from tests.pauses import Watch, functions_of
from tests.threads import run_threads

TINY: tuple[tuple[Any, str, int], ...] = (
    (pim, "SEGMENT", 64), (running, "MOST_SENT", 16), (gated, "_RESULT_RING", 64),
    (gated, "_BLOCK", 32), (gated, "_STORED", 16), (inlets, "RING", 32),
)  # fmt: skip
# Not hand-overs, and called by the tests themselves.
SEEN = ("counters", "work", "nbytes", "metrics", "explain", "figures", "__init__", "__repr__")
Order = Any


@dataclass(frozen=True)
class Subject:
    """What is run, and where it is paused."""

    name: str
    run: Callable[[int], None]
    """Runs a small join by a seed and compares its rows."""
    own: tuple[type, ...]
    """The classes whose lines every round of pauses visits."""
    shared: tuple[type, ...] = ()
    """Those that others have in common: some of their lines are visited, by the seed."""
    only: tuple[Callable[..., Any], ...] = ()
    """Functions whose lines are visited as well."""


def _events(rng: np.random.Generator, n: int, order: Order) -> list[oracle.Event]:
    events = events_of(rng, n)
    if order == "arrival":
        return events
    names = np.array(["a", "b"])[rng.integers(0, 2, n)].tolist()
    return [oracle.Event(e.right, e.row, e.ts, s) for e, s in zip(events, names, strict=True)]


def _spec(order: Order, window: sj.CountWindow | sj.TimeWindow) -> sj.JoinSpec:
    return sj.JoinSpec(on=CONDITIONS[0][1], window=(window, window), time="t", order=order)


def run_flow(algorithm: str, order: Order, seed: int, *, elastic: bool = False) -> None:
    """One runner with threads of its own; if they are elastic, other numbers of them."""
    rng = np.random.default_rng(seed)
    spec, events = _spec(order, sj.CountWindow(30)), _events(rng, 240, order)
    ordered = events if order == "arrival" else oracle.event_time_order(events)
    feed = (feed_in_order if order == "arrival" else feed_from_threads)(rng, events)
    feed = changing_workers(rng, feed) if elastic else feed
    consumer = run_live(runner_of(setup_of(spec, (algorithm, None), 2, {})), feed)
    assert consumer.ids() == expected_pairs(spec, CONDITIONS[0][2], ordered)


class Turns:
    """Has threads do numbered steps in the order of their numbers."""

    def __init__(self) -> None:
        self._changed, self._next = threading.Condition(), 0

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        """Wait for the step's turn, do it, and let the next one come."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number)
        yield
        with self._changed:
            self._next += 1
            self._changed.notify_all()


def run_stop(algorithm: str, order: Order, seed: int) -> None:
    """A live join that is stopped while sources push and a consumer reads: all of them end, and all threads."""
    rng = np.random.default_rng(seed)
    spec, events = _spec(order, sj.CountWindow(30)), _events(rng, 400, order)
    schemas: dict[str, Any] = {"left_schema": SCHEMA, "right_schema": SCHEMA} if seed % 2 else {}
    join = sj.live(spec, algorithm, 2, queue_rows=20, result_rows=10, **schemas)
    reader, begun = join.consumer(), threading.Event()
    sources = {side: join.source(side) for side in ("left", "right")}

    def feed(side: str) -> None:
        try:
            for number, part in enumerate(pushes(rng, [e for e in events if e.right == (side == "right")])):
                sources[side].push(table(part))
                if number == seed % 10 + 3:
                    begun.set()
        except sj.StateError as error:
            assert "was stopped" in str(error), error

    def stop() -> None:
        begun.wait()
        join.stop()

    run_threads([lambda: feed("left"), lambda: feed("right"), lambda: list(reader), stop])
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("streamjoin-")]
    # A thread that ends a join dropped in an earlier run may still be at it.
    assert not [name for name in left if name != "streamjoin-end"], left


def run_here(seed: int) -> None:
    """`run_shell` with pushes that are joined in the threads of their sources whenever no other thread works."""
    with mock.patch.object(DrivenRunner, "_is_rare", lambda *_: True):
        run_shell(("arrival", "event_time")[seed % 2], True, seed)


def run_shell(order: Order, schemas: bool, seed: int) -> None:
    """A live join behind the driver thread: sources in threads, tiny queues, consumers that come, wait and go."""
    rng = np.random.default_rng(seed)
    spec, events = _spec(order, sj.TimeWindow(40)), _events(rng, 120, order)
    ordered = events if order == "arrival" else oracle.event_time_order(events)
    wanted = expected_pairs(spec, CONDITIONS[0][2], ordered)
    known: dict[str, Any] = {"left_schema": SCHEMA, "right_schema": SCHEMA} if schemas else {}
    with sj.live(spec, queue_rows=6, result_rows=5, batch_rows=3, **known) as join:
        first, vanishing = join.consumer(), join.consumer()
        found: list[tuple[int, int]] = []
        keys = sorted({(e.right, e.source) for e in events})
        sources = {key: join.source("right" if key[0] else "left", key[1]) for key in keys}
        turns = Turns()
        # In arrival order the pushes take turns; in event-time order they come as they like.
        parts = list(enumerate(pushes(rng, events))) if order == "arrival" else []

        def feed(key: tuple[bool, str]) -> None:
            if order != "arrival":
                for part in pushes(np.random.default_rng(seed), [e for e in events if (e.right, e.source) == key]):
                    sources[key].push(table(part))
                sources[key].finish()
                return
            for number, part in parts:
                if (part[0].right, part[0].source) == key:
                    with turns.turn(number):
                        sources[key].push(table(part))

        def feed_all() -> None:
            run_threads([partial(feed, key) for key in keys])
            join.close()

        def read() -> None:
            for rows in first:
                found.extend(zip(rows["id_left"].to_pylist(), rows["id_right"].to_pylist(), strict=True))

        def vanish() -> None:
            for _ in zip(range(seed % 3), vanishing, strict=False):
                pass
            vanishing.close()

        run_threads([feed_all, read, vanish])
    assert found == wanted


FLOW = (FlowRunner, Run, InboxIntake, Collector, SourceInbox, LiveOperator)
OUTPUT = (Broadcast, ConsumerQueue, LiveConsumer, DrivenRunner, SourceInbox)
SHELL = (Live, LiveSource, WaitingInput, LiveThreads)
SUBJECTS = (
    Subject("pim_parallel", partial(run_flow, "pim_parallel", "arrival"), (QueueFlow,), FLOW),
    Subject("workers", partial(run_flow, "pim_parallel", "arrival", elastic=True), (QueueFlow, Crew), FLOW),
    Subject("low_latency_handshake", partial(run_flow, "low_latency_handshake", "arrival"), (ChainFlow,), FLOW),
    Subject("handshake", partial(run_flow, "handshake", "event_time"), (ChainFlow,), FLOW),
    Subject("gated", partial(run_flow, "scalejoin", "event_time"), (GateFlow, GateIntake, MatchGate, GateInlets), FLOW),
    Subject("runner", partial(run_flow, "low_latency_handshake", "event_time"), FLOW[:-1]),
    Subject("driven", partial(run_shell, "event_time", True), OUTPUT, SHELL),
    Subject("here", run_here, (DrivenRunner, SourceInbox), (*OUTPUT, *SHELL)),
    Subject("unbound", partial(run_shell, "arrival", False), SHELL, OUTPUT),
    Subject("stop pim_parallel", partial(run_stop, "pim_parallel", "arrival"), (QueueFlow,), (*FLOW, *OUTPUT, *SHELL)),
    Subject("stop scalejoin", partial(run_stop, "scalejoin", "event_time"), (GateFlow, GateIntake), (*FLOW, *SHELL)),
    Subject("stop auto", partial(run_stop, "auto", "event_time"), (*SHELL, DrivenRunner), (Broadcast, SourceInbox)),
)
HAND_OVER = Subject(
    "the collector of pim_parallel", SUBJECTS[0].run, (), (QueueFlow,), only=(QueueFlow.take, QueueFlow._take_all)
)
"""What once gave rows with the payload of other tuples, by itself."""


@contextmanager
def tiny() -> Iterator[None]:
    """With little room everywhere."""
    with ExitStack() as stack:
        for module, name, value in TINY:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def check(subject: Subject, seed: int, share: float, at_once: int = 3, times: int = 2, rounds: int = 1) -> int:
    """Pause at each of the subject's own lines, and at a share of the others; returns how many pauses there were.

    `at_once` lines pause threads in one run, each for `times` times in a row, all at about the same moment of the run.
    """
    rng = np.random.default_rng(seed)
    own = functions_of(*subject.own, *subject.only, without=SEEN)
    codes, names = own + functions_of(*subject.shared, without=SEEN), {code.co_qualname for code in own}
    pauses = 0
    with tiny(), no_deadlock(500):
        watch = Watch(codes)
        with watch.watching():
            subject.run(seed)
        seen = sorted(place for place in watch.seen if place.function in names or rng.random() < share)
        order = np.concatenate([rng.permutation(len(seen)) for _ in range(rounds)]).tolist()
        for begin in range(0, len(order), at_once):
            places, moment = {}, rng.random()
            for place in (seen[i] for i in order[begin : begin + at_once]):
                first = int(moment * max(1, watch.seen[place] - times))
                places[place] = frozenset(range(first, first + times))
            run = Watch(codes, places)
            run.enough = int(rng.choice([20, 100, 400]))
            try:
                with run.watching():
                    subject.run(seed)
            except BaseException as error:
                raise AssertionError(f"{subject.name}, seed {seed}, paused at {run.paused}") from error
            pauses += len(run.paused)
    return pauses


if __name__ == "__main__":
    for subject in SUBJECTS:
        if len(sys.argv) < 4 or subject.name in sys.argv[3:]:
            for seed in range(int(sys.argv[1]), int(sys.argv[2])):
                print(subject.name, seed, check(subject, seed, 1.0), flush=True)
