"""What the experiments on live joins share: streams with payload, saturated or paced, and what a consumer saw.

Everything goes through the public API: one thread per source pushes record batches, one consumer reads rows. A tuple
carries the time at which it was pushed; a row's latency ends when the consumer has it. The condition is the papers'
two-dimensional band, |x - x'| <= 10 and |y - y'| <= 10 over 1 to 10,000, which no single index decides, or x = x'.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import streamjoin as sj
from tests.threads import run_threads

Times = npt.NDArray[np.int64]
_VALUES, _BAND = 10_000, 10
TYPES = pa.schema(
    [
        ("x", pa.int32()),
        ("y", pa.float32()),
        ("sent", pa.int64()),
        ("price", pa.float64()),
        ("volume", pa.int64()),
    ]
)


@dataclass(frozen=True)
class LiveLoad:
    """A live join and its sources."""

    algorithm: str
    workers: int
    window: int | str
    """Tuples, or a duration."""
    order: Literal["arrival", "event_time"] = "arrival"
    sources: int = 2
    """In all; they alternate between the sides."""
    values: int = _VALUES
    ordered: bool = True
    other_window: int | str | None = None
    """The right side's window, where it differs."""
    condition: Literal["band", "key"] = "band"

    @property
    def spec(self) -> sj.JoinSpec:
        """The join."""
        sizes = (self.window, self.window if self.other_window is None else self.other_window)
        windows = tuple(sj.CountWindow(w) if isinstance(w, int) else sj.TimeWindow(w) for w in sizes)
        band = sj.Band("x", "x", _BAND) & sj.Band("y", "y", float(_BAND))
        return sj.JoinSpec(
            on=sj.Equi("x") if self.condition == "key" else band,
            window=(windows[0], windows[1]),
            time="sent",
            order=self.order,
        )

    @property
    def types(self) -> pa.Schema:
        """The columns of both sides."""
        if isinstance(self.window, str):
            return TYPES.set(TYPES.get_field_index("sent"), pa.field("sent", pa.timestamp("ns")))
        return TYPES

    def open(self) -> sj.Live:
        """The live join, with its columns known."""
        types = self.types
        return sj.live(
            self.spec, self.algorithm, self.workers, ordered=self.ordered, left_schema=types, right_schema=types
        )


@dataclass(frozen=True)
class Seen:
    """What the consumer saw, row by row."""

    pushed: npt.NDArray[np.float64]
    """When the later tuple was pushed, in seconds from the start."""
    latency: npt.NDArray[np.float64]
    """How long after that the row came, in milliseconds."""
    tuples_per_s: float
    waiting: int
    """Tuples that waited for the join when the sources had pushed the last ones."""
    figures: Mapping[str, Any]

    def summary(self, begin: float = 0.0, end: float = float("inf")) -> dict[str, Any]:
        """Percentiles of the rows whose later tuple was pushed from `begin` to `end`."""
        chosen = self.latency[(self.pushed >= begin) & (self.pushed < end)]
        if not chosen.size:
            raise RuntimeError("no rows came in the measured time: the run is too short")
        return {
            "mean_ms": float(chosen.mean()),
            "p50_ms": float(np.percentile(chosen, 50)),
            "p99_ms": float(np.percentile(chosen, 99)),
            "max_ms": float(chosen.max()),
            "rows": int(chosen.size),
            "tuples_per_s": self.tuples_per_s,
        }


class Batches:
    """Record batches of one source, made from random columns; only the time of the push is filled in anew."""

    def __init__(self, types: pa.Schema, values: int, rows: int, seed: int, different: int = 64) -> None:
        rng = np.random.default_rng(seed)
        self._types = types
        self.rows = rows
        self._columns = [
            (
                pa.array(rng.integers(1, values + 1, rows, np.int32)),
                pa.array(rng.uniform(1, values, rows).astype(np.float32)),
                pa.array(rng.random(rows)),
                pa.array(rng.integers(0, 1_000, rows)),
            )
            for _ in range(different)
        ]
        self._at = 0

    def stamped(self) -> pa.RecordBatch:
        """The next batch, pushed now."""
        x, y, price, volume = self._columns[self._at]
        self._at = (self._at + 1) % len(self._columns)
        sent = pa.array(np.full(self.rows, time.monotonic_ns()), self._types.field("sent").type)
        return pa.RecordBatch.from_arrays([x, y, sent, price, volume], schema=self._types)


class Reader:
    """A consumer that counts the rows and, with `keep`, notes each one's latency."""

    def __init__(self, join: sj.Live, keep: bool = True) -> None:
        self.rows = 0
        self._keep = keep
        self._pushed: list[Times] = []
        self._seen: list[Times] = []
        self._rows = iter(join)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for rows in self._rows:
            now = time.monotonic_ns()
            self.rows += rows.num_rows
            if not self._keep:
                continue
            pushed = np.maximum(*(_nanoseconds(rows[name]) for name in ("sent_left", "sent_right")))
            self._pushed.append(pushed)
            self._seen.append(now - pushed)

    def result(self) -> tuple[Times, Times]:
        """When each row's later tuple was pushed, and how long after that the row came; at the end of the join."""
        self._thread.join()
        none = np.empty(0, np.int64)
        return np.concatenate([none, *self._pushed]), np.concatenate([none, *self._seen])


def saturate(load: LiveLoad, rows: int, seconds: float, seed: int) -> float:
    """Tuples per second when every source pushes batches of `rows` as fast as it may, once the windows are full.

    Tuples count when they are joined and the consumer has their rows, not when the join has taken them.
    """
    with _running(load, seed) as (join, sources, reader):
        begin = time.perf_counter()

        def feed(source: Any, number: int) -> None:
            batches = Batches(_types(join), load.values, rows, seed + number)
            while time.perf_counter() - begin < seconds:
                source.push(batches.stamped())
            # In event-time order the others may wait for this one.
            source.finish()

        run_threads([lambda n=n, s=s: feed(s, n) for n, s in enumerate(sources)])  # type: ignore[misc]
        join.close()
        reader.result()
        took = time.perf_counter() - begin
        figures = join.metrics()
    return float((figures["pushed_left"] + figures["pushed_right"] - _filled(load)) / took)


def pace(load: LiveLoad, rate: float, push_ms: float, seconds: float, seed: int, rows: int | None = None) -> Seen:
    """Push `rate` tuples per second in all, evenly, in batches of `push_ms` milliseconds or of `rows`."""
    each = rate / load.sources
    size = rows or max(1, round(each * push_ms / 1e3))
    begin = [0.0]
    with _running(load, seed) as (join, sources, reader):
        begin_ns = time.monotonic_ns()
        begin[0] = time.perf_counter() + 0.01

        def feed(source: Any, number: int) -> None:
            batches = Batches(_types(join), load.values, size, seed + number)
            # Sources do not push at the same moments.
            due = begin[0] + size / each * number / load.sources
            while due < begin[0] + seconds:
                pause = due - time.perf_counter()
                if pause > 0:
                    time.sleep(pause)
                source.push(batches.stamped())
                due += size / each
            source.finish()

        run_threads([lambda n=n, s=s: feed(s, n) for n, s in enumerate(sources)])  # type: ignore[misc]
        took = time.perf_counter() - begin[0]
        tuples = join.metrics()
        join.close()
        pushed, latency = reader.result()
        figures = join.metrics()
    sent = tuples["pushed_left"] + tuples["pushed_right"] - _filled(load)
    return Seen((pushed - begin_ns) / 1e9, latency / 1e6, sent / took, tuples["waiting"], figures)


@contextmanager
def _running(load: LiveLoad, seed: int) -> Iterator[tuple[sj.Live, list[Any], Reader]]:
    """The join with its consumer and its sources; windows of tuples are full and the kernels compiled."""
    with load.open() as join:
        reader = Reader(join)
        sources = [join.source(("left", "right")[n % 2], f"source {n}") for n in range(load.sources)]
        rows = _filled(load) // load.sources
        for number, source in enumerate(sources):
            source.push(Batches(_types(join), load.values, rows, seed + 100 + number, different=1).stamped())
        if load.order == "event_time":
            # Otherwise these tuples would wait in the gate, and the measured time would begin with joining them.
            for source in sources:
                source.advance(_stamp(join, time.monotonic_ns()))
        while _joined(join, load) < rows * load.sources:
            join.wait(0.005)
        yield join, sources, reader
        if not join.wait(0):
            join.stop()


def _joined(join: sj.Live, load: LiveLoad) -> int:
    """How many tuples the join has taken from its queues; in event-time order, has joined."""
    figures = join.metrics()
    waiting = figures["waiting"] + (figures.get("open_tuples", 0) if load.order == "event_time" else 0)
    return int(figures["pushed_left"] + figures["pushed_right"] - waiting)


def _stamp(join: sj.Live, nanoseconds: int) -> object:
    """A time of the tuples."""
    return np.datetime64(nanoseconds, "ns") if pa.types.is_timestamp(_types(join).field("sent").type) else nanoseconds


def _filled(load: LiveLoad) -> int:
    """How many tuples fill the windows before the measurement begins."""
    per_side = load.window if isinstance(load.window, int) else 64
    return 2 * per_side // load.sources * load.sources


def _types(join: sj.Live) -> pa.Schema:
    if join.schema is None:
        raise AssertionError("the columns are given")
    stamp = join.schema.field("sent_left").type
    return TYPES.set(TYPES.get_field_index("sent"), pa.field("sent", stamp))


def _nanoseconds(column: pa.Array) -> Times:
    return np.asarray(column.view(pa.int64()).to_numpy(zero_copy_only=False))
