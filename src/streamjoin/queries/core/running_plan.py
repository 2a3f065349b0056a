"""The shared plan as it runs: first joins of two streams and the steps after them, made ready with tests and sets.

A first join holds all paths that begin with the same join of two streams, whichever of them drives: its pairs are found
once, and which of the two came last says whose path goes on. Within one stream the driver is always the first
role. The paths without steps of a stream, those of queries over it alone, have one first join too: it joins nothing
and gives out the tuples that each of them selects. The invariants: adding or removing a query touches the first joins
of its own paths and no other, and only what changed is made ready anew; every active path ends in one place for each of
its drivers, so that each result is dealt out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from streamjoin._arrays import Array
from streamjoin.queries.core.budgets import NOBODY, Ledger
from streamjoin.queries.core.changes import LiveQuery
from streamjoin.queries.core.outputs import Outputs, QueryClasses, Sink
from streamjoin.queries.core.probe_plan import Choice, Path, PathKey, StepKey
from streamjoin.queries.core.selection_tables import BITS, BitLayout, Bits, Owner, SetColumn
from streamjoin.queries.core.shared_step import Compiler, Tests
from streamjoin.queries.core.stored_stream import StoredStream


@dataclass(frozen=True)
class Member:
    """A query's path, and the bit that it owns."""

    entry: LiveQuery
    path: Path
    owner: Owner


@dataclass
class PathNode:
    """A shared step: the paths that pass through, and those that end here, by the bits that they own."""

    key: PathKey
    members: dict[Owner, Member] = field(default_factory=dict)
    enders: dict[Owner, Member] = field(default_factory=dict)
    children: dict[StepKey, PathNode] = field(default_factory=dict)

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
            self.children[step] = PathNode(member.path.key(self.key.group, self.role + 1))
        self.children[step].add(member)

    def remove(self, member: Member) -> None:
        """Take a path out; steps that no path passes go with it."""
        del self.members[member.owner]
        self.enders.pop(member.owner, None)
        if self.role < len(member.path.steps):
            step = member.path.steps[self.role]
            self.children[step].remove(member)
            if not self.children[step].members:
                del self.children[step]


class FirstJoin:
    """The first step of many paths: `forward` drives with the first stream of the key, `backward` with the second."""

    def __init__(self, key: PathKey, twin: PathKey | None) -> None:
        self.key = key
        self.forward = PathNode(key)
        self.backward = None if twin is None else PathNode(twin)
        self.layout = BitLayout()
        self._columns: list[SetColumn] = []

    @property
    def nodes(self) -> tuple[PathNode, ...]:
        """The directions that there are."""
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    @property
    def members(self) -> dict[Owner, Member]:
        """Who has a bit, by a path of either direction."""
        return {owner: member for node in reversed(self.nodes) for owner, member in node.members.items()}

    def settle(self, held: int) -> None:
        """Give bits to those who have none; tuples up to the batch `held` are there, finished or not.

        A query that was created by then needs the bits of old tuples too: then all sets are made anew, as when most
        bits have no owner any more.
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
            # One that is taken already serves other bits: it may be shared as it is, not changed again.
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


class FirstJoins:
    """All first joins of a plan."""

    def __init__(self) -> None:
        self._by_key: dict[PathKey, FirstJoin] = {}
        self.touched: dict[PathKey, FirstJoin] = {}
        """First joins that changed since they were last made ready."""

    def __iter__(self) -> Iterator[FirstJoin]:
        return iter(self._by_key.values())

    def add(self, entry: LiveQuery, choice: Choice) -> None:
        """Take a query in."""
        for first_join, node, member in self._places(entry, choice):
            node.add(member)
            self.touched[first_join.key] = first_join

    def remove(self, entry: LiveQuery, choice: Choice) -> None:
        """Take a query out, as it went in."""
        for first_join, node, member in self._places(entry, choice):
            node.remove(member)
            self.touched[first_join.key] = first_join

    def forget(self, key: PathKey) -> None:
        """Drop a first join that no path begins with any more."""
        del self._by_key[key]

    def _places(self, entry: LiveQuery, choice: Choice) -> Iterator[tuple[FirstJoin, PathNode, Member]]:
        for order in choice.orders:
            path = entry.paths.of(order)
            root = path.key(choice.group, 1)
            twin = root.twin
            forward = twin is None or root.driver < twin.driver
            key = root if forward or twin is None else twin
            if key not in self._by_key:
                self._by_key[key] = FirstJoin(key, None if twin is None else twin if forward else root)
            first_join = self._by_key[key]
            node = first_join.forward if forward or first_join.backward is None else first_join.backward
            first, second = (order[0], order[-1]) if len(order) < 2 else order[:2] if forward else order[1::-1]
            yield first_join, node, Member(entry, path, (entry.serial, first, second))


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
        """The stream of the new role; without steps that of the driver."""
        return self.key.streams[-1]

    def walk(self) -> Iterator[Step]:
        """This step and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class ReadyFirstJoin:
    """A first join as the executor runs it: pairs of `forward`'s driver and its new role, found for both at once.

    `endings` are those of paths that end here whichever stream drives. Without `backward`, in a join of a
    stream with itself, only the forward driver probes.
    """

    forward: Step
    backward: Step | None
    left: SetColumn
    endings: tuple[Ending, ...]
    accounts: Array | None
    """For each bit the account of its query's budget; None if no query has one."""

    @property
    def directions(self) -> tuple[Step, ...]:
        """The directions that some query takes."""
        both = (self.forward,) if self.backward is None else (self.forward, self.backward)
        return tuple(step for step in both if step.queries)

    @property
    def goes_on(self) -> bool:
        """Whether there is anything to do for one direction alone."""
        return any(step.endings or step.children for step in self.directions)


class Preparer:
    """Makes first joins ready."""

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

    def ready(self, first_join: FirstJoin, held: int) -> ReadyFirstJoin | None:
        """A first join made ready, where tuples up to the batch `held` are there; None if no path has it any more."""
        members = first_join.members
        if not members:
            return None
        first_join.settle(held)
        if not first_join.key.steps:
            return self._selecting(first_join)
        layout = first_join.layout
        joint = {owner: member.entry.paths.of((owner[1], owner[2])).tests[0] for owner, member in members.items()}
        tests = self._compiler.tests(first_join.key, joint, layout)
        both = _ending_both_ways(first_join)
        nodes = [node for direction in first_join.nodes for node in _below(direction)]
        asked = [
            (first_join.key.driver, _bits(layout, members, side=1)),
            (first_join.key.steps[0].stream, _bits(layout, members, side=2)),
        ]
        asked += [(node.key.steps[-1].stream, _role_bits(layout, node)) for node in nodes]
        columns = first_join.columns_of((self._streams[stream], bits) for stream, bits in asked)
        left, right, *rest = columns
        sets = {id(node): column for node, column in zip(nodes, rest, strict=True)}
        steps = []
        for node in first_join.nodes:
            enders = {owner: member for owner, member in node.enders.items() if owner not in both}
            own = right if node is first_join.forward else left
            steps.append(self._step(node, layout, tests, own, sets, enders))
        endings = self._endings(layout, {o: m for o, m in first_join.forward.enders.items() if o in both})
        return ReadyFirstJoin(steps[0], steps[1] if len(steps) > 1 else None, left, endings, self._accounts(layout))

    def _selecting(self, first_join: FirstJoin) -> ReadyFirstJoin:
        """Paths without steps made ready: which tuples they select is all there is."""
        key, layout, node = first_join.key, first_join.layout, first_join.forward
        bits = _bits(layout, first_join.members, side=1)
        (sets,) = first_join.columns_of([(self._streams[key.driver], bits)])
        step = self._step(node, layout, self._compiler.tests(key, {}, layout), sets, {}, node.enders)
        return ReadyFirstJoin(step, None, sets, (), self._accounts(layout))

    def _accounts(self, layout: BitLayout) -> Array | None:
        accounts = np.full(layout.words * BITS, NOBODY)
        accounts[: len(layout)] = [self._ledger.number_of(owner[0]) for owner in layout]
        return accounts if (accounts != NOBODY).any() else None

    def _step(
        self,
        node: PathNode,
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


def _ending_both_ways(first_join: FirstJoin) -> set[Owner]:
    if first_join.backward is None:
        return set()
    return set(first_join.forward.enders.keys() & first_join.backward.enders.keys())


def _below(node: PathNode) -> Iterator[PathNode]:
    for child in node.children.values():
        yield child
        yield from _below(child)


def _bits(layout: BitLayout, members: Mapping[Owner, Member], side: int) -> Bits:
    """What the bits ask of the tuples of a side: of an owner's first alias, or the second."""
    return tuple(members[owner].entry.selected[str(owner[side])] if owner in members else None for owner in layout)


def _role_bits(layout: BitLayout, node: PathNode) -> Bits:
    members, number = node.members, node.role
    return tuple(
        members[owner].entry.selected[members[owner].path.order[number]] if owner in members else None
        for owner in layout
    )


def steps_of(first_joins: Iterable[ReadyFirstJoin]) -> Iterator[Step]:
    """All steps, of every direction."""
    for first_join in first_joins:
        for direction in first_join.directions:
            yield from direction.walk()
