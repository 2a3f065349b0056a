"""Environment variables that override keys of a TOML file: `STREAMJOIN_SERVICE__PORT=9000` is `port` in `[service]`.

Two underscores separate the parts; case does not matter. A key of the file is matched in any case; other keys are
lower case, so a wrong name is rejected like a wrong key, with the variable's name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from streamjoin.config.lines import Path as KeyPath
from streamjoin.model.errors import SpecError

VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
"""The name of an environment variable in an option."""
PREFIX: Final = "STREAMJOIN_"
_BETWEEN: Final = "__"
_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def overlay(values: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """The values with those of the environment, and the variable of each path that it sets.

    >>> overlay({"service": {"port": 1}}, {"STREAMJOIN_SERVICE__PORT": "9000", "STREAMJOIN_URL": "x"})
    ({'service': {'port': '9000'}}, {('service', 'port'): 'STREAMJOIN_SERVICE__PORT'})
    """
    table = dict(values)
    variables: dict[KeyPath, str] = {}
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


def _set(table: dict[str, Any], parts: list[str], text: str) -> KeyPath:
    key = next((name for name in table if name.lower() == parts[0].lower()), parts[0].lower())
    if len(parts) == 1:
        table[key] = text
        return (key,)
    below = table.get(key)
    table[key] = inner = dict(below) if isinstance(below, Mapping) else {}
    return (key, *_set(inner, parts[1:], text))


def _has(values: Mapping[str, Any], path: KeyPath) -> bool:
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
