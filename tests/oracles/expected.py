"""What the oracles expect of a join of any kind: pairs of row ids, in result order; None for a side that is missing."""

from __future__ import annotations

from functools import partial

from streamjoin.model.asof import AsOf
from streamjoin.model.window import TimeWindow
from streamjoin.testing import conformance, oracle
from streamjoin.testing.cases import JoinCase
from streamjoin.testing.conformance import IdPair, ids_at, oracle_windows
from tests.oracles.kinds_oracle import AsOfRule, Kind, accepted, as_of, placed_rows


def expected(case: JoinCase) -> list[IdPair]:
    """The oracle's pairs."""
    if isinstance(case.spec.match, AsOf):
        match = case.spec.match
        window = None if case.spec.window is None else oracle_windows(case.spec)[1]
        tolerance = None if match.reach is None else match.reach.length
        arrival = case.spec.runs_in == "arrival"
        rule = AsOfRule(match.direction, tolerance, match.exact, case.spec.how, arrival, window)
        return ids_at(case, case.events, as_of(case.events, case.match, rule))
    if case.spec.how != "inner":
        return [pair for _, pair in placed(case)]
    return conformance.expected(case)


def placed(case: JoinCase) -> list[tuple[int, IdPair]]:
    """The oracle's pairs of an outer, semi or anti join, each with the place in gate order where it comes out."""
    given = case.spec.lateness
    lateness = None if given is None or case.spec.runs_in == "event_time" else TimeWindow(given).length
    left, right = oracle_windows(case.spec)
    kind = Kind(case.spec.how, left, right, case.spec.self_join, lateness)
    events = accepted(case.events, kind)
    rows = placed_rows(events, case.match, partial(_is_keyless, str(case.spec.predicate)), kind)
    pairs = ids_at(case, events, [row for _, row in rows])
    return [(place, pair) for (place, _), pair in zip(rows, pairs, strict=True)]


def _is_keyless(condition: str, event: oracle.Event) -> bool:
    """Whether a generated tuple has no key; keys are those of the columns k0, k1, ... that the condition names."""
    keys = (name for name in event.row if name.startswith("k") and name in condition)
    return any(oracle.is_nothing(event.row[name]) for name in keys)
