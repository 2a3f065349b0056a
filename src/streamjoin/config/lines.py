"""The line of each key and each item of a TOML file; `tomllib` returns values without positions.

The scanner runs after `tomllib` has accepted the text, so it needs no checks of its own: it only skips strings,
comments and brackets. The invariant: every path of keys and indexes to a value of the parsed document has a line here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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
