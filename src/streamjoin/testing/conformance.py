"""Running a case through the engine and through the oracle, and comparing rows and their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from streamjoin.joins import auto
from streamjoin.joins.engine.driver import Join
from streamjoin.joins.engine.opening import open  # noqa: A004
from streamjoin.model.binding import BoundSpec, bind
from streamjoin.model.comparisons import with_comparisons
from streamjoin.model.errors import NotSupportedError
from streamjoin.testing import oracle
from streamjoin.testing.cases import JoinCase
from streamjoin.testing.kinds_oracle import AsOfRule, Kind, accepted, as_of, placed_rows

IdPair = tuple[int | None, int | None]


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
    """The oracle's pairs of row ids, in result order; None for a side that is missing."""
    bound = bind(case.spec, *case.schemas)
    left, right = ((w.kind, w.size) for w in bound.windows)
    events: Sequence[oracle.Event] = case.events
    arrival = case.spec.order == "arrival"
    positions: Sequence[IdPair]
    if bound.match is not None:
        match = bound.match
        window = None if case.spec.window is None else right
        rule = AsOfRule(match.direction, match.tolerance, match.exact, case.spec.how, arrival, window)
        positions = as_of(events, case.match, rule)
    elif case.spec.how != "inner":
        return [pair for _, pair in placed(case)]
    else:
        positions = (oracle.self_join if case.spec.self_join else oracle.join)(events, case.match, left, right)
    return _ids_at(case, events, positions)


def placed(case: JoinCase) -> list[tuple[int, IdPair]]:
    """The oracle's pairs of an outer, semi or anti join, each with the place in gate order where it comes out."""
    bound = bind(case.spec, *case.schemas)
    left, right = ((w.kind, w.size) for w in bound.windows)
    lateness = bound.lateness if case.spec.order == "arrival" else None
    kind = Kind(case.spec.how, left, right, case.spec.self_join, lateness)
    events = accepted(case.events, kind)
    rows = placed_rows(events, case.match, _is_keyless, kind)
    pairs = _ids_at(case, events, [row for _, row in rows])
    return [(place, pair) for (place, _), pair in zip(rows, pairs, strict=True)]


def _ids_at(case: JoinCase, events: Sequence[oracle.Event], rows: Sequence[IdPair]) -> list[IdPair]:
    """The row ids of positions."""
    lefts = [e for e in events if not e.right]
    rights = lefts if case.spec.self_join else [e for e in events if e.right]
    return [(None if a is None else lefts[a].row["id"], None if b is None else rights[b].row["id"]) for a, b in rows]


def _is_keyless(event: oracle.Event) -> bool:
    """Whether a generated tuple has no key; keys are the columns k0, k1, ..."""
    return any(oracle.is_nothing(value) for name, value in event.row.items() if name.startswith("k"))


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


def run_arrival(case: JoinCase, request: auto.AlgorithmRequest, workers: int = 1) -> list[IdPair]:
    """Push the case's events in their order, cut where the case says."""
    with _opened(case, request, workers) as join:
        pairs = []
        for begin, end in pairwise((0, *case.cuts, len(case.events))):
            pairs += ids(_push(join, case, case.events[begin:end]))
        return pairs + ids(join.close())


def _opened(
    case: JoinCase, request: auto.AlgorithmRequest, workers: int, sources: dict[str, list[str]] | None = None
) -> Join:
    return open(
        case.spec,
        request.algorithm,
        workers,
        index=request.index,
        left_schema=case.schemas[0],
        right_schema=case.schemas[1],
        sources=sources,
    )


def _push(join: Join, case: JoinCase, events: Sequence[oracle.Event]) -> pa.Table:
    left = table((e.row for e in events if not e.right), case.schemas[0])
    if case.spec.self_join:
        return join.push(left=left)
    right = table((e.row for e in events if e.right), case.schemas[1])
    return join.push(left=left, right=right, interleave=pa.array([e.right for e in events], pa.bool_()))


def run_event_time(
    case: JoinCase, request: auto.AlgorithmRequest, workers: int = 1, steps: Sequence[tuple[bool, str, int]] = ()
) -> list[IdPair]:
    """Push each source's events in its own order; `steps` has (is right, source, number of events) triples.

    With a number of 0 the source advances to its next event's time.
    """
    queues: dict[tuple[bool, str], list[oracle.Event]] = {}
    for event in case.events:
        queues.setdefault((event.right, event.source), []).append(event)
    sources = {side: sorted(name for right, name in queues if right == (side == "right")) for side in ("left", "right")}
    with _opened(case, request, workers, sources) as join:
        pairs = []
        for right, name, n in (*steps, *((right, name, len(case.events)) for right, name in sorted(queues))):
            queue = queues.get((right, name), [])
            if n == 0 and queue:
                pairs += ids(join.advance(queue[0].ts, side="right" if right else "left", source=name))
                continue
            events, queues[right, name] = queue[:n], queue[n:]
            if events:
                rows = table((e.row for e in events), case.schemas[int(right)])
                result = join.push(right=rows, source=name) if right else join.push(left=rows, source=name)
                pairs += ids(result)
        return pairs + ids(join.close())
