"""Queries that are the same but for their names: one set of bits, one gathering, and each gets its rows.

The invariant: two queries are of one class iff their plans and budgets are equal and they were created in the same
batch, so that they gain the same rows as long as both run. A class keeps its bits while anybody is in it. Parts of
queries are classes of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from streamjoin.adhoc.core.budgets import Budget
from streamjoin.adhoc.core.changes import LiveQuery
from streamjoin.adhoc.core.probe_plan import Choice
from streamjoin.adhoc.language.plan import query_name

_Key = tuple[object, int, Choice, Budget, str | None]


@dataclass
class QueryClass:
    """Who is in a class; `entry` stands for all of them, with a serial of the class."""

    key: _Key
    entry: LiveQuery
    choice: Choice
    members: dict[str, LiveQuery] = field(default_factory=dict)

    active: tuple[str, ...] = ()
    """Those that are not paused."""

    def add(self, name: str, entry: LiveQuery) -> None:
        """Take a query in."""
        self.members[name] = entry
        self._note_active()

    def remove(self, name: str) -> None:
        """Let a query go."""
        del self.members[name]
        self._note_active()

    def _note_active(self) -> None:
        self.active = tuple(name for name, entry in self.members.items() if not entry.paused)


class QueryClasses:
    """All classes, by what their members have in common."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, QueryClass] = {}
        self._by_name: dict[str, QueryClass] = {}
        self._by_serial: dict[int, QueryClass] = {}
        self._serials = count()

    def update(
        self, queries: Mapping[str, LiveQuery], choices: Mapping[str, Choice]
    ) -> tuple[list[QueryClass], list[QueryClass]]:
        """Put every query where it belongs; only those that are not as before are looked at.

        Returns the classes that are not as before: those there were, and those there are. Some are in both.
        """
        leaving = [
            name
            for name, group in self._by_name.items()
            if queries.get(name) is not group.members[name] or choices[name] != group.choice
        ]
        known = set(self._by_serial)
        touched = {group.entry.serial: group for group in map(self._leave, leaving)}
        for name in [name for name in queries if name not in self._by_name]:
            group = self._join(name, queries[name], choices[name])
            touched[group.entry.serial] = group
        before = [group for serial, group in touched.items() if serial in known]
        for group in before:
            if not group.members:
                del self._by_key[group.key], self._by_serial[group.entry.serial]
        return before, [group for group in touched.values() if group.members]

    def _leave(self, name: str) -> QueryClass:
        group = self._by_name.pop(name)
        group.remove(name)
        return group

    def _join(self, name: str, entry: LiveQuery, choice: Choice) -> QueryClass:
        key = entry.plan, entry.created, choice, entry.budget, None if entry.part is None else name
        group = self._by_key.get(key)
        if group is None:
            group = self._by_key[key] = QueryClass(key, replace(entry, serial=next(self._serials)), choice)
            self._by_serial[group.entry.serial] = group
        group.add(name, entry)
        self._by_name[name] = group
        return group

    def active(self, serial: int) -> tuple[str, ...]:
        """The queries of a class that are not paused."""
        return self._by_serial[serial].active

    def names(self, entries: Iterable[LiveQuery]) -> tuple[str, ...]:
        """The queries that these stand for."""
        members = (name for entry in entries for name in self._by_serial[entry.serial].members)
        return tuple(sorted({query_name(name) for name in members}))

    def serial_of(self, name: str) -> int:
        """The serial of a query's class."""
        return self._by_name[name].entry.serial
