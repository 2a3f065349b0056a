"""Hypothesis strategies for whole joins: a spec, the tuples, their order, and the oracle's condition.

A `JoinCase` holds everything twice: in the engine's form and in the oracle's. Small domains make matches and
duplicates common; the extremes of each type, NULL, NaN and infinities are mixed in, and so are values of the size
that real data has: today's time in every unit, identifiers, prices.
"""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
from hypothesis import strategies as st

from streamjoin.model.predicates import Band, Equi, JoinPredicate, Theta
from streamjoin.model.spec import JoinSpec
from streamjoin.model.window import CountWindow, TimeWindow
from streamjoin.testing import oracle


@dataclass(frozen=True)
class KeyDomain:
    """A kind of key: the types of both columns, values to draw, and their form for the oracle."""

    name: str
    left: pa.DataType
    right: pa.DataType
    values: st.SearchStrategy[Any]
    right_values: st.SearchStrategy[Any]
    as_number: Callable[[Any], Any]
    distances: st.SearchStrategy[Any]
    distance_as_number: Callable[[Any], Any] = lambda d: d
    single: bool = False


@dataclass(frozen=True)
class JoinCase:
    """A join to check: the engine's spec and events, and the oracle's condition."""

    spec: JoinSpec
    match: oracle.Match
    schemas: tuple[pa.Schema, pa.Schema]
    events: tuple[oracle.Event, ...]
    cuts: tuple[int, ...]


def float32(value: float) -> float:
    """`value` rounded to a float32."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    near = st.sampled_from([low, low + 1, low + 3, high - 2, high - 1, high])
    return st.integers(max(low, -6), 12) | near


_FLOATS = st.sampled_from([0.0, -0.0, 0.1, 0.2, 0.3, 0.1 + 0.2, 0.5, 1.0, 1.1, -1.0, 1e16, 1e16 + 2]) | st.floats()
_TIMES = st.integers(-5, 40).map(lambda s: dt.datetime(2024, 1, 1) + dt.timedelta(milliseconds=250 * s))
_SECONDS = st.integers(-2, 10).map(lambda s: dt.datetime(2024, 1, 1) + dt.timedelta(seconds=s))
_SMALL = st.integers(0, 6) | st.sampled_from([2**40, 2**63 - 1])


def _micros(value: Any) -> Any:
    return None if value is None else (value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)


def _same(value: Any) -> Any:
    return value


def _floating(value: Any) -> Any:
    return None if value is None else float(value)


def _plain(name: str, left: pa.DataType, right: pa.DataType, values: Any, right_values: Any = None) -> KeyDomain:
    return KeyDomain(name, left, right, values, values if right_values is None else right_values, _same, _SMALL)


BANDS: tuple[KeyDomain, ...] = (
    _plain("int64", pa.int64(), pa.int64(), _integers(64, True)),
    _plain("int8", pa.int8(), pa.int8(), _integers(8, True)),
    _plain("uint64", pa.uint64(), pa.uint64(), _integers(64, False)),
    _plain("int64/uint64", pa.int64(), pa.uint64(), _integers(64, True), _integers(64, False)),
    _plain("int32/uint16", pa.int32(), pa.uint16(), _integers(32, True), _integers(16, False)),
    KeyDomain(
        "float64", pa.float64(), pa.float64(), _FLOATS, _FLOATS, _same,
        st.sampled_from([0.0, 0.1, 0.2, 1.0, 2.5, 1e308, 5e-324]),
    ),
    KeyDomain(
        "float32", pa.float32(), pa.float32(), _FLOATS.map(float32), _FLOATS.map(float32), _same,
        st.sampled_from([0.0, 0.1, 0.2, 1.0, 2.5]), single=True,
    ),
    KeyDomain(
        "int64/float64", pa.int64(), pa.float64(), _integers(64, True), _FLOATS, _floating,
        st.sampled_from([0, 0.5, 1, 3]),
    ),
    KeyDomain(
        "uint64/float64", pa.uint64(), pa.float64(), _integers(64, False),
        st.sampled_from([2.0**63, 2.0**64, 2.0**64 - 2048]) | _FLOATS, _floating, st.sampled_from([0, 0.5, 1, 3000]),
    ),
    KeyDomain(
        "float32/uint64", pa.float32(), pa.uint64(), _FLOATS.map(float32), _integers(64, False), _floating,
        st.sampled_from([0, 0.5, 1, 3]),
    ),
    KeyDomain(
        "timestamp[us]", pa.timestamp("us"), pa.timestamp("us"), _TIMES, _TIMES, _micros,
        st.integers(0, 9).map(lambda q: dt.timedelta(milliseconds=250 * q)),
        lambda d: d // dt.timedelta(microseconds=1),
    ),
    KeyDomain(
        "timestamp[s]/timestamp[ns, UTC]", pa.timestamp("s", "Europe/Berlin"), pa.timestamp("ns", "UTC"),
        _SECONDS, _TIMES, _micros, st.integers(0, 9).map(lambda q: dt.timedelta(milliseconds=250 * q)),
        lambda d: d // dt.timedelta(microseconds=1),
    ),
    KeyDomain(
        "date32", pa.date32(), pa.date32(),
        st.integers(0, 9).map(lambda d: dt.date(2024, 2, 25) + dt.timedelta(days=d)),
        st.integers(0, 9).map(lambda d: dt.date(2024, 2, 25) + dt.timedelta(days=d)),
        lambda d: None if d is None else d.toordinal(),
        st.integers(0, 3).map(lambda d: dt.timedelta(days=d)),
        lambda d: d.days,
    ),
    KeyDomain(
        "decimal(9,2)", pa.decimal128(9, 2), pa.decimal128(12, 4),
        st.integers(-30, 30).map(lambda i: Decimal(i) / 20), st.integers(-30, 30).map(lambda i: Decimal(i) / 80),
        _same, st.sampled_from([Decimal("0"), Decimal("0.25"), Decimal("0.5"), 0.1, 1]),
        lambda d: Decimal(str(d)),
    ),
    KeyDomain(
        "decimal(38,10)", pa.decimal128(38, 10), pa.decimal128(30, 10),
        st.integers(-30, 30).map(lambda i: Decimal(i) / 20)
        | st.integers(0, 3).map(lambda i: Decimal(10**18 + i) / 10),
        st.integers(-30, 30).map(lambda i: Decimal(i) / 80)
        | st.integers(0, 3).map(lambda i: Decimal(10**18 + i) / 10),
        _same, st.sampled_from([Decimal("0"), Decimal("0.25"), Decimal("0.5"), 0.1, 1]),
        lambda d: Decimal(str(d)),
    ),
)  # fmt: skip

EQUIS: tuple[KeyDomain, ...] = (
    *(
        k
        for k in BANDS
        if k.name in ("int64", "int64/uint64", "uint64/float64", "float64", "timestamp[us]", "decimal(38,10)")
    ),
    _plain("bool", pa.bool_(), pa.bool_(), st.booleans()),
    _plain("string", pa.string(), pa.large_string(), st.sampled_from(["", "a", "b", "ab", "ä", "a\0", "x" * 20])),
    _plain("binary", pa.binary(), pa.binary(), st.sampled_from([b"", b"a", b"\0", b"\0\0", b"abcdefgh" * 2])),
)

_NOW = 1_777_901_400  # 2026-05-04 13:30:00, in seconds
# Spread over many scales, so that for any resolution of a word some fit between two values and some do not.
_JITTER = st.integers(0, 5).flatmap(lambda scale: st.integers(0, 12).map(lambda step: step * 37 * 10**scale))


@dataclass(frozen=True)
class Scale:
    """Values of realistic size: the value and the distance for a number of steps."""

    name: str
    left: pa.DataType
    right: pa.DataType
    value: Callable[[int], Any]
    right_value: Callable[[int], Any]
    distance: Callable[[int], Any]
    distance_as_number: Callable[[Any], Any] = _same
    single: bool = False

    @property
    def keys(self) -> KeyDomain:
        """As a kind of key, with steps from one to millions."""
        return KeyDomain(
            self.name, self.left, self.right, _JITTER.map(self.value), _JITTER.map(self.right_value), _same,
            _JITTER.map(self.distance), self.distance_as_number, self.single,
        )  # fmt: skip


def _instants(unit: str, zone: str | None = None) -> Scale:
    """Times of today in steps of their unit."""
    ns = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
    type_, now = pa.timestamp(unit, zone), _NOW * 10**9 // ns

    def value(step: int) -> int:
        return now + step

    return Scale(
        f"{type_} of today", type_, type_, value, value,
        lambda step: f"{step * ns} nanoseconds", lambda distance: int(distance.split()[0]) // ns,
    )  # fmt: skip


def _numbers(
    name: str,
    left: pa.DataType,
    right: pa.DataType,
    value: Callable[[int], Any],
    distance: Callable[[int], Any] = _same,
) -> Scale:
    return Scale(name, left, right, value, value, distance, single=pa.types.is_float32(left))


SCALES: tuple[Scale, ...] = (
    *(_instants(unit) for unit in ("s", "ms", "us", "ns")),
    _instants("us", "UTC"),
    _numbers("int64 near 10^12", pa.int64(), pa.int64(), lambda step: 10**12 + step),
    _numbers("int64 near -2^40", pa.int64(), pa.int64(), lambda step: step - 2**40),
    _numbers("int64/uint64 near 2^62", pa.int64(), pa.uint64(), lambda step: 2**62 + step),
    _numbers("uint64 near 2^63", pa.uint64(), pa.uint64(), lambda step: 2**63 + step),
    _numbers("cents", pa.int32(), pa.int64(), lambda step: 10_000 + step),
    _numbers("prices", pa.float64(), pa.float64(), lambda step: 100 + step / 100, lambda step: step / 100),
    _numbers(
        "prices in float32", pa.float32(), pa.float32(), lambda step: float32(100 + step / 100), lambda step: step / 100
    ),
    _numbers(
        "seconds of today in float64", pa.float64(), pa.float64(),
        lambda step: _NOW + step * 1e-6, lambda step: step * 1e-6,
    ),
    Scale(
        "decimals near 10^10", pa.decimal128(18, 2), pa.decimal128(24, 4),
        lambda step: Decimal(10**12 + step) / 100, lambda step: Decimal(10**14 + 100 * step + step % 3) / 10_000,
        lambda step: Decimal(step) / 100, lambda d: Decimal(str(d)),
    ),
)  # fmt: skip

REAL: tuple[KeyDomain, ...] = tuple(scale.keys for scale in SCALES)

Kinds = tuple[tuple[KeyDomain, ...], tuple[KeyDomain, ...]]
"""The kinds of keys to draw equalities and bands from."""

_THETAS: tuple[tuple[str, oracle.Match], ...] = (
    ("l.x < r.x", lambda a, b: a["x"] is not None and b["x"] is not None and a["x"] < b["x"]),
    ("l.x <> r.x OR l.x IS NULL", lambda a, b: a["x"] is None or (b["x"] is not None and a["x"] != b["x"])),
    (
        "abs(l.x - r.x) * 2 < l.x + 3 AND NOT (r.x = 1 OR l.x IS NULL)",
        lambda a, b: None not in (a["x"], b["x"]) and 2 * abs(a["x"] - b["x"]) < a["x"] + 3 and b["x"] != 1,
    ),
    ("(l.x + r.x) % 2 = 0", lambda a, b: None not in (a["x"], b["x"]) and (a["x"] + b["x"]) % 2 == 0),
)


@st.composite
def terms(draw: st.DrawFn, column: str, kinds: Kinds) -> tuple[JoinPredicate, oracle.Match, KeyDomain]:
    """A band or equality on `column` of both sides."""
    if not kinds[1] or draw(st.booleans()):
        keys = draw(st.sampled_from(kinds[0]))
        number = keys.as_number
        return Equi(column), lambda a, b: oracle.equal(number(a[column]), number(b[column])), keys
    keys = draw(st.sampled_from(kinds[1]))
    return *draw(_bands(column, keys)), keys


@st.composite
def _bands(draw: st.DrawFn, column: str, keys: KeyDomain) -> tuple[JoinPredicate, oracle.Match]:
    below, above = draw(keys.distances), draw(keys.distances)
    symmetric = draw(st.booleans())
    zero = keys.distance_as_number(below) == 0 and (symmetric or keys.distance_as_number(above) == 0)
    strict = draw(st.booleans()) and not zero
    if symmetric:
        above = below
        band = Band(column, column, below, strict=strict)
    else:
        band = Band(column, column, below=below, above=above, strict=strict)
    limits = tuple(keys.distance_as_number(d) for d in (below, above))

    def match(a: oracle.Row, b: oracle.Row) -> bool:
        left, right = keys.as_number(a[column]), keys.as_number(b[column])
        if keys.single and left is not None and right is not None:
            # float32 arithmetic: the difference of two float32 rounded to one; double rounding can't show here.
            difference = float32(left - right)
            return oracle.within(difference, 0.0, float32(limits[0]), float32(limits[1]), strict)
        return oracle.within(left, right, limits[0], limits[1], strict)

    return band, match


@st.composite
def predicates(draw: st.DrawFn, kinds: Kinds) -> tuple[JoinPredicate, oracle.Match, dict[str, KeyDomain]]:
    """One to three terms and perhaps a theta; the theta's columns are `x`."""
    drawn_terms = [draw(terms(f"k{i}", kinds)) for i in range(draw(st.integers(0, 3)))]
    theta = None
    if not drawn_terms or draw(st.integers(0, 3)) == 0:
        theta = draw(st.sampled_from(_THETAS))
    parts: list[tuple[JoinPredicate, oracle.Match]] = [(p, m) for p, m, _ in drawn_terms]
    if theta is not None:
        parts.append((Theta(theta[0]), theta[1]))
    on = parts[0][0]
    for part, _ in parts[1:]:
        on = on & part
    matches = [m for _, m in parts]
    return on, lambda a, b: all(m(a, b) for m in matches), {f"k{i}": k for i, (_, _, k) in enumerate(drawn_terms)}


def _of_one_type(kinds: tuple[KeyDomain, ...]) -> tuple[KeyDomain, ...]:
    return tuple(kind for kind in kinds if kind.left == kind.right)


@st.composite
def windows(draw: st.DrawFn) -> CountWindow | TimeWindow:
    """A small window of either kind, in the units of an integer time column."""
    if draw(st.booleans()):
        return CountWindow(draw(st.sampled_from([1, 2, 3, 5, 8, 100])))
    return TimeWindow(draw(st.sampled_from([0, 1, 3, 10, 1000])))


@st.composite
def cases(
    draw: st.DrawFn,
    order: Literal["arrival", "event_time"] = "arrival",
    self_join: bool = False,
    most: int = 40,
    kinds: Kinds = (EQUIS, BANDS + REAL),
) -> JoinCase:
    """A whole case; in event-time order the events are sorted within each of up to two sources per side."""
    if self_join:
        kinds = (_of_one_type(kinds[0]), _of_one_type(kinds[1]))
    on, match, keys = draw(predicates(kinds))
    pair = (draw(windows()), draw(windows()))
    spec = JoinSpec(on=on, window=pair, time="t", order=order, self_join=self_join)
    n = draw(st.integers(0, most))
    events = []
    for i in range(n):
        right = draw(st.booleans()) and not self_join
        row: dict[str, Any] = {"id": i, "t": draw(st.integers(0, 25)), "x": draw(st.none() | st.integers(-2, 4))}
        for name, kind in keys.items():
            values = kind.right_values if right else kind.values
            row[name] = draw(st.none() | values if draw(st.integers(0, 5)) == 0 else values)
        events.append(oracle.Event(right, row, row["t"], draw(st.sampled_from(["a", "b"]))))
    if order == "event_time":
        events = oracle.event_time_order(events)
    elif draw(st.booleans()):
        events = each_side_ascending(events)
    cuts = tuple(sorted(draw(st.lists(st.integers(0, n), max_size=4))))
    schemas = tuple(
        pa.schema(
            [("id", pa.int64()), ("t", pa.int64()), ("x", pa.int64())]
            + [(name, getattr(kind, side)) for name, kind in keys.items()]
        )
        for side in ("left", "right")
    )
    return JoinCase(spec, match, (schemas[0], schemas[0] if self_join else schemas[1]), tuple(events), cuts)


def each_side_ascending(events: list[oracle.Event]) -> list[oracle.Event]:
    """The tuples in the same order of sides, with times that never fall on a side, while either may be ahead."""
    in_turn = {right: iter(sorted(e.ts for e in events if e.right == right)) for right in (False, True)}
    timed = []
    for event in events:
        ts = next(in_turn[event.right])
        timed.append(replace(event, ts=ts, row={**event.row, "t": ts}))
    return timed


@st.composite
def real_cases(draw: st.DrawFn, most: int = 150, scales: tuple[Scale, ...] = SCALES) -> JoinCase:
    """A key and a band over values of realistic size: few keys, one spread for all values, a band of a part of it.

    Hypothesis draws the shape and a generator fills it: Hypothesis chooses few and small values, but it takes many
    tuples of a key to cover every relation of two intervals.
    """
    scale = draw(st.sampled_from(scales))
    spread = draw(st.sampled_from([1, 10, 1_000, 10**5, 10**7, 10**8]))
    steps = st.sampled_from(sorted({0, spread // 100, spread // 7, spread // 2, spread}))
    on, band = draw(_bands("v", replace(scale.keys, distances=steps.map(scale.distance))))
    rng = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311
    names: list[str | None] = draw(st.sampled_from([["AAPL"], ["AAPL", "MSFT", None]]))
    sizes: list[CountWindow | TimeWindow] = [CountWindow(20), CountWindow(1_000), TimeWindow(25)]
    window = draw(st.sampled_from(sizes))
    n = draw(st.sampled_from([most, most // 2, 5]))
    events = []
    for i in range(n):
        right = rng.random() < 0.5
        value = (scale.right_value if right else scale.value)(rng.randrange(spread))
        row = {"id": i, "t": rng.randrange(25), "k": rng.choice(names), "v": value}
        events.append(oracle.Event(right, row, row["t"]))
    schemas = [
        pa.schema([("id", pa.int64()), ("t", pa.int64()), ("k", pa.string()), ("v", type_)])
        for type_ in (scale.left, scale.right)
    ]
    cuts = tuple(sorted(draw(st.lists(st.integers(0, n), max_size=2))))
    spec = JoinSpec(on=Equi("k") & on, window=window, time="t", order="arrival", lateness=1_000)
    return JoinCase(
        spec, lambda a, b: oracle.equal(a["k"], b["k"]) and band(a, b), (schemas[0], schemas[1]), tuple(events), cuts
    )
