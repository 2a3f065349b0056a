"""Hypothesis strategies for whole joins: a spec, the tuples, their order, and what the oracle must decide by.

A `Case` holds each thing twice: as the engine takes it, and as the oracle does. Small domains make matches and
duplicates common; the extremes of each type, NULL, NaN and infinities are mixed in.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
from hypothesis import strategies as st

from streamjoin.model.predicates import Band, Equi, Predicate, Theta
from streamjoin.model.spec import JoinSpec
from streamjoin.model.window import CountWindow, TimeWindow
from streamjoin.testing import oracle


@dataclass(frozen=True)
class Keys:
    """A kind of key: the types of both columns, values to draw, and what the oracle compares them as."""

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
class Case:
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


def _plain(name: str, left: pa.DataType, right: pa.DataType, values: Any, right_values: Any = None) -> Keys:
    return Keys(name, left, right, values, values if right_values is None else right_values, _same, _SMALL)


BANDS: tuple[Keys, ...] = (
    _plain("int64", pa.int64(), pa.int64(), _integers(64, True)),
    _plain("int8", pa.int8(), pa.int8(), _integers(8, True)),
    _plain("uint64", pa.uint64(), pa.uint64(), _integers(64, False)),
    _plain("int64/uint64", pa.int64(), pa.uint64(), _integers(64, True), _integers(64, False)),
    _plain("int32/uint16", pa.int32(), pa.uint16(), _integers(32, True), _integers(16, False)),
    Keys(
        "float64", pa.float64(), pa.float64(), _FLOATS, _FLOATS, _same,
        st.sampled_from([0.0, 0.1, 0.2, 1.0, 2.5, 1e308, 5e-324]),
    ),
    Keys(
        "float32", pa.float32(), pa.float32(), _FLOATS.map(float32), _FLOATS.map(float32), _same,
        st.sampled_from([0.0, 0.1, 0.2, 1.0, 2.5]), single=True,
    ),
    Keys(
        "int64/float64", pa.int64(), pa.float64(), _integers(64, True), _FLOATS, _floating,
        st.sampled_from([0, 0.5, 1, 3]),
    ),
    Keys(
        "timestamp[us]", pa.timestamp("us"), pa.timestamp("us"), _TIMES, _TIMES, _micros,
        st.integers(0, 9).map(lambda q: dt.timedelta(milliseconds=250 * q)),
        lambda d: d // dt.timedelta(microseconds=1),
    ),
    Keys(
        "timestamp[s]/timestamp[ns, UTC]", pa.timestamp("s", "Europe/Berlin"), pa.timestamp("ns", "UTC"),
        _SECONDS, _TIMES, _micros, st.integers(0, 9).map(lambda q: dt.timedelta(milliseconds=250 * q)),
        lambda d: d // dt.timedelta(microseconds=1),
    ),
    Keys(
        "date32", pa.date32(), pa.date32(),
        st.integers(0, 9).map(lambda d: dt.date(2024, 2, 25) + dt.timedelta(days=d)),
        st.integers(0, 9).map(lambda d: dt.date(2024, 2, 25) + dt.timedelta(days=d)),
        lambda d: None if d is None else d.toordinal(),
        st.integers(0, 3).map(lambda d: dt.timedelta(days=d)),
        lambda d: d.days,
    ),
    Keys(
        "decimal(9,2)", pa.decimal128(9, 2), pa.decimal128(12, 4),
        st.integers(-30, 30).map(lambda i: Decimal(i) / 20), st.integers(-30, 30).map(lambda i: Decimal(i) / 80),
        _same, st.sampled_from([Decimal("0"), Decimal("0.25"), Decimal("0.5"), 0.1, 1]),
        lambda d: Decimal(str(d)),
    ),
    Keys(
        "decimal(38,10)", pa.decimal128(38, 10), pa.decimal128(30, 10),
        st.integers(-30, 30).map(lambda i: Decimal(i) / 20)
        | st.integers(0, 3).map(lambda i: Decimal(10**18 + i) / 10),
        st.integers(-30, 30).map(lambda i: Decimal(i) / 80)
        | st.integers(0, 3).map(lambda i: Decimal(10**18 + i) / 10),
        _same, st.sampled_from([Decimal("0"), Decimal("0.25"), Decimal("0.5"), 0.1, 1]),
        lambda d: Decimal(str(d)),
    ),
)  # fmt: skip

EQUIS: tuple[Keys, ...] = (
    *(k for k in BANDS if k.name in ("int64", "int64/uint64", "float64", "timestamp[us]", "decimal(38,10)")),
    _plain("bool", pa.bool_(), pa.bool_(), st.booleans()),
    _plain("string", pa.string(), pa.large_string(), st.sampled_from(["", "a", "b", "ab", "ä", "a\0", "x" * 20])),
    _plain("binary", pa.binary(), pa.binary(), st.sampled_from([b"", b"a", b"\0", b"\0\0", b"abcdefgh" * 2])),
)

Kinds = tuple[tuple[Keys, ...], tuple[Keys, ...]]
"""The kinds of keys to draw equalities and bands from."""

_THETAS: tuple[tuple[str, oracle.Match], ...] = (
    ("l.x < r.x", lambda a, b: a["x"] is not None and b["x"] is not None and a["x"] < b["x"]),
    ("l.x <> r.x OR l.x IS NULL", lambda a, b: a["x"] is None or (b["x"] is not None and a["x"] != b["x"])),
    ("(l.x + r.x) % 2 = 0", lambda a, b: None not in (a["x"], b["x"]) and (a["x"] + b["x"]) % 2 == 0),
)


@st.composite
def terms(draw: st.DrawFn, column: str, kinds: Kinds) -> tuple[Predicate, oracle.Match, Keys]:
    """A band or equality on `column` of both sides."""
    if draw(st.booleans()):
        keys = draw(st.sampled_from(kinds[0]))
        number = keys.as_number
        return Equi(column), lambda a, b: oracle.equal(number(a[column]), number(b[column])), keys
    keys = draw(st.sampled_from(kinds[1]))
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

    return band, match, keys


@st.composite
def predicates(draw: st.DrawFn, kinds: Kinds) -> tuple[Predicate, oracle.Match, dict[str, Keys]]:
    """One to three terms and perhaps a theta; the theta's columns are `x`."""
    chosen = [draw(terms(f"k{i}", kinds)) for i in range(draw(st.integers(0, 3)))]
    theta = None
    if not chosen or draw(st.integers(0, 3)) == 0:
        theta = draw(st.sampled_from(_THETAS))
    parts: list[tuple[Predicate, oracle.Match]] = [(p, m) for p, m, _ in chosen]
    if theta is not None:
        parts.append((Theta(theta[0]), theta[1]))
    on = parts[0][0]
    for part, _ in parts[1:]:
        on = on & part
    matches = [m for _, m in parts]
    return on, lambda a, b: all(m(a, b) for m in matches), {f"k{i}": k for i, (_, _, k) in enumerate(chosen)}


def _of_one_type(kinds: tuple[Keys, ...]) -> tuple[Keys, ...]:
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
    kinds: Kinds = (EQUIS, BANDS),
) -> Case:
    """A whole case; in event-time order the events are sorted within each of up to two sources a side."""
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
    cuts = tuple(sorted(draw(st.lists(st.integers(0, n), max_size=4))))
    schemas = tuple(
        pa.schema(
            [("id", pa.int64()), ("t", pa.int64()), ("x", pa.int64())]
            + [(name, getattr(kind, side)) for name, kind in keys.items()]
        )
        for side in ("left", "right")
    )
    return Case(spec, match, (schemas[0], schemas[0] if self_join else schemas[1]), tuple(events), cuts)
