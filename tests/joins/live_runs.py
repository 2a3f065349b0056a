"""Running a generated case through a live join: any threads, any pieces, and what the consumer must see."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa

import streamjoin as sj
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.live.broadcast import LiveBatch
from streamjoin.testing import oracle
from streamjoin.testing.cases import JoinCase
from streamjoin.testing.conformance import IdPair, ids, table
from tests.deadlock import no_deadlock
from tests.threads import run_threads

Pairs = list[IdPair]
# Instead of the number of the next push: one has failed, and nobody waits for it.
_FAILED = -1


def opened(case: JoinCase, request: AlgorithmRequest, workers: int = 1, **settings: Any) -> sj.Live:
    """A live join for the case."""
    return sj.live(
        case.spec,
        request.algorithm,
        workers,
        index=request.index,
        left_schema=case.schemas[0],
        right_schema=case.schemas[1],
        **settings,
    )


@contextmanager
def ending(seconds: float = 300) -> Iterator[None]:
    """The block ends, and leaves no thread of a live join."""
    with no_deadlock(seconds):
        yield
    left = [thread for thread in threading.enumerate() if thread.name.startswith("streamjoin-")]
    for thread in left:
        thread.join(0.2)
    if any(thread.is_alive() for thread in left):
        # It waits for a join that only a cycle holds. The collector takes long, so it is asked only then.
        gc.collect()
    for thread in left:
        thread.join(120)
        assert not thread.is_alive(), thread.name


def pieces(events: Sequence[oracle.Event], rng: random.Random) -> list[Sequence[oracle.Event]]:
    """The events of a source, cut at random."""
    cut, at = [], 0
    while at < len(events):
        n = rng.choice((1, 2, 5, 20))
        cut.append(events[at : at + n])
        at += n
    return cut


def push_event_time(join: sj.Live, case: JoinCase, seed: int, gone: bool = True) -> None:
    """Push each source of the case from a thread of its own; with `gone`, sources leave when they are done."""
    rng = random.Random(seed)
    queues: dict[tuple[bool, str], list[oracle.Event]] = {}
    for event in case.events:
        queues.setdefault((event.right, event.source), []).append(event)
    # All are open before the first pushes, so that the gate waits for every one.
    sources = {(right, name): join.source("right" if right else "left", name) for right, name in sorted(queues)}

    cuts = {key: pieces(queue, rng) for key, queue in queues.items()}

    def feed(key: tuple[bool, str]) -> None:
        for events in cuts[key]:
            sources[key].push(table((e.row for e in events), case.schemas[int(key[0])]))
        if gone:
            sources[key].finish()

    run_threads([partial(feed, key) for key in rng.sample(list(queues), len(queues))])


def push_arrival(join: sj.Live, case: JoinCase, seed: int, threads: int = 4) -> None:
    """Push the case's events in their order, each run of one side from a random thread."""
    rng = random.Random(seed)
    work = [
        (right, piece)
        for right, events in groupby(case.events, key=lambda event: event.right)
        for piece in pieces(list(events), rng)
    ]
    turn = threading.Condition()
    at = 0

    def feed(own: list[int]) -> None:
        nonlocal at
        sources = {right: join.source("right" if right else "left") for right in {work[n][0] for n in own}}
        for number in own:
            right, events = work[number]
            rows = table((e.row for e in events), case.schemas[int(right)])
            with turn:
                while at not in (number, _FAILED):
                    turn.wait()
                if at == _FAILED:
                    return
                try:
                    sources[right].push(rows)
                    at += 1
                except BaseException:
                    at = _FAILED
                    raise
                finally:
                    turn.notify_all()

    shares: list[list[int]] = [[] for _ in range(threads)]
    for number in range(len(work)):
        rng.choice(shares).append(number)
    run_threads([partial(feed, own) for own in shares if own])


def pairs_of(rows: pa.RecordBatch) -> Pairs:
    """The pairs of row ids in a batch; None for a side that is missing."""
    return ids(pa.Table.from_batches([rows]))


def read_all(join: sj.Live) -> Pairs:
    """Every pair that a consumer gets."""
    return [pair for rows in join for pair in pairs_of(rows)]


def check_punctuations(case: JoinCase, batches: Sequence[LiveBatch]) -> None:
    """No row comes that an earlier batch excluded, by position or by time."""
    place = {event.row["id"]: number for number, event in enumerate(case.events)}
    reached, time = 0, None
    for batch in batches:
        for pair in pairs_of(batch.rows):
            # Of a single tuple only the time is known: it comes out with a later one.
            later = max(place[number] for number in pair if number is not None)
            assert None in pair or later >= reached or case.spec.match is not None, pair
            assert time is None or case.events[later].ts >= time, pair
        assert batch.reached >= reached
        reached = batch.reached
        time = batch.time if batch.time is not None else time
    assert reached == len(case.events)
