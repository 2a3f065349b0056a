"""What the engine needs of a core: `Shared` and `Unshared` have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from streamjoin.adhoc.core.arrivals import Arrived
    from streamjoin.adhoc.core.changes import Change, LiveQuery
    from streamjoin.adhoc.core.explain import Explanation
    from streamjoin.adhoc.core.kind_states import KindState
    from streamjoin.adhoc.core.shared import Snapshot
    from streamjoin.adhoc.language.plan import Stream
    from streamjoin.model.errors import InputError

Action = Literal["create", "drop", "pause", "resume", "register"]
"""What a change does; a core makes all but the last, by which an engine gets a stream."""


class StepPosition(NamedTuple):
    """Where in the plan a batch is: the streams that have been joined so far, and the queries that this is for."""

    streams: tuple[str, ...]
    queries: tuple[str, ...]


class Core(Protocol):
    """Many queries over the same streams, one batch at a time; `Shared` says what each method does."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Make changes, in force from the next batch on."""

    def add_stream(self, stream: Stream, lateness: int | None = None) -> None:
        """Register one more stream; `lateness` is in ticks."""

    @property
    def queries(self) -> Mapping[str, LiveQuery]:
        """The queries, by name."""

    def arrive(self, batch_id: int, tables: Mapping[str, pa.Table]) -> Arrived:
        """A batch as buckets; nothing changes until `finish`."""

    def time_to_idle(self) -> int | None:
        """In how many nanoseconds silence may decide what waits, 0 if it does already; None if only tuples can."""

    def results(self, arrived: Arrived) -> tuple[dict[str, pa.Table], dict[str, InputError]]:
        """The rows that each query gains, and the queries whose rows can't be computed."""

    def position(self) -> StepPosition | None:
        """The step that a batch is in, or was in last; from any thread. None where other processes compute."""

    def interrupt(self) -> None:
        """Have the results that are computed, or the next, stop with `InterruptedBatchError`; from any thread."""

    def finish(self, arrived: Arrived, failures: Mapping[str, InputError]) -> None:
        """Make a batch part of the state; queries that failed are paused."""

    def take_waiting(self, batch: int, waiting: Mapping[str, KindState]) -> None:
        """Take over what waits after a batch that was computed elsewhere."""

    def snapshot(self) -> Snapshot:
        """The state after the last batch."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go over to a state."""

    def explain(self) -> Explanation:
        """The plan in force."""

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes held, by what holds them."""
