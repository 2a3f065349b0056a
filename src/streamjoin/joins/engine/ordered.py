"""Tuples in gate order, between the driver's input half and its output half."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from streamjoin._arrays import Array
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

    @property
    def waiting(self) -> int:
        """The number of tuples that are not joined yet."""
        return int(self.ordered.is_right.size) - self.begin
