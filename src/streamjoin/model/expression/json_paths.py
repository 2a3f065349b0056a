r"""Paths into JSON texts, such as `$.a.b[0]`: reading and writing them, and what lies at their end.

A text that is no JSON has nothing at any path, and neither has JSON that nests too deeply to be read. Half a character
(an escape such as `\ud800` without the other half) is no text, and nothing either.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from streamjoin.model.errors import ExpressionError

Path = tuple[str | int, ...]
"""Keys of objects, and places in lists; negative ones count from the end."""

_STEP: Final = re.compile(
    r"""\.(?P<name>[^\s."'\[\]*?@()]+)|\."(?P<quoted>(?:[^"\\]|\\.)+)"|\[(?P<place>-?\d{1,9})\]"""
)
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def parse_path(text: str) -> Path:
    """The steps of a path.

    Raises:
        ExpressionError: it is none, or takes more than keys and places.
    """
    steps: list[str | int] = []
    at = 1
    while text.startswith("$") and (step := _STEP.match(text, at)) is not None:
        if step["place"] is not None:
            steps.append(int(step["place"]))
        else:
            steps.append(step["name"] or re.sub(r"\\(.)", r"\1", step["quoted"]))
        at = step.end()
    if at != len(text) or not text.startswith("$"):
        raise ExpressionError(f"{text!r} is not a path into JSON; write '$.key', '$.list[0]' or '$.\"odd key\".key'")
    return tuple(steps)


def path_text(path: Path) -> str:
    """The path as text, which `parse_path` reads."""
    return "$" + "".join(map(_step_text, path))


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    escaped = step.replace("\\", "\\\\").replace('"', '\\"')
    return f".{step}" if _PLAIN.fullmatch(step) else f'."{escaped}"'


def find_json(text: str, path: Path) -> str | None:
    """What is at a path, as JSON; None where there is nothing, or NULL."""
    found = _find(text, path)
    return None if found is None else _whole(_written(found))


def find_text(text: str, path: Path) -> str | None:
    """The same, but a string is given without its quotes."""
    found = _find(text, path)
    return found if found is None else _whole(found if isinstance(found, str) else _written(found))


def _whole(text: str | None) -> str | None:
    try:
        return text if text is None or text.isascii() or text.encode() else None
    except UnicodeEncodeError:
        return None


def _find(text: str, path: Path) -> Any:
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    for step in path:
        if isinstance(step, str) and isinstance(found, dict):
            found = found.get(step)
        elif isinstance(step, int) and isinstance(found, list) and -len(found) <= step < len(found):
            found = found[step]
        else:
            return None
    return found


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _written(found: Any) -> str | None:
    try:
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return None
