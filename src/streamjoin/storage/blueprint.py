"""What a join's tasks carry with them: the bound spec, and the name, token and fingerprint that tell joins apart.

The name says where the join's log lies under the checkpoint and stays the same from start to start; the token
is new with every call of `join` and finds the call in the plan of the query that runs it. The fingerprint
stands for everything a log depends on: two joins with the same one can read each other's files.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from streamjoin.model.binding import BoundSpec, condition_text
from streamjoin.storage.merging import NEVER, MergePolicy, horizons

FORMAT = 2
"""The version of the log's files; a log of another one is refused."""

SIDES = ("left", "right")

TASK = "streamjoin_task"
"""The name of the join's stage in Spark's plans; the token follows."""


@dataclass(frozen=True)
class SourcePlan:
    """One DataFrame of a side: the source it is, or the column whose values are; see `sources.Source`."""

    name: str
    by: str | None = None
    position: str | None = None
    values: tuple[str, ...] = ()

    @property
    def declared(self) -> tuple[str, ...]:
        """The sources that are waited for from the beginning."""
        if self.by is None:
            return (self.name,)
        return tuple(f"{self.name}/{value}" for value in self.values)

    def __str__(self) -> str:
        return self.name + (f" by {self.by}" if self.by else "") + (f" at {self.position}" if self.position else "")


@dataclass(frozen=True)
class GatePlan:
    """How tuples are put into one order before the join."""

    sources: tuple[tuple[SourcePlan, ...], tuple[SourcePlan, ...]]
    idle_ms: int | None = None
    ordered: bool = False
    positions: bool = False
    punctuated: bool = False


@dataclass(frozen=True)
class Blueprint:
    """One join as its tasks see it.

    `partitions` tasks run; how many of them get a range is decided batch by batch, beginning with `first`. With
    `auto` the load decides. `late` is where late rows are written besides the log.
    """

    bound: BoundSpec
    name: str
    partitions: int
    policy: MergePolicy = field(default_factory=MergePolicy)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    gate: GatePlan | None = None
    first: int | None = None
    auto: bool = False
    late: str | None = None

    @property
    def windows(self) -> tuple[int, int]:
        """The lengths of both windows, in ticks or tuples."""
        left, right = self.bound.windows
        return left.size, right.size

    @property
    def counted(self) -> tuple[bool, bool]:
        """Which sides keep a number of tuples."""
        left, right = self.bound.windows
        return left.kind == "count", right.kind == "count"

    @property
    def lateness(self) -> int:
        """How far behind its side's clock a row may come, in ticks."""
        return self.bound.lateness or 0

    @property
    def open_terms(self) -> tuple[int, ...]:
        """The terms that a hit in the index does not decide."""
        return tuple(i for i in range(len(self.bound.terms)) if i not in self.bound.settled)

    def schema(self, side: int) -> pa.Schema:
        """The columns of one side's rows."""
        return self.bound.right_schema if side else self.bound.left_schema

    def horizons(self, clocks: Sequence[int | None]) -> tuple[int, int]:
        """For each side the smallest age, in ticks or tuples, that a row still to come can match.

        Behind a gate each side's clock says where the order stands on that side's own scale; without one it is the
        side's newest time, which rows to come may be behind by the lateness.
        """
        if self.gate is None:
            return horizons(clocks, self.windows, self.lateness)
        itself = int(self.bound.spec.self_join)
        left, right = (
            NEVER if clock is None else max(NEVER, clock - window + (itself if counted else 0))
            for clock, window, counted in zip(clocks, self.windows, self.counted, strict=True)
        )
        return left, right

    @property
    def description(self) -> dict[str, str]:
        """In words, everything that the log's content depends on."""
        spec = self.bound.spec
        gate = self.gate
        # Only joins by a key and a band together have ever changed the words that rows are stored under.
        words = {"index of key and band": "version 2"} if len(self.bound.index) > 1 else {}
        return words | {
            "format": str(FORMAT),
            "on": condition_text(self.bound),
            "left window": str(spec.windows[0]),
            "right window": str(spec.windows[1]),
            "time": " and ".join(spec.time_columns or ()),
            "lateness": str(self.lateness),
            "self_join": str(spec.self_join),
            "left columns": _columns(self.bound.left_schema),
            "right columns": _columns(self.bound.right_schema),
            "left sources": ", ".join(map(str, gate.sources[0])) if gate else "in any order",
            "right sources": ", ".join(map(str, gate.sources[1])) if gate else "in any order",
        }

    @property
    def fingerprint(self) -> str:
        """The description as one word."""
        return fingerprint(self.description)


def fingerprint(description: dict[str, str]) -> str:
    """A short digest of a description."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)
