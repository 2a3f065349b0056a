"""Small random joins through the runners of live joins, against the oracle; run as a program as well.

Each run draws a condition, windows, an order, sources, the cuts of their pushes, a number of threads, and pushes from
one thread per source. Results are compared with the oracle, and punctuations with the rows after them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

import streamjoin as sj
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.live.driven import DrivenRunner
from streamjoin.joins.live.runner import Call, Delivery, Runner, Setup
from streamjoin.joins.registry import KINDS
from streamjoin.model.binding import bind
from streamjoin.testing import oracle
from tests.deadlock import no_deadlock
from tests.joins.handshake_runs import CONDITIONS, WINDOWS, IdPair, events_of

SCHEMA = pa.schema([(name, pa.int64()) for name in ("x", "y", "t", "id")])
SYSTEMS: tuple[tuple[str, str | None], ...] = (
    ("low_latency_handshake", None), ("handshake", None), ("low_latency_handshake", "hashed"),
    ("low_latency_handshake", "pim_tree"), ("scalejoin", None), ("scalejoin", "pim_tree"),
    ("scalejoin", "btree"), ("scalejoin", "hashed"), ("pim_parallel", None),
)  # fmt: skip


class Consumer:
    """Collects deliveries and checks what a runner promises about them."""

    def __init__(self, in_order: bool) -> None:
        self._in_order = in_order
        self.pairs: list[tuple[int, int, IdPair]] = []
        self.errors: list[BaseException] = []
        self.reached = self.most_rows = 0
        self.time = -(1 << 63)

    def deliver(self, delivery: Delivery) -> None:
        rows = delivery.rows
        assert rows.num_rows == delivery.later.size == delivery.earlier.size == delivery.arrived.size
        assert delivery.later.size == 0 or delivery.later.min() >= self.reached
        assert delivery.reached >= self.reached
        if delivery.time is not None:
            assert all(row >= self.time for row in rows["t"].to_pylist())
            assert delivery.time >= self.time
            self.time = delivery.time
        self.reached = delivery.reached
        self.most_rows = max(self.most_rows, rows.num_rows)
        ids = zip(rows["id_left"].to_pylist(), rows["id_right"].to_pylist(), strict=True)
        batch = list(zip(delivery.later.tolist(), delivery.earlier.tolist(), ids, strict=True))
        if self._in_order:
            assert batch == sorted(batch)
            assert not batch or not self.pairs or self.pairs[-1] <= batch[0]
        self.pairs += batch

    def ids(self) -> list[IdPair]:
        return [pair for _, _, pair in sorted(self.pairs)]


def setup_of(spec: sj.JoinSpec, system: tuple[str, str | None], workers: int, options: dict[str, object]) -> Setup:
    bound = bind(spec, SCHEMA, SCHEMA)
    request = AlgorithmRequest(system[0], system[1], {}, options)
    return Setup(bound.spec, bound, request, workers, None, 1 << 14, 1 << 28, 1 << 20)


def runner_of(setup: Setup) -> Runner:
    build = KINDS[setup.request.algorithm].live
    assert build is not None
    return build(setup) or DrivenRunner(setup, (SCHEMA, SCHEMA))


def table(events: list[oracle.Event]) -> pa.Table:
    return pa.table({name: pa.array([e.row[name] for e in events], pa.int64()) for name in SCHEMA.names})


def run_live(runner: Runner, feed: Callable[[Runner], None]) -> Consumer:
    consumer = Consumer(runner.in_order)
    runner.start(consumer.deliver, consumer.errors.append)
    try:
        feed(runner)
        runner.drain()
    finally:
        runner.stop()
    assert not consumer.errors, consumer.errors
    return consumer


def pushes(rng: np.random.Generator, events: list[oracle.Event]) -> list[list[oracle.Event]]:
    """Cuts of at most a few tuples of one side each."""
    cut: list[list[oracle.Event]] = []
    most = int(rng.integers(1, 12))
    for event in events:
        if cut and cut[-1][0].right == event.right and len(cut[-1]) < most and rng.random() < 0.8:
            cut[-1].append(event)
        else:
            cut.append([event])
    return cut


def feed_in_order(rng: np.random.Generator, events: list[oracle.Event]) -> Callable[[Runner], None]:
    parts = pushes(rng, events)

    def feed(runner: Runner) -> None:
        for part in parts:
            runner.push(int(part[0].right), "", table(part), time.monotonic_ns())

    return feed


def feed_from_threads(rng: np.random.Generator, events: list[oracle.Event]) -> Callable[[Runner], None]:
    """One thread per source; each sends its own tuples in order, and advances now and then."""
    sources = sorted({(e.right, e.source) for e in events} | {(False, "a"), (True, "a")})
    parts = {key: pushes(rng, [e for e in events if (e.right, e.source) == key]) for key in sources}
    advances = {key: (rng.random(len(parts[key])) < 0.3).tolist() for key in sources}

    def feed(runner: Runner) -> None:
        errors: list[BaseException] = []
        for right, name in sources:
            runner.submit(Call("add", int(right), name))

        def send(key: tuple[bool, str]) -> None:
            try:
                side, name = int(key[0]), key[1]
                for part, advance in zip(parts[key], advances[key], strict=True):
                    runner.push(side, name, table(part), time.monotonic_ns())
                    if advance:
                        runner.submit(Call("advance", side, name, time=part[-1].ts))
                runner.submit(Call("finish", side, name))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=send, args=(key,)) for key in sources]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors

    return feed


def changing_workers(rng: np.random.Generator, feed: Callable[[Runner], None]) -> Callable[[Runner], None]:
    """What `feed` does, while the number of threads changes again and again; at least as often as it pushes."""
    wanted = rng.integers(1, 6, 1000).tolist()

    def changing(runner: Runner) -> None:
        push = runner.push

        def push_and_change(*args: Any) -> None:
            push(*args)
            runner.set_workers(wanted.pop())

        with mock.patch.object(runner, "push", push_and_change):
            feed(runner)

    return changing


def expected_pairs(spec: sj.JoinSpec, match: oracle.Match, events: list[oracle.Event]) -> list[IdPair]:
    left, right = (("count", w.n) if isinstance(w, sj.CountWindow) else ("time", w.length) for w in spec.windows)
    if spec.self_join:
        return [(events[a].row["id"], events[b].row["id"]) for a, b in oracle.self_join(events, match, left, right)]
    lefts, rights = ([e for e in events if e.right == side] for side in (False, True))
    return [(lefts[a].row["id"], rights[b].row["id"]) for a, b in oracle.join(events, match, left, right)]


def able(system: tuple[str, str | None], condition: str) -> bool:
    if system[1] == "hashed":
        return condition == "key"
    return condition != "theta" or (system[1] is None and system[0] != "pim_parallel")


def check(runs: int, seed: int, systems: tuple[tuple[str, str | None], ...] = SYSTEMS) -> None:
    rng = np.random.default_rng(seed)
    for run in range(runs):
        name, on, match = CONDITIONS[rng.integers(len(CONDITIONS))]
        order: Any = ("arrival", "event_time")[rng.integers(2)]
        window: Any = (WINDOWS[rng.integers(5)], WINDOWS[rng.integers(5)])
        self_join = bool(rng.random() < 0.2)
        if self_join:
            window = window[0]
        spec = sj.JoinSpec(on=on, window=window, time="t", order=order, self_join=self_join)
        events = events_of(rng, int(rng.integers(0, 120)))
        if self_join:
            events = [oracle.Event(False, e.row, e.ts) for e in events]
        if order == "event_time":
            names = np.array(["a", "b", "c"])[rng.integers(0, 3, len(events))].tolist()
            events = [oracle.Event(e.right, e.row, e.ts, s) for e, s in zip(events, names, strict=True)]
            expected = expected_pairs(spec, match, oracle.event_time_order(events))
        else:
            expected = expected_pairs(spec, match, events)
        for system in systems:
            if able(system, name):
                workers, batch = int(rng.integers(1, 6)), int(rng.choice([1, 4, 64]))
                options = {"batch": batch} if "handshake" in system[0] else {}
                feed = (feed_from_threads if order == "event_time" else feed_in_order)(rng, events)
                if system[0] == "pim_parallel" and rng.integers(2):
                    feed = changing_workers(rng, feed)
                setup = replace(setup_of(spec, system, workers, options), ordered=bool(rng.integers(2)))
                runner = runner_of(setup)
                assert runner.in_order or not setup.ordered
                consumer = run_live(runner, feed)
                assert consumer.ids() == expected, (run, seed, system, name, spec, workers, batch)


if __name__ == "__main__":
    with no_deadlock(500):
        # One index tells of the rules what two do, and is compiled in half the time.
        check(int(sys.argv[1]), int(sys.argv[2]), tuple(s for s in SYSTEMS if s[1] is None))
    print("held")
