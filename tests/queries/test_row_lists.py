"""Rows that stay lists of tuples until somebody reads them: the same whenever that is, and not gathered before."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import CallbackSink, Engine, MemorySink, Settings, Stream
from streamjoin.queries.core import outputs, row_lists
from streamjoin.queries.core.changes import Create, Drop
from streamjoin.queries.core.row_lists import ListedRows, RowList
from streamjoin.queries.core.stored_stream import HeldColumn
from streamjoin.queries.core.unshared import open_core
from tests.oracles import adhoc_cases
from tests.queries.core_cases import lateness_of, rows_of, streams_of, wanted_of
from tests.seeds import examples

SCHEMA = pa.schema({"k": pa.int64(), "p": pa.int64(), "s": pa.string(), "t": pa.int64()})
PAIRS = "SELECT x.p AS a, y.p AS b, y.s FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(adhoc_cases.cases(most_queries=6), st.booleans(), st.sampled_from(["cost", "nothing"]))
def test_rows_are_the_same_however_late_they_are_read(case: adhoc_cases.AdhocCase, apart: bool, sharing: Any) -> None:
    core = open_core(streams_of(case), Settings(sharing=sharing, lateness=lateness_of(case)))
    listed: dict[str, dict[int, ListedRows]] = {query.name: {} for query in case.queries}
    with pytest.MonkeyPatch.context() as patch:
        if apart:
            patch.setattr(row_lists, "_TOGETHER", 0)
        for batch in range(len(case.batches)):
            changes = [Drop(q.name) for q in case.queries if q.life.dropped == batch]
            core.apply([*changes, *(Create(q.name, q.text) for q in case.queries if q.life.created == batch)])
            arrived = core.arrive(batch, case.tables(batch))
            rows, failures = core.results(arrived)
            core.finish(arrived, failures)
            for name, found in rows.items():
                if found.num_rows:
                    listed[name][batch] = found
        found_rows = {name: {n: rows_of(found) for n, found in batches.items()} for name, batches in listed.items()}
    assert found_rows == wanted_of(case)


def counts_of(results: row_lists.EndingResults) -> list[int]:
    counts = np.zeros(4, np.int64)
    results.add_counts(counts)
    return list(counts.tolist())


@pytest.mark.parametrize("together", [True, False])
def test_a_slice_is_that_of_the_table(monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    if not together:
        monkeypatch.setattr(row_lists, "_TOGETHER", 0)
    number, mask = np.arange(4), np.full(1, 3, np.uint64)
    columns = [
        (0, HeldColumn(pa.int64(), 10, number * 7, ())),
        (1, HeldColumn(pa.string(), 20, None, (pa.array(["a", "b"]), pa.array(["c", "d"])))),
    ]
    parts = [
        row_lists.EndingResults(np.array(sets, np.uint64), mask, np.arange(64) % 2, (10 + refs, 23 - refs))
        for sets, refs in (([[1], [6]], number[:2]), ([[2], [6]], number[2:]))
    ]
    assert [counts_of(part) for part in parts] == [[1, 1, 0, 0], [0, 2, 0, 0]]
    dealt = row_lists.DealtRows(parts, 2, columns)
    assert dealt.starts.tolist() == [0, 1, 4]
    kind = pa.schema({"s": pa.string(), "n": pa.int64()}), (1, 0)
    rows = RowList(3, dealt, 1, 0, kind)
    assert rows.table().to_pydict() == {"s": ["c", "b", "a"], "n": [7, 14, 21]}
    assert rows.table() is rows.table() and rows.schema == kind[0] and rows.nbytes > 0
    for first, count in ((0, 2), (1, None), (2, 5), (5, None), (3, 1)):
        assert rows.slice(first, count).table() == rows.table().slice(first, count)
        assert rows.slice(first, count).num_rows == rows.table().slice(first, count).num_rows


def test_results_without_those_of_some_queries_hold_no_more_than_they_need() -> None:
    sets, numbers = np.array([[1, 2], [2, 0], [4, 0], [3, 0], [0, 1]], np.uint64), np.arange(5)
    owners = np.zeros(128, np.int64)
    owners[[0, 1, 64, 65]] = 2, 1, 0, 2
    results = row_lists.EndingResults(sets, np.array([3, 3], np.uint64), owners, (numbers, numbers * 9))
    assert results.count == 6 and counts_of(results) == [1, 2, 3, 0]
    assert [found.tolist() for found in results.listed()] == [[2, 2, 1, 2, 1, 0], [0, 0, 1, 3, 3, 4]]
    kept = results.keep(np.array([False, True, False, True]))
    assert kept is not None and counts_of(kept) == [0, 2, 0, 0]
    assert [ref.tolist() for ref in kept.refs] == [[1, 3], [9, 27]] and kept.nbytes == 2 * (16 + 16)
    assert results.keep(np.array([False, False, False, True])) is None


def test_rows_that_may_not_fit_an_array_are_gathered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them later would fail the sink again and again, where now the query is paused."""
    core = open_core(_streams())
    core.apply([Create("q", PAIRS)])
    monkeypatch.setattr(row_lists, "_UNSURE", 1)
    found, failures = core.results(core.arrive(0, {"l": _rows(3), "r": _rows(3)}))
    assert isinstance(found["q"], pa.Table) and found["q"].num_rows == 9 and not failures


def test_only_the_rows_that_a_sink_takes_are_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[int] = []
    take = HeldColumn.take

    def counted(self: HeldColumn, numbers: Any) -> pa.Array:
        gathered.append(len(numbers))
        return take(self, numbers)

    monkeypatch.setattr(HeldColumn, "take", counted)
    monkeypatch.setattr(row_lists, "_TOGETHER", 0)
    taken: list[pa.Table] = []
    with Engine(checkpoint=tmp_path, settings=Settings(newest_rows=10)) as engine:
        for stream in _streams():
            engine.register(stream.name, schema=SCHEMA, time="t")
        engine.create(PAIRS, "newest", sink=MemorySink(limit=10))
        engine.push_all({"l": _rows(100), "r": _rows(100)})
        assert engine.query("newest").rows == 10_000 and engine.rows("newest").num_rows == 10
        assert gathered and max(gathered) == 10
        engine.create(PAIRS, "all", sink=CallbackSink(lambda _, rows: taken.append(rows)))
        engine.push_all({"l": _rows(100, at=9), "r": _rows(100, at=9)})
    assert sum(table.num_rows for table in taken) == 10_000 and max(gathered) == 10_000


@pytest.mark.parametrize("together", [True, False], ids=["gathered together", "each its own"])
def test_a_sink_holds_its_own_rows_and_nothing_else(monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    """One may hang for hours, or keep what it is given: not the streams, nor the rows of other queries."""
    if not together:
        monkeypatch.setattr(row_lists, "_TOGETHER", 0)
    made: list[weakref.ref[row_lists.DealtRows]] = []

    class Noted(row_lists.DealtRows):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(weakref.ref(self))

    monkeypatch.setattr(outputs, "DealtRows", Noted)
    go = threading.Event()
    kept: dict[str, list[pa.Table]] = {"slow": [], "computed": [], "union": []}

    def sink(name: str) -> CallbackSink:
        def keep(_: int, rows: pa.Table) -> None:
            kept[name].append(rows)
            assert go.wait(60)

        return CallbackSink(keep)

    one = PAIRS + " WHERE x.p = 3 AND y.p = 4"
    with Engine(settings=Settings(sink_patience=0.05)) as engine:
        for stream in _streams():
            engine.register(stream.name, schema=SCHEMA, time="t")
        engine.create(PAIRS, "many", sink=MemorySink(limit=10))
        engine.create(one, "slow", sink=sink("slow"))
        engine.create(one.replace("y.p AS b", "y.p + 1 AS b"), "computed", sink=sink("computed"))
        engine.create(f"{one} UNION ALL {one}", "union", sink=sink("union"))
        engine.push_all({"l": _rows(300), "r": _rows(300)})
        gc.collect()
        assert made and not [one for one in made if one() is not None]
        go.set()
    assert {name: tables[0].num_rows for name, tables in kept.items()} == {"slow": 1, "computed": 1, "union": 2}
    assert all(tables[0].get_total_buffer_size() < 1 << 12 for tables in kept.values())


def _rows(n: int, at: int = 0) -> pa.Table:
    number = np.arange(n)
    return pa.table({"k": number * 0, "p": number, "s": ["x"] * n, "t": np.full(n, at)}, SCHEMA)


def _streams() -> list[Stream]:
    return [Stream(name, SCHEMA, "t") for name in ("l", "r")]
