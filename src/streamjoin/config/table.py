"""A table of a TOML file that is read key by key: each mistake is an error with the file's line and the fix.

Every key must be read: `finish` rejects keys that were not, and suggests the nearest known name. For required keys
`only` is called first, so that a misspelt key is not reported as missing.

A reader stops at the first mistake of each part (`read_parts`). `read_whole` mends these, reads again, and so finds the
others.

The table `[storage]` is read here, because pipeline and service files both have it.
"""

from __future__ import annotations

import copy
import difflib
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from streamjoin.config.lines import Path as KeyPath
from streamjoin.config.lines import line_of, lines_of, of_kind, overlay
from streamjoin.model import durations
from streamjoin.model.errors import PipelineFileError, SpecError
from streamjoin.storage.settings import STORES, StorageSettings

_Made = TypeVar("_Made")
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table", list: "a list"}
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


class FileMistake(PipelineFileError):  # noqa: N818 - users know it as its base
    """One mistake in a file: of the value under `key` of a table, of the one that is missing there, or of the table."""

    def __init__(
        self,
        text: str,
        table: ConfigTable,
        keys: KeyPath,
        about: str,
        example: str | None = None,
        meant: str | None = None,
    ) -> None:
        """`about`: "value" if others have nothing to do with it, "values", "name", or "missing".

        `example` has a value that is right, `meant` is the key that a wrong name may stand for.
        """
        super().__init__(text)
        self.mistakes: Sequence[FileMistake] = (self,)
        self.path, self.line = (*table.path, *keys), table.line(*keys)
        self.table = table.path
        self.about, self.example = about if keys else "missing", example
        # The tables of which a part may be missing now.
        self.around = {self.table} if meant is None else {self.table, (*self.table, meant)}


class FileMistakes(PipelineFileError):  # noqa: N818 - as its parts
    """The first mistake of each of several parts."""

    def __init__(self, mistakes: Sequence[FileMistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


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

    def place(self, *keys: str | int) -> str:
        """Where `keys` are set: a line of the file, or an environment variable."""
        variable = self._variables.get((*self.path, *keys))
        return f"{self.file}, line {self.line(*keys)}" if variable is None else f"the environment variable {variable}"

    def fail(self, what: str, *keys: str | int) -> NoReturn:
        """Raise an error with the line of `keys`, or with the environment variable that sets it."""
        raise FileMistake(f"{self.place(*keys)}: {what}", self, keys, "values")

    def missing(self, key: str, example: str) -> NoReturn:
        """Raise an error that `key` is missing."""
        text = f"{self.place()}: {self.title} has no {key!r}; add a line such as: {example}"
        raise FileMistake(text, self, (key,), "missing", example)

    def wrong(self, what: str, *keys: str | int, example: str | None = None) -> NoReturn:
        """Raise an error about one value, whatever the others are."""
        raise FileMistake(f"{self.place(*keys)}: {what}", self, keys, "value", example)

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
            what = f"{key} is {types}, not {_NAMES.get(type(value), repr(value))}: write {example}"
            self.wrong(what, key, example=example)
        return value

    def text(self, key: str, example: str, *, required: bool = False) -> str | None:
        """A text that is not empty, with ${NAME} taken from the environment."""
        value = self.get(key, (str,), example=example)
        if value is None and required:
            self.missing(key, example)
        if value is not None and not value.strip():
            self.wrong(f"{key} is empty: write {example}", key, example=example)
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
            self.wrong(f"{key} = {value!r} is not known; {hint}", key, example=f'{key} = "{(*near, *choices)[0]}"')
        return str(value)

    def texts(self, key: str, example: str) -> tuple[str, ...]:
        """A text or a list of texts."""
        value = self.get(key, (str, list), example=example)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        for number, item in enumerate(items):
            if not isinstance(item, str) or not item.strip():
                self.wrong(f"{key} holds {item!r}, which is not a text: write {example}", key, number)
        return tuple(items)

    def pair(self, key: str, example: str) -> str | tuple[str, str] | None:
        """One name for both sides, or a list of two."""
        names = self.texts(key, example)
        if len(names) > 2:
            self.wrong(f"{key} names {len(names)} columns; it is one name, or a left and a right one: {example}", key)
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
                self.wrong(f"{dotted(path)} is a list; an option is one text, number, true or false", *path)
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
                self.wrong(f"the environment has no variable {variable[1]!r}: set it, or write the value here", *keys)
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
                self.wrong(f"{key} holds {item!r}; write [[{dotted((*self.path, key))}]] for each", key, number)
        return [self.below(item, key, number) for number, item in enumerate(value)]

    def below(self, values: Mapping[str, Any], *keys: str | int) -> ConfigTable:
        """A table within this one."""
        return ConfigTable(self.file, values, (*self.path, *keys), self._lines, self._variables)

    def build(self, make: Callable[[], _Made], *keys: str | int, alone: bool = True) -> _Made:
        """The result of `make`; its errors get the line of `keys`. `alone`: it is made of their values alone."""
        try:
            return make()
        except PipelineFileError:
            raise
        except SpecError as error:
            if alone:
                self.wrong(str(error), *keys)
            self.fail(str(error), *keys)

    def only(self, *keys: str) -> None:
        """Reject all other keys before any is read, so that a misspelt key is reported as unknown, not as missing."""
        for key in self.values:
            if key not in keys:
                near = _nearest(key, keys)
                hint = f"did you mean {near!r}?" if near else f"it takes: {', '.join(sorted(keys))}"
                text = f"{self.place(key)}: {self.title} takes no {key!r}; {hint}"
                raise FileMistake(text, self, (key,), "name", meant=near)

    def finish(self) -> None:
        """Reject keys that were not read."""
        self.only(*self._known)


def _nearest(key: str, keys: Sequence[str]) -> str | None:
    """The most similar key, if there is one; case does not matter."""
    lowered = {name.lower(): name for name in keys}
    near = difflib.get_close_matches(key.lower(), lowered, n=1)
    return lowered[near[0]] if near else None


def read_whole(top: ConfigTable, read: Callable[[ConfigTable], _Made]) -> _Made:
    """What `read` makes of a file; if there are mistakes, an error with all of them, in the order of lines.

    What is wrong is left out, or an example takes its place, until nothing is found any more. A mistake that may only
    follow from that is not told: where a value was changed, only what is wrong with another one by itself.

    Raises:
        PipelineFileError: something in the file is wrong.
    """
    values = copy.deepcopy(dict(top.values))
    mistakes: list[FileMistake] = []
    mended: Counter[KeyPath] = Counter()
    # The tables in which anything was changed, and those in which the value of a known key was.
    touched: set[KeyPath] = set()
    changed: set[KeyPath] = set()
    while True:
        try:
            made = read(top.below(values))
        except (FileMistake, FileMistakes) as wrong:
            found = wrong.mistakes
        else:
            if not mistakes:
                return made
            break
        # What was mended before this reading, and the tables in which a mistake may only follow from that.
        before, untouched, mending = set(mended), not touched, False
        follows = {"value": set[KeyPath](), "name": set(changed), "missing": set(touched)}
        for mistake in found:
            # Without the wrong item a list would be another one.
            path = mistake.path
            while path and isinstance(path[-1], int):
                path = path[:-1]
            new = untouched if mistake.about == "values" else mistake.table not in follows[mistake.about]
            if path not in before and new:
                mistakes.append(mistake)
            # Left out, then an example in its place: more does not help.
            mended[path] += 1
            if mended[path] > 2 or not _mend(values, path, mistake.example):
                continue
            mending = True
            touched |= mistake.around
            if mistake.about != "name":
                changed.add(mistake.table)
        if not mending:
            break
    mistakes.sort(key=lambda mistake: mistake.line)
    raise together(mistakes)


def read_parts(*reads: Callable[[], Any]) -> list[Any]:
    """What each of the readers gives, which read parts of a file that have nothing to do with each other.

    Raises:
        FileMistakes: some parts are wrong; it has the first mistake of each.
    """
    made: list[Any] = []
    mistakes: list[FileMistake] = []
    for read in reads:
        try:
            made.append(read())
        except (FileMistake, FileMistakes) as wrong:
            mistakes += wrong.mistakes
    if mistakes:
        raise FileMistakes(mistakes)
    return made


def together(mistakes: Sequence[PipelineFileError]) -> PipelineFileError:
    """One error for all mistakes."""
    if len(mistakes) == 1:
        return mistakes[0]
    return PipelineFileError("\n".join([f"{len(mistakes)} mistakes:", *map(str, mistakes)]))


def _mend(values: dict[str, Any], path: KeyPath, example: str | None) -> bool:
    """Leave out the value at `path`, or put the example's in its place; whether that changed anything."""
    if not path:
        return False
    inner: Any = values
    *tables, last = path
    for key in tables:
        inner = inner[int(key)] if isinstance(inner, list) else inner.setdefault(key, {})
    if example is None:
        return inner.pop(last, None) is not None
    try:
        # Some examples go on with other ways to write the same.
        found = tomllib.loads(example.partition(", or ")[0])
    except tomllib.TOMLDecodeError:
        return False
    inner.update({key: value for key, value in found.items() if key == last})
    return last in found


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
    unquoted = _unquoted(text.splitlines()[int(place[1]) - 1], int(place[2]))
    what = f"invalid TOML: {message[: place.start()]}" if unquoted is None else f"text needs quotes: {unquoted}"
    return f"line {place[1]}, column {place[2]}: {what}"


_PAIR = re.compile(r"""(?P<key>\s*[^=#\[\]{}"']+?)\s*=\s*(?P<value>[^\s"'\[\]{}#][^"'\[\]{}#]*?)\s*(?:#.*)?""")
_CURLY = "\u201c\u201d\u2018\u2019"


def _unquoted(line: str, column: int) -> str | None:
    """The pair or the value of a line that is a text without quotes, as it should be; None if there is none.

    >>> _unquoted("path = /data/in # here", 8), _unquoted("columns = [sym, px]", 12), _unquoted("a = 1", 5)
    ('path = "/data/in"', '"sym"', None)
    """
    pair = _PAIR.fullmatch(line)
    if pair is not None:
        value = pair["value"].strip(_CURLY)
        # Numbers, dates and booleans are written without quotes.
        return (
            f"{pair['key'].strip()} = {json.dumps(value, ensure_ascii=False)}"
            if re.search(r"[^\W\d]|/", value)
            else None
        )
    word = re.match(rf"[A-Za-z_/~.{_CURLY}][^\s,\]}}\"'#]*", line[column - 1 :])
    return None if word is None else json.dumps(word[0].strip(_CURLY), ensure_ascii=False)


def dotted(path: KeyPath) -> str:
    """A path of keys as it is written in the file."""
    return ".".join(str(key) for key in path if not isinstance(key, int))


_EXAMPLES = {"endpoint": "http://127.0.0.1:9000", "region": "eu-central-1", "account": "mystore"}


def read_storage(top: ConfigTable) -> StorageSettings | None:
    """The settings of a file; None if it has none."""
    table = top.table("storage")
    if table is None:
        return None
    table.only("timeout", "conditional_writes", *STORES)
    stores: dict[str, Any] = {name: _store(table, name, kind) for name, kind in STORES.items() if name in table.values}
    text = table.text("timeout", 'timeout = "10 seconds"')
    if text is not None:
        stores["timeout"] = table.build(partial(durations.nanoseconds, text), "timeout") / 1e9
    conditional = table.get("conditional_writes", (bool,), example="conditional_writes = false")
    if conditional is not None:
        stores["conditional_writes"] = conditional
    table.finish()
    return table.build(lambda: StorageSettings(**stores))


def _store(table: ConfigTable, name: str, kind: type[Any]) -> Any:
    inner = table.table(name)
    if inner is None:
        raise AssertionError(name)
    values: dict[str, Any] = {}
    for entry in fields(kind):
        if str(entry.type).startswith("bool"):
            value = inner.get(entry.name, (bool,), example=f"{entry.name} = true")
        else:
            example = _EXAMPLES.get(entry.name, f"${{MY_{entry.name.upper()}}}")
            value = inner.text(entry.name, f'{entry.name} = "{example}"')
        if value is not None:
            values[entry.name] = value
    inner.finish()
    return inner.build(lambda: kind(**values))
