"""Type checking of a condition against the schemas of its streams.

A condition that passes evaluates without a type error on any data of these schemas. The rules are in
``value_kinds``; this module applies them to columns and reports failures by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from streamjoin.model.errors import SchemaError
from streamjoin.model.expression.node import shorten
from streamjoin.model.expression.nodes import (
    And,
    Arithmetic,
    Between,
    Case,
    Cast,
    Column,
    Compare,
    Constant,
    Expression,
    Function,
    In,
    IsTruth,
    Like,
    Negative,
    Not,
    Or,
)
from streamjoin.model.expression.signatures import FUNCTIONS
from streamjoin.model.expression.value_kinds import (
    ValueKind,
    arithmetic_kind,
    arrow_kind,
    common_kind,
    negative_kind,
    result_type,
)
from streamjoin.model.expression.values import from_constant
from streamjoin.model.plain_types import plain_type


@dataclass(frozen=True)
class _Typed:
    kind: ValueKind
    scale: int = 0
    declared: pa.DataType | None = None

    @property
    def arrow(self) -> pa.DataType:
        return result_type(self.kind, self.scale) if self.declared is None else self.declared

    def __str__(self) -> str:
        return self.kind.value if self.declared is None else str(self.declared)


_BOOLEAN = _Typed(ValueKind.BOOLEAN)


def check(expr: Expression, schemas: Mapping[str, pa.Schema]) -> pa.DataType:
    """The type of ``expr`` over columns whose qualifiers name ``schemas``.

    Raises:
        SchemaError: a column is unknown or of a type that conditions don't take, or operands don't fit.
    """
    type_ = _typed(expr, schemas).arrow
    if type_ != pa.int64():
        return type_
    low, high = _whole_range(expr, schemas) or (0, 0)
    if high <= _INT64_MAX:
        return type_
    return pa.uint64() if low >= 0 else pa.decimal128(_DIGITS_OF_UINT64, 0)


_INT64_MAX = (1 << 63) - 1
_DIGITS_OF_UINT64 = 20


def _whole_range(expr: Expression, schemas: Mapping[str, pa.Schema]) -> tuple[int, int] | None:
    """The least and the largest value of a choice among whole columns and constants; None for what is calculated."""
    if isinstance(expr, Column):
        type_ = plain_type(schemas[expr.qualifier].field(expr.name).type)
        if not pa.types.is_integer(type_):
            return None
        signed = pa.types.is_signed_integer(type_)
        return (
            (-(1 << type_.bit_width - 1), (1 << type_.bit_width - 1) - 1) if signed else (0, (1 << type_.bit_width) - 1)
        )
    if isinstance(expr, Constant):
        value = from_constant(expr)
        number = int(value.data.reshape(-1)[0]) if value.kind is ValueKind.INTEGER else 0
        return number, number
    if isinstance(expr, Function) and expr.name == "ABS":
        own = _whole_range(expr.arguments[0], schemas)
        return own if own is not None and own[0] >= 0 else None
    if isinstance(expr, Function) and expr.name in ("COALESCE", "GREATEST", "LEAST"):
        options: list[Expression] = list(expr.arguments)
    elif isinstance(expr, Case):
        options = [*(value for _, value in expr.branches), expr.default]
    else:
        return None
    ranges = [_whole_range(option, schemas) for option in options]
    known = [found for found in ranges if found is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if len(known) == len(ranges) else None


def check_condition(expr: Expression, schemas: Mapping[str, pa.Schema]) -> None:
    """Check that ``expr`` is a boolean over these schemas.

    Raises:
        SchemaError: as :func:`check`, or the result is not a boolean.
    """
    _require_boolean(expr, _typed(expr, schemas), "the condition must be a boolean")


def _typed(expr: Expression, schemas: Mapping[str, pa.Schema]) -> _Typed:
    if isinstance(expr, Column):
        return _column(expr, schemas)
    if isinstance(expr, Constant):
        value = from_constant(expr)
        return _Typed(value.kind, value.scale)
    children = expr.children
    operands = [_typed(child, schemas) for child in children]
    if isinstance(expr, And | Or | Not | IsTruth):
        word = {And: "AND", Or: "OR", Not: "NOT"}.get(type(expr), "IS TRUE and IS FALSE")
        for child, typed in zip(children, operands, strict=True):
            _require_boolean(child, typed, f"{word} takes booleans")
    elif isinstance(expr, Compare | Between | In):
        for child, typed in zip(children[1:], operands[1:], strict=True):
            _require_comparable(expr, (children[0], operands[0]), (child, typed))
    elif isinstance(expr, Like):
        if operands[0].kind not in (ValueKind.STRING, ValueKind.NULL):
            raise SchemaError(f"LIKE takes strings; {_named(expr.operand, operands[0])} is not one")
    elif isinstance(expr, Arithmetic | Negative):
        return _arithmetic(expr, operands)
    elif isinstance(expr, Function):
        return _function(expr, operands)
    elif isinstance(expr, Case):
        return _case(expr, operands)
    elif isinstance(expr, Cast):
        return _cast(expr, operands[0])
    return _BOOLEAN


def _column(column: Column, schemas: Mapping[str, pa.Schema]) -> _Typed:
    schema = schemas.get(column.qualifier)
    if schema is None:
        raise SchemaError(f"{column}: no stream {column.qualifier!r}; there are: {', '.join(schemas)}")
    places = schema.get_all_field_indices(column.name)
    if not places:
        near = difflib.get_close_matches(column.name, schema.names, n=1)
        near = near or [name for name in schema.names if name.lower() == column.name.lower()]
        hint = f"did you mean {Column(column.qualifier, near[0])}? " if near else ""
        raise SchemaError(f"unknown column {column}; {hint}there are: {', '.join(schema.names)}")
    if len(places) > 1:
        raise SchemaError(f"{column} is ambiguous: the schema has {len(places)} columns of that name")
    type_ = schema.field(places[0]).type
    kind_and_scale = arrow_kind(type_)
    if kind_and_scale is None:
        raise SchemaError(
            f"{column} is {type_}, which a condition can't use; it takes booleans, numbers, strings, binary, "
            "dates, timestamps and durations"
        )
    return _Typed(*kind_and_scale, declared=type_.value_type if pa.types.is_dictionary(type_) else type_)


def _require_boolean(node: Expression, typed: _Typed, demand: str) -> None:
    if typed.kind not in (ValueKind.BOOLEAN, ValueKind.NULL):
        raise SchemaError(f"{demand}; {_named(node, typed)} is not one")


def _require_comparable(whole: Expression, left: tuple[Expression, _Typed], right: tuple[Expression, _Typed]) -> None:
    kinds = {left[1].kind, right[1].kind}
    if common_kind(kinds) is None:
        raise SchemaError(f"can't compare {_named(*left)} with {_named(*right)} in: {shorten(whole)}{_advice(kinds)}")


def _advice(kinds: set[ValueKind]) -> str:
    if ValueKind.INSTANT in kinds and kinds & {ValueKind.TIMESTAMP, ValueKind.DATE}:
        return "; give both a time zone or neither (a literal with one: TIMESTAMPTZ '2024-01-31 12:00:00+00:00')"
    if ValueKind.STRING in kinds and kinds & {ValueKind.TIMESTAMP, ValueKind.DATE, ValueKind.INSTANT}:
        return "; write a moment as DATE '2024-01-31' or TIMESTAMP '2024-01-31 12:00:00'"
    if ValueKind.INTERVAL in kinds:
        return "; write a length of time as INTERVAL '5 seconds'"
    return "; compare values of one kind"


def _arithmetic(expr: Arithmetic | Negative, operands: list[_Typed]) -> _Typed:
    scales = [operand.scale for operand in operands]
    if isinstance(expr, Negative):
        kind = negative_kind(operands[0].kind)
        operator = "unary minus"
    else:
        kind = arithmetic_kind(expr.operator, operands[0].kind, operands[1].kind)
        operator = expr.operator
    if kind is None:
        descriptions = " and ".join(_named(*pair) for pair in zip(expr.children, operands, strict=True))
        raise SchemaError(f"{operator} can't take {descriptions} in: {shorten(expr)}")
    return _Typed(kind, sum(scales) if operator == "*" else max(scales))


def _function(expr: Function, operands: list[_Typed]) -> _Typed:
    signature = FUNCTIONS[expr.name]
    kind = signature.kind([operand.kind for operand in operands])
    if kind is None:
        descriptions = ", ".join(_named(*pair) for pair in zip(expr.arguments, operands, strict=True))
        is_text = expr.name in ("CONCAT", "||")
        raise SchemaError(f"{expr.name} can't take {descriptions}{_AS_TEXT * is_text}")
    return _Typed(kind, signature.scale_of([operand.scale for operand in operands]))


_AS_TEXT = "; write CAST(... AS VARCHAR) around what is no string"


def _case(expr: Case, operands: list[_Typed]) -> _Typed:
    conditions, values = operands[:-1:2], [*operands[1:-1:2], operands[-1]]
    for (condition, _), typed in zip(expr.branches, conditions, strict=True):
        _require_boolean(condition, typed, "WHEN takes booleans")
    kind = common_kind(value.kind for value in values)
    if kind is None:
        kinds = ", ".join(dict.fromkeys(map(str, values)))
        raise SchemaError(f"the values of a CASE must be of one kind, not {kinds}, in: {shorten(expr)}")
    return _Typed(kind, max(value.scale for value in values))


def _cast(expr: Cast, operand: _Typed) -> _Typed:
    target, kind = expr.target, operand.kind
    if kind not in target.always | target.perhaps | {ValueKind.NULL}:
        raise SchemaError(f"{_named(expr.operand, operand)} can't be cast to {expr.type}")
    if not expr.safe and kind not in target.always | {ValueKind.NULL}:
        wide = "; for whole numbers BIGINT has room" if {kind, target.kind} == {ValueKind.INTEGER} else ""
        raise SchemaError(
            f"not every {kind.value} has a value as {expr.type}: write TRY_CAST({shorten(expr.operand, 40)} AS "
            f"{expr.type}), which gives NULL where it has none{wide}"
        )
    return _Typed(target.kind, target.scale_from(kind, operand.scale))


def _named(node: Expression, typed: _Typed) -> str:
    return f"{shorten(node, 40)} ({typed})"
