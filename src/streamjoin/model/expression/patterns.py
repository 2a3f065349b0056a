"""Regular expressions in conditions, by Arrow's RE2: it takes time in proportion to the text, whatever the pattern.

A pattern is a literal and is tried when the text is read, so that it can't fail on a row.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.model.errors import ExpressionError

_ESCAPES: Final = re.compile(r"\\Q.*?(?:\\E|$)|\\.", re.DOTALL)
_NOTHING: Final = pa.array([""], pa.string())
_NO_GROUP: Final = r"\\Q.*?(?:\\E|$)|\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]"
_PARTS: Final = re.compile(rf"{_NO_GROUP}|\((?!\?)|\(\?P?<(?P<name>\w+)>", re.DOTALL)
"""What holds no group (quoted texts, escapes, classes of characters), and the beginnings of groups that are counted."""


def matching(texts: pa.Array, pattern: str, flags: str | None = None) -> pa.Array:
    """Which texts have a match somewhere; with the flag `i` the case of letters does not count."""
    return pc.match_substring_regex(texts, pattern, ignore_case=flags == "i")


def extracted(texts: pa.Array, pattern: str, group: int | None = None) -> pa.Array:
    """The first match of each text, or one of its groups; empty without a match."""
    named = _named(pattern)
    found = pc.struct_field(pc.extract_regex(texts, named), [group or 0])
    return pc.if_else(pc.is_null(texts), None, pc.fill_null(found, ""))


def replaced(texts: pa.Array, pattern: str, by: str, flags: str | None = None) -> pa.Array:
    """With the first match of each text replaced, or with the flag `g` all of them."""
    return pc.replace_substring_regex(texts, pattern, by, max_replacements=-1 if flags == "g" else 1)


def _named(pattern: str) -> str:
    """The whole pattern and all its groups with names, as Arrow wants them."""
    number = 0

    def name(part: re.Match[str]) -> str:
        nonlocal number
        if part[0] != "(" and part["name"] is None:
            return part[0]
        number += 1
        return f"(?P<g{number}>"

    return f"(?P<g0>{_PARTS.sub(name, pattern)})"


def check_pattern(pattern: object, flags: object = None) -> None:
    """Refuse what is no regular expression, and other flags than `i`.

    Raises:
        ExpressionError: it is none.
    """
    _check_flags(flags, "i", "the case of letters does not count")
    if r"\C" in _ESCAPES.findall(str(pattern)):
        raise ExpressionError(
            f"{pattern!r} is no regular expression that can be used: \\C matches a part of a character"
        )
    _tried(pattern, lambda: matching(_NOTHING, str(pattern)))


def check_extract(pattern: object, group: object = None) -> None:
    """Refuse what is no regular expression, or has no such group.

    Raises:
        ExpressionError: likewise.
    """
    check_pattern(pattern)
    found = _tried(pattern, lambda: pc.extract_regex(_NOTHING, _named(str(pattern))))
    if group is not None and not 0 <= int(str(group)) < found.type.num_fields:
        groups = found.type.num_fields - 1
        raise ExpressionError(f"the regular expression {pattern!r} has {groups} groups, so there is no number {group}")


def check_replacement(pattern: object, by: object, flags: object = None) -> None:
    """Refuse what is no regular expression, no replacement for it, and other flags than `g`.

    Raises:
        ExpressionError: likewise.
    """
    check_pattern(pattern)
    _check_flags(flags, "g", "all matches are replaced")
    _tried(by, lambda: replaced(_NOTHING, str(pattern), str(by)))


def _check_flags(flags: object, known: str, meaning: str) -> None:
    if flags not in (None, known):
        raise ExpressionError(f"the flag {flags!r} is not known here; there is {known!r}: {meaning}")


def _tried(part: object, run: object) -> pa.Array:
    try:
        return run()  # type: ignore[operator]
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ").removeprefix("Invalid replacement string: ")
        shown = repr(part) if len(str(part)) <= 200 else f"{str(part)[:200]!r}..."
        raise ExpressionError(f"{shown} is no regular expression that can be used: {reason[:200]}") from None
