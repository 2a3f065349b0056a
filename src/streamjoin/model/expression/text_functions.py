"""The functions of strings, over values: positions count characters from 1, as in SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.expression import patterns
from streamjoin.model.expression.json_paths import Path, find_json, find_text, parse_path
from streamjoin.model.expression.value_kinds import ValueKind
from streamjoin.model.expression.values import FILLERS, Mask, Values, both_valid


def _map(function: Callable[[str], Any], value: Values, dtype: Any) -> Array:
    flat = value.data.ravel().tolist()
    return np.fromiter(map(function, flat), dtype, len(flat)).reshape(value.shape)


def strings(function: Callable[[str], str]) -> Callable[[Values], Values]:
    """A function of one string as a function of values."""
    return lambda value: replace(value, data=_map(function, value, object))


def matches(function: Callable[[str], bool], value: Values) -> Values:
    """Where a test of one string holds."""
    return Values(_map(function, value, np.bool_), value.valid, ValueKind.BOOLEAN)


def _of(kind: ValueKind, function: Callable[..., Any]) -> Callable[..., Values]:
    """A function of single values as one of several columns."""
    dtype = FILLERS.get(kind, (0, np.int64))[1]

    def mapped(*arguments: Values) -> Values:
        shape = np.broadcast_shapes(*(argument.shape for argument in arguments))
        columns = [np.broadcast_to(argument.data, shape).ravel().tolist() for argument in arguments]
        data = np.fromiter(map(function, *columns), dtype, len(columns[0])).reshape(shape)
        valid = both_valid(*(argument.valid for argument in arguments))
        return Values(data, None if valid is None else np.broadcast_to(valid, shape), kind)

    return mapped


def _text(function: Callable[..., str]) -> Callable[..., Values]:
    return _of(ValueKind.STRING, function)


def _test(function: Callable[..., bool]) -> Callable[..., Values]:
    return _of(ValueKind.BOOLEAN, function)


def constant(value: Values) -> Any:
    """The value of a literal argument."""
    return value.data.reshape(-1)[:1].tolist()[0]


def concatenated(*values: Values) -> Values:
    """All strings one after the other; NULLs are left out."""
    known = [_without_null(value) for value in values if value.kind is ValueKind.STRING]
    nothing = Values(np.array([""], object), None, ValueKind.STRING)
    return _text(lambda *texts: "".join(texts))(nothing, *known)


def _without_null(value: Values) -> Values:
    return value if value.valid is None else replace(value, data=np.where(value.valid, value.data, ""), valid=None)


def _substring(text: str, start: int, length: int | None = None) -> str:
    begin = start if start >= 0 else len(text) + start + 1
    end = None if length is None else max(begin + length - 1, 0)
    return text[max(begin, 1) - 1 : end]


def _right(text: str, count: int) -> str:
    return text[-count:] if count else ""


def _split_part(text: str, separator: str, number: int) -> str:
    parts = text.split(separator) if separator else list(text)
    place = number - (number > 0)
    return parts[place] if -len(parts) <= place < len(parts) else ""


def _replaced(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def _trimmed(trim: Callable[[str, str], str]) -> Callable[..., Values]:
    """One of the ways to trim: spaces, or any of the characters that are given."""
    return _text(lambda text, characters=" ": trim(text, characters))


def _at_path(find: Callable[[str, Path], str | None]) -> Callable[[Values, Values], Values]:
    def extract(texts: Values, path: Values) -> Values:
        steps = parse_path(constant(path))
        found = _map(lambda text: find(text, steps), texts, object)
        there: Mask = np.array([one is not None for one in found.ravel()], np.bool_).reshape(found.shape)
        return Values(np.where(there, found, ""), both_valid(texts.valid, there), ValueKind.STRING)

    return extract


def _by_pattern(kind: ValueKind, run: Callable[..., pa.Array]) -> Callable[..., Values]:
    def by_pattern(texts: Values, *literals: Values) -> Values:
        flat = pa.array(texts.data.ravel(), pa.string())
        found = run(flat, *map(constant, literals)).to_numpy(zero_copy_only=False)
        return Values(found.astype(FILLERS[kind][1]).reshape(texts.shape), texts.valid, kind)

    return by_pattern


TEXT_FUNCTIONS: Final[dict[str, Callable[..., Values]]] = {
    "CONCAT": concatenated,
    "CONTAINS": _test(lambda text, part: part in text),
    "ENDS_WITH": _test(str.endswith),
    "JSON_EXTRACT": _at_path(find_json),
    "JSON_EXTRACT_STRING": _at_path(find_text),
    "LEFT": _text(lambda text, count: text[:count]),
    "LENGTH": _of(ValueKind.INTEGER, len),
    "LOWER": strings(str.lower),
    "LTRIM": _trimmed(str.lstrip),
    "REGEXP_EXTRACT": _by_pattern(ValueKind.STRING, patterns.extracted),
    "REGEXP_MATCHES": _by_pattern(ValueKind.BOOLEAN, patterns.matching),
    "REGEXP_REPLACE": _by_pattern(ValueKind.STRING, patterns.replaced),
    "REPLACE": _text(_replaced),
    "REVERSE": strings(lambda text: text[::-1]),
    "RIGHT": _text(_right),
    "RTRIM": _trimmed(str.rstrip),
    "SPLIT_PART": _text(_split_part),
    "STARTS_WITH": _test(str.startswith),
    "STRPOS": _of(ValueKind.INTEGER, lambda text, part: text.find(part) + 1),
    "SUBSTR": _text(_substring),
    "TRIM": _trimmed(str.strip),
    "UPPER": strings(str.upper),
    "||": _text(lambda one, two: one + two),
}
