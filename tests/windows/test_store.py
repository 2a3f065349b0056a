"""Stored tuples come back as they went in, whatever is appended and forgotten in between."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.windows.buffer import Buffer
from streamjoin.windows.store import SideStore
from streamjoin.windows.workers import Workers, cuts

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("small", pa.int8()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("exact", pa.decimal128(20, 2)),
        ("many", pa.list_(pa.int64())),
        ("nothing", pa.null()),
    ]
)


def make(numbers: list[int | None]) -> pa.Table:
    utc = dt.UTC
    columns = [
        numbers,
        [None if n is None else n / 3 for n in numbers],
        [None if n is None else n % 100 for n in numbers],
        [None if n is None else n % 2 == 0 for n in numbers],
        [None if n is None else "x" * (n % 7) for n in numbers],
        [None if n is None else dt.date.fromordinal(700_000 + n) for n in numbers],
        [None if n is None else dt.datetime(2024, 1, 1, tzinfo=utc) + dt.timedelta(seconds=n) for n in numbers],
        [None if n is None else Decimal(n) / 4 for n in numbers],
        [None if n is None else [n] * (n % 3) for n in numbers],
        [None] * len(numbers),
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


NUMBERS = st.lists(st.integers(0, 10_000) | st.none(), max_size=30)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.tuples(NUMBERS, st.integers(0, 40)), max_size=12), data=st.data())
def test_rows_come_back(steps: list[tuple[list[int | None], int]], data: st.DataObject) -> None:
    store = SideStore(SCHEMA, 1, timed=True)
    everything: list[int | None] = []
    for numbers, forgotten in steps:
        n = len(numbers)
        store.append(make(numbers), [np.arange(n)], np.arange(n), n)
        everything += numbers
        store.forget(min(len(everything), store.base + forgotten))
        assert store.count == len(everything)
        live = len(everything) - store.base
        assert store.ticks is not None
        assert len(store.ticks) == len(store.words[0]) == live
        if live:
            seqs = data.draw(st.lists(st.integers(store.base, len(everything) - 1), max_size=20))
            got = store.gather(SCHEMA.names, np.array(seqs, np.int64), Workers(1))
            wanted = make([everything[s] for s in seqs])
            for name in SCHEMA.names:
                assert got[name].to_pylist() == wanted[name].to_pylist(), name


def test_gathering_is_the_same_with_more_workers() -> None:
    store = SideStore(SCHEMA, 0, timed=False)
    store.append(make(list(range(5_000))), [], None, 5_000)
    seqs = np.random.default_rng(0).integers(0, 5_000, 40_000)
    one, three = Workers(1), Workers(3)
    a, b = store.gather(SCHEMA.names, seqs, one), store.gather(SCHEMA.names, seqs, three)
    three.close()
    assert all(a[name].equals(b[name]) for name in SCHEMA.names)


def test_a_buffer_moves_each_value_a_constant_number_of_times() -> None:
    buffer = Buffer(np.int64)
    for i in range(1_000):
        buffer.append(np.arange(100) + 100 * i)
        buffer.forget(max(0, len(buffer) - 250))
        assert buffer.values[-1] == 100 * i + 99
    assert buffer.nbytes <= 8 * 2048


def test_cuts_cover_everything_once() -> None:
    for n in range(20):
        for parts in range(1, 6):
            ranges = cuts(n, parts)
            assert [i for begin, end in ranges for i in range(begin, end)] == list(range(n))
            assert len(ranges) <= parts
