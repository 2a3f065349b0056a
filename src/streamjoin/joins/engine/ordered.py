"""Tuples in gate order, between the driver's input half and its output half."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.base import Tail
from streamjoin.windows.buffer import Restore
from streamjoin.windows.encoding import Encoded


@dataclass(frozen=True)
class Ordered:
    """Tuples in gate order: each side's own table and ticks, and which side each place belongs to."""

    tables: tuple[pa.Table, pa.Table]
    ticks: tuple[Array | None, Array | None]
    is_right: Array
    left_first: bool = False
    """Whether all left tuples come before the right ones."""
    arrived: Array | None = None
    """When each tuple was pushed, where that is recorded: an integer by gate position."""


@dataclass
class Work:
    """Ordered tuples in the operator: those before `begin` are joined already."""

    ordered: Ordered
    horizons: tuple[int, int] | None
    encoded: list[Encoded] | None = None
    """The words, once a step needs them: compiled steps encode for themselves."""
    begin: int = 0
    tried: int = 0
    """How many tuples the newest step was for."""
    at: list[int] = field(default_factory=lambda: [0, 0])
    tail: Tail | None = None
    """What the end of the call decides, for kinds of join that give rows for that."""
    ready: list[pa.Table] = field(default_factory=list)
    """Rows of tuples that came before."""

    @property
    def waiting(self) -> int:
        """The number of tuples that are not joined yet, and of steps beside them."""
        return int(self.ordered.is_right.size) - self.begin + (self.tail is not None) + len(self.ready)

    def saved(self) -> Restore:
        """Return a function that returns the tuples joined from now on to the waiting ones."""
        state = self.begin, self.at, self.tail, list(self.ready)

        def restore() -> None:
            self.begin, self.at, self.tail, self.ready = (*state[:3], list(state[3]))

        return restore
