"""The limits of a live join, and checks of its settings."""

from __future__ import annotations

from dataclasses import dataclass

from streamjoin.joins.engine.settings import check_rows
from streamjoin.model import durations
from streamjoin.model.errors import SpecError
from streamjoin.model.spec import JoinSpec


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
