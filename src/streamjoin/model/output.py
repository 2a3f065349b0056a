"""The columns of a result: their names, their sources, and which of them are selected.

The rules, for every runtime:

- A column keeps its name, unless the other side has one of the same name: then each gets its side's suffix. Names that
  differ only in case count as the same: Spark, DuckDB and other readers of the result can't tell them apart.
- A key with the same name on both sides appears once, with the left side's value, unless `both_keys` keeps both.
- The time of the result, the later of the pair, is last; a column of the same name gets its side's suffix.
- The columns of a side that an outer join may miss are nullable. There a key that appears once has the value of the
  side that is present, in the common type of both sides (`model/common_types.py`).
- Semi and anti joins give the left side's columns under their own names, and no further time. So does a join with
  summaries, and those follow.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from streamjoin.model.common_types import common_type
from streamjoin.model.errors import SchemaError, SpecError
from streamjoin.model.expression.canonical import conjuncts
from streamjoin.model.expression.nodes import Column, Compare
from streamjoin.model.metadata import Source, result_metadata
from streamjoin.model.predicates import Equi, Theta
from streamjoin.model.spec import JoinSpec
from streamjoin.model.summary import Summary


@dataclass(frozen=True)
class OutputColumn:
    """A column of the result: its source and its name; `is_key` if it represents both sides."""

    name: str
    side: Literal["left", "right", "summary"]
    source: str
    is_key: bool = False


@dataclass(frozen=True)
class ResultColumns:
    """The result's columns, without its time, and those of late rows, which keep the keys of both sides."""

    columns: tuple[OutputColumn, ...]
    late_columns: tuple[OutputColumn, ...]


def output(spec: JoinSpec, left: pa.Schema, right: pa.Schema) -> ResultColumns:
    """The columns that `spec` gives the result of two schemas."""
    time = spec.result_time_name
    both = [{name.lower() for name in schema.names} for schema in (left, right)]
    doubled = (both[0] & both[1]) | ({time.lower()} if time else set())
    sides: tuple[tuple[Literal["left", "right"], pa.Schema, str], ...] = (
        ("left", left, spec.suffixes[0]),
        ("right", right, spec.suffixes[1]),
    )
    columns = tuple(
        OutputColumn(name + suffix if name.lower() in doubled else name, side, name)
        for side, schema, suffix in sides
        for name in schema.names
    )
    once = set() if spec.both_keys else _shared_keys(spec) - {time}
    result = tuple(
        OutputColumn(column.source, "left", column.source, is_key=True) if column.source in once else column
        for column in columns
        if column.side == "left" or column.source not in once
    )
    if spec.left_only:
        result = tuple(OutputColumn(name, "left", name) for name in left.names)
    if isinstance(spec.match, Summary):
        _check_new_names(spec.match, left)
        result += tuple(OutputColumn(name, "summary", name) for name in spec.match.names)
    for names in (columns, result):
        _check_names([column.name for column in names] + ([time] if time else []))
    return ResultColumns(result, columns)


def output_schema(
    columns: Sequence[OutputColumn],
    left: pa.Schema,
    right: pa.Schema,
    time: pa.Field | None = None,
    how: str = "inner",
    times: tuple[str, str] | None = None,
    summaries: pa.Schema | None = None,
) -> pa.Schema:
    """Columns with the types and the metadata of their sources, and the result's time, the later one of `times`.

    The columns of `summaries` have none but their types.
    """
    missing = {"left": ("right",), "right": ("left",), "full": ("left", "right")}.get(how, ())
    fields: list[pa.Field] = []
    sources: list[list[Source]] = []
    for column in columns:
        if column.side == "summary" and summaries is not None:
            fields.append(summaries.field(column.source))
            sources.append([])
            continue
        own = left if column.side == "left" else right
        field = own.field(column.source).with_name(column.name)
        either = column.side in missing and column.is_key
        if either:
            field = _either(field, right.field(column.source), how)
        elif column.side in missing:
            field = field.with_nullable(True)
        fields.append(field)
        sources.append([(left, column.source), (right, column.source)] if either else [(own, column.source)])
    if time is not None:
        fields.append(time)
        sources.append([] if times is None else [(left, times[0]), (right, times[1])])
    sides = [left] if how in ("semi", "anti") or summaries is not None else [left, right]
    return pa.schema(fields, result_metadata(list(zip(fields, sources, strict=True)), sides))


def _either(left: pa.Field, right: pa.Field, how: str) -> pa.Field:
    """A key that has the left side's value, or the right side's where there is no left tuple."""
    common = common_type(left.type, right.type)
    if common is None:
        raise SchemaError(
            f"how={how!r}: the key {left.name!r} is {left.type} on the left and {right.type} on the right; it appears "
            "once in the result, and no type holds every value of both: cast one of them, or set both_keys=True"
        )
    return left.with_type(common).with_nullable(left.nullable or right.nullable)


def wanted(columns: Sequence[OutputColumn], names: Collection[str], time: str | None) -> tuple[OutputColumn, ...]:
    """The `columns` that are in `names`, in the result's order; the time is always included.

    Raises:
        SchemaError: the result has no such column.
    """
    known = [column.name for column in columns]
    for name in names:
        if name not in known and name != time:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known)}"
            raise SchemaError(f"the result has no column {name!r}; {hint}")
    return tuple(column for column in columns if column.name in set(names))


def check_wanted(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """`columns=` as a tuple, checked."""
    if columns is None:
        return None
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise SpecError(f"columns={columns!r}: it is a list of names of the result's columns")
    return tuple(columns)


def _shared_keys(spec: JoinSpec) -> set[str]:
    """The names of shared keys, from the spec alone, so that a type learned later renames nothing."""
    keys = set()
    for term in spec.predicate.terms():
        if isinstance(term, Equi) and term.left == term.right:
            keys.add(term.left)
        for part in conjuncts(term.expression) if isinstance(term, Theta) else ():
            if isinstance(part, Compare) and part.operator == "=":
                one, other = part.left, part.right
                if isinstance(one, Column) and isinstance(other, Column) and one.name == other.name:
                    keys.add(one.name)
    return keys


def _check_new_names(match: Summary, left: pa.Schema) -> None:
    taken = {name.lower(): name for name in left.names}
    for name in match.names:
        if name.lower() in taken:
            raise SchemaError(
                f"the summary {name!r} would be called like the left column {taken[name.lower()]!r}: give it another "
                "name"
            )
        taken[name.lower()] = name


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(
                f"two columns of the result would be called {name!r}; rename one in the input, or set suffixes= or "
                "result_time= in the spec"
            )
