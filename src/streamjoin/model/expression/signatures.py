"""Every function of a condition: what it takes, and what it gives.

The table of types; `functions` has the same names with their evaluation, and `conversion` how they are written. Literal
arguments, such as a unit of time or a regular expression, are checked when the text is read, so that none can fail on a
row. A NULL argument gives NULL, except that COALESCE, LEAST, GREATEST and CONCAT leave NULLs out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from streamjoin.model.errors import ExpressionError
from streamjoin.model.expression.json_paths import parse_path
from streamjoin.model.expression.patterns import check_extract, check_pattern, check_replacement
from streamjoin.model.expression.value_kinds import NUMBERS, ValueKind, common_kind, negative_kind

Kinds = frozenset[ValueKind]
_TEXT: Final[Kinds] = frozenset({ValueKind.STRING})
_WHOLE: Final[Kinds] = frozenset({ValueKind.INTEGER})
_MOMENTS: Final[Kinds] = frozenset({ValueKind.DATE, ValueKind.TIMESTAMP, ValueKind.INSTANT})
_ANY: Final[Kinds] = frozenset(ValueKind)

UNITS: Final = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
"""What DATE_TRUNC cuts to."""
MOST_DIGITS: Final = 30
"""Of ROUND, on either side of the point."""
PARTS: Final = (*UNITS, "dow", "isodow", "doy", "isoyear")
"""What DATE_PART gives; weeks are those of ISO 8601."""


@dataclass(frozen=True)
class Signature:
    """What a function takes, by position (the last kinds for all further arguments), and what it gives.

    `check` gets the literal arguments, at the positions `literals`; None where one is left out.
    """

    takes: tuple[Kinds, ...]
    gives: ValueKind | Callable[[Sequence[ValueKind]], ValueKind | None]
    least: int
    most: int | None
    literals: tuple[int, ...] = ()
    check: Callable[..., None] | None = None
    keeps_scale: bool = False
    """Whether what it gives has the decimals of the arguments; it has none otherwise, or `scale`."""
    scale: int = 0
    skips_null: bool = False

    def kind(self, arguments: Sequence[ValueKind]) -> ValueKind | None:
        """The kind of a call, or None if the function does not take such arguments."""
        for place, kind in enumerate(arguments):
            if kind not in self.takes[min(place, len(self.takes) - 1)] | {ValueKind.NULL}:
                return None
        return self.gives if isinstance(self.gives, ValueKind) else self.gives(arguments)

    def scale_of(self, scales: Sequence[int]) -> int:
        """The decimals of a call, from those of its arguments."""
        # ROUND without a number of digits gives whole numbers.
        keeps = self.keeps_scale and (self.most is None or len(scales) == self.most)
        return max(scales) if keeps else self.scale


def _own(arguments: Sequence[ValueKind]) -> ValueKind:
    return {ValueKind.NUMERAL: ValueKind.FLOAT, ValueKind.NULL: ValueKind.INTEGER}.get(arguments[0], arguments[0])


def _truncated(arguments: Sequence[ValueKind]) -> ValueKind:
    return ValueKind.INSTANT if arguments[1] is ValueKind.INSTANT else ValueKind.TIMESTAMP


def _choice() -> Signature:
    return Signature((_ANY,), common_kind, 1, None, keeps_scale=True, skips_null=True)


def _float(least: int = 1) -> Signature:
    return Signature((NUMBERS,), ValueKind.FLOAT, least, least)


def _test(*more: Kinds) -> Signature:
    return Signature((_TEXT, *more), ValueKind.BOOLEAN, 1 + len(more), 1 + len(more))


def _string(*more: Kinds, optional: int = 0) -> Signature:
    return Signature((_TEXT, *more), ValueKind.STRING, 1 + len(more) - optional, 1 + len(more))


def _one_of(known: Sequence[str], what: str) -> Callable[[object], None]:
    def check(unit: object) -> None:
        if unit not in known:
            raise ExpressionError(f"{unit!r} is no {what}; known: {', '.join(known)}")

    return check


def _check_digits(digits: object = 0) -> None:
    if abs(int(str(digits))) > MOST_DIGITS:
        raise ExpressionError(f"ROUND takes -{MOST_DIGITS} to {MOST_DIGITS} digits, not {digits}")


def _check_path(path: object) -> None:
    parse_path(str(path))


FUNCTIONS: Final[Mapping[str, Signature]] = MappingProxyType(
    {
        "ABS": Signature((_ANY,), lambda kinds: negative_kind(kinds[0]), 1, 1, keeps_scale=True),
        "ACOS": _float(),
        "ASIN": _float(),
        "ATAN": _float(),
        "ATAN2": _float(2),
        "CEIL": Signature((NUMBERS,), _own, 1, 1),
        "COALESCE": _choice(),
        "CONCAT": Signature((_TEXT,), ValueKind.STRING, 1, None, skips_null=True),
        "CONTAINS": _test(_TEXT),
        "COS": _float(),
        "DATE_PART": Signature((_TEXT, _MOMENTS), ValueKind.INTEGER, 2, 2, (0,), _one_of(PARTS, "part of a time")),
        "DATE_TRUNC": Signature(
            (_TEXT, _MOMENTS), _truncated, 2, 2, (0,), _one_of(UNITS, "unit of time"), keeps_scale=True
        ),
        "DEGREES": _float(),
        "ENDS_WITH": _test(_TEXT),
        "EPOCH": Signature((_MOMENTS | {ValueKind.INTERVAL},), ValueKind.FLOAT, 1, 1),
        "EPOCH_MS": Signature((_MOMENTS | {ValueKind.INTERVAL},), ValueKind.INTEGER, 1, 1),
        "EXP": _float(),
        "FLOOR": Signature((NUMBERS,), _own, 1, 1),
        "GREATEST": _choice(),
        "JSON_EXTRACT": Signature((_TEXT, _TEXT), ValueKind.STRING, 2, 2, (1,), _check_path),
        "JSON_EXTRACT_STRING": Signature((_TEXT, _TEXT), ValueKind.STRING, 2, 2, (1,), _check_path),
        "LEAST": _choice(),
        "LEFT": _string(_WHOLE),
        "LENGTH": Signature((_TEXT,), ValueKind.INTEGER, 1, 1),
        "LN": _float(),
        "LOG10": _float(),
        "LOG2": _float(),
        "LOWER": _string(),
        "LTRIM": _string(_TEXT, optional=1),
        "POWER": _float(2),
        "RADIANS": _float(),
        "REGEXP_EXTRACT": Signature((_TEXT, _TEXT, _WHOLE), ValueKind.STRING, 2, 3, (1, 2), check_extract),
        "REGEXP_MATCHES": Signature((_TEXT, _TEXT, _TEXT), ValueKind.BOOLEAN, 2, 3, (1, 2), check_pattern),
        "REGEXP_REPLACE": Signature((_TEXT, _TEXT, _TEXT, _TEXT), ValueKind.STRING, 3, 4, (1, 2, 3), check_replacement),
        "REPLACE": _string(_TEXT, _TEXT),
        "REVERSE": _string(),
        "RIGHT": _string(_WHOLE),
        "ROUND": Signature((NUMBERS, _WHOLE), _own, 1, 2, (1,), _check_digits, keeps_scale=True),
        "RTRIM": _string(_TEXT, optional=1),
        "SIGN": Signature((NUMBERS,), ValueKind.INTEGER, 1, 1),
        "SIN": _float(),
        "SPLIT_PART": _string(_TEXT, _WHOLE),
        "SQRT": _float(),
        "STARTS_WITH": _test(_TEXT),
        "STRPOS": Signature((_TEXT, _TEXT), ValueKind.INTEGER, 2, 2),
        "SUBSTR": _string(_WHOLE, _WHOLE, optional=1),
        "TAN": _float(),
        "TO_TIMESTAMP": Signature((NUMBERS,), ValueKind.INSTANT, 1, 1, scale=6),
        "TRIM": _string(_TEXT, optional=1),
        "TRUNC": Signature((NUMBERS,), _own, 1, 1),
        "UPPER": _string(),
        "||": Signature((_TEXT,), ValueKind.STRING, 2, 2),
    }
)
"""Every function a condition may call; `||` is written between its arguments."""

NAMES: Final = tuple(name for name in FUNCTIONS if name.isidentifier())
"""Those that are written as a call."""


def function_kind(name: str, arguments: Sequence[ValueKind]) -> ValueKind | None:
    """The kind of a call, or None if the function does not take such arguments."""
    return FUNCTIONS[name].kind(arguments)
