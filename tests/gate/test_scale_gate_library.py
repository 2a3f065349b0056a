"""`sj.ScaleGate`: rows of any number of sources in one order, for every reader, whoever comes, waits, fails or goes."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.scalejoin.scale_gate import ScaleGateReader, ScaleGateSource
from tests.deadlock import no_deadlock
from tests.failing import Fails, failed_everywhere
from tests.seeds import FRESH, examples, thorough_but
from tests.threads import run_threads

Row = tuple[int, str, int]


def table(name: str, times: Sequence[int], first: int = 0) -> pa.Table:
    return pa.table(
        {
            "t": pa.array(times, pa.int64()),
            "name": pa.array([name] * len(times), pa.string()),
            "n": pa.array(range(first, first + len(times)), pa.int64()),
        }
    )


def rows(found: pa.Table | None) -> list[Row]:
    return (
        []
        if found is None
        else list(zip(*(found.column(name).to_pylist() for name in ("t", "name", "n")), strict=True))
    )


def rest(reader: ScaleGateReader, most: int = 1000) -> list[Row]:
    """What a reader gets until the end."""
    got = []
    while (found := reader.read(most)) is not None:
        assert 0 < found.num_rows <= most
        got += rows(found)
    return got


def column(reader: ScaleGateReader, name: str) -> list[object]:
    found = reader.read()
    assert found is not None
    values: list[object] = found.column(name).to_pylist()
    return values


def ready(reader: ScaleGateReader, most: int) -> list[Row]:
    try:
        return rows(reader.read(most, timeout=0))
    except TimeoutError:
        return []


@settings(deadline=None, max_examples=examples(300))
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["b", "a", "ab", "c"]),
            st.sampled_from(["push", "push", "push", "advance", "finish"]),
            st.lists(st.integers(0, 3), max_size=6),
        ),
        max_size=40,
    ),
    capacity=st.sampled_from([2, 8, 64]),
)
def test_every_reader_gets_what_no_source_can_precede(calls: list[tuple[str, str, list[int]]], capacity: int) -> None:
    names = ["a", "ab", "b", "c"]
    gate = sj.ScaleGate("t", sources=names, schema=table("a", []).schema, capacity=capacity)
    readers = gate.reader(), gate.reader()
    sources = {name: gate.source(name) for name in names}
    clocks, counts = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    silent = set(names)
    open_names = set(names)
    sent: list[Row] = []
    got: list[list[Row]] = [[], []]
    for name, call, steps in calls:
        if name not in open_names:
            continue
        times = (clocks[name] + np.cumsum(steps)).tolist()
        if call == "finish":
            sources[name].finish()
            open_names.discard(name)
        elif call == "advance" and times:
            sources[name].advance(times[-1])
            clocks[name] = times[-1]
            silent.discard(name)
        elif call == "push" and times:
            taken = sources[name].push(table(name, times, counts[name]), timeout=0)
            assert taken <= len(times)
            sent += [(time, name, counts[name] + i) for i, time in enumerate(times[:taken])]
            counts[name] += taken
            if taken:
                clocks[name] = times[taken - 1]
                silent.discard(name)
        waited_for = [(clocks[name], name) for name in open_names]
        expected = sorted(sent)
        if silent & open_names:
            expected = []
        elif waited_for:
            expected = [row for row in expected if row[:2] <= min(waited_for)]
        got[0] += ready(readers[0], 100)
        got[1] += ready(readers[1], 2)
        assert got[0] == expected[: len(got[0])] and len(got[0]) == len(expected)
        assert got[1] == expected[: len(got[1])]
    gate.close()
    for k in (0, 1):
        assert got[k] + rest(readers[k], 3) == sorted(sent)


@pytest.mark.parametrize("seed", thorough_but(range(FRESH, FRESH + 40), *range(FRESH, FRESH + 6)))
def test_many_threads_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_sources, n_readers = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    gate = sj.ScaleGate("t", sources=[f"s{k}" for k in range(n_sources)], capacity=int(rng.choice([2, 16, 512])))
    readers = [gate.reader() for _ in range(n_readers)]
    streams = {f"s{k}": np.sort(rng.integers(0, 300, int(rng.integers(0, 400)))).tolist() for k in range(n_sources)}
    cuts = {name: rng.integers(1, 40, 400).tolist() for name in streams}
    got: list[list[Row]] = [[] for _ in readers]
    visits: list[list[Row]] = []

    def send(name: str) -> None:
        with gate.source(name) as source:
            at = 0
            for size in cuts[name]:
                part = streams[name][at : at + size]
                at += source.push(table(name, part, at))

    def read(k: int) -> None:
        got[k] += rest(readers[k], int(7 + 50 * k))

    def visit() -> None:
        # A reader that comes and goes gets a part of the stream without gaps.
        for _ in range(5):
            with gate.reader() as reader:
                found = reader.read(10)
                visits.append([] if found is None else rows(found))

    def end(senders: list[threading.Thread]) -> None:
        for sender in senders:
            sender.join()
        gate.close()

    senders = [threading.Thread(target=send, args=(name,)) for name in streams]
    with no_deadlock():
        for sender in senders:
            sender.start()
        run_threads([*(lambda k=k: read(k) for k in range(n_readers)), visit, lambda: end(senders)])  # type: ignore[misc]
    whole = sorted((time, name, i) for name, times in streams.items() for i, time in enumerate(times))
    assert all(one == whole for one in got)
    for part in visits:
        assert not part or part == whole[(at := whole.index(part[0])) : at + len(part)]


def test_sources_that_come_later_begin_where_readers_are() -> None:
    gate = sj.ScaleGate("t")
    reader = gate.reader()
    early = gate.source("early")
    early.push(table("early", [1, 5, 9]))
    assert [row[0] for row in rows(reader.read())] == [1, 5, 9]
    late = gate.source("late")
    assert late.time == 9
    with pytest.raises(sj.InputError, match=r"row 0 of source 'late' has the time 8, earlier than .* 9"):
        late.push(table("late", [8]))
    late.push(table("late", [9, 10]))
    early.push(table("early", [10], 3))
    assert rows(reader.read()) == [(9, "late", 0), (10, "early", 3)]
    late.finish()
    early.finish()
    assert gate.sources == ()
    again = gate.source("early")
    # Nobody was waited for, so all of (10, "late") is out, and "early" comes before it among equals.
    assert again.time == 11
    with pytest.raises(sj.InputError, match="earlier than"):
        again.push(table("early", [10]))
    again.push(table("early", [11], 4))
    gate.close()
    assert rest(reader) == [(10, "late", 1), (11, "early", 4)]


def test_places_of_sources_are_used_again() -> None:
    gate = sj.ScaleGate("t", schema=table("a", []).schema, most_sources=3, capacity=4)
    reader = gate.reader()
    gate.source("stays").advance(0)
    got, sent = [], []
    for visit in range(50):
        with gate.source(f"visitor {visit % 7}") as visitor:
            visitor.push(table(visitor.name, [visit, visit]))
            sent += [(visit, visitor.name, 0), (visit, visitor.name, 1)]
        gate.source("stays").advance(visit + 1)
        got += rows(reader.read())
    assert got == sent
    gate.source("x")
    with pytest.raises(sj.StateError, match=r"3 places for sources are taken.*most_sources="):
        gate.source("y")


def test_a_reader_that_leaves_holds_nobody_up_and_the_last_ones_place_is_kept() -> None:
    gate = sj.ScaleGate("t", sources=["a"], capacity=7)
    source = gate.source("a")
    first, slow = gate.reader(), gate.reader()
    assert source.push(table("a", range(8))) == 8
    assert len(rows(first.read())) == 8
    assert source.push(table("a", [8], 8), timeout=0) == 0
    slow.close()
    assert source.push(table("a", [8], 8), timeout=0) == 1
    first.close()
    with pytest.raises(sj.StateError, match="this reader is closed"):
        first.read()
    assert source.push(table("a", range(9, 20), 9), timeout=0.01) == 6
    assert [row[0] for row in rows(gate.reader().read())] == [*range(8, 15)]
    gate.close()
    second = gate.reader()
    assert second.read() is None


def test_who_waits_is_woken() -> None:
    gate = sj.ScaleGate("t", sources=["a", "b"], capacity=3)
    a, b = gate.source("a"), gate.source("b")
    reader = gate.reader()
    with pytest.raises(TimeoutError, match=r"no row of this gate was ready for 0\.01 seconds"):
        reader.read(timeout=0.01)
    got: list[Row] = []

    def waits_for_room() -> None:
        with pytest.raises(sj.StateError, match=r"the gate was closed while source 'a' waited: [456] of 9 rows are in"):
            a.push(table("a", range(9)))

    def waits_for_rows() -> None:
        while len(got) < 2:
            got.extend(rows(reader.read()))

    def ends() -> None:
        b.push(table("b", [1]))
        readers[0].join()
        gate.close()

    readers = [threading.Thread(target=waits_for_rows)]
    with no_deadlock():
        readers[0].start()
        run_threads([waits_for_room, ends])
    assert got + rest(reader) == sorted([*((t, "a", t) for t in range(a.tuples)), (1, "b", 0)])


def test_closing_a_reader_ends_its_wait() -> None:
    gate = sj.ScaleGate("t", sources=["a"])
    reader = gate.reader()

    def reads() -> None:
        with pytest.raises(sj.StateError, match="this reader is closed"):
            reader.read()

    with no_deadlock():
        run_threads([reads, reader.close])


def test_calls_that_fail_lose_no_row_and_double_none(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python handles no signal between the last line under a lock and its release, which a tracer sees as a line.
    held = {"append", "cut", "take", "slices", "read", "prepare", "wait_until", "tell"}
    monkeypatch.setattr(Fails, "HANDING_ON", Fails.HANDING_ON - {"_take"} | held)
    gate = sj.ScaleGate("t", sources=["a", "b"], capacity=64)
    reader = gate.reader()
    sources = gate.source("a"), gate.source("b")
    sent: list[Row] = []
    got: list[Row] = []

    def push_rest(source: ScaleGateSource, whole: pa.Table, before: int) -> Callable[[], int]:
        return lambda: source.push(whole.slice(source.tuples - before))

    for batch in range(3):
        for source in sources:
            times = [3 * batch, 3 * batch + 1, 3 * batch + 1]
            whole = table(source.name, times, 3 * batch)
            failed_everywhere(push_rest(source, whole, source.tuples), 1)
            sent += rows(whole)
            assert source.tuples == 3 * batch + 3
        found, failures = failed_everywhere(lambda: reader.read(timeout=0), 1)
        assert failures > 10
        got += rows(found)
    gate.close()
    assert got + rest(reader) == sorted(sent)


@pytest.mark.parametrize(
    "make",
    [pd.DataFrame, pl.DataFrame, pa.table, lambda columns: pa.table(columns).to_pylist()],
    ids=["pandas", "polars", "arrow", "dicts"],
)
def test_frames_of_any_library_and_times_of_any_type(make: Callable[[dict[str, list[object]]], object]) -> None:
    day = datetime.datetime(2026, 5, 1)
    gate = sj.ScaleGate("ts", sources=["x", "y"])
    x, y = gate.source("x"), gate.source("y")
    x.push(make({"ts": [day, day + datetime.timedelta(hours=2)], "v": [1, 3]}))
    y.push(make({"ts": [day + datetime.timedelta(hours=1)], "v": [2]}))
    y.advance(day + datetime.timedelta(hours=1, minutes=30))
    reader = gate.reader()
    assert column(reader, "v") == [1, 2]
    assert y.time == day + datetime.timedelta(hours=1, minutes=30)
    gate.close()
    assert [found.column("v").to_pylist() for found in reader] == [[3]]


@pytest.mark.parametrize(
    "type_", [pa.uint64(), pa.date32(), pa.duration("s"), pa.timestamp("ns", "UTC"), pa.int8()], ids=str
)
def test_types_of_times(type_: pa.DataType) -> None:
    values = pa.array([0, 1, 2], pa.int32() if type_ == pa.date32() else pa.int64()).cast(type_)
    gate = sj.ScaleGate("t", schema=pa.schema({"t": type_}), sources=["a"])
    source = gate.source("a")
    assert source.time is None
    source.push(pa.table({"t": values}))
    assert source.time == values[2].as_py()
    with pytest.raises(sj.InputError, match="a source's times do not fall"):
        source.push(pa.table({"t": values[:1]}))
    assert column(gate.reader(), "t") == values.to_pylist()


def test_rows_that_are_refused_decide_no_schema() -> None:
    gate = sj.ScaleGate("t")
    source = gate.source("a")
    for refused in ([{"t": 5}, {"t": 4}], [{"t": 5}, {"t": None}], [{"t": "x"}], [{"u": 1}]):
        with pytest.raises(sj.StreamJoinError):
            source.push(refused)
        assert gate.schema is None
    with pytest.raises(sj.InputError, match="2026-01-02 00:00:00, earlier than the row before it, 2026-01-03"):
        source.push([{"t": datetime.datetime(2026, 1, day)} for day in (3, 2)])
    source.push([{"t": 1, "v": "x"}])
    gate.close()
    assert column(gate.reader(), "v") == ["x"]
    with pytest.raises(sj.SpecError, match="time='' must be the name of the column"):
        sj.ScaleGate("")


def test_mistakes_name_what_to_do() -> None:
    for bad in ({"capacity": 0}, {"most_sources": True}, {"most_readers": 10**6}):
        with pytest.raises(sj.SpecError, match=f"{next(iter(bad))}=.* must be a whole number from 1 to"):
            sj.ScaleGate("t", **bad)
    with pytest.raises(sj.SpecError, match="3 sources are named, more than most_sources=2"):
        sj.ScaleGate("t", sources=["a", "b", "c"], most_sources=2)
    gate = sj.ScaleGate("t", most_readers=1)
    source = gate.source("a")
    with pytest.raises(sj.StateError, match="type of times is not known yet"):
        source.advance(3)
    with pytest.raises(sj.SchemaError, match="'t'"):
        source.push([{"u": 1}])
    with pytest.raises(sj.SchemaError, match="distances of floats"):
        source.push([{"t": 1.5}])
    source.push([{"t": 1}])
    with pytest.raises(
        sj.InputError, match=r"source 'a' differs from the first one: missing t; unexpected x.*one schema"
    ):
        source.push([{"x": 1}])
    with pytest.raises(sj.InputError, match="row 1 of the input of source 'a' has no time, t is NULL"):
        source.push([{"t": 1}, {"t": None}])
    with pytest.raises(sj.InputError, match="row 1 of source 'a' has the time 4, earlier than the row before it, 5"):
        source.push([{"t": 5}, {"t": 4}])
    with pytest.raises(sj.InputError, match="name is a text"):
        gate.source(3)
    reader = gate.reader()
    with pytest.raises(sj.StateError, match="readers of this gate are in use"):
        gate.reader()
    with pytest.raises(sj.InputError, match="at least one row"):
        reader.read(0)
    source.finish()
    with pytest.raises(sj.StateError, match="source 'a' has finished"):
        source.push([{"t": 9}])
    gate.close()
    gate.close()
    with pytest.raises(sj.StateError, match="close\\(\\) was called"):
        gate.source("b")
    assert rows_of(reader) == [1]
    assert repr(gate) == "<ScaleGate by 't': 0 sources, 1 readers, closed>"
    empty = sj.ScaleGate("t")
    empty.close()
    assert empty.reader().read() is None


def rows_of(reader: ScaleGateReader) -> list[int]:
    return [value for found in reader for value in found.column("t").to_pylist()]
