"""ScaleJoin at kernel level, for the experiments: real threads for sources, processing threads and the consumer.

The benchmark is that of the paper: x and y uniform over 1 to 10,000, a pair matches when both differ by 10 at most.
y is a float rounded to 1/1,024. Times are the tuples' own (an injected clock); only a paced run waits for real time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.scalejoin import (
    GROUP,
    PLACES,
    Pool,
    Role,
    Share,
    collect,
    feed,
    make_probes,
    make_room,
    make_share,
    process,
)
from streamjoin._arrays import Array
from streamjoin.indexes.base import ticks_per_ns
from streamjoin.kernels.trees.task import read_cycles
from streamjoin.model.errors import StateError
from streamjoin.scalejoin.gate import GateArena
from streamjoin.windows.crew import Crew

BAND = 10
_FRACTION = 1024
_RING = 1024
_ROOM = 1 << 16
_SEVERAL = 1 << 20


@dataclass(frozen=True)
class Stream:
    """One physical source: its side (0 is R) and the times of its tuples, ascending."""

    side: int
    times: Array


@dataclass(frozen=True)
class Ran:
    """What a run did: seconds, comparisons of each thread in each slice of time, results, their digest and delays."""

    seconds: float
    tuples: int
    work: Array
    results: int
    digest: int
    delays_ms: Array

    @property
    def comparisons(self) -> int:
        """All comparisons."""
        return int(self.work.sum())

    @property
    def comparisons_per_s(self) -> float:
        """Comparisons a second of all threads together."""
        return self.comparisons / self.seconds

    @property
    def spread(self) -> float:
        """The standard deviation of the threads' work in per cent of their mean."""
        each = self.work.sum(axis=1)
        return 100 * float(each.std() / each.mean()) if each.mean() else 0.0


def alternating(n: int) -> list[Stream]:
    """One R and one S source of `n` tuples together, in turn, one a tick of time."""
    return [Stream(side, np.arange(side, n, 2, dtype=np.int64)) for side in (0, 1)]


def make_pool(streams: Sequence[Stream], seed: int) -> tuple[Pool, list[Array]]:
    """All tuples of the streams, and each stream's own numbers."""
    rng = np.random.default_rng(seed)
    n = sum(stream.times.size for stream in streams)
    ends = np.cumsum([0, *(stream.times.size for stream in streams)])
    owns = [np.arange(ends[k], ends[k + 1]) for k in range(len(streams))]
    sides = np.repeat([stream.side for stream in streams], [stream.times.size for stream in streams])
    times = np.concatenate([stream.times for stream in streams])
    return Pool(times, sides.astype(np.int64), *_words(rng, n), np.zeros(n, np.int64)), owns


def _words(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    x = rng.integers(1, 10_001, n).astype(np.uint32)
    return x, (rng.uniform(1, 10_000, n) * _FRACTION).astype(np.uint32)


def filled_shares(threads: int, held: int, span: int, capacity: int, seed: int) -> list[Share]:
    """Shares of windows that hold `held` tuples a side, dealt in turn, of the times from -span to -1."""
    rng = np.random.default_rng([seed, 1])
    shares = [make_share(capacity) for _ in range(threads)]
    for side in (0, 1):
        x, y = _words(rng, held)
        times = -span + span * np.arange(held, dtype=np.int64) // max(held, 1)
        for k, share in enumerate(shares):
            own = slice(k, None, threads)
            n = x[own].size
            share.x[side, :n], share.y[side, :n] = x[own], y[own]
            share.time[side, :n], share.place[side, :n] = times[own], np.arange(held)[own]
            share.ends[side] = 0, n
    return shares


def run_stream(
    threads: int,
    streams: Sequence[Stream],
    window: int,
    *,
    held: int = 0,
    slice_: int | None = None,
    rate: float | None = None,
    per_tick_ns: float | None = None,
    seed: int = 0,
) -> Ran:
    """Join the streams over a window of time; `held` tuples a side are stored before.

    Comparisons are counted by slices of `slice_` of the tuples' time. With `rate`, tuples are due in real time, so many
    a second, in the order of their times; with `per_tick_ns`, when their own times say so, at so many nanoseconds a
    tick. Delays then count from when a tuple was due.
    """
    pool, owns = make_pool(streams, seed)
    total = pool.time.size
    arriving = int(max(np.bincount(pool.side, minlength=2)))
    capacity = 2 * (-(-(held + min(arriving, held + 4 * GROUP)) // threads)) + 4 * GROUP
    if not held:
        capacity = arriving // threads + 4 * GROUP
    shares = filled_shares(threads, held, window, capacity, seed)
    gates = GateArena(len(streams), threads, _RING), GateArena(threads, 1, _RING)
    slots = [gates[0].add_source(k) for k in range(len(streams))]
    for k in range(threads):
        gates[1].add_source(k)
    last = int(pool.time.max()) if total else 0
    length = slice_ or last + 1
    work = np.zeros((threads, last // length + 1), np.int64)
    paced = rate is not None or per_tick_ns is not None
    delays = np.zeros(_SEVERAL if paced else 1, np.int64)
    crew = Crew(threads + len(streams) + 1, PLACES)
    mems = (gates[0].mem, gates[1].mem)
    probes = [make_probes(BAND, BAND * _FRACTION) for _ in range(threads)]
    rooms = [make_room(_ROOM) for _ in range(threads)]
    outcome: list[tuple[int, int]] = []
    crew.run(lambda _: None)
    due_ns = np.zeros(total)
    if rate is not None:
        due_ns[np.argsort(pool.time, kind="stable")] = np.arange(total) * 1e9 / rate
    elif per_tick_ns is not None:
        due_ns = pool.time * per_tick_ns
    pool.arrived[:] = read_cycles() + 2_000_000 + (due_ns * ticks_per_ns()).astype(np.int64)

    def step(k: int) -> None:
        if k < threads:
            role = Role(k, threads, window, 2 * held, length)
            if not process(mems, crew.words, k, role, pool, shares[k], probes[k], rooms[k], total, work[k]):
                raise StateError("a processing thread stopped: a group of tuples found more pairs than it has room for")
        elif k < threads + len(streams):
            j = k - threads
            feed(mems[0], crew.words, k, slots[j], pool, owns[j], streams[j].times, paced)
        else:
            outcome.append(collect(mems[1], crew.words, k, pool, delays))

    begin = time.perf_counter()
    try:
        crew.run(step)
    finally:
        crew.close()
    took = time.perf_counter() - begin
    results, digest = outcome[0]
    seen = delays[: min(results, delays.size)] / ticks_per_ns() / 1e6
    return Ran(took, total, work, results, digest, seen)


def scalejoin_comparisons(threads: int, window: int, *, target: float = 4e9, seed: int = 0) -> Ran:
    """Full windows of `window` tuples a side, and as many new tuples as make about `target` comparisons a thread."""
    n = max(4 * GROUP, int(target * threads / window) // 2 * 2)
    return run_stream(threads, alternating(n), 2 * window, held=window, seed=seed)


def thread_grid(quick: bool = False) -> list[int]:
    """1, 2, 4, ... up to the cores there are, 16 at the most; two of them in a quick run."""
    cores = os.cpu_count() or 1
    grid = [n for n in (1, 2, 4, 8, 16) if n <= max(2, cores)]
    return grid[:2] if quick else grid
