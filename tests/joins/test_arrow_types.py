"""Every Arrow type that libraries hand out, as payload, key, band and time, through every algorithm."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins import auto
from streamjoin.model.plain_types import plain_type
from tests.joins.library_frames import LIBRARIES, as_arrow
from tests.seeds import THOROUGH

pytestmark = pytest.mark.slow

LEFT, RIGHT = (0, None, 1, 0), (1, None, 0)
IDS = {"left": [10, 11, 12, 13], "right": [20, 21, 22]}
Matches = Callable[[Any, Any], bool]

NO_KEYS = (pa.types.is_nested, pa.types.is_interval)
NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
SPANS = (pa.types.is_timestamp, pa.types.is_date, pa.types.is_time, pa.types.is_duration)
TIMES = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_date)


@pytest.fixture(scope="module", params=LIBRARIES)
def frames(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    make = LIBRARIES[request.param]
    return make(LEFT), make(RIGHT)


def columns(frames: tuple[Any, Any]) -> Iterator[tuple[str, pa.DataType, pa.Table, pa.Table]]:
    """Each column alone as `v`, beside the rows' ids, of both sides as the library hands them out."""
    left, right = (as_arrow(frame) for frame in frames)
    for place, field in enumerate(left.schema):
        sides = [
            pa.table({"id": pa.array(IDS[side]), "v": table.column(place)})
            for side, table in (("left", left), ("right", right))
        ]
        yield field.name, plain_type(field.type), *sides


def is_of(type_: pa.DataType, kinds: tuple[Callable[[pa.DataType], bool], ...]) -> bool:
    storage = type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_
    return any(kind(storage) for kind in kinds)


def ids(result: pa.Table) -> list[tuple[int, int]]:
    if not result.num_rows:
        return []
    return list(zip(result["id_left"].to_pylist(), result["id_right"].to_pylist(), strict=True))


def is_known(request: auto.AlgorithmRequest, spec: sj.JoinSpec, left: pa.Table, right: pa.Table) -> bool:
    """Whether an algorithm has had this join of columns of these types before."""
    join = (str(request), repr(spec), str(left.schema), str(right.schema))
    known = join in _known
    _known.add(join)
    return known


_known: set[tuple[str, ...]] = set()


def joined(spec: sj.JoinSpec, left: Any, right: Any) -> Iterator[tuple[auto.AlgorithmRequest, pa.Table]]:
    """The result by every algorithm that takes the condition."""
    for request in auto.requests():
        # Columns of one type are encoded alike, whichever library they come from, before any algorithm sees them.
        if not THOROUGH and request.algorithm != "auto" and is_known(request, spec, left, right):
            continue
        join = sj.open(spec, request.algorithm, index=request.index)
        try:
            result = join.push(left, right)
            rest = join.close()
        except sj.NotSupportedError:
            continue
        yield request, pa.concat_tables([result, rest]) if rest.num_rows else result


def check(spec: sj.JoinSpec, left: pa.Table, right: pa.Table, matches: Matches, name: str) -> None:
    sides = [list(zip(t["id"].to_pylist(), t["v"].to_pylist(), strict=True)) for t in (left, right)]
    wanted = {(a, b) for a, v in sides[0] for b, w in sides[1] if v is not None and w is not None and matches(v, w)}
    assert wanted
    tried = set()
    for request, result in joined(spec, left, right):
        assert sorted(ids(result)) == sorted(wanted), (name, str(request))
        tried.add(request.algorithm)
    every = {"auto", "nested_loop", "indexed", "sweep", "pim_parallel", "scalejoin", "handshake"}
    assert every <= tried or (not THOROUGH and tried == {"auto"})


def member(value: Any) -> dict[str, Any]:
    """A union's value as the struct that it becomes."""
    return {"num": value if isinstance(value, int) else None, "str": value if isinstance(value, str) else None}


def test_frames_are_pushed_as_they_are(frames: tuple[Any, Any]) -> None:
    """Without a step through Arrow; the index of pandas is no column."""
    name, *others = as_arrow(frames[0]).schema.names
    with sj.open(sj.JoinSpec(on=sj.Equi(name), window=sj.CountWindow(300))) as join:
        result = join.push(*frames)
    assert result.num_rows == 3
    assert result.schema.names == [name, *(f"{column}_{side}" for side in ("left", "right") for column in others)]


def test_as_payload(frames: tuple[Any, Any]) -> None:
    """All columns of a library at once, with a key beside them."""
    left, right = (as_arrow(frame) for frame in frames)
    for request, result in joined(
        sj.JoinSpec(on=sj.Equi("id"), window=sj.CountWindow(300)),
        left.append_column("id", pa.array([1, 2, 3, 4])),
        right.append_column("id", pa.array([2, 3, 4])),
    ):
        assert result["id"].to_pylist() == [2, 3, 4]
        for field in left.schema:
            for side, values in (("left", left[field.name].to_pylist()[1:]), ("right", right[field.name].to_pylist())):
                wanted = [member(value) for value in values] if pa.types.is_union(field.type) else values
                column = result[f"{field.name}_{side}"]
                assert column.type == plain_type(field.type)
                assert column.to_pylist() == wanted, (field, request)


def test_as_key(frames: tuple[Any, Any]) -> None:
    spec = sj.JoinSpec(on=sj.Equi("v"), window=sj.CountWindow(300))
    for name, type_, left, right in columns(frames):
        if is_of(type_, NO_KEYS):
            with pytest.raises(sj.SchemaError, match="don't compare"):
                sj.open(spec).push(left, right)
        elif pa.types.is_null(type_):
            assert sj.open(spec).push(left, right).num_rows == 0
        else:
            check(spec, left, right, lambda v, w: v == w, name)


def test_as_band(frames: tuple[Any, Any]) -> None:
    for name, type_, left, right in columns(frames):
        if is_of(type_, NUMBERS) and not isinstance(type_, pa.BaseExtensionType):
            spec = sj.JoinSpec(on=sj.Band("v", "v", 2), window=sj.CountWindow(300))
            check(spec, left, right, lambda v, w: abs(v - w) <= 2, name)
        elif is_of(type_, SPANS):
            spec = sj.JoinSpec(on=sj.Band("v", "v", below="1 day", above="0 s"), window=sj.CountWindow(300))
            check(spec, left, right, lambda v, w: 0 <= seconds(v) - seconds(w) <= 86_400, name)
        elif not pa.types.is_null(type_):
            with pytest.raises(sj.SchemaError, match=r"don't compare|needs numbers or times|is a distance between"):
                sj.open(sj.JoinSpec(on=sj.Band("v", "v", "1 s"), window=sj.CountWindow(9))).push(left, right)


def seconds(value: Any) -> float:
    """A moment, a time of day or a length on one scale."""
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, dt.time):
        return value.hour * 3600 + value.minute * 60 + value.second
    if isinstance(value, dt.datetime):
        return value.timestamp()
    return float(value.toordinal() * 86_400)


SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.mark.parametrize(
    ("left", "right", "step"),
    [
        (pa.time32("s"), pa.time64("ns"), 1),
        (pa.time32("ms"), pa.time32("s"), 1),
        (pa.duration("s"), pa.duration("ns"), 1),
        (pa.timestamp("s", "UTC"), pa.timestamp("ns", "Asia/Tokyo"), 1),
        (pa.date32(), pa.timestamp("us"), 86_400),
    ],
    ids=str,
)
def test_units_and_zones_may_differ(left: pa.DataType, right: pa.DataType, step: int) -> None:
    """Nine moments, a step apart, in both units; the band is not symmetric."""
    tables = []
    for type_ in (left, right):
        ticks = 1 if type_ == pa.date32() else step * SECONDS[type_.unit]
        whole = pa.array([ticks * place for place in range(9)], pa.int32() if type_.bit_width == 32 else pa.int64())
        tables.append(pa.table({"id": pa.array(range(9)), "v": whole.view(type_)}))
    on = sj.Band("v", "v", below=f"{2 * step} s", above=f"{step} s")
    wanted = [(a, b) for a in range(9) for b in range(9) if -1 <= a - b <= 2]
    for request, result in joined(sj.JoinSpec(on=on, window=sj.CountWindow(300)), *tables):
        assert sorted(ids(result)) == wanted, request


@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_as_time(frames: tuple[Any, Any], order: Any) -> None:
    """A window of no length takes equal times alone, in either order; a long one takes all."""
    for name, type_, left, right in columns(frames):
        lengths: tuple[Any, Any] = (0, 2) if is_of(type_, NUMBERS) else ("0 s", "2 days")
        specs = [
            sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(length), time="v", order=order, lateness=lengths[1])
            for length in lengths
        ]
        own, other = (table.append_column("k", pa.array(["one"] * len(table))) for table in (left, right))
        if pa.types.is_null(type_):
            assert sj.open(specs[0]).push(own, other).num_rows == 0
        elif (is_of(type_, TIMES) or pa.types.is_duration(type_)) and not isinstance(type_, pa.BaseExtensionType):
            check(specs[0], own, other, lambda v, w: v == w, name)
            check(specs[1], own, other, lambda v, w: True, name)
            for _, result in joined(specs[1], own, other):
                pairs = zip(result["v_left"].to_pylist(), result["v_right"].to_pylist(), strict=True)
                assert result["v"].to_pylist() == [max(pair) for pair in pairs]
                whole = pa.types.is_integer(type_) and type_ != pa.uint64()
                assert result.schema.field("v").type == (pa.int64() if whole else type_)
                break
        else:
            with pytest.raises(sj.SchemaError, match="time column 'v'"):
                sj.open(specs[0]).push(own, other)
