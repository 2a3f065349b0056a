"""Meetings made ready to run: tests, sets and endings, in the layout of the meeting's bits.

Only what changed is made anew. The invariant: every active path ends in one place for each of its drivers, so that
each result is dealt out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from streamjoin._arrays import Array
from streamjoin.adhoc.core.budgets import NOBODY, Ledger
from streamjoin.adhoc.core.meetings import Meeting, MeetingNode, Member
from streamjoin.adhoc.core.outputs import Outputs, Sink
from streamjoin.adhoc.core.probe_plan import PathKey
from streamjoin.adhoc.core.query_classes import QueryClasses
from streamjoin.adhoc.core.query_sets import BitLayout, Owner, SetColumn
from streamjoin.adhoc.core.selection_tables import BITS, Bits
from streamjoin.adhoc.core.shared_step import Compiler, Tests
from streamjoin.adhoc.core.stored_stream import StoredStream


@dataclass(frozen=True)
class Ending:
    """Paths that end at a step and have outputs of one kind: `roles` says which role is which of their sources."""

    sink: Sink
    roles: tuple[int, ...]
    mask: Array
    owners: Array
    """For each bit, the query's number in the sink."""


@dataclass(frozen=True)
class Step:
    """A node as the executor runs it."""

    key: PathKey
    tests: Tests
    sets: SetColumn
    mask: Array
    endings: tuple[Ending, ...]
    children: tuple[Step, ...]
    queries: tuple[str, ...]
    ends: tuple[str, ...]
    accounts: Array
    """Those of the paths that have a budget."""

    @property
    def stream(self) -> str:
        """The stream of the new role."""
        return self.key.steps[-1].stream

    def walk(self) -> Iterator[Step]:
        """This step and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class ReadyMeeting:
    """A meeting as the executor runs it: pairs of `forward`'s driver and its new role, found for both at once.

    `endings` are those of paths that end here whichever stream drives. Without `backward`, in a join of a
    stream with itself, only the forward driver probes.
    """

    forward: Step
    backward: Step | None
    left: SetColumn
    endings: tuple[Ending, ...]
    accounts: Array | None
    """For each bit the account of its query's budget; None where nobody has one."""

    @property
    def directions(self) -> tuple[Step, ...]:
        """The directions that somebody takes."""
        both = (self.forward,) if self.backward is None else (self.forward, self.backward)
        return tuple(step for step in both if step.queries)

    @property
    def goes_on(self) -> bool:
        """Whether there is anything to do for one direction alone."""
        return any(step.endings or step.children for step in self.directions)


class Preparer:
    """Makes meetings ready."""

    def __init__(
        self,
        streams: Mapping[str, StoredStream],
        compiler: Compiler,
        outputs: Outputs,
        classes: QueryClasses,
        ledger: Ledger,
    ) -> None:
        self._ledger = ledger
        self._streams = streams
        self._classes = classes
        self._compiler = compiler
        self._outputs = outputs

    def ready(self, meeting: Meeting, held: int) -> ReadyMeeting | None:
        """A meeting made ready, where tuples up to the batch `held` are there; None if nobody is in it any more."""
        members = meeting.members
        if not members:
            return None
        meeting.settle(held)
        layout = meeting.layout
        joint = {owner: member.entry.paths.of((owner[1], owner[2])).tests[0] for owner, member in members.items()}
        tests = self._compiler.tests(meeting.key, joint, layout)
        both = _ending_both_ways(meeting)
        nodes = [node for direction in meeting.nodes for node in _below(direction)]
        asked = [
            (meeting.key.driver, _bits(layout, members, side=1)),
            (meeting.key.steps[0].stream, _bits(layout, members, side=2)),
        ]
        asked += [(node.key.steps[-1].stream, _role_bits(layout, node)) for node in nodes]
        columns = meeting.columns_of((self._streams[stream], bits) for stream, bits in asked)
        left, right, *rest = columns
        sets = {id(node): column for node, column in zip(nodes, rest, strict=True)}
        steps = [
            self._first(node, layout, tests, right if node is meeting.forward else left, sets, both)
            for node in meeting.nodes
        ]
        endings = self._endings(layout, {o: m for o, m in meeting.forward.enders.items() if o in both})
        return ReadyMeeting(steps[0], steps[1] if len(steps) > 1 else None, left, endings, self._accounts(layout))

    def _accounts(self, layout: BitLayout) -> Array | None:
        accounts = np.full(layout.words * BITS, NOBODY)
        accounts[: len(layout)] = [self._ledger.number_of(owner[0]) for owner in layout]
        return accounts if (accounts != NOBODY).any() else None

    def _first(
        self,
        node: MeetingNode,
        layout: BitLayout,
        tests: Tests,
        own: SetColumn,
        sets: Mapping[int, SetColumn],
        both: set[Owner],
    ) -> Step:
        return self._step(node, layout, tests, own, sets, {o: m for o, m in node.enders.items() if o not in both})

    def _step(
        self,
        node: MeetingNode,
        layout: BitLayout,
        tests: Tests,
        own: SetColumn,
        sets: Mapping[int, SetColumn],
        enders: Mapping[Owner, Member],
    ) -> Step:
        children = []
        for child in node.children.values():
            by = {owner: member.path.tests[child.role - 1] for owner, member in child.members.items()}
            child_tests = self._compiler.tests(child.key, by, layout)
            children.append(self._step(child, layout, child_tests, sets[id(child)], sets, child.enders))
        return Step(
            node.key,
            tests,
            own,
            layout.of(owner for owner, member in node.members.items() if not member.entry.paused),
            self._endings(layout, enders),
            tuple(children),
            self._classes.names(member.entry for member in node.members.values()),
            self._classes.names(member.entry for member in node.enders.values()),
            np.unique(np.array([self._ledger.number_of(owner[0]) for owner in node.members], np.int64)),
        )

    def _endings(self, layout: BitLayout, enders: Mapping[Owner, Member]) -> tuple[Ending, ...]:
        groups: dict[tuple[Sink, tuple[int, ...]], dict[Owner, int]] = {}
        for owner, member in enders.items():
            if not member.entry.paused:
                sink, number = self._outputs.place_of(member.entry)
                order = member.path.order
                roles = tuple(order.index(alias) for alias in member.entry.query.aliases)
                groups.setdefault((sink, roles), {})[owner] = number
        endings = []
        for (sink, roles), numbers in groups.items():
            owners = np.zeros(layout.words * BITS, np.int64)
            for owner, number in numbers.items():
                owners[layout.place(owner)] = number
            endings.append(Ending(sink, roles, layout.of(numbers), owners))
        return tuple(endings)


def _ending_both_ways(meeting: Meeting) -> set[Owner]:
    if meeting.backward is None:
        return set()
    return set(meeting.forward.enders.keys() & meeting.backward.enders.keys())


def _below(node: MeetingNode) -> Iterator[MeetingNode]:
    for child in node.children.values():
        yield child
        yield from _below(child)


def _bits(layout: BitLayout, members: Mapping[Owner, Member], side: int) -> Bits:
    """What the bits ask of the tuples of a side: of an owner's first alias, or the second."""
    return tuple(members[owner].entry.selected[str(owner[side])] if owner in members else None for owner in layout)


def _role_bits(layout: BitLayout, node: MeetingNode) -> Bits:
    members, number = node.members, node.role
    return tuple(
        members[owner].entry.selected[members[owner].path.order[number]] if owner in members else None
        for owner in layout
    )


def steps_of(meetings: Iterable[ReadyMeeting]) -> Iterator[Step]:
    """All steps, of every direction."""
    for meeting in meetings:
        for direction in meeting.directions:
            yield from direction.walk()
