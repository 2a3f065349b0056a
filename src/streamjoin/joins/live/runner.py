"""The contract between a live join and the algorithm that runs it.

A live join owns sources, consumers, back-pressure and errors; a runner owns everything between a source's tuples and
the result rows: gate, positions, windows, threads. Invariants of a runner:

- a delivery is made once, by any of the runner's threads, and never after `stop` has returned;
- the live join calls `push`, `advance`, `finish` and `rest` of one source from one thread at a time;
- `reached` only grows, and after a delivery with `reached` = p no row has its later tuple before gate position p;
- the rows, and `later` and `earlier`, depend on the input in gate order alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import StateError
from streamjoin.model.spec import JoinSpec

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Result rows as they leave a runner, and how far the result is complete."""

    rows: pa.Table
    later: I64
    """The gate position of each row's later tuple, or of the tuple with which a row without one comes out."""
    earlier: I64
    """Orders the rows of one later tuple: sorted by (later, earlier), rows are in result order."""
    arrived: I64
    """When each row's later tuple was pushed, in nanoseconds of `time.monotonic_ns`."""
    reached: int
    """All rows whose later tuple lies before this gate position have been delivered with this delivery."""
    time: int | None
    """In event-time order, in ticks of the time column: no later row has an earlier time."""


Deliver = Callable[[Delivery], None]
"""Hands a delivery to the consumers; waits while they are slow, and raises `Stopped` when the join ends."""
Fail = Callable[[BaseException], None]
"""Reports the error that ended one of the runner's threads."""


class Stopped(StateError):  # noqa: N818
    """The join was stopped: a runner's thread that meets it ends and reports nothing."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a runner is built from."""

    spec: JoinSpec
    bound: BoundSpec
    """The spec bound to the schemas of both sides; pushed tables have these schemas, with all columns."""
    request: AlgorithmRequest
    """The algorithm, its index and its options, as the user asked for them."""
    workers: int
    columns: Sequence[str] | None
    """The columns of the result, where the user selected some; `bound` is narrowed to them."""
    queue_rows: int
    """How many tuples may wait in all, in queues and in the gate, before sources have to wait."""
    queue_bytes: int
    """Likewise, in bytes."""
    batch_rows: int
    """How many rows a delivery has at the most, unless a single tuple has more matches."""
    ordered: bool = False
    """Whether deliveries have to come in result order."""


class Runner(Protocol):
    """Runs one bound join. All calls may come from any thread unless said otherwise."""

    in_order: bool
    """Whether deliveries come in result order; they must where that is requested."""

    def start(self, deliver: Deliver, fail: Fail) -> None:
        """Start the threads."""

    def add_source(self, side: int, name: str) -> None:
        """Open a source; in event-time order the gate waits for it from now on.

        A name that has finished may come again: it is a new source with a new clock, and its tuples follow those of
        the same time that the earlier one still has in the gate.
        """

    def push(self, side: int, name: str, rows: pa.Table, arrived: int, timeout: float | None = None) -> None:
        """Take tuples of one source, in its own order; waits while there is no room for them.

        Raises:
            BackPressureError: there was no room for `timeout` seconds; nothing was taken.
        """

    def advance(self, side: int, name: str, time: int) -> None:
        """Declare that a source has no tuples before `time`, in ticks of the time column."""

    def finish(self, side: int, name: str) -> None:
        """Declare that a source has ended; its place can be given to another.

        If no source is left, the gate releases what is waiting, and its bound stays there: others may come.
        """

    def rest(self, side: int, name: str) -> None:
        """Stop waiting for a source until its next tuples or `advance`; it keeps its clock.

        If the gate waits for no source, its bound is the greatest that a source has passed, as on Spark.
        """

    def drain(self) -> None:
        """End the input: return when every result has been delivered."""

    def stop(self) -> None:
        """End the threads at once; waiting calls raise an error. May be called twice."""

    def late(self) -> pa.Table:
        """Rows that were late or without a time since the last call, as by `Join.late`."""

    def metrics(self) -> Mapping[str, Any]:
        """Counters, queue lengths, seconds by stage and work by thread, as plain numbers."""
