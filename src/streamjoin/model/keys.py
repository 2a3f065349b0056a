"""Fitting an `Equi` or `Band` to the types of its two columns.

Every key becomes an order-preserving 64-bit word, and every condition an inclusive interval of words of the
other side. For integers, times and decimals of up to 18 digits the interval is exact: both columns are
whole multiples of one common unit; a column's own unit is `multiplier` common units. For floats it is
exact too, in the arithmetic of the common type. Strings and binaries are hashed, and decimals of more digits
are approximated: for these the interval only finds candidates and a residual expression decides.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa

from streamjoin.model.durations import DECIMALS, UNITS
from streamjoin.model.errors import SchemaError
from streamjoin.model.expression.nodes import Expression
from streamjoin.model.plain_types import plain_type, storage_type
from streamjoin.model.predicates import Band, Equi

INT64_MAX = (1 << 63) - 1
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class WordKind(enum.Enum):
    """How a term's columns become words."""

    INTEGER = "integer"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BYTES = "bytes"
    WIDE = "wide"


@dataclass(frozen=True)
class KeyColumn:
    """One side's column of a term: its name, and its place on the common scale."""

    name: str
    type: pa.DataType
    unsigned: bool = False
    multiplier: int = 1


@dataclass(frozen=True)
class Comparison:
    """`l.left operator r.right`, where the operator is <, <=, > or >=."""

    left: str
    operator: str
    right: str

    def operator_of(self, side: str) -> str:
        """The operator with a side's own column first."""
        return self.operator if side == "left" else MIRRORED[self.operator]

    def __str__(self) -> str:
        return f"l.{self.left} {self.operator} r.{self.right}"


@dataclass(frozen=True)
class KeyTerm:
    """A term fitted to two columns. `-above <= left - right <= below`, in common units, bounds included.

    A comparison has one bound, and the words of both columns compare like their values.
    """

    term: Equi | Band | Comparison
    kind: WordKind
    left: KeyColumn
    right: KeyColumn
    below: int | float = 0
    above: int | float = 0
    strict: bool = False
    residual: Expression | None = None

    @property
    def exact(self) -> bool:
        """Whether the interval alone decides."""
        return self.residual is None

    @property
    def narrow(self) -> bool:
        """Whether the words of both sides fit 32 bits, so that twice as many fit a vector register."""
        if isinstance(self.term, Comparison):
            return False
        return self.kind is WordKind.FLOAT32 or (
            self.kind is WordKind.INTEGER
            and all(c.type.bit_width <= 32 and c.type not in (pa.uint32(),) for c in (self.left, self.right))
        )


def fit(term: Equi | Band, left_type: pa.DataType, right_type: pa.DataType) -> KeyTerm:
    """Fit `term` to the types of its columns; raises an error if they don't compare."""
    left, right = (storage_type(plain_type(type_)) for type_ in (left_type, right_type))
    if left == right and isinstance(left, pa.BaseExtensionType):
        # If both sides have the same type, equal storage means equal values.
        left = right = left.storage_type
    if any(all(is_kind(type_) for type_ in (left, right)) for is_kind in (_is_moment, _is_time_of_day, _is_duration)):
        return _fit_times(term, left, right)
    if isinstance(term, Band) and term.is_duration:
        raise SchemaError(
            f"{term}: a duration is a distance between timestamps, dates, times of day or durations, but the columns "
            f"are {left} and {right}"
        )
    if _is_number(left) and _is_number(right):
        if pa.types.is_floating(left) or pa.types.is_floating(right):
            return _fit_floats(term, left, right)
        return _fit_integers(term, left, right)
    if isinstance(term, Equi):
        if pa.types.is_boolean(left) and pa.types.is_boolean(right):
            return KeyTerm(term, WordKind.INTEGER, KeyColumn(term.left, left), KeyColumn(term.right, right))
        if (_is_text(left) and _is_text(right)) or (_is_binary(left) and _is_binary(right)):
            residual = _condition(f"l.{quoted(term.left)} = r.{quoted(term.right)}")
            return KeyTerm(
                term, WordKind.BYTES, KeyColumn(term.left, left), KeyColumn(term.right, right), residual=residual
            )
    elif _is_text(left) or _is_text(right):
        raise SchemaError(f"{term}: a band needs numbers or times, but the columns are {left} and {right}")
    raise SchemaError(f"{term}: {left} and {right} don't compare; cast one column so that both are of one kind")


def quoted(name: str) -> str:
    """`name` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _is_moment(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_date(type_))


def _is_time_of_day(type_: pa.DataType) -> bool:
    return bool(pa.types.is_time(type_))


def _is_duration(type_: pa.DataType) -> bool:
    return bool(pa.types.is_duration(type_))


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _is_binary(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_binary_view(type_)
        or pa.types.is_fixed_size_binary(type_)
    )


def tick_ns(type_: pa.DataType) -> int:
    """The nanoseconds in one unit of a timestamp, date, time or duration type."""
    if pa.types.is_date(type_):
        return UNITS["day" if pa.types.is_date32(type_) else "millisecond"]
    return int(10 ** (9 - DECIMALS[type_.unit]))


def check_zones(what: str, left: pa.DataType, right: pa.DataType) -> None:
    """Reject comparing a timestamp with a zone to one without, which does not denote an instant."""
    zones = [pa.types.is_timestamp(t) and t.tz is not None for t in (left, right)]
    if zones[0] != zones[1]:
        raise SchemaError(f"{what}: {left} and {right} don't compare: give both columns a time zone, or neither")


def _fit_times(term: Equi | Band, left: pa.DataType, right: pa.DataType) -> KeyTerm:
    check_zones(str(term), left, right)
    unit = min(tick_ns(left), tick_ns(right))
    columns = [
        KeyColumn(name, type_, multiplier=tick_ns(type_) // unit)
        for name, type_ in ((term.left, left), (term.right, right))
    ]
    below = above = 0
    if isinstance(term, Band):
        if not term.is_duration and (term.below or term.above):
            raise SchemaError(
                f"{term}: the columns are {left} and {right}; give the distance as a duration, such as '5 seconds'"
            )
        below, above = (_whole(term, Fraction(d) / unit) for d in (term.below, term.above))
    return KeyTerm(term, WordKind.INTEGER, columns[0], columns[1], below, above)


def _fit_floats(term: Equi | Band, left: pa.DataType, right: pa.DataType) -> KeyTerm:
    single = all(pa.types.is_float32(t) or pa.types.is_float16(t) for t in (left, right))
    below, above = (float(term.below), float(term.above)) if isinstance(term, Band) else (0.0, 0.0)
    return KeyTerm(
        term,
        WordKind.FLOAT32 if single else WordKind.FLOAT64,
        KeyColumn(term.left, left),
        KeyColumn(term.right, right),
        below,
        above,
        strict=isinstance(term, Band) and term.strict,
    )


def _fit_integers(term: Equi | Band, left: pa.DataType, right: pa.DataType) -> KeyTerm:
    scales = [t.scale if pa.types.is_decimal(t) else 0 for t in (left, right)]
    scale = max(scales)
    columns = [
        KeyColumn(name, type_, unsigned=type_ == pa.uint64(), multiplier=10 ** (scale - own))
        for name, type_, own in ((term.left, left, scales[0]), (term.right, right, scales[1]))
    ]
    wide = any(pa.types.is_decimal(c.type) and c.type.precision > 18 for c in columns)
    if wide or any(c.multiplier > 10**18 for c in columns):
        return _fit_wide(term, columns[0], columns[1])
    below = above = 0
    if isinstance(term, Band):
        below, above = (_whole(term, Fraction(str(d)) * 10**scale) for d in (term.below, term.above))
    return KeyTerm(term, WordKind.INTEGER, columns[0], columns[1], below, above)


def _fit_wide(term: Equi | Band, left: KeyColumn, right: KeyColumn) -> KeyTerm:
    difference = f"l.{quoted(left.name)} - r.{quoted(right.name)}"
    if isinstance(term, Equi):
        text, below, above = f"l.{quoted(left.name)} = r.{quoted(right.name)}", 0.0, 0.0
    else:
        less = "<" if term.strict else "<="
        lower, upper = (f"{Decimal(str(d)):f}" for d in (term.below, term.above))
        text = f"{difference} {less} {lower} AND -({difference}) {less} {upper}"
        below, above = float(term.below), float(term.above)
    return KeyTerm(term, WordKind.WIDE, left, right, below, above, residual=_condition(text))


def _condition(text: str) -> Expression:
    # Most keys need no expression, and loading the SQL parser is slow.
    from streamjoin.model.expression.parsing import parse_condition

    return parse_condition(text, ("l", "r"))


def _whole(band: Band, distance: Fraction) -> int:
    """The largest whole number of units within `distance`, one less if the bound is excluded."""
    whole = distance.numerator // distance.denominator
    if band.strict and whole == distance:
        whole -= 1
    if whole > INT64_MAX:
        raise SchemaError(f"{band}: the distance covers the whole type; use Theta for an unbounded comparison")
    return int(whole)
