"""Columns that nobody asks for are neither moved nor stored."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from streamjoin.model.binding import RESULT_TIME, BoundSpec
from streamjoin.model.errors import SchemaError, SpecError
from streamjoin.storage.blueprint import SourcePlan


def pruned(bound: BoundSpec, columns: Sequence[str] | None, sources: Sequence[Sequence[SourcePlan]]) -> BoundSpec:
    """`bound` with only the result's `columns`, and of both sides only what these and the join itself need.

    The columns keep the names that they have in the whole result. `ts` is always there.
    """
    if columns is None:
        return bound
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise SpecError(f"columns={columns!r}: it is a list of names of the result's columns")
    known = {column.name: column for column in bound.columns}
    for name in columns:
        if name not in known and name != RESULT_TIME:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known)}"
            raise SchemaError(f"the result has no column {name!r}; {hint}")
    kept = tuple(column for column in bound.columns if column.name in set(columns))
    schemas = []
    for side, schema in enumerate((bound.left_schema, bound.right_schema)):
        needed = _needed(bound, side) | {c.source for c in kept if (c.side == "right") == bool(side)}
        needed |= {name for plan in sources[side] for name in (plan.by, plan.position) if name is not None}
        schemas.append(pa.schema([field for field in schema if field.name in needed]))
    if bound.spec.self_join:
        both = {*schemas[0].names, *schemas[1].names}
        schemas = [pa.schema([field for field in bound.left_schema if field.name in both])] * 2
    fields = [bound.schema.field(column.name) for column in kept]
    result = pa.schema([*fields, bound.schema.field(len(bound.schema) - 1)])
    return replace(bound, left_schema=schemas[0], right_schema=schemas[1], columns=kept, schema=result)


def _needed(bound: BoundSpec, side: int) -> set[str]:
    """The columns of one side that the join reads."""
    needed = matched_columns(bound, side)
    if bound.residual is not None:
        needed |= {c.name for c in bound.residual.columns if c.qualifier == ("r" if side else "l")}
    return needed


def matched_columns(bound: BoundSpec, side: int) -> set[str]:
    """The columns of one side that hold a value in every row that has a partner: keys and times."""
    found = {(term.right if side else term.left).name for term in (*bound.terms, *bound.index)}
    if bound.time is not None:
        found.add(bound.time.right if side else bound.time.left)
    return found
