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
from streamjoin.model.errors import NotSupportedError
from streamjoin.testing import oracle
from streamjoin.testing.cases import JoinCase

IdPair = tuple[int, int]


def algorithms_for(case: JoinCase) -> list[auto.AlgorithmRequest]:
    """Every algorithm that can run the case."""
    return algorithms(bind(case.spec, *case.schemas))


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
    """The oracle's pairs of row ids, in result order."""
    left, right = ((w.kind, w.size) for w in bind(case.spec, *case.schemas).windows)
    events = case.events
    pairs = oracle.self_join if case.spec.self_join else oracle.join
    lefts = [e for e in events if not e.right]
    rights = lefts if case.spec.self_join else [e for e in events if e.right]
    positions = pairs(events, case.match, left, right)
    return [(lefts[a].row["id"], rights[b].row["id"]) for a, b in positions]


def table(rows: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """Rows as an Arrow table of the given types."""
    rows = list(rows)
    return pa.table([pa.array([row[name] for row in rows], schema.field(name).type) for name in schema.names], schema)


def ids(result: pa.Table) -> list[IdPair]:
    """The pairs of row ids in a result."""
    if result.num_rows == 0:
        return []
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
    """Push each source's events in its own order; `steps` has (is right, source, number of events) triples."""
    queues: dict[tuple[bool, str], list[oracle.Event]] = {}
    for event in case.events:
        queues.setdefault((event.right, event.source), []).append(event)
    sources = {side: sorted(name for right, name in queues if right == (side == "right")) for side in ("left", "right")}
    with _opened(case, request, workers, sources) as join:
        pairs = []
        for right, name, n in (*steps, *((right, name, len(case.events)) for right, name in sorted(queues))):
            queue = queues.get((right, name), [])
            events, queues[right, name] = queue[:n], queue[n:]
            if events:
                rows = table((e.row for e in events), case.schemas[int(right)])
                result = join.push(right=rows, source=name) if right else join.push(left=rows, source=name)
                pairs += ids(result)
        return pairs + ids(join.close())
