"""Values for the `:name` of a query's text.

A value becomes a literal in the text before it is read, so the text that is stored and shown has it. Invariant: a value
stays one value, whatever it contains; where a name stands in a string or a comment it is not a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final

import numpy as np

from streamjoin.model.durations import nanoseconds
from streamjoin.model.errors import ExpressionError, SpecError
from streamjoin.model.expression.parsing import Scan
from streamjoin.model.expression.source_text import SourceText, Word

_OPERAND_ENDS: Final = frozenset(("VAR", "IDENTIFIER", "STRING", "NUMBER", "R_PAREN", "R_BRACKET"))
_NANOSECONDS: Final = 1_000


def with_values(source: SourceText, parameters: Mapping[str, Any] | None = None) -> str:
    """The text with a literal for each `:name`.

    Raises:
        QueryError: a parameter has no value, or is written in another way.
        SpecError: a value can't be written in SQL, or belongs to no parameter.
    """
    values = _checked(parameters)
    if not values and not any(mark in source.text for mark in ":?$@"):
        return source.text
    places = _places(Scan.of(source).source)
    unused = sorted(values.keys() - {name for name, _, _ in places})
    if unused:
        there = ", ".join(dict.fromkeys(f":{name}" for name, _, _ in places)) or "none"
        raise SpecError(f"parameters has {unused[0]!r}, and the text has no :{unused[0]}; in it are: {there}")
    text, end = [], 0
    for name, start, after in places:
        if name not in values:
            message = f":{name} has no value: give parameters={{{name!r}: ...}}, or write the value itself"
            raise source.error(message, start, after)
        beside = source.text[start - 1 : start], source.text[after : after + 1]
        text += [source.text[end:start], _apart(values[name], *beside)]
        end = after
    return "".join([*text, source.text[end:]])


def _apart(value: str, before: str, after: str) -> str:
    """A literal that the characters beside it don't become a part of."""
    return " " * (before.isalnum() or before == "_") + value + " " * (after == "'")


def _checked(parameters: Mapping[str, Any] | None) -> dict[str, str]:
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping) or not all(isinstance(name, str) for name in parameters):
        raise SpecError(f"parameters is a dict of values by name, such as {{'sym': 'A'}}, not {parameters!r}")
    return {name.removeprefix(":"): literal(value, name) for name, value in parameters.items()}


def _places(source: SourceText) -> list[tuple[str, int, int]]:
    """The parameters of a text, with their places."""
    words, found = source.words, []
    for number, word in enumerate(words):
        before = words[number - 1] if number else None
        after = words[number + 1] if number + 1 < len(words) else None
        follows = after is not None and after.start == word.end and source.of(after).isalnum()
        is_other = word.kind == "PLACEHOLDER" or (word.kind == "PARAMETER" and follows)
        if is_other or (word.kind == "VAR" and source.of(word).startswith("$")):
            raise _unnamed(source, word)
        if word.kind != "COLON" or after is None or after.start != word.end:
            continue
        is_access = before is not None and before.end == word.start and before.kind in _OPERAND_ENDS
        name = source.of(after)
        if name.isdigit():
            raise _unnamed(source, word)
        if name.isidentifier() and not is_access:
            found.append((name, word.start, after.end))
    return found


def _unnamed(source: SourceText, word: Word) -> ExpressionError:
    message = "a parameter has a name: write :sym and give parameters={'sym': ...}, or write the value itself"
    return source.error(message, word.start, word.end)


def literal(value: Any, name: str = "value") -> str:
    """A value as SQL writes it; several values become a list for IN.

    >>> literal("it's"), literal([1, 2.5, None]), literal(timedelta(seconds=5))
    ("'it''s'", '(1, 2.5, NULL)', "INTERVAL '5000000 microseconds'")
    """
    if isinstance(value, list | tuple | set | frozenset):
        if not value:
            raise SpecError(f"the parameter {name!r} is empty: IN needs at least one value")
        return f"({', '.join(_single(one, name) for one in value)})"
    return _single(value, name)


def _single(value: Any, name: str) -> str:
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64):
        value = value.item()
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return _string(value, name)
    if isinstance(value, int | float | Decimal):
        return _number(value, name)
    return _moment(value, name)


def _number(value: int | float | Decimal, name: str) -> str:
    """A number, with its sign in parentheses: two of them would begin a comment."""
    try:
        is_written = isfinite(value)
    except (OverflowError, ValueError):
        is_written = False
    if not is_written:
        shown = value if isinstance(value, float | Decimal) else "an integer of this size"
        raise SpecError(f"the parameter {name!r} is {shown}, which no literal writes; NaN is NULL in a query")
    # Of a subclass, such as an enumeration, the number alone.
    text = str(value) if isinstance(value, Decimal) else repr(float(value) if isinstance(value, float) else int(value))
    return f"({text})" if text.startswith("-") else text


def _string(value: str, name: str) -> str:
    if "\x00" in value:
        raise SpecError(f"the parameter {name!r} has a NUL character, which no query has")
    return "'" + value.replace("'", "''") + "'"


def _moment(value: Any, name: str) -> str:
    """A time, a date or a duration."""
    if isinstance(value, np.datetime64 | np.timedelta64 | datetime | timedelta) and value != value:
        raise SpecError(f"the parameter {name!r} is {value}, which no literal writes; give None for NULL")
    if isinstance(value, np.datetime64):
        whole = value.astype("datetime64[us]")
        if whole != value:
            return f"TIMESTAMP '{np.datetime_as_string(value, unit='ns').replace('T', ' ')}'"
        if not isinstance(whole.item(), datetime):
            raise SpecError(f"the parameter {name!r} is {value}: a time lies between the years 1 and 9999")
        value = whole.item()
    if isinstance(value, datetime):
        text = value.isoformat(sep=" ")
        return f"TIMESTAMP '{text}'" if value.tzinfo is None else f"TIMESTAMPTZ '{text}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, timedelta | np.timedelta64):
        whole, rest = divmod(nanoseconds(value), _NANOSECONDS)
        return (
            f"INTERVAL '{whole} microseconds'" if not rest else f"INTERVAL '{whole * _NANOSECONDS + rest} nanoseconds'"
        )
    raise SpecError(
        f"the parameter {name!r} is a {type(value).__name__}: give a number, a text, a truth value, None, a date, a "
        "datetime, a timedelta, or a list of these for IN"
    )
