"""What a join's tasks carry with them: the bound spec, and the name, token and fingerprint that tell joins apart.

The name says where the join's log lies under the checkpoint and stays the same from start to start; the token
is new with every call of `join` and finds the call in the plan of the query that runs it. The fingerprint
stands for everything a log depends on: two joins with the same one can read each other's files.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, field

import pyarrow as pa

from streamjoin.model.binding import BoundSpec
from streamjoin.spark.merging import MergePolicy

FORMAT = 1
"""The version of the log's files; a log of another one is refused."""

SIDES = ("left", "right")

TASK = "streamjoin_task"
"""The name of the join's stage in Spark's plans; the token follows."""


@dataclass(frozen=True)
class Blueprint:
    """One join as its tasks see it."""

    bound: BoundSpec
    name: str
    partitions: int
    policy: MergePolicy = field(default_factory=MergePolicy)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def windows(self) -> tuple[int, int]:
        """The lengths of both windows in ticks."""
        left, right = self.bound.windows
        return left.size, right.size

    @property
    def lateness(self) -> int:
        """How far behind its side's clock a row may come, in ticks."""
        return self.bound.lateness or 0

    @property
    def open_terms(self) -> tuple[int, ...]:
        """The terms that a hit in the index does not decide."""
        index = self.bound.index
        decided = index[0] if len(index) == 1 and index[0].exact else None
        return tuple(i for i, term in enumerate(self.bound.terms) if term != decided)

    def schema(self, side: int) -> pa.Schema:
        """The columns of one side's rows."""
        return self.bound.right_schema if side else self.bound.left_schema

    @property
    def description(self) -> dict[str, str]:
        """In words, everything that the log's content depends on."""
        spec = self.bound.spec
        return {
            "format": str(FORMAT),
            "on": str(spec.on),
            "left window": str(spec.windows[0]),
            "right window": str(spec.windows[1]),
            "time": " and ".join(spec.time_columns or ()),
            "lateness": str(self.lateness),
            "self_join": str(spec.self_join),
            "left columns": _columns(self.bound.left_schema),
            "right columns": _columns(self.bound.right_schema),
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
