"""The checks that every algorithm and index passes, the package's own and yours: any case, against a slow twin.

`check_algorithm` and `check_index` are for a test of yours; what they are made of, running a case through the engine
and through the oracle and comparing rows and their order, is what the package's own tests use.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from streamjoin.indexes.base import Index
from streamjoin.indexes.registry import INDEXES, make_index
from streamjoin.joins import auto
from streamjoin.joins.engine.driver import Join
from streamjoin.joins.engine.settings import OpenSettings
from streamjoin.model.binding import BoundSpec, bind
from streamjoin.model.comparisons import with_comparisons
from streamjoin.model.errors import NotSupportedError
from streamjoin.model.spec import JoinSpec
from streamjoin.model.window import CountWindow
from streamjoin.testing import oracle
from streamjoin.testing.cases import JoinCase, cases

IdPair = tuple[int | None, int | None]

# A time that no window of a generated case reaches.
_BEYOND = 10_000

_SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_NEAR = st.integers(-20, 20)
_EDGES = st.sampled_from([_SMALLEST, _SMALLEST + 1, _LARGEST - 1, _LARGEST])
_WORDS = st.one_of(_NEAR, _NEAR, _NEAR, st.integers(_SMALLEST, _LARGEST), _EDGES)


def check_algorithm(name: str, examples: int = 100) -> None:
    """Run generated joins by an algorithm, over every index that it takes: rows and order are the oracle's.

    Joins in order of arrival, with one stream joined to itself, and in event time from two sources a side; keys of all
    types, bands and conditions; one to three workers.

    Raises:
        AssertionError: a case, as small as it could be made, that gives other rows; or it can run none.
        SpecError: the algorithm is not registered.
    """
    auto.AlgorithmRequest(name)
    ran: list[str] = []
    steps = st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b"]), st.integers(1, 6)), max_size=12)

    @settings(_SETTINGS, max_examples=examples)
    @given(
        case=st.one_of(cases(), cases(self_join=True), cases(order="event_time")),
        workers=st.integers(1, 3),
        steps=steps,
    )
    def check(case: JoinCase, workers: int, steps: list[tuple[bool, str, int]]) -> None:
        wanted = expected(case)
        for request in algorithms_for(case):
            if request.algorithm != name:
                continue
            ran.append(str(request))
            ordered = case.spec.runs_in == "event_time"
            found = run_event_time(case, request, workers, steps) if ordered else run_arrival(case, request, workers)
            if found != wanted:
                raise AssertionError(f"{request} gives {found} and not {wanted}")

    check()
    if not ran:
        raise AssertionError(f"{name} can run none of {examples} generated joins")


def check_index(name: str, examples: int = 30, **shape: Any) -> None:
    """Run operations in any order on an index with these settings, beside a sorted list; and on a window of 4,000.

    Raises:
        AssertionError: the operations after which it holds or finds something else.
        SpecError: the index is not registered, or does not take a setting.
    """
    _check_empty(make_index(name, **shape))
    _check_large(make_index(name, **shape))
    run_state_machine_as_test(
        type(f"{name}_machine", (_IndexMachine,), {"name": name, "shape": shape}),
        settings=settings(_SETTINGS, max_examples=examples, stateful_step_count=20),
    )


def algorithms_for(case: JoinCase) -> list[auto.AlgorithmRequest]:
    """Every algorithm that can run the case."""
    return algorithms(with_comparisons(bind(case.spec, *case.schemas)))


def algorithms(bound: BoundSpec) -> list[auto.AlgorithmRequest]:
    """Every algorithm that can run the join."""
    requests = []
    for request in auto.requests():
        try:
            auto.choose(bound, request)
        except NotSupportedError:
            continue
        requests.append(request)
    return requests


def expected(case: JoinCase) -> list[IdPair]:
    """The oracle's pairs of row ids of an inner join, in result order."""
    join = oracle.self_join if case.spec.self_join else oracle.join
    return ids_at(case, case.events, join(case.events, case.match, *oracle_windows(case.spec)))


def oracle_windows(spec: JoinSpec) -> list[oracle.Window]:
    """Both windows as the oracle takes them, straight from the spec: generated times are integers."""
    return [("count", w.n) if isinstance(w, CountWindow) else ("time", w.length) for w in spec.windows]


def ids_at(case: JoinCase, events: Sequence[oracle.Event], rows: Sequence[IdPair]) -> list[IdPair]:
    """The row ids of positions."""
    lefts = [e for e in events if not e.right]
    rights = lefts if case.spec.self_join else [e for e in events if e.right]
    return [(None if a is None else lefts[a].row["id"], None if b is None else rights[b].row["id"]) for a, b in rows]


def table(rows: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """Rows as an Arrow table of the given types."""
    rows = list(rows)
    return pa.table([pa.array([row[name] for row in rows], schema.field(name).type) for name in schema.names], schema)


def ids(result: pa.Table) -> list[IdPair]:
    """The pairs of row ids in a result; a result with left columns alone has no right ids."""
    if result.num_rows == 0:
        return []
    if "id" in result.column_names:
        return [(number, None) for number in result["id"].to_pylist()]
    return list(zip(result["id_left"].to_pylist(), result["id_right"].to_pylist(), strict=True))


def run_arrival(
    case: JoinCase, request: auto.AlgorithmRequest, workers: int = 1, general_pushes: int | None = None
) -> list[IdPair]:
    """Push the case's events in their order, cut where the case says."""
    with Join(case.spec, OpenSettings(request, workers, case.schemas, general_pushes=general_pushes)) as join:
        pairs = []
        for begin, end in pairwise((0, *case.cuts, len(case.events))):
            pairs += ids(_push(join, case, case.events[begin:end]))
        return pairs + ids(join.close())


def _push(join: Join, case: JoinCase, events: Sequence[oracle.Event]) -> pa.Table:
    left = table((e.row for e in events if not e.right), case.schemas[0])
    if case.spec.self_join:
        return join.push(left=left)
    right = table((e.row for e in events if e.right), case.schemas[1])
    return join.push(left=left, right=right, interleave=pa.array([e.right for e in events], pa.bool_()))


def run_event_time(
    case: JoinCase,
    request: auto.AlgorithmRequest,
    workers: int = 1,
    steps: Sequence[tuple[bool, str, int]] = (),
    general_pushes: int | None = None,
) -> list[IdPair]:
    """Push each source's events in its own order; `steps` has (is right, source, number of events) triples.

    With a number of 0 the source advances to its next event's time, or, when it has none, beyond every window.
    """
    queues: dict[tuple[bool, str], list[oracle.Event]] = {}
    for event in case.events:
        queues.setdefault((event.right, event.source), []).append(event)
    sources = {side: sorted(name for right, name in queues if right == (side == "right")) for side in ("left", "right")}
    settings = OpenSettings(request, workers, case.schemas, sources, general_pushes=general_pushes)
    with Join(case.spec, settings) as join:
        pairs = []
        for right, name, n in (*steps, *((right, name, len(case.events)) for right, name in sorted(queues))):
            queue = queues.get((right, name), [])
            if n == 0 and (right, name) in queues:
                time = queue[0].ts if queue else _BEYOND
                pairs += ids(join.advance(time, side="right" if right else "left", source=name))
                continue
            events, queues[right, name] = queue[:n], queue[n:]
            if events:
                rows = table((e.row for e in events), case.schemas[int(right)])
                result = join.push(right=rows, source=name) if right else join.push(left=rows, source=name)
                pairs += ids(result)
        return pairs + ids(join.close())


def _same(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"found {found} and not {wanted}")


def _found(index: Index, lo: Any, hi: Any, min_seq: Any = 0) -> list[tuple[int, int]]:
    probes, seqs = index.probe(lo, hi, min_seq)
    return list(zip(probes.tolist(), seqs.tolist(), strict=True))


def _check_empty(index: Index) -> None:
    index.insert([], [])
    index.expire(10)
    index.merge()
    _same(_found(index, [_SMALLEST, 0, _LARGEST], [_SMALLEST, 0, _LARGEST]), [])
    _same(_found(index, [], []), [])
    index.check()


def _check_large(index: Index) -> None:
    """A window that moves over 4,000 entries in random order of their words."""
    rng = np.random.default_rng(5)
    order = np.arange(4000)
    stored = rng.integers(-500, 500, order.size)
    for begin in range(0, order.size, 500):
        index.insert(stored[begin : begin + 500], order[begin : begin + 500])
        index.expire(max(0, begin - 1000))
    index.check()
    lo = rng.integers(-510, 510, 200)
    hi = lo + rng.integers(-2, 30, 200) if index.capabilities.ranges else lo
    wanted = [
        (i, seq)
        for i in range(lo.size)
        for seq in order[(stored >= lo[i]) & (stored <= hi[i]) & (order >= max(2000, index.min_seq))].tolist()
    ]
    _same(_found(index, lo, hi, 2000), wanted)


class _SortedEntries:
    """The slow twin of an index: a sorted list of (word, seq), and the bound below which nothing is seen."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.min_seq = 0

    def insert(self, words: list[int], seqs: list[int]) -> None:
        for entry in zip(words, seqs, strict=True):
            insort(self.entries, entry)

    def expire(self, min_seq: int) -> None:
        self.min_seq = max(self.min_seq, min_seq)
        self.entries = [entry for entry in self.entries if entry[1] >= self.min_seq]

    def probe(self, lo: list[int], hi: list[int], min_seq: list[int]) -> list[tuple[int, int]]:
        found = []
        for i, (low, high, bound) in enumerate(zip(lo, hi, min_seq, strict=True)):
            found += [(i, seq) for seq in sorted(s for w, s in self.entries if low <= w <= high and s >= bound)]
        return found


class _IndexMachine(RuleBasedStateMachine):
    """One index and its slow twin."""

    name: str
    shape: Mapping[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.index = make_index(self.name, **self.shape)
        self.twin = _SortedEntries()
        self.next_seq = 0

    @rule(batch=st.lists(_WORDS, max_size=40), gap=st.integers(0, 3))
    def insert(self, batch: list[int], gap: int) -> None:
        self.next_seq += gap
        seqs = list(range(self.next_seq, self.next_seq + len(batch)))
        self.next_seq += len(batch)
        self.index.insert(np.array(batch, dtype=np.int64), np.array(seqs, dtype=np.int64))
        self.twin.insert(batch, seqs)

    @rule(word=_WORDS, count=st.integers(30, 90))
    def insert_equal(self, word: int, count: int) -> None:
        self.insert([word] * count, 0)

    @rule(first=_NEAR, count=st.integers(30, 90), step=st.sampled_from([-7, -1, 1, 3]))
    def insert_slope(self, first: int, count: int, step: int) -> None:
        self.insert([first + step * k for k in range(count)], 0)

    @rule(intervals=st.lists(st.tuples(_WORDS, _WORDS, st.integers(0, 400)), max_size=8))
    def probe(self, intervals: list[tuple[int, int, int]]) -> None:
        lo = [low for low, _, _ in intervals]
        hi = [high if self.index.capabilities.ranges else low for low, high, _ in intervals]
        bound = [seq for _, _, seq in intervals]
        columns = (np.array(column, dtype=np.int64) for column in (lo, hi, bound))
        _same(_found(self.index, *columns), self.twin.probe(lo, hi, bound))

    @rule(word=_WORDS)
    def probe_point(self, word: int) -> None:
        self.probe([(word, word, 0)])

    @rule(share=st.floats(0, 1))
    def expire(self, share: float) -> None:
        bound = self.twin.min_seq + round(share * (self.next_seq - self.twin.min_seq))
        self.index.expire(bound)
        self.twin.expire(bound)

    @rule()
    def merge(self) -> None:
        self.index.merge()

    @rule(draw=st.data())
    def move(self, draw: st.DataObject) -> None:
        """Through a snapshot, into a fresh index of this kind by way of another kind."""
        # Drawn here, as indexes may be registered and removed at any time.
        other = make_index(draw.draw(st.sampled_from(sorted(INDEXES))))
        other.restore(self.index.snapshot())
        self.index = make_index(self.name, **self.shape)
        self.index.restore(other.snapshot())

    @invariant()
    def sound(self) -> None:
        self.index.check()
        snapshot = self.index.snapshot()
        entries = sorted(zip(snapshot["words"].tolist(), snapshot["seqs"].tolist(), strict=True))
        _same(entries, self.twin.entries)
        if len(self.index) < len(entries):
            raise AssertionError(f"{len(self.index)} entries are fewer than the {len(entries)} that are alive")
