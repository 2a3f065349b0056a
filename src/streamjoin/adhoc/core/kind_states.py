"""What waits of queries with outer, semi, anti or as-of joins, and its form in files.

A state is replaced by each batch and never changed, so that a batch can be computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.adhoc.core.latest import HeldTuples


@dataclass(frozen=True)
class Waiting:
    """What is not decided yet: tuples by alias, one row for each that waits, and the partners found by step."""

    refs: Array
    partners: Array

    @classmethod
    def nothing(cls, aliases: int, steps: int) -> Waiting:
        """Nothing waits."""
        return cls(np.empty((0, aliases), np.int64), np.empty((0, steps), np.int64))

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.refs)

    def keep(self, chosen: Array) -> Waiting:
        """The chosen ones."""
        return self if chosen.all() else Waiting(self.refs[chosen], self.partners[chosen])

    def joined_by(self, refs: Array, partners: Array) -> Waiting:
        """With what came."""
        if not len(refs):
            return self
        return Waiting(np.concatenate([self.refs, refs]), np.concatenate([self.partners, partners]))


@dataclass(frozen=True)
class KindState:
    """What waits of a query: of its core (`left`), and of the stream that a RIGHT or FULL JOIN adds.

    `held` has the tuples that as-of joins without a tolerance keep, by alias.
    """

    left: Waiting
    right: Waiting
    held: Mapping[str, HeldTuples] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """How many tuples wait."""
        return self.left.n + self.right.n

    def to_table(self, name: str) -> pa.Table:
        """As rows of a table, for a file; `from_table` reads them."""
        sides = []
        for side, waiting in enumerate((self.left, self.right)):
            numbers = np.concatenate([waiting.refs, waiting.partners], axis=1)
            offsets = np.arange(waiting.n + 1, dtype=np.int32) * numbers.shape[1]
            lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers.ravel()))
            names, numbers_of_sides = pa.array([name] * waiting.n, pa.string()), np.full(waiting.n, side, np.int8)
            nulls = [pa.nulls(waiting.n, type_) for type_ in STATE_SCHEMA.types[3:]]
            sides.append(pa.table([names, pa.array(numbers_of_sides), lists, *nulls], schema=STATE_SCHEMA))
        rows = [
            {"query": name, "side": _HELD, "alias": alias, "held": tuples.packed()}
            for alias, tuples in self.held.items()
        ]
        return pa.concat_tables([*sides, pa.Table.from_pylist(rows, STATE_SCHEMA)])

    @classmethod
    def from_table(cls, table: pa.Table, name: str, start: KindState) -> KindState:
        """What `to_table` gave, of a query whose state is `start` before it has seen anything."""
        rows = table.filter(pc.equal(table.column("query"), name))
        sides = [rows.filter(pc.equal(rows.column("side"), side)).column("numbers") for side in (0, 1)]
        left, right = (_unpack(side, like) for side, like in zip(sides, (start.left, start.right), strict=True))
        # Files of earlier versions have no such columns, and no rows that need them.
        held = dict(start.held)
        for row in rows.filter(pc.equal(rows.column("side"), _HELD)).to_pylist():
            held[row["alias"]] = HeldTuples.unpacked(row["held"])
        return cls(left, right, held)


_HELD: Final = 2
STATE_SCHEMA: Final = pa.schema(
    {
        "query": pa.string(),
        "side": pa.int8(),
        "numbers": pa.list_(pa.int64()),
        "alias": pa.string(),
        "held": pa.binary(),
    }
)


def packed_states(states: Mapping[str, KindState]) -> pa.Table:
    """The states of all queries as one table."""
    return pa.concat_tables([STATE_SCHEMA.empty_table(), *(state.to_table(name) for name, state in states.items())])


def _unpack(lists: pa.ChunkedArray, like: Waiting) -> Waiting:
    aliases, steps = like.refs.shape[1], like.partners.shape[1]
    values = pc.list_flatten(lists).to_numpy().reshape(len(lists), aliases + steps)
    return Waiting(np.ascontiguousarray(values[:, :aliases]), np.ascontiguousarray(values[:, aliases:]))
