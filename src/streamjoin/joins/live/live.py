"""`Live`: a join that runs by itself. Sources push from any thread, consumers read results as they are found.

The live join owns sources, consumers, back-pressure, errors and the end; a runner does the joining (`runner.py`).
Invariants: an error in any thread reaches every source and consumer; once `stop`, `wait` or the end of the block has
returned, no thread of the join is left, but one that runs a callback.

Locks, each taken before those after it: a source's own, `_binding`, then the inner ones, held for some lines each
(`_lock`, the waiting input's, the runner's queue, the consumers' queues). Only a source's own lock is held while
something waits for room. So the end first has the runner let such pushes in, and then takes the locks of sources.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from streamjoin._html import Figures, PlanText, plan_or_error
from streamjoin.joins.auto import AlgorithmRequest, choose
from streamjoin.joins.engine.explain import explain, in_short
from streamjoin.joins.engine.inputs import as_schema, as_table, conform, is_pandas, named_columns, settled, untyped
from streamjoin.joins.engine.intake import SIDES, tick_of
from streamjoin.joins.engine.numpy_input import has_columns
from streamjoin.joins.engine.settings import check_rows, check_workers
from streamjoin.joins.live.broadcast import Broadcast, LiveBatch, failure
from streamjoin.joins.live.consumer import Consumer, Subscription
from streamjoin.joins.live.driven import DrivenRunner
from streamjoin.joins.live.runner import Call, Fail, Runner, Setup, Stopped
from streamjoin.joins.live.source import IdleWatch, LiveSource, MonotonicClock, Replaced, WaitClock, WaitingInput
from streamjoin.joins.registry import KINDS
from streamjoin.model import durations
from streamjoin.model.binding import BoundSpec, bind, narrowed
from streamjoin.model.comparisons import with_comparisons
from streamjoin.model.errors import InputError, SpecError, StateError
from streamjoin.model.output import check_wanted
from streamjoin.model.spec import JoinSpec
from streamjoin.windows.interrupts import wait_for

_LOG = logging.getLogger("streamjoin")
# What the description of a join tells of it, where a runner does not count it.
_COUNTED = ("tuples_left", "tuples_right", "compared", "results", "expired", "window_left", "window_right")
# How long the end waits for a callback that is under way.
_CALLBACK_SECONDS = 10.0
# The seconds that rates are averaged over.
_RATE_SECONDS = 10.0


@dataclass(frozen=True)
class LiveLimits:
    """How much may wait where."""

    queue_rows: int = 1 << 19
    """Tuples between the sources and the join, in queues and in the gate."""
    queue_bytes: int = 1 << 28
    """Likewise, in bytes."""
    result_rows: int = 1 << 20
    """Rows between the join and one consumer."""
    result_bytes: int = 1 << 28
    """Likewise, in bytes."""
    batch_rows: int = 1 << 20
    """Rows of one record batch."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.endswith("bytes") and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SpecError(f"{name}={value!r}: give a number of bytes, 1 or more")
            check_rows(name, value)


def idle_seconds(spec: JoinSpec, idle: object) -> float | None:
    """How long a source may be silent, in seconds."""
    if idle is None:
        return None
    if spec.order != "event_time":
        raise SpecError("idle= is for order='event_time'; in arrival order no source waits for another")
    if not durations.is_duration(idle):
        raise SpecError(f"idle={idle!r}: give a duration such as '2 seconds'")
    seconds = durations.nanoseconds(idle) / 1e9
    if seconds < 0.001:
        raise SpecError(f"idle={idle!r}: it is at least a millisecond")
    return seconds


@dataclass
class LiveThreads:
    """What has to be stopped when a live join is dropped: held apart from it, as a thread must not keep it alive.

    Invariant: a runner is started and known here, or neither; once `stop` was called, none is started any more.
    """

    runner: Runner | None = None
    watch: IdleWatch | None = None
    _stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, runner: Runner, broadcast: Broadcast, fail: Fail) -> None:
        """Start a runner.

        Raises:
            Stopped: the join has ended; the runner is stopped and has no thread.
        """
        with self._lock:
            if not self._stopped:
                runner.start(broadcast.deliver, fail)
                self.runner = runner
                return
        runner.stop()
        raise Stopped("this live join has ended")

    def stop(self) -> None:
        """Stop the threads."""
        with self._lock:
            self._stopped = True
        for part in (self.watch, self.runner):
            if part is not None:
                part.stop()


class Live:
    """A running join with sources and consumers of its own; made by `streamjoin.live`."""

    def __init__(
        self,
        spec: JoinSpec,
        request: AlgorithmRequest,
        workers: int,
        *,
        ordered: bool,
        schemas: tuple[object, object],
        columns: Sequence[str] | None,
        idle: float | None,
        clock: WaitClock,
        limits: LiveLimits,
    ) -> None:
        self.spec = spec
        self._request, self._workers, self._columns = request, workers, columns
        self._limits, self._ordered = limits, ordered
        self._clock = clock
        self._named = named_columns(spec)
        self._schemas: list[pa.Schema | None] = [
            as_schema(schema, side) for schema, side in zip(schemas, SIDES, strict=True)
        ]
        self._bound: BoundSpec | None = None
        self._runner: Runner | None = None
        self._waiting = WaitingInput(max(1, limits.queue_rows // 2), max(1, limits.queue_bytes // 2))
        self._target: Runner | WaitingInput = self._waiting
        self._broadcast = Broadcast(limits.result_rows, limits.result_bytes, limits.batch_rows)
        self._lock = threading.Lock()
        self._binding = threading.Lock()
        self._sources: set[LiveSource] = set()
        self._names: set[tuple[int, str]] = set()
        self._gone_tuples = [0, 0]
        self._sources_in_all = 0
        self._own: Consumer | None = None
        self._subscriptions: list[Subscription] = []
        self._closer: threading.Thread | None = None
        self._reaper: threading.Thread | None = None
        self._done = threading.Event()
        self._forked = False
        self._snapshots = deque([(time.monotonic(), 0, 0)])
        self._threads = LiveThreads()
        # Before threads are started: they are ended even if this fails.
        self._finalizer = register(self, self._broadcast, self._threads)
        with self._binding:
            self._bind(self._schemas)
        if idle is not None:
            own = weakref.ref(self)
            self._threads.watch = IdleWatch(idle, clock, lambda: _sources_of(own), _reporter(self._broadcast, own))

    # -- sources -------------------------------------------------------------------------------------------

    def source(self, side: str, name: str = "") -> LiveSource:
        """Open a source: a handle to push tuples of one side with, from any thread.

        Args:
            side: "left" or "right"; a self-join has only "left".
            name: in event-time order, the name under which tuples of one time are ordered; no two open sources of a
                side share it. In arrival order it is only a label.
        """
        if side not in SIDES:
            raise InputError(f"side={side!r}: it is 'left' or 'right'")
        if not isinstance(name, str):
            raise InputError(f"name={name!r}: a source's name is a string")
        if self.spec.self_join and side == "right":
            raise InputError("a self-join has one stream: open its sources as 'left'")
        index = SIDES.index(side)
        source = LiveSource(self, index, name)
        with self._lock:
            self._check_input()
            if self.spec.order == "event_time":
                if (index, name) in self._names:
                    raise InputError(
                        f"the {side} side has an open source {name!r}: push to that one, finish it, or give this one "
                        "another name="
                    )
                self._names.add((index, name))
            self._sources.add(source)
            self._sources_in_all += 1
        try:
            self.attempt(lambda runner: runner.submit(Call("add", index, name)))
        except BaseException:
            self.left(source)
            raise
        self.woken()
        return source

    # -- consumers -----------------------------------------------------------------------------------------

    def consumer(self) -> Consumer:
        """A consumer that reads every row from now on; the first one gets also those that were found before."""
        self._check_process()
        return Consumer(self._broadcast, self._check_process)

    def on_rows(self, function: Callable[[pa.RecordBatch], object]) -> Subscription:
        """Call `function` with every record batch of the result, in a thread of its own.

        If it raises an error it is not called any more, and the end of the block raises an error that says so.
        """
        if not callable(function):
            raise InputError(f"on_rows takes a function of a record batch, not {function!r}")
        subscription = Subscription(self.consumer(), function)
        with self._lock:
            self._subscriptions.append(subscription)
        return subscription

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._own_consumer()

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self._own_consumer()

    def batches(self) -> Iterator[LiveBatch]:
        """The result as `for rows in join` reads it, each batch with how far the result reaches."""
        return self._own_consumer().batches()

    def late(self) -> pa.Table:
        """Rows that were late or without a time since the last call: side, source, reason and the columns."""
        self._check_process()
        return pa.table({}) if self._runner is None else self._runner.late()

    def set_workers(self, n: int) -> None:
        """Change the number of threads to `n` while the join runs; for pim_parallel.

        Any algorithm's can be changed until the columns of both sides are known, and scalejoin's where it runs behind
        the driver thread.
        """
        check_workers(n)
        self._check_process()
        with self._binding:
            self._broadcast.check()
            if self._done.is_set():
                raise StateError("set_workers(): this live join has ended; open a new one")
            if self._runner is not None:
                self._runner.set_workers(n)
            self._workers = n

    # -- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the input; returns at once. Consumers read the remaining rows, then they end."""
        self._check_process()
        with self._lock:
            if self._closer is not None or self._done.is_set():
                return
            self._closer = threading.Thread(target=self._drain, name="streamjoin-close", daemon=True)
            self._closer.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all rows are in the consumers' queues, after `close`, or the join has ended in another way."""
        self._check_process()
        if not wait_for(self._done, timeout):
            return False
        with self._lock:
            closer = self._closer
        if closer is not None and closer is not threading.current_thread():
            # It has nothing left to do but to end.
            closer.join()
        return True

    def stop(self) -> None:
        """End at once: tuples and rows that wait are dropped, and no thread is left. May be called twice."""
        if self._forked:
            return
        self._broadcast.stop()
        self._end_threads()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.stop()
            return
        self._finish_block(threading.get_ident())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await asyncio.to_thread(self.stop)
            return
        await asyncio.to_thread(self._finish_block, threading.get_ident())

    def _finish_block(self, thread: int) -> None:
        if self._forked:
            return
        if self._broadcast.stopped:
            self._end_threads()
            return
        try:
            self.close()
            self._broadcast.leave(thread)
            wait_for(self._done)
            for subscription in self._subscriptions:
                subscription.wait()
        except BaseException:
            self.stop()
            raise
        # Not stop(): consumers in other threads may have rows to read.
        self._end_threads()
        unread = self._broadcast.unread
        if self._broadcast.error is not None:
            raise failure(self._broadcast.error)
        for subscription in self._subscriptions:
            subscription.check()
        if unread:
            rows = "1 row" if unread == 1 else f"{unread:,} rows"
            raise StateError(
                f"the block ended with {rows} of the result unread: "
                "call close() inside the block and read the join to its end, or stop() to drop the rest"
            )

    # -- what there is to see ------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of the result, once both sides' schemas are known."""
        return None if self._bound is None else self._bound.schema

    def metrics(self) -> Figures:
        """Figures of this moment, as plain numbers: rates, queues, latencies in milliseconds, seconds by thread.

        Latencies are measured from the push of a row's later tuple: until it left the queue, until it was ready, until
        the row was found, and until a consumer had it.
        """
        self._check_process()
        runner = self._runner
        figures: dict[str, Any] = {
            "unsorted_rows": 0,
            "most_unsorted_rows": 0,
            **({} if runner is None else runner.metrics()),
        }
        output = self._broadcast.figures()
        with self._lock:
            tuples = list(self._gone_tuples)
            for source in self._sources:
                tuples[SIDES.index(source.side)] += source.tuples
            open_sources, in_all = len(self._sources), self._sources_in_all
            threads = {f"callback {s.name}": {"call": s.busy} for s in self._subscriptions}
        stages = {
            **figures.pop("latency", {}),
            "join": self._broadcast.found.figures(),
            "delivery": self._broadcast.read.figures(),
        }
        figures["threads"] = {**figures.get("threads", {}), **threads}
        if runner is None:
            figures["waiting"] = self._waiting.rows
        return Figures(
            {
                **figures,
                **output,
                "pushed_left": tuples[0],
                "pushed_right": tuples[1],
                "sources": open_sources,
                "sources_in_all": in_all,
                "rates": self._rates(sum(tuples), output["rows"]),
                "latency": stages,
            }
        )

    def explain(self) -> PlanText:
        """The plan in words: condition, windows, order, algorithm, and how the join runs."""
        figures = self.metrics()
        lines: list[str] = []
        if isinstance(self._runner, DrivenRunner):
            lines.append(self._runner.join.explain())
        else:
            choice = None if self._bound is None else choose(self._bound, self._request)
            counted = {**dict.fromkeys(_COUNTED, 0), "seconds": {}, **figures}
            lines.append(explain(self.spec, self._bound, choice, self._workers, counted))
        runs = "behind one driver thread" if isinstance(self._runner, DrivenRunner) else "in threads of its own"
        order = "in result order" if self._ordered else "as rows are found, with punctuations"
        lines.append(f"runs        {'not yet' if self._runner is None else runs}; output {order}")
        lines.append(f"sources     {figures['sources']:,} open, {figures['sources_in_all']:,} in all")
        lines.append(f"consumers   {figures['consumers']}")
        return PlanText("\n".join(lines))

    def __repr__(self) -> str:
        state = ["stopped"] if self._broadcast.stopped else ["closed"] if self._closer is not None else []
        if isinstance(self._runner, DrivenRunner):
            return self._runner.join._in_short("Live", *state)
        algorithm = None if self._runner is None else self._request.algorithm
        return in_short("Live", self.spec, algorithm, f"{len(self._sources):,} open sources", *state)

    def _repr_html_(self) -> str:
        return plan_or_error(self.explain)

    def _rates(self, tuples: int, rows: int) -> dict[str, float]:
        """Tuples and rows per second, over the last seconds."""
        now = time.monotonic()
        with self._lock:
            while len(self._snapshots) > 1 and now - self._snapshots[1][0] >= _RATE_SECONDS:
                self._snapshots.popleft()
            before = self._snapshots[0]
            if now - self._snapshots[-1][0] >= _RATE_SECONDS / 20:
                self._snapshots.append((now, tuples, rows))
        seconds = max(now - before[0], 1e-9)
        return {"tuples": (tuples - before[1]) / seconds, "rows": (rows - before[2]) / seconds}

    # -- what sources use ----------------------------------------------------------------------------------

    def prepare(self, side: int, data: object) -> pa.Table | pa.RecordBatch:
        """Pushed data in the side's schema."""
        schema = self._schemas[side]
        if schema is not None and isinstance(data, pa.RecordBatch | pa.Table) and data.schema.equals(schema):
            return data
        self._check_process()
        table = as_table(data, SIDES[side], self._named[side])
        if has_columns(data) or is_pandas(data):
            # The caller may change these arrays before the tuples are joined.
            table = table.take(pa.array(np.arange(table.num_rows)))
        with self._binding:
            schema = self._schemas[side]
            table = conform(table, schema, SIDES[side])
            if schema is None or not table.schema.equals(schema):
                self._learn(side, table.schema)
            return table

    def attempt(self, call: Callable[[Runner | WaitingInput], None]) -> None:
        """Call the runner, once there is one; raises an error if the join takes no more input."""
        while True:
            if self._forked or self._done.is_set() or self._broadcast.error is not None:
                self._check_input()
            try:
                call(self._target)
                return
            except Replaced:
                if self._target is self._waiting:
                    self._check_input()
            except Stopped:
                self._check_input()
                raise

    def ticks(self, side: int, time: object) -> int:
        """A value of a side's time column in ticks."""
        self._check_process()
        if self.spec.order != "event_time":
            raise StateError("advance() is for order='event_time'")
        if self._bound is None:
            raise StateError(
                "advance() needs the schemas of both sides: push both sides first, or give left_schema= and "
                "right_schema= to live"
            )
        return tick_of(self._bound, side, time)

    def now(self) -> float:
        """The join's clock."""
        return self._clock.now()

    def woken(self) -> None:
        """A source is active that was not."""
        if self._threads.watch is not None:
            self._threads.watch.look_again()

    def left(self, source: LiveSource) -> None:
        """A source has finished."""
        with self._lock:
            if source in self._sources:
                self._sources.discard(source)
                self._names.discard((SIDES.index(source.side), source.name))
                self._gone_tuples[SIDES.index(source.side)] += source.tuples

    # -- internals -----------------------------------------------------------------------------------------

    def _own_consumer(self) -> Consumer:
        self._check_process()
        with self._lock:
            if self._own is None:
                self._own = Consumer(self._broadcast, self._check_process)
            return self._own

    def _check_process(self) -> None:
        if self._forked:
            raise StateError(
                "this live join runs in the process that was forked, and its threads are not in this one; open a new "
                "join here"
            )

    def _check_input(self) -> None:
        """Reject input if there can't be any."""
        self._check_process()
        self._broadcast.check()
        if self._closer is not None:
            raise StateError("the input of this live join has ended: close() was called; open a new join")

    def _learn(self, side: int, schema: pa.Schema) -> None:
        schemas = list(self._schemas)
        schemas[side] = schema
        if self._bound is not None and not isinstance(self._runner, DrivenRunner):
            raise InputError(
                f"a {SIDES[side]} column that had only NULLs has a type now, which algorithm="
                f"{self._request.algorithm!r} can't adopt while it runs: give {SIDES[side]}_schema= to live"
            )
        self._bind(schemas)
        self._schemas = schemas

    def _bind(self, schemas: list[pa.Schema | None], ending: bool = False) -> None:
        left, right = schemas
        if left is None or (right is None and not self.spec.self_join) or untyped(self.spec, left, right):
            return
        bound = narrowed(bind(self.spec, left, right), self._columns)
        if self._bound is None:
            # Not after the end: nothing would end its threads.
            if not ending:
                self._check_input()
            choose(with_comparisons(bound), self._request)
            self._start(bound, (left, left if right is None else right))
        self._bound = bound

    def _start(self, bound: BoundSpec, schemas: tuple[pa.Schema, pa.Schema]) -> None:
        limits = self._limits
        setup = Setup(
            self.spec,
            bound,
            self._request,
            self._workers,
            self._columns,
            limits.queue_rows,
            limits.queue_bytes,
            limits.batch_rows,
            self._ordered,
            self._broadcast.has_room,
        )
        # Runners with threads of their own give pairs; other kinds of joins give rows at the end of a window, too.
        is_inner = self.spec.how == "inner" and self.spec.match is None
        kind = KINDS.get(self._request.algorithm)
        build = kind.live if is_inner and kind is not None else None
        runner: Runner = (None if build is None else build(setup)) or DrivenRunner(setup, schemas)
        self._broadcast.begin(bound.schema, None if bound.time is None else bound.time.type)
        try:
            self._threads.start(runner, self._broadcast, _reporter(self._broadcast, weakref.ref(self)))
        except Stopped:
            self._check_input()
            raise
        self._runner = runner

        def switch() -> None:
            self._target = runner

        try:
            self._waiting.hand_over(runner, switch)
        except Stopped:
            self._check_input()
            raise
        except BaseException as error:
            # The runner has some of the calls, and they can't be made again.
            self._broadcast.fail(error)
            self._reap()
            raise

    def _drain(self) -> None:
        """End the input in a thread of its own, since consumers may have to read before the last row is delivered."""
        try:
            with self._binding:
                if self._runner is None and self._waiting.rows:
                    self._settle_types()
                runner = self._runner
                if runner is None:
                    self._waiting.wake()
                    self._check_none_preserved()
            with self._lock:
                sources = list(self._sources)
            for source in sources:
                source.end()
            if runner is not None:
                # Pushes may wait for room that only the end makes.
                runner.admit()
            for source in sources:
                source.await_call()
            if runner is not None:
                runner.drain()
            if self._broadcast.error is None:
                self._broadcast.end()
        except Stopped:
            pass
        except BaseException as error:
            self._broadcast.fail(error)
        finally:
            self._waiting.wake()
            self._threads.stop()
            self._done.set()

    def _settle_types(self) -> None:
        """Bind the join at its end, where no value will come any more that gives a column a type."""
        left, right = self._schemas
        if left is not None and (right is not None or self.spec.self_join):
            self._schemas = list(settled(self.spec, left, right))
            self._bind(self._schemas, ending=True)

    def _check_none_preserved(self) -> None:
        """Reject an end at which unmatched tuples should come out but have no columns yet."""
        if self.spec.preserved and self._waiting.rows:
            sides = [side for side, schema in zip(SIDES, self._schemas, strict=True) if schema is None]
            what = "the type of a key or a time is not known; push a value"
            if sides:
                what = f"the columns of the {sides[0]} side are not known; push it, if only an empty table"
            raise StateError(
                f"close() can't give the unmatched tuples of how={self.spec.how!r}: {what}, or give left_schema= and "
                "right_schema= to live"
            )

    def _reap(self) -> None:
        """End all threads after one has failed; not in that thread, which is one of them."""
        with self._lock:
            if self._reaper is None:
                self._reaper = threading.Thread(target=self._end_threads, name="streamjoin-end", daemon=True)
                self._reaper.start()

    def _end_threads(self) -> None:
        self._waiting.wake()
        self._threads.stop()
        self._done.set()
        own = threading.current_thread()
        # Under the lock: a thread that is being started can't be waited for.
        with self._lock:
            threads = [thread for thread in (self._closer, self._reaper) if thread is not None and thread is not own]
        for thread in threads:
            thread.join()
        deadline = time.monotonic() + _CALLBACK_SECONDS
        for subscription in self._subscriptions:
            if not subscription.wait(max(0.0, deadline - time.monotonic())) and not subscription.is_current:
                _LOG.warning("the callback %s of a live join has not returned and is left behind", subscription.name)

    def _orphan(self) -> None:
        """Called in a forked process, which has only the thread that forked."""
        self._forked = True
        self._finalizer.detach()


def _sources_of(live: weakref.ref[Live]) -> list[LiveSource]:
    join = live()
    if join is None:
        return []
    with join._lock:
        return list(join._sources)


def _reporter(broadcast: Broadcast, live: weakref.ref[Live]) -> Callable[[BaseException], None]:
    """Reports the failure of a thread; the thread must not keep a dropped join alive."""

    def report(error: BaseException) -> None:
        broadcast.fail(error)
        join = live()
        if join is not None:
            join._reap()

    return report


_ALL: weakref.WeakSet[Live] = weakref.WeakSet()


def running() -> list[Live]:
    """The live joins of this process that have not ended."""
    return [live for live in list(_ALL) if not live._done.is_set()]


def register(live: Live, broadcast: Broadcast, threads: LiveThreads) -> weakref.finalize[..., Live]:
    """Have a live join stopped when it is dropped, and when the process ends; returns what does the first."""
    _ALL.add(live)
    finalizer = weakref.finalize(live, _release, broadcast, threads)
    finalizer.atexit = False
    return finalizer


def _release(broadcast: Broadcast, threads: LiveThreads) -> None:
    """Stop a join that was dropped; in another thread, since the collector may run while this one holds a lock."""

    def stop() -> None:
        broadcast.stop()
        threads.stop()

    with contextlib.suppress(RuntimeError):
        threading.Thread(target=stop, name="streamjoin-end", daemon=True).start()


def _stop_all() -> None:
    for live in list(_ALL):
        live.stop()


def _after_fork() -> None:
    for live in list(_ALL):
        live._orphan()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def live(
    spec: JoinSpec,
    algorithm: str = "auto",
    workers: int = 1,
    *,
    ordered: bool = True,
    index: str | None = None,
    index_options: Mapping[str, float] | None = None,
    options: Mapping[str, object] | None = None,
    left_schema: pa.Schema | None = None,
    right_schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    idle: str | timedelta | None = None,
    queue_rows: int = LiveLimits.queue_rows,
    queue_bytes: int = LiveLimits.queue_bytes,
    result_rows: int = LiveLimits.result_rows,
    result_bytes: int = LiveLimits.result_bytes,
    batch_rows: int = LiveLimits.batch_rows,
    clock: WaitClock | None = None,
) -> Live:
    """Start a join that runs by itself: sources push from any thread, consumers read rows as they are found.

    Args:
        spec: what to join.
        algorithm: "auto", or one by name; all give the same rows.
        workers: threads that share the work.
        ordered: True for the rows in result order, the same for any threads; False for rows as soon as they are found,
            with punctuations that say how far the result is complete. Most algorithms find rows in result order anyway.
        index: the index by name, for algorithms that use one; by default the one that suits the condition.
        index_options: settings of that index, such as {"merge_ratio": 0.125}.
        options: settings of the algorithm, by name.
        left_schema: the left side's schema, if it should be checked, or its types fixed, before the first push.
        right_schema: likewise for the right side.
        columns: the columns of the result; others are not stored. The result's time is always included. Default: all.
        idle: in event-time order, after how long without a push or `advance` a source is no longer waited for.
        queue_rows: how many tuples may wait in front of the join, and in its gate; then sources wait.
        queue_bytes: likewise, in bytes.
        result_rows: how many rows may wait for a consumer; then the join waits.
        result_bytes: likewise, in bytes.
        batch_rows: how many rows a record batch has at the most.
        clock: the clock that `idle` is measured with, for tests.
    """
    if not isinstance(spec, JoinSpec):
        raise SpecError(f"live takes a JoinSpec, not {type(spec).__name__}")
    if not isinstance(ordered, bool):
        raise SpecError(f"ordered={ordered!r}: it is True or False")
    spec.warn_of_order(stacklevel=2)
    spec = spec.in_order()
    check_workers(workers)
    return Live(
        spec,
        AlgorithmRequest(algorithm, index, index_options or {}, options or {}),
        workers,
        ordered=ordered,
        schemas=(left_schema, right_schema),
        columns=check_wanted(columns),
        idle=idle_seconds(spec, idle),
        clock=clock or MonotonicClock(),
        limits=LiveLimits(queue_rows, queue_bytes, result_rows, result_bytes, batch_rows),
    )
