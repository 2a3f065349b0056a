"""A residual as a program for kernels, and tuples as the rows it reads: see `kernels.conditions`.

What has a program: comparisons, BETWEEN, IN, IS NULL, AND, OR and NOT over arithmetic (`+ - * /`, ABS) of whole numbers
of at most 64 signed bits, floats, booleans, dates, times and intervals. Text, decimals, CASE, LIKE and other functions
have none; such a residual is evaluated by `model.expression.evaluation`, column by column. Both give the same rows:
the typing rules are the same functions, NOT is moved into comparisons, and a comparison with a NULL is false.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.jit.machine import I64
from streamjoin.kernels import conditions as kernels
from streamjoin.model.binding import BoundSpec
from streamjoin.model.expression import nodes
from streamjoin.model.expression.calculation import rescale, to_float
from streamjoin.model.expression.evaluation import evaluate
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.expression.value_kinds import (
    EXACT,
    ValueKind,
    arithmetic_kind,
    arrow_kind,
    common_kind,
    negative_kind,
)
from streamjoin.model.expression.values import Values

_KINDS = frozenset(
    {
        ValueKind.BOOLEAN,
        ValueKind.INTEGER,
        ValueKind.FLOAT,
        ValueKind.DATE,
        ValueKind.TIMESTAMP,
        ValueKind.INSTANT,
        ValueKind.INTERVAL,
    }
)
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_SWAPPED = {">": "<", ">=": "<="}
_COMPARE = {"=": kernels.EQUAL, "<>": kernels.UNEQUAL, "<": kernels.LESS, "<=": kernels.LESS_EQUAL}
_WHOLE = {"+": kernels.ADD, "-": kernels.SUBTRACT, "*": kernels.MULTIPLY}
_FLOAT = {
    "+": kernels.FLOAT_ADD,
    "-": kernels.FLOAT_SUBTRACT,
    "*": kernels.FLOAT_MULTIPLY,
    "/": kernels.FLOAT_DIVIDE,
}
_TO_FLOAT = kernels.FLOAT_EQUAL - kernels.EQUAL
_MOST_CHOICES = 16
Part = tuple[Column, bool]
"""A column of a program: the values of a column, or whether they are known (not NULL)."""


class _NoProgram(Exception):  # noqa: N818 - never leaves the module
    """The expression has no program."""


@dataclass(frozen=True)
class Condition:
    """The residual of a bound spec as two programs."""

    programs: tuple[I64, I64]
    """For left tuples that look among right ones, and the other way round."""
    parts: tuple[tuple[Part, ...], tuple[Part, ...]]
    """The columns of each side's rows."""

    @classmethod
    def of(cls, bound: BoundSpec) -> Condition | None:
        """The programs of a bound spec; None if it has no residual, or one without a program."""
        if bound.residual is None:
            return None
        schemas = {"l": bound.left_schema, "r": bound.right_schema}
        if bound.spec.self_join:
            schemas["r"] = bound.left_schema
        try:
            parts = [_parts(bound.residual, schemas[side], side) for side in "lr"]
            left, right = (_compiled(bound.residual, schemas, side, parts) for side in "lr")
        except _NoProgram:
            return None
        return cls((left, right), (tuple(parts[0]), tuple(parts[1])))

    def columns(self, side: int) -> list[Column]:
        """The columns that a side's rows are made of."""
        return list(dict.fromkeys(column for column, _ in self.parts[side]))

    def rows(self, side: int, values: Mapping[Column, Values], n: int) -> I64:
        """The rows of `n` tuples of a side."""
        rows = np.empty((n, len(self.parts[side])), np.int64)
        for place, (column, tells_known) in enumerate(self.parts[side]):
            rows[:, place] = _known(values[column]) if tells_known else _words(values[column])
        return rows


def _known(values: Values) -> Array | bool:
    return True if values.valid is None else values.valid


def _words(values: Values) -> Array:
    if values.kind is not ValueKind.FLOAT:
        return values.data
    data = values.data if values.valid is None else np.where(values.valid, values.data, np.nan)
    return np.ascontiguousarray(data).view(np.int64)


def _parts(expression: Expression, schema: pa.Schema, side: str) -> list[Part]:
    parts = []
    for column in expression.columns:
        if column.qualifier == side:
            kind, _ = _kind_of(column, schema)
            parts += [(column, False)] if kind is ValueKind.FLOAT else [(column, False), (column, True)]
    return parts


def _kind_of(column: Column, schema: pa.Schema) -> tuple[ValueKind, int]:
    kind = arrow_kind(schema.field(column.name).type)
    is_wide = kind is not None and kind[0] is ValueKind.INTEGER and _is_unsigned(schema.field(column.name).type)
    if kind is None or kind[0] not in _KINDS or is_wide:
        raise _NoProgram
    return kind


def _is_unsigned(type_: pa.DataType) -> bool:
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    type_ = getattr(type_, "storage_type", type_)
    return bool(type_.equals(pa.uint64()))


@dataclass(frozen=True)
class _Value:
    """A register and what it holds."""

    register: int
    kind: ValueKind
    scale: int = 0
    known: frozenset[int] = frozenset()
    """Registers that are 0 where it is NULL."""
    constant: Values | None = None


# What a register depends on.
_CONSTANT, _OWN, _STORED = range(3)


def _compiled(
    expression: Expression, schemas: Mapping[str, pa.Schema], own: str, parts: Sequence[Sequence[Part]]
) -> I64:
    """The program for probes of the side `own`."""
    mine, theirs = (parts[0], parts[1]) if own == "l" else (parts[1], parts[0])
    return _Compilation(schemas, mine, theirs).program(expression)


class _Compilation:
    """The rows of a program while it is written."""

    def __init__(self, schemas: Mapping[str, pa.Schema], own: Sequence[Part], stored: Sequence[Part]) -> None:
        self._schemas = schemas
        self._depends = [_STORED] * len(stored)
        self._registers = {part: place for place, part in enumerate(stored)}
        self._n_stored = len(stored)
        self._rows: tuple[list[tuple[int, ...]], ...] = ([], [], [], [])
        self._seen: dict[tuple[int, int, int], int] = {}
        self._copied: set[int] = set()
        for place, part in enumerate(own):
            self._registers[part] = self._new(kernels.OWN, place, 0, _OWN)

    def program(self, expression: Expression) -> I64:
        """The whole program."""
        result = self._truth(expression, True)
        self._everywhere(result)
        if len(self._depends) > kernels.MOST_REGISTERS:
            raise _NoProgram
        constants, own, copies, rest = self._rows
        ends = np.cumsum([kernels.HEADER + len(constants), len(own), len(copies)]).tolist()
        header = [(len(self._depends), self._n_stored, result, 0), (*ends, 0)]
        return np.array([*header, *constants, *own, *copies, *rest], np.int64)

    # -- registers -----------------------------------------------------------------------------------------

    def _new(self, code: int, a: int, b: int, depends: int) -> int:
        """The register of an operation, which is done once."""
        register = self._seen.get((code, a, b))
        if register is None:
            register = self._seen[code, a, b] = len(self._depends)
            self._depends.append(depends)
            self._rows[(0, 1, 3)[depends]].append((code, register, a, b))
        return register

    def _constant(self, bits: int) -> int:
        return self._new(kernels.CONSTANT, bits, 0, _CONSTANT)

    def _everywhere(self, register: int) -> None:
        """Copy what depends on the probe alone to all places."""
        if self._depends[register] == _OWN and register not in self._copied:
            self._copied.add(register)
            self._rows[2].append((kernels.COPY, register, 0, 0))

    def _operation(self, code: int, a: int, b: int | None = None) -> int:
        b = a if b is None else b
        depends = max(_OWN, self._depends[a], self._depends[b])
        if depends == _STORED:
            self._everywhere(a)
            self._everywhere(b)
        return self._new(code, a, b, depends)

    # -- truth ---------------------------------------------------------------------------------------------

    def _truth(self, expression: Expression, wanted: bool) -> int:
        """The register that says where an expression is true, or where it is false; 0 where it is NULL."""
        return self._all(self._conjuncts(expression, wanted))

    def _all(self, tests: Iterable[int]) -> int:
        """AND; what depends on the probe alone first."""
        return self._joined(kernels.AND, sorted(set(tests), key=lambda test: (self._depends[test], test)))

    def _joined(self, code: int, tests: Iterable[int]) -> int:
        return reduce(lambda first, second: self._operation(code, first, second), tests)

    def _conjuncts(self, expression: Expression, wanted: bool) -> list[int]:
        """Registers of which all are 1 where an expression is true, or where it is false."""
        match expression:
            case nodes.Not(operand=operand):
                return self._conjuncts(operand, not wanted)
            case nodes.And(terms=terms) | nodes.Or(terms=terms):
                if isinstance(expression, nodes.And) == wanted:
                    return [test for term in terms for test in self._conjuncts(term, wanted)]
                return [self._joined(kernels.OR, [self._truth(term, wanted) for term in terms])]
            case nodes.Compare(operator=operator, left=left, right=right) if operator in _NEGATED:
                return self._compared(operator if wanted else _NEGATED[operator], self._of(left), self._of(right))
            case nodes.Between(operand=operand, low=low, high=high):
                value = self._of(operand)
                if wanted:
                    return self._compared(">=", value, self._of(low)) + self._compared("<=", value, self._of(high))
                return self._any(
                    [self._compared("<", value, self._of(low)), self._compared(">", value, self._of(high))]
                )
            case nodes.In(operand=operand, choices=choices):
                return self._in(self._of(operand), choices, wanted)
            case nodes.IsNull(operand=Column() as column):
                return [self._is_null(self._of(column), wanted)]
            case nodes.IsTruth(operand=operand, value=value) if wanted:
                return self._conjuncts(operand, value)
            case Column():
                flag = self._of(expression)
                if flag.kind is ValueKind.BOOLEAN:
                    return self._compared("<>" if wanted else "=", flag, self._whole(0, ValueKind.BOOLEAN))
            case nodes.Literal(value=bool() | None as constant):
                return [self._constant(int(constant is wanted))]
        raise _NoProgram

    def _any(self, tests: Iterable[list[int]]) -> list[int]:
        return [self._joined(kernels.OR, [self._all(each) for each in tests])]

    def _in(self, operand: _Value, choices: Sequence[nodes.Constant], wanted: bool) -> list[int]:
        literals = [choice for choice in choices if choice != nodes.NULL]
        if len(literals) > _MOST_CHOICES:
            raise _NoProgram
        if not literals or (not wanted and len(literals) < len(choices)):
            return [self._constant(0)]
        tests = [self._compared("=" if wanted else "<>", operand, self._of(choice)) for choice in literals]
        return self._any(tests) if wanted else [test for each in tests for test in each]

    def _is_null(self, value: _Value, wanted: bool) -> int:
        if value.kind is ValueKind.FLOAT:
            is_nan = self._operation(kernels.IS_NAN, value.register)
            return is_nan if wanted else self._operation(kernels.NOT, is_nan)
        (known,) = value.known
        return self._operation(kernels.NOT, known) if wanted else known

    def _compared(self, operator: str, left: _Value, right: _Value) -> list[int]:
        if operator in _SWAPPED:
            operator, left, right = _SWAPPED[operator], right, left
        kind = common_kind((left.kind, right.kind))
        code = _COMPARE[operator]
        if kind is ValueKind.FLOAT:
            left, right, code = self._float(left), self._float(right), code + _TO_FLOAT
        elif kind in EXACT or kind is ValueKind.BOOLEAN:
            scale = max(left.scale, right.scale)
            left, right = self._scaled(left, scale), self._scaled(right, scale)
        else:
            raise _NoProgram
        return [self._operation(code, left.register, right.register), *left.known, *right.known]

    # -- values --------------------------------------------------------------------------------------------

    def _of(self, expression: Expression) -> _Value:
        """The value of an expression."""
        if not expression.columns:
            return self._of_constant(evaluate(expression, {}))
        match expression:
            case Column():
                kind, scale = _kind_of(expression, self._schemas[expression.qualifier])
                known = self._registers.get((expression, True))
                nulls = frozenset() if known is None else frozenset({known})
                return _Value(self._registers[expression, False], kind, scale, nulls)
            case nodes.Negative(operand=operand):
                value = self._of(operand)
                if negative_kind(value.kind) is not None:
                    is_float = value.kind is ValueKind.FLOAT
                    zero = self._of_float(0.0) if is_float else self._whole(0, value.kind, value.scale)
                    return self._calculated("-", zero, value, value.kind)
            case nodes.Arithmetic(operator=operator, left=left, right=right):
                values = self._of(left), self._of(right)
                result = arithmetic_kind(operator, values[0].kind, values[1].kind)
                if result is not None:
                    return self._calculated(operator, *values, result)
            case nodes.Function(name="ABS", arguments=(operand,)):
                value = self._of(operand)
                code = kernels.FLOAT_ABSOLUTE if value.kind is ValueKind.FLOAT else kernels.ABSOLUTE
                if negative_kind(value.kind) is not None:
                    return _Value(self._operation(code, value.register), value.kind, value.scale, value.known)
        raise _NoProgram

    def _calculated(self, operator: str, left: _Value, right: _Value, kind: ValueKind) -> _Value:
        known = left.known | right.known
        if kind is ValueKind.FLOAT and operator in _FLOAT:
            left, right = self._float(left), self._float(right)
            return _Value(self._operation(_FLOAT[operator], left.register, right.register), kind, 0, known)
        if kind not in EXACT or operator not in _WHOLE:
            raise _NoProgram
        scale = left.scale + right.scale
        if operator != "*":
            scale = max(left.scale, right.scale)
            left, right = self._scaled(left, scale), self._scaled(right, scale)
        return _Value(self._operation(_WHOLE[operator], left.register, right.register), kind, scale, known)

    def _of_constant(self, values: Values) -> _Value:
        if values.valid is not None and not values.valid.all():
            raise _NoProgram
        if values.kind is ValueKind.FLOAT:
            return self._of_float(float(values.data[0]))
        if values.data.dtype != np.int64 and values.kind is not ValueKind.BOOLEAN:
            raise _NoProgram
        return self._whole(int(values.data[0]), values.kind, values.scale)

    def _of_float(self, number: float) -> _Value:
        return _Value(self._constant(int(np.float64(number).view(np.int64))), ValueKind.FLOAT)

    def _whole(self, number: int, kind: ValueKind, scale: int = 0) -> _Value:
        constant = Values(np.array([number]), None, kind, scale)
        return _Value(self._constant(number), kind, scale, constant=constant)

    def _float(self, value: _Value) -> _Value:
        if value.kind is ValueKind.FLOAT:
            return value
        if value.constant is not None:
            return self._of_float(float(to_float(value.constant).data[0]))
        if value.kind is not ValueKind.INTEGER or value.scale:
            raise _NoProgram
        return _Value(self._operation(kernels.AS_FLOAT, value.register), ValueKind.FLOAT, 0, value.known)

    def _scaled(self, value: _Value, scale: int) -> _Value:
        if value.scale == scale:
            return value
        if value.constant is not None:
            return self._of_constant(rescale(value.constant, scale))
        factor = self._constant(10 ** (scale - value.scale))
        return _Value(self._operation(kernels.MULTIPLY, value.register, factor), value.kind, scale, value.known)
