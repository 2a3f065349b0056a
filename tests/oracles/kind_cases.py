"""Hypothesis strategies for the join kinds: generated joins with `how=` and `match=`, and joins on intervals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, cast

import pyarrow as pa
from hypothesis import strategies as st

from streamjoin.model.asof import AsOf
from streamjoin.model.predicates import Band, Equi, JoinPredicate, Overlaps, Theta, Within
from streamjoin.model.spec import HOWS, How, JoinSpec
from streamjoin.model.window import CountWindow, TimeWindow
from streamjoin.testing import oracle
from streamjoin.testing.cases import EQUIS, JoinCase, cases, windows
from tests.oracles.kinds_oracle import intervals_overlap, point_within

Order = Literal["arrival", "event_time"]

_EQUALITIES = (tuple(kind for kind in EQUIS if kind.name in ("int64", "string", "float64", "decimal(38,10)")), ())


@st.composite
def kind_cases(draw: st.DrawFn, order: Order = "arrival", self_join: bool = False, most: int = 40) -> JoinCase:
    """An outer, semi or anti join; with a lateness, which arrival order needs and which holds up the gate."""
    case = draw(cases(order, self_join, most))
    how = draw(st.sampled_from(("semi", "anti") if self_join else HOWS[1:]))
    lateness = draw(st.sampled_from([0, 2, 5, 1000]))
    timed = order == "event_time" or any(isinstance(window, TimeWindow) for window in case.spec.windows)
    # In arrival order late tuples are dropped; the generated times are anywhere.
    spec = replace(case.spec, how=cast(How, how), lateness=lateness if timed else None)
    # A shared key has one type in the result of an outer join.
    return replace(case, spec=replace(spec, both_keys=True))


@st.composite
def mixed_window_cases(draw: st.DrawFn, most: int = 8) -> JoinCase:
    """A full join with a count window on one side and a time window on the other, few of whose tuples match."""
    counted, timed = CountWindow(draw(st.integers(1, 4))), TimeWindow(draw(st.sampled_from([0, 2, 10])))
    pair = (counted, timed) if draw(st.booleans()) else (timed, counted)
    events = []
    for i in range(draw(st.integers(1, most))):
        row = {"id": i, "t": draw(st.integers(0, 25)), "k0": draw(st.integers(0, 9))}
        events.append(oracle.Event(draw(st.booleans()), row, row["t"], "a"))
    schema = pa.schema([(name, pa.int64()) for name in ("id", "t", "k0")])
    spec = JoinSpec(on=Equi("k0"), window=pair, time="t", order="event_time", how="full")
    ordered = tuple(oracle.event_time_order(events))
    return JoinCase(spec, lambda a, b: oracle.equal(a["k0"], b["k0"]), (schema, schema), ordered, ())


@st.composite
def as_of_cases(draw: st.DrawFn, order: Order = "event_time", most: int = 40) -> JoinCase:
    """An as-of join by key, by nothing, or by any condition."""
    shape = draw(st.sampled_from(["keys", "none", "any"]))
    case = draw(cases(order, most=most, kinds=_EQUALITIES) if shape == "keys" else cases(order, most=most))
    if shape == "none":
        case = replace(case, match=lambda _, __: True)
    arguments: dict[str, Any] = {"on": None if shape == "none" else case.spec.on, "window": None, "both_keys": True}
    by_keys = shape == "none" or all(isinstance(term, Equi) for term in case.spec.predicate.terms())
    if order == "arrival":
        match = AsOf()
        if not by_keys or draw(st.booleans()):
            arguments |= {"window": case.spec.windows[1], "lateness": 1000}
    else:
        direction = draw(st.sampled_from(["backward", "forward", "nearest"]))
        tolerance = draw(st.sampled_from([0, 1, 3, 10, 1000]))
        free = direction == "backward" and by_keys and draw(st.booleans())
        match = AsOf(cast(Any, direction), None if free else tolerance, draw(st.booleans()))
        arguments["lateness"] = draw(st.sampled_from([0, 2, 5]))
    how = cast(How, draw(st.sampled_from(["inner", "left", "anti"])))
    return replace(case, spec=replace(case.spec, how=how, match=match, **arguments))


_MIN, _MAX = -(2**63), 2**63 - 1
_ENDS = [_MIN, _MIN + 1, _MIN + 4, -(2**62), -1, 0, 1, 2**62, _MAX - 6, _MAX - 4, _MAX - 1, _MAX]
_LENGTHS = st.sampled_from([0, 1, 5, 2**62 - 1, 2**62, _MAX - 1, _MAX, _MAX + 1, 2**64 - 2, 2**64 - 1, 2**64, 10**30])


@st.composite
def extreme_cases(draw: st.DrawFn, of: st.SearchStrategy[JoinCase]) -> JoinCase:
    """A case with times at both ends of int64 and around 0, and with lengths up to beyond all distances."""
    case = draw(of)
    times = draw(st.lists(st.sampled_from(_ENDS), min_size=1, max_size=8))
    events = []
    for event in case.events:
        time = times[event.ts % len(times)]
        events.append(replace(event, row={**event.row, "t": time}, ts=time))
    spec = case.spec
    if spec.order == "event_time":
        events = oracle.event_time_order(events)
    changes: dict[str, Any] = {}
    if spec.window is not None:
        timed = [TimeWindow(draw(_LENGTHS)) if isinstance(w, TimeWindow) else w for w in spec.windows]
        changes["window"] = timed[1] if spec.match is not None else tuple(timed)
    if isinstance(spec.match, AsOf) and spec.match.tolerance is not None:
        changes["match"] = replace(spec.match, tolerance=draw(_LENGTHS))
    if spec.lateness is not None:
        # The oracle of as-of joins in arrival order knows no late tuples.
        changes["lateness"] = 10**30 if spec.match and spec.order == "arrival" else draw(_LENGTHS)
    return replace(case, spec=replace(spec, **changes), events=tuple(events))


_NEAR: tuple[tuple[JoinPredicate | str | None, oracle.Match], ...] = (
    (Band("k", "k", 1), lambda a, b: oracle.within(a["k"], b["k"], 1, 1)),
    (Equi("k") & Theta("l.v <> r.v"), lambda a, b: oracle.equal(a["k"], b["k"]) and a["v"] != b["v"]),
    ("l.v + r.v > 1", lambda a, b: a["v"] + b["v"] > 1),
    (Equi("k"), lambda a, b: oracle.equal(a["k"], b["k"])),
    (None, lambda _, __: True),
)


@st.composite
def tied_as_of_cases(draw: st.DrawFn, most: int = 40) -> JoinCase:
    """An as-of join whose left tuples have several partners at the same time, equal to their own or not."""
    on, match = draw(st.sampled_from(_NEAR))
    rng = draw(st.randoms(use_true_random=False))
    events = []
    for i in range(draw(st.integers(most // 4, most))):
        row: dict[str, Any] = {"id": i, "t": rng.randint(0, 4) + i // 8, "k": rng.choice([1, 1, 2, 3, None])}
        events.append(oracle.Event(rng.random() < 0.6, row | {"v": rng.randint(0, 2)}, row["t"], rng.choice("ab")))
    schema = pa.schema([(name, pa.int64()) for name in ("id", "t", "k", "v")])
    nearest = AsOf(
        cast(Any, draw(st.sampled_from(["backward", "forward", "nearest"]))),
        draw(st.sampled_from([0, 1, 3])),
        draw(st.booleans()),
    )
    spec = JoinSpec(
        on=on,
        match=nearest,
        time="t",
        order="event_time",
        how=cast(How, draw(st.sampled_from(["inner", "left", "anti"]))),
        lateness=draw(st.sampled_from([0, 2])),
        both_keys=True,
    )
    cuts = tuple(sorted(draw(st.lists(st.integers(0, len(events)), max_size=4))))
    return JoinCase(spec, match, (schema, schema), tuple(oracle.event_time_order(events)), cuts)


_POINTS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "integers": (pa.int64(), st.integers(-3, 12) | st.sampled_from([-(2**63), 2**63 - 1, 2**40])),
    "small integers": (pa.int16(), st.integers(-3, 12) | st.sampled_from([-(2**15), 2**15 - 1])),
    "unsigned": (pa.uint64(), st.integers(0, 12) | st.sampled_from([2**63, 2**64 - 1])),
    "floats": (pa.float64(), st.sampled_from([0.0, -0.0, 0.5, 1.5, -7.0, 1e300, math.inf, -math.inf, math.nan])),
}
_INTERVALS: tuple[tuple[JoinPredicate | str, oracle.Match], ...] = (
    (Within("p", "lo", "hi"), lambda a, b: point_within(a["p"], b["lo"], b["hi"])),
    (Within("p", "lo", "hi", interval="left"), lambda a, b: point_within(b["p"], a["lo"], a["hi"])),
    (Overlaps(("lo", "hi"), ("lo", "hi")), lambda a, b: intervals_overlap((a["lo"], a["hi"]), (b["lo"], b["hi"]))),
    ("l.p BETWEEN r.lo AND r.hi", lambda a, b: point_within(a["p"], b["lo"], b["hi"])),
    (
        "l.lo < r.hi AND r.lo < l.hi",
        lambda a, b: (
            point_within(a["lo"], a["lo"], b["hi"])
            and point_within(b["lo"], b["lo"], a["hi"])
            and a["lo"] != b["hi"]
            and b["lo"] != a["hi"]
        ),
    ),
)


@st.composite
def interval_cases(draw: st.DrawFn, order: Order = "arrival", most: int = 40) -> JoinCase:
    """An inner join on intervals, in any spelling, perhaps with a key."""
    on, match = draw(st.sampled_from(_INTERVALS))
    type_, values = _POINTS[draw(st.sampled_from(sorted(_POINTS)))]
    keyed = draw(st.booleans())
    if keyed:
        on = (Theta(on) if isinstance(on, str) else on) & Equi("k0")
    pair = (draw(windows()), draw(windows()))
    events = []
    for i in range(draw(st.integers(0, most))):
        row = {"id": i, "t": draw(st.integers(0, 25)), "k0": draw(st.sampled_from([1, 2, None]))}
        for name in ("p", "lo", "hi"):
            row[name] = draw(st.none() | values if draw(st.integers(0, 9)) == 0 else values)
        source = draw(st.sampled_from(["a", "b"]))
        events.append(oracle.Event(draw(st.booleans()), row, cast(int, row["t"]), source))
    if order == "event_time":
        events = oracle.event_time_order(events)
    names = [(name, pa.int64()) for name in ("id", "t", "k0")] + [(name, type_) for name in ("p", "lo", "hi")]
    schema = pa.schema(names)
    cuts = tuple(sorted(draw(st.lists(st.integers(0, len(events)), max_size=3))))

    def whole(a: oracle.Row, b: oracle.Row) -> bool:
        return match(a, b) and (not keyed or oracle.equal(a["k0"], b["k0"]))

    spec = JoinSpec(on=on, window=pair, time="t", order=order)
    return JoinCase(spec, whole, (schema, schema), tuple(events), cuts)


@st.composite
def interval_kind_cases(draw: st.DrawFn, most: int = 40) -> JoinCase:
    """Any kind of join on intervals, also as-of, in event-time order."""
    case = draw(interval_cases("event_time", most))
    lateness = draw(st.sampled_from([0, 2]))
    if draw(st.booleans()):
        spec = replace(case.spec, how=cast(How, draw(st.sampled_from(HOWS))))
        return replace(case, spec=replace(spec, lateness=lateness, both_keys=True))
    match = AsOf(cast(Any, draw(st.sampled_from(["backward", "forward", "nearest"]))), 4, draw(st.booleans()))
    how = cast(How, draw(st.sampled_from(["inner", "left", "anti"])))
    return replace(case, spec=replace(case.spec, how=how, match=match, window=None, lateness=lateness, both_keys=True))
