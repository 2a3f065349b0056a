"""The contract between a live join and the algorithm that runs it.

A live join owns sources, consumers, back-pressure and errors; a runner owns everything between a source's tuples and
the result rows: gate, positions, windows, threads. Invariants of a runner:

- a delivery is made once, by any of the runner's threads, and never after `stop` has returned;
- the live join makes the calls of one source from one thread at a time;
- only `push` waits for room, and `drain` for the end; the live join holds no lock of its own when it calls them, but
  that of the source that pushes;
- `reached` only grows, and after a delivery with `reached` = p no row has its later tuple before gate position p;
- the rows, and `later` and `earlier`, depend on the input in gate order alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

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


Event = Literal["add", "push", "advance", "finish", "rest"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a source.

    - "add" opens it: in event-time order the gate waits for it from now on. A name that has finished may come again: it
      is a new source with a new clock, and its tuples follow those of the same time that the earlier one still has in
      the gate.
    - "advance": it has no tuples before `time`.
    - "rest": the gate stops waiting for it until its next tuples or "advance"; it keeps its clock. If the gate waits
      for no source, its bound is the greatest that a source has passed, as on Spark.
    - "finish": it has ended, and its place can be given to another. If no source is left, the gate releases what is
      waiting, and its bound stays there: others may come.
    """

    event: Event
    side: int
    source: str
    arrived: int = 0
    rows: pa.Table | pa.RecordBatch | None = None
    """The tuples of a push."""
    time: int = 0
    """The ticks of an `advance`."""

    @property
    def table(self) -> pa.Table | None:
        """The tuples as a table."""
        return pa.Table.from_batches([self.rows]) if isinstance(self.rows, pa.RecordBatch) else self.rows


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
    has_room: Callable[[], bool] = lambda: False
    """Whether a delivery would not wait now: for those that may not."""


class Runner(Protocol):
    """Runs one bound join. All calls may come from any thread unless said otherwise."""

    in_order: bool
    """Whether deliveries come in result order; they must where that is requested."""

    def start(self, deliver: Deliver, fail: Fail) -> None:
        """Start the threads."""

    def push(
        self, side: int, name: str, rows: pa.Table | pa.RecordBatch, arrived: int, timeout: float | None = None
    ) -> None:
        """Take tuples of one source, in its own order; waits while there is no room for them.

        Raises:
            BackPressureError: there was no room for `timeout` seconds; nothing was taken.
        """

    def adopt(self, call: Call) -> None:
        """Take a call that was made before there was a runner, whether there is room or not; returns at once."""

    def admit(self) -> None:
        """Let in the pushes that wait for room, and all later ones: the input is about to end.

        In event-time order only the end may make the room that a push waits for.
        """

    def submit(self, call: Call) -> None:
        """Take a call that is not a push."""

    def drain(self) -> None:
        """End the input: return when every result has been delivered."""

    def stop(self) -> None:
        """End the threads at once; waiting calls raise an error. May be called twice."""

    def set_workers(self, n: int) -> None:
        """Change the number of threads.

        Raises:
            NotSupportedError: it is fixed.
        """

    def late(self) -> pa.Table:
        """Rows that were late or without a time since the last call, as by `Join.late`."""

    def metrics(self) -> Mapping[str, Any]:
        """Counters, queue lengths, seconds by stage and work by thread, as plain numbers."""
