"""Queries that are the same but for their names: one set of bits, one gathering, and each gets its rows.

The invariant: two queries are of one class iff their plans are equal and they were created in the same batch, so that
they gain the same rows as long as both run. A class keeps its bits while anybody is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from streamjoin.adhoc.core.changes import LiveQuery
from streamjoin.adhoc.core.probe_plan import Choice

_Key = tuple[object, int, Choice]


@dataclass
class QueryClass:
    """Who is in a class; `entry` stands for all of them, with a serial of the class."""

    key: _Key
    entry: LiveQuery
    choice: Choice
    members: dict[str, LiveQuery] = field(default_factory=dict)

    @property
    def active(self) -> tuple[str, ...]:
        """Those that are not paused."""
        return tuple(name for name, entry in self.members.items() if not entry.paused)


@dataclass(frozen=True)
class ClassChanges:
    """What became of classes: gone, came, and others in them than before."""

    gone: tuple[QueryClass, ...]
    came: tuple[QueryClass, ...]
    changed: tuple[QueryClass, ...]


class QueryClasses:
    """All classes, by what their members have in common."""

    def __init__(self) -> None:
        self._found: dict[_Key, QueryClass] = {}
        self._of: dict[str, QueryClass] = {}
        self._by_serial: dict[int, QueryClass] = {}
        self._serials = count()

    def update(self, queries: Mapping[str, LiveQuery], choices: Mapping[str, Choice]) -> ClassChanges:
        """Put every query where it belongs; only those that are not as before are looked at."""
        out = [
            name
            for name, found in self._of.items()
            if queries.get(name) is not found.members[name] or choices[name] != found.choice
        ]
        touched = {id(found): found for found in map(self._left_by, out)}
        known = set(map(id, self._found.values()))
        for name in [name for name in queries if name not in self._of]:
            found = self._joined_by(name, queries[name], choices[name])
            touched[id(found)] = found
        gone = tuple(found for found in touched.values() if not found.members)
        for found in gone:
            del self._found[found.key], self._by_serial[found.entry.serial]
        living = [found for found in touched.values() if found.members]
        return ClassChanges(
            gone,
            tuple(found for found in living if id(found) not in known),
            tuple(found for found in living if id(found) in known),
        )

    def _left_by(self, name: str) -> QueryClass:
        found = self._of.pop(name)
        del found.members[name]
        return found

    def _joined_by(self, name: str, entry: LiveQuery, choice: Choice) -> QueryClass:
        key = entry.plan, entry.created, choice
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = QueryClass(key, replace(entry, serial=next(self._serials)), choice)
            self._by_serial[found.entry.serial] = found
        found.members[name] = entry
        self._of[name] = found
        return found

    def names(self, entries: Iterable[LiveQuery]) -> tuple[str, ...]:
        """The queries that these stand for."""
        return tuple(sorted(name for entry in entries for name in self._by_serial[entry.serial].members))
