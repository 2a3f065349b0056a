"""The shared plan as it runs: meetings of two streams, and the steps that follow them, query by query in and out.

A meeting holds all paths that begin with the same join of two streams, whichever of them drives: its pairs are found
once, and which of the two came last says whose path goes on. Within one stream the driver is always the first
role. The invariant: adding or removing a query touches the meetings of its own paths and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from streamjoin.adhoc.core.changes import LiveQuery
from streamjoin.adhoc.core.probe_plan import Choice, Path, PathKey, StepKey
from streamjoin.adhoc.core.query_sets import BitLayout, Owner, SetColumn
from streamjoin.adhoc.core.selection_tables import Bits
from streamjoin.adhoc.core.stored_stream import StoredStream


@dataclass(frozen=True)
class Member:
    """A query's path, and the bit that it owns."""

    entry: LiveQuery
    path: Path
    owner: Owner


@dataclass
class MeetingNode:
    """A shared step: the paths that pass through, and those that end here, by the bits that they own."""

    key: PathKey
    members: dict[Owner, Member] = field(default_factory=dict)
    enders: dict[Owner, Member] = field(default_factory=dict)
    children: dict[StepKey, MeetingNode] = field(default_factory=dict)

    @property
    def role(self) -> int:
        """The role that this step adds."""
        return len(self.key.steps)

    def add(self, member: Member) -> None:
        """Take a path in, from this step on."""
        self.members[member.owner] = member
        steps = member.path.steps
        if self.role == len(steps):
            self.enders[member.owner] = member
            return
        step = steps[self.role]
        if step not in self.children:
            self.children[step] = MeetingNode(member.path.key(self.key.group, self.role + 1))
        self.children[step].add(member)

    def remove(self, member: Member) -> None:
        """Take a path out; steps that nobody passes go with it."""
        del self.members[member.owner]
        self.enders.pop(member.owner, None)
        if self.role < len(member.path.steps):
            step = member.path.steps[self.role]
            self.children[step].remove(member)
            if not self.children[step].members:
                del self.children[step]


class Meeting:
    """The first step of many paths: `forward` drives with the first stream of the key, `backward` with the second."""

    def __init__(self, key: PathKey, twin: PathKey | None) -> None:
        self.key = key
        self.forward = MeetingNode(key)
        self.backward = None if twin is None else MeetingNode(twin)
        self.layout = BitLayout()
        self._columns: list[SetColumn] = []

    @property
    def nodes(self) -> tuple[MeetingNode, ...]:
        """The directions that there are."""
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    @property
    def members(self) -> dict[Owner, Member]:
        """Who has a bit, by a path of either direction."""
        return {owner: member for node in reversed(self.nodes) for owner, member in node.members.items()}

    def settle(self, held: int) -> None:
        """Give bits to those who have none; tuples up to the batch `held` are there, finished or not.

        A query that was created by then needs the bits of old tuples too: then all sets are made anew, as when most
        bits have become nobody's.
        """
        members = self.members
        moved = any(o not in self.layout and m.entry.created <= held for o, m in members.items())
        if moved or self.layout.worn(len(members)):
            self.layout, self._columns = BitLayout(), []
        for owner in members:
            self.layout.place(owner)

    def columns_of(self, asked: Iterable[tuple[StoredStream, Bits]]) -> list[SetColumn]:
        """The sets for these bits of these streams: those that there are, as far as they fit."""
        columns: list[SetColumn] = []
        for stream, bits in asked:
            same = next((c for c in columns if c.stream is stream and c.bits == bits), None)
            # One that is taken already stands for other bits: it may be shared as it is, not changed again.
            free = (c for c in self._columns if c not in columns and c.fits(stream, bits))
            column = same or next(free, None) or SetColumn(stream, bits)
            column.extend(bits)
            columns.append(column)
        self._columns = list(dict.fromkeys(columns))
        return columns

    @property
    def columns(self) -> tuple[SetColumn, ...]:
        """All sets in use."""
        return tuple(self._columns)


class Meetings:
    """All meetings of a plan."""

    def __init__(self) -> None:
        self._by_key: dict[PathKey, Meeting] = {}
        self.touched: dict[PathKey, Meeting] = {}
        """Meetings that changed since they were last made ready."""

    def __iter__(self) -> Iterator[Meeting]:
        return iter(self._by_key.values())

    def add(self, entry: LiveQuery, choice: Choice) -> None:
        """Take a query in."""
        for meeting, node, member in self._places(entry, choice):
            node.add(member)
            self.touched[meeting.key] = meeting

    def remove(self, entry: LiveQuery, choice: Choice) -> None:
        """Take a query out, as it went in."""
        for meeting, node, member in self._places(entry, choice):
            node.remove(member)
            self.touched[meeting.key] = meeting

    def forget(self, key: PathKey) -> None:
        """Drop a meeting that nobody is in any more."""
        del self._by_key[key]

    def _places(self, entry: LiveQuery, choice: Choice) -> Iterator[tuple[Meeting, MeetingNode, Member]]:
        for order in choice.orders:
            path = entry.paths.of(order)
            root = path.key(choice.group, 1)
            twin = root.twin
            forward = twin is None or root.driver < twin.driver
            key = root if forward or twin is None else twin
            if key not in self._by_key:
                self._by_key[key] = Meeting(key, None if twin is None else twin if forward else root)
            meeting = self._by_key[key]
            node = meeting.forward if forward or meeting.backward is None else meeting.backward
            first, second = (0, 1) if forward else (1, 0)
            yield meeting, node, Member(entry, path, (entry.serial, order[first], order[second]))
