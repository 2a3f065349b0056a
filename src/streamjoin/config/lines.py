"""The line of each key and each item of a TOML file, and the environment variables that override keys.

`tomllib` returns values without positions. The scanner runs after `tomllib` has accepted the text, so it needs no
checks of its own: it only skips strings, comments and brackets. The invariant: every path of keys and indexes to a
value of the parsed document has a line here.

Environment variables override keys of the file: `STREAMJOIN_SERVICE__PORT=9000` is `port` in `[service]`. Two
underscores separate the parts; case does not matter. A key of the file is matched in any case; other keys are lower
case, so a wrong name is rejected like a wrong key, with the variable's name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from streamjoin.model.errors import SpecError

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]\}\n#]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_LETTERS = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


def lines_of(text: str) -> dict[Path, int]:
    r"""The line of every value, table and item, by its path.

    >>> lines_of('a = 1\n[t]\nb.c = [\n 1,\n 2]\n')[("t", "b", "c", 1)]
    5
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of `path`, or of the innermost enclosing item that has one; else 1."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Scanner:
    """One pass over the text; `_at` is the current position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._counted = 0
        self._found: dict[Path, int] = {}
        self._arrays: dict[Path, int] = {}

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        self._blank(newlines=True)
        while self._at < len(self._text):
            table = self._header() if self._text[self._at] == "[" else self._pair(table)
            self._blank(newlines=True)
        return self._found

    def _header(self) -> Path:
        line = self._here()
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        keys = self._keys()
        self._at += 2 if is_array else 1
        path = self._resolved(keys[:-1]) + keys[-1:]
        self._found.setdefault(path, line)
        if is_array:
            number = self._arrays.get(path, -1) + 1
            self._arrays[path] = number
            path = (*path, number)
            self._found[path] = line
        return path

    def _resolved(self, keys: Path) -> Path:
        """The keys of a header, with the index of the newest item after each array of tables."""
        path: Path = ()
        for key in keys:
            path = (*path, key)
            if path in self._arrays:
                path = (*path, self._arrays[path])
        return path

    def _pair(self, table: Path) -> Path:
        """A `key = value`; returns the table, which stays the current one."""
        line = self._here()
        path = table
        for key in self._keys():
            path = (*path, key)
            self._found.setdefault(path, line)
        self._at += 1
        self._blank()
        self._value(path)
        return table

    def _value(self, path: Path) -> None:
        start = self._text[self._at]
        if start == "[":
            self._items(path)
        elif start == "{":
            self._inline(path)
        elif start in "\"'":
            self._string()
        else:
            scalar = _SCALAR.match(self._text, self._at)
            self._at = scalar.end() if scalar else len(self._text)

    def _items(self, path: Path) -> None:
        self._at += 1
        number = 0
        while True:
            self._blank(newlines=True)
            mark = self._text[self._at]
            if mark in "],":
                self._at += 1
                if mark == "]":
                    return
                continue
            self._found[(*path, number)] = self._here()
            self._value((*path, number))
            number += 1

    def _inline(self, path: Path) -> None:
        self._at += 1
        while True:
            self._blank(newlines=True)
            mark = self._text[self._at]
            if mark in "},":
                self._at += 1
                if mark == "}":
                    return
                continue
            self._pair(path)

    def _keys(self) -> Path:
        """Dotted keys, up to what follows them."""
        keys: list[str] = []
        while True:
            self._blank()
            if self._text[self._at] in "\"'":
                keys.append(self._string())
            else:
                bare = _BARE.match(self._text, self._at)
                keys.append(bare[0] if bare else "")
                self._at = bare.end() if bare else self._at + 1
            self._blank()
            if self._text[self._at] != ".":
                return tuple(keys)
            self._at += 1

    def _string(self) -> str:
        quote = self._text[self._at]
        long = self._text.startswith(quote * 3, self._at)
        mark = quote * 3 if long else quote
        start = self._at = self._at + len(mark)
        while not self._text.startswith(mark, self._at):
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        if long:
            # Up to two quotes may precede the closing three.
            while self._text.startswith(quote, self._at + 3):
                self._at += 1
        content = self._text[start : self._at]
        self._at += len(mark)
        return _ESCAPE.sub(_unescaped, content) if quote == '"' else content

    def _blank(self, *, newlines: bool = False) -> None:
        """Skip white space and comments."""
        while self._at < len(self._text):
            mark = self._text[self._at]
            if mark == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif mark in " \t" or (newlines and mark == "\n"):
                self._at += 1
            else:
                return

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _LETTERS.get(code, code)


VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
"""The name of an environment variable in an option."""
PREFIX: Final = "STREAMJOIN_"
_BETWEEN: Final = "__"
_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def overlay(values: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[dict[str, Any], dict[Path, str]]:
    """The values with those of the environment, and the variable of each path that it sets.

    >>> overlay({"service": {"port": 1}}, {"STREAMJOIN_SERVICE__PORT": "9000", "STREAMJOIN_URL": "x"})
    ({'service': {'port': '9000'}}, {('service', 'port'): 'STREAMJOIN_SERVICE__PORT'})
    """
    table = dict(values)
    variables: dict[Path, str] = {}
    for name in sorted(environment):
        parts = name.removeprefix(PREFIX).split(_BETWEEN)
        if not name.startswith(PREFIX) or len(parts) < 2 or not all(parts):
            continue
        path = _set(table, parts, environment[name])
        for length in range(1, len(path) + 1):
            # A table that exists only in the environment belongs to the variable too.
            if length == len(path) or not _has(values, path[:length]):
                variables.setdefault(path[:length], name)
    return table, variables


def _set(table: dict[str, Any], parts: list[str], text: str) -> Path:
    key = next((name for name in table if name.lower() == parts[0].lower()), parts[0].lower())
    if len(parts) == 1:
        table[key] = text
        return (key,)
    below = table.get(key)
    table[key] = inner = dict(below) if isinstance(below, Mapping) else {}
    return (key, *_set(inner, parts[1:], text))


def _has(values: Mapping[str, Any], path: Path) -> bool:
    here: Any = values
    for key in path:
        if not isinstance(here, Mapping) or key not in here:
            return False
        here = here[key]
    return True


def of_kind(text: str, kinds: tuple[type, ...]) -> Any:
    """A variable's text as one of the types that a key accepts; else the text itself.

    >>> of_kind("9000", (int,)), of_kind("9000", (str,)), of_kind("yes", (bool,)), of_kind("[1, 2]", (str, list))
    (9000, '9000', True, [1, 2])
    """
    if bool in kinds and text.strip().lower() in _TRUTH:
        return _TRUTH[text.strip().lower()]
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    types = tuple(kind for kind in kinds if kind not in (str, bool))
    return value if isinstance(value, types) and not isinstance(value, bool) else text


def from_environment(text: str, what: str) -> str:
    """A text with the values of the environment variables that it names; `what` names it in the error.

    Raises:
        SpecError: the environment has no such variable.
    """

    def value(variable: re.Match[str]) -> str:
        known = os.environ.get(variable[1])
        if known is None:
            raise SpecError(f"the environment has no variable {variable[1]!r}, which {what} names")
        return known

    return VARIABLE.sub(value, text)
