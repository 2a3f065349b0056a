"""The types of CAST and TRY_CAST, and which kinds of values they take.

CAST is allowed where every value has a result; where one may have none, as a string that is no number, TRY_CAST gives
NULL. So no row can make a condition fail. Whole numbers are 64 bits wide and so are floats: a narrower type limits the
range, and REAL the digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression.value_kinds import NUMBERS, ValueKind

MOMENTS: Final = frozenset({ValueKind.DATE, ValueKind.TIMESTAMP, ValueKind.INSTANT})
_BOOLEAN: Final = frozenset({ValueKind.BOOLEAN})
_WHOLE: Final = frozenset({ValueKind.INTEGER})
_TEXT: Final = frozenset({ValueKind.STRING})
_MOST_DIGITS: Final = 38
_DIGITS_OF_INTEGERS: Final = 20
_MICROSECONDS: Final = 6
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+), (\d+)\)")


@dataclass(frozen=True)
class CastType:
    """A type: what it gives, the kinds that always have a value of it, and those that may."""

    name: str
    kind: ValueKind
    always: frozenset[ValueKind]
    perhaps: frozenset[ValueKind] = frozenset()
    bits: int = 64
    """The width of whole numbers and floats."""
    digits: int = 0
    """The digits of a decimal, of which `scale` come after the point."""
    scale: int = 0

    def scale_from(self, kind: ValueKind, scale: int) -> int:
        """The decimals of what it gives: a time keeps its own, and one that is read from a string has microseconds."""
        if self.kind in (ValueKind.TIMESTAMP, ValueKind.INSTANT):
            return _MICROSECONDS if kind is ValueKind.STRING else scale
        return self.scale


def _whole(name: str, bits: int) -> CastType:
    always = _BOOLEAN | (_WHOLE if bits == 64 else frozenset())
    return CastType(name, ValueKind.INTEGER, always, NUMBERS | _TEXT, bits)


_PLAIN: Final[Mapping[str, CastType]] = MappingProxyType(
    {
        one.name: one
        for one in (
            CastType("BOOLEAN", ValueKind.BOOLEAN, _BOOLEAN | _WHOLE, _TEXT),
            _whole("TINYINT", 8),
            _whole("SMALLINT", 16),
            _whole("INTEGER", 32),
            _whole("BIGINT", 64),
            CastType("REAL", ValueKind.FLOAT, _BOOLEAN | _WHOLE, NUMBERS | _TEXT, 32),
            CastType("DOUBLE", ValueKind.FLOAT, _BOOLEAN | NUMBERS, _TEXT),
            CastType("VARCHAR", ValueKind.STRING, _BOOLEAN | NUMBERS | _TEXT | MOMENTS),
            CastType("DATE", ValueKind.DATE, MOMENTS, _TEXT),
            CastType("TIMESTAMP", ValueKind.TIMESTAMP, MOMENTS, _TEXT),
            CastType("TIMESTAMPTZ", ValueKind.INSTANT, MOMENTS, _TEXT),
        )
    }
)
CAST_TYPES: Final = (*_PLAIN, "DECIMAL(10, 2)")
"""The types, with an example of a decimal."""


def cast_type(name: str) -> CastType:
    """The type of this name, which for a decimal has its digits.

    Raises:
        ExpressionError: there is none.
    """
    if name in _PLAIN:
        return _PLAIN[name]
    decimal = _DECIMAL.fullmatch(name)
    if decimal is None:
        raise ExpressionError(f"can't cast to {name}; write one of: {', '.join(CAST_TYPES)}")
    digits, scale = int(decimal[1]), int(decimal[2])
    if not 1 <= digits <= _MOST_DIGITS or scale > digits:
        raise ExpressionError(f"a decimal has 1 to {_MOST_DIGITS} digits, some of them after the point, not {name}")
    always = _WHOLE if digits - scale >= _DIGITS_OF_INTEGERS else frozenset[ValueKind]()
    return CastType(name, ValueKind.DECIMAL, always, NUMBERS | _TEXT, digits=digits, scale=scale)
