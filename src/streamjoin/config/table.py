"""A table of a TOML file that is read key by key: each mistake is an error with the file's line and the fix.

Every key must be read: `finish` rejects keys that were not, and suggests the nearest known name. For required keys
`only` is called first, so that a misspelt key is not reported as missing.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from streamjoin.config.lines import Path as KeyPath
from streamjoin.config.lines import line_of, lines_of
from streamjoin.config.variables import of_kind, overlay
from streamjoin.model.errors import PipelineFileError, SpecError

_Made = TypeVar("_Made")
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table", list: "a list"}
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


class ConfigTable:
    """One table: its values, its place in the file, and the keys that were read."""

    def __init__(
        self,
        file: str,
        values: Mapping[str, Any],
        path: KeyPath,
        lines: Mapping[KeyPath, int],
        variables: Mapping[KeyPath, str] | None = None,
    ) -> None:
        """`variables` maps each path that an environment variable overrides to the variable's name."""
        self.file = file
        self.values = values
        self.path = path
        self._lines = lines
        self._variables = variables or {}
        self._known: list[str] = []

    @property
    def title(self) -> str:
        """The table's header in the file."""
        return f"[{dotted(self.path)}]" if self.path else "the file"

    def line(self, *keys: str | int) -> int:
        """The line of a key of this table, or of the table."""
        return line_of(self._lines, (*self.path, *keys))

    def fail(self, what: str, *keys: str | int) -> NoReturn:
        """Raise an error with the line of `keys`, or with the environment variable that sets it."""
        variable = self._variables.get((*self.path, *keys))
        place = f"{self.file}, line {self.line(*keys)}" if variable is None else f"the environment variable {variable}"
        raise PipelineFileError(f"{place}: {what}")

    def missing(self, key: str, example: str) -> NoReturn:
        """Raise an error that `key` is missing."""
        self.fail(f"{self.title} has no {key!r}; add a line such as: {example}")

    def get(self, key: str, kinds: tuple[type, ...], *, example: str) -> Any:
        """The value under `key` if it is of one of the kinds; None if there is none."""
        self._known.append(key)
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, str) and (*self.path, key) in self._variables:
            value = of_kind(value, kinds)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            types = " or ".join(dict.fromkeys(_NAMES[kind] for kind in kinds))
            self.fail(f"{key} is {types}, not {_NAMES.get(type(value), repr(value))}: write {example}", key)
        return value

    def text(self, key: str, example: str, *, required: bool = False) -> str | None:
        """A text that is not empty, with ${NAME} taken from the environment."""
        value = self.get(key, (str,), example=example)
        if value is None and required:
            self.missing(key, example)
        if value is not None and not value.strip():
            self.fail(f"{key} is empty: write {example}", key)
        return None if value is None else self.expanded(value, key)

    def required(self, key: str, example: str) -> str:
        """A required text."""
        return self.text(key, example, required=True) or ""

    def one_of(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """One of a few words."""
        value = self.get(key, (str,), example=f'{key} = "{choices[0]}"')
        if value is None and default is None:
            self.missing(key, f'{key} = "{choices[0]}"')
        if value is None:
            return str(default)
        if value not in choices:
            near = difflib.get_close_matches(value, choices, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(choices)}"
            self.fail(f"{key} = {value!r} is not known; {hint}", key)
        return str(value)

    def texts(self, key: str, example: str) -> tuple[str, ...]:
        """A text or a list of texts."""
        value = self.get(key, (str, list), example=example)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        for number, item in enumerate(items):
            if not isinstance(item, str) or not item.strip():
                self.fail(f"{key} holds {item!r}, which is not a text: write {example}", key, number)
        return tuple(items)

    def pair(self, key: str, example: str) -> str | tuple[str, str] | None:
        """One name for both sides, or a list of two."""
        names = self.texts(key, example)
        if len(names) > 2:
            self.fail(f"{key} names {len(names)} columns; it is one name, or a left and a right one: {example}", key)
        return None if not names else names[0] if len(names) == 1 else (names[0], names[1])

    def options(self, key: str) -> dict[str, str]:
        """A table of Spark settings; dotted keys may be quoted or not."""
        table = self.table(key)
        return {} if table is None else table.flat()

    def flat(self, prefix: KeyPath = ()) -> dict[str, str]:
        """All nested values as texts, by dotted key."""
        texts: dict[str, str] = {}
        for key, value in (self.values if not prefix else self._at(prefix)).items():
            path = (*prefix, key)
            if isinstance(value, dict):
                texts |= self.flat(path)
            elif isinstance(value, list):
                self.fail(f"{dotted(path)} is a list; an option is one text, number, true or false", *path)
            else:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                texts[".".join(map(str, path))] = self.expanded(text, *path)
        return texts

    def _at(self, path: KeyPath) -> Mapping[str, Any]:
        values: Any = self.values
        for key in path:
            values = values[key]
        table: Mapping[str, Any] = values
        return table

    def expanded(self, text: str, *keys: str | int) -> str:
        """`text` with every ${NAME} taken from the environment."""

        def value(variable: re.Match[str]) -> str:
            text_value = os.environ.get(variable[1])
            if text_value is None:
                self.fail(f"the environment has no variable {variable[1]!r}: set it, or write the value here", *keys)
            return text_value

        return _VARIABLE.sub(value, text)

    def table(self, key: str) -> ConfigTable | None:
        """The table under `key`."""
        value = self.get(key, (dict,), example=f"[{dotted((*self.path, key))}] and its keys below it")
        return None if value is None else self.below(value, key)

    def tables(self, key: str) -> list[ConfigTable]:
        """The table under `key`, or all tables if it is written as [[...]]; empty if there is none."""
        value = self.get(key, (dict, list), example=f"[{dotted((*self.path, key))}] and its keys below it")
        if not isinstance(value, list):
            return [] if value is None else [self.below(value, key)]
        for number, item in enumerate(value):
            if not isinstance(item, dict):
                self.fail(f"{key} holds {item!r}; write [[{dotted((*self.path, key))}]] for each", key, number)
        return [self.below(item, key, number) for number, item in enumerate(value)]

    def below(self, values: Mapping[str, Any], *keys: str | int) -> ConfigTable:
        """A table within this one."""
        return ConfigTable(self.file, values, (*self.path, *keys), self._lines, self._variables)

    def build(self, make: Callable[[], _Made], *keys: str | int) -> _Made:
        """The result of `make`; its errors get the line of `keys`."""
        try:
            return make()
        except PipelineFileError:
            raise
        except SpecError as error:
            self.fail(str(error), *keys)

    def only(self, *keys: str) -> None:
        """Reject all other keys before any is read, so that a misspelt key is reported as unknown, not as missing."""
        for key in self.values:
            if key not in keys:
                near = _nearest(key, keys)
                hint = f"did you mean {near!r}?" if near else f"it takes: {', '.join(sorted(keys))}"
                self.fail(f"{self.title} takes no {key!r}; {hint}", key)

    def finish(self) -> None:
        """Reject keys that were not read."""
        self.only(*self._known)


def _nearest(key: str, keys: Sequence[str]) -> str | None:
    """The most similar key, if there is one; case does not matter."""
    lowered = {name.lower(): name for name in keys}
    near = difflib.get_close_matches(key.lower(), lowered, n=1)
    return lowered[near[0]] if near else None


def read_toml(file: Path, environment: Mapping[str, str] | None = None) -> ConfigTable:
    """The file's outermost table, with the values that `environment` overrides."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineFileError(f"can't read {file}: {error}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineFileError(f"{file}, {_where(error, text)}") from error
    values, variables = overlay(values, environment or {})
    return ConfigTable(str(file), values, (), lines_of(text), variables)


def _where(error: tomllib.TOMLDecodeError, text: str) -> str:
    """The parser's message with the line first, also for "at end of document"."""
    message = str(error)
    place = re.search(r"\s*\(at line (\d+), column (\d+)\)$", message)
    if place is None:
        message = re.sub(r"\s*\(at end of document\)$", ", and the file ends", message)
        return f"line {max(1, len(text.splitlines()))}: invalid TOML: {message}"
    return f"line {place[1]}, column {place[2]}: invalid TOML: {message[: place.start()]}"


def dotted(path: KeyPath) -> str:
    """A path of keys as it is written in the file."""
    return ".".join(str(key) for key in path if not isinstance(key, int))
