"""The settings of a join beside its spec, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.engine.intake import SIDES, Sources
from streamjoin.model.errors import SpecError
from streamjoin.model.spec import JoinSpec
from streamjoin.windows.crew import MOST

MAX_ROWS = 20_000_000
"""How many rows a call returns at the most, unless `max_rows=` says otherwise: some gigabytes."""


@dataclass(frozen=True)
class OpenSettings:
    """What `open` is told beside the spec; see there."""

    request: AlgorithmRequest = field(default_factory=AlgorithmRequest)
    workers: int = 1
    schemas: tuple[pa.Schema | None, pa.Schema | None] = (None, None)
    sources: Mapping[str, Sequence[str]] | None = None
    max_rows: int | None = MAX_ROWS
    on_close: Callable[[pa.Table], object] | None = None
    columns: Sequence[str] | None = None
    general_pushes: int | None = None
    """How many pushes take the general way before compiled steps: for warm-ups and tests. By default none if the
    kernels are compiled already, else as many as cost what compiling does."""

    def __post_init__(self) -> None:
        check_workers(self.workers)
        if self.max_rows is not None:
            check_rows("max_rows", self.max_rows)
        if self.on_close is not None and not callable(self.on_close):
            raise SpecError(f"on_close={self.on_close!r}: give a function that takes a table")


def check_workers(n: object) -> None:
    """Reject an invalid number of threads."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST:
        raise SpecError(f"workers={n!r}: give a number of threads from 1 to {MOST}")


def check_sources(spec: JoinSpec, sources: Mapping[str, Sequence[str]] | None) -> Sources:
    """Each side's sources by name."""
    if sources is None:
        return (), ()
    if spec.order != "event_time":
        raise SpecError("sources= is for order='event_time'")
    unknown = set(sources) - set(SIDES)
    if unknown:
        raise SpecError(f"sources= takes 'left' and 'right', not {', '.join(sorted(unknown))}")
    return tuple(sources.get("left", ())), tuple(sources.get("right", ()))


def check_rows(name: str, n: object) -> None:
    """Reject an invalid number of rows."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise SpecError(f"{name}={n!r}: give a number of rows, 1 or more")
