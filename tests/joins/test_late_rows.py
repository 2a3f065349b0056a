"""Late rows that nobody reads: limits in rows and bytes, what is dropped, and what one row takes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins.engine import late as late_module
from streamjoin.joins.engine.late import LateRows
from tests.joins.live_runs import ending

SPEC = sj.JoinSpec(on=sj.Equi("k"), window=sj.TimeWindow(5), time="t", order="event_time")
TYPES = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("note", pa.string())])


def rows(*times: int, note: str = "x") -> pa.Table:
    return pa.table({"k": [1] * len(times), "t": list(times), "note": [note] * len(times)}, schema=TYPES)


def opened() -> sj.Join:
    """A join at time 1,000,000 whose earlier rows are late."""
    join = sj.open(SPEC, "sweep", left_schema=TYPES, right_schema=TYPES, on_close=lambda rows: None)
    join.push(rows(1_000_000), rows(1_000_000))
    return join


def read(late: pa.Table) -> list[tuple[str, int]]:
    times = zip(late["t_left"].to_pylist(), late["t_right"].to_pylist(), strict=True)
    return [(side, l if side == "left" else r) for side, (l, r) in zip(late["side"].to_pylist(), times, strict=True)]


def test_late_rows_come_in_their_order_however_they_are_stored() -> None:
    rng = np.random.default_rng(3)
    wanted: list[tuple[str, int]] = []
    with opened() as join:
        for number in range(3_000):
            side = ("left", "right")[int(rng.integers(2))]
            pushed = rows(*range(number, number + int(rng.integers(1, 4))))
            join.push(**{side: pushed})
            wanted += [(side, time) for time in pushed["t"].to_pylist()]
            if number == 1_000:
                assert read(join.late()) == wanted
                wanted = []
        late = join.late()
        assert read(late) == wanted
        assert set(late["reason"].to_pylist()) == {"late"}
        assert (join.late().num_rows, join.metrics()["late_bytes"], join.metrics()["late_dropped"]) == (0, 0, 0)
        assert late.schema == join.late().schema


def test_sources_and_reasons_stay_with_their_rows() -> None:
    with opened() as join:
        for number in range(2_000):
            join.push(rows(number), source=f"s{number % 7}")
            join.push(None, pa.table({"k": [number], "t": [None], "note": ["y"]}, schema=TYPES))
        late = join.late()
    assert late["source"].to_pylist() == [name for n in range(2_000) for name in (f"s{n % 7}", "")]
    assert late["reason"].to_pylist() == ["late", "no usable time"] * 2_000
    assert late["k_right"].to_pylist()[1::2] == list(range(2_000))


def test_few_tables_are_held_whatever_the_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of one row takes kilobytes."""
    combined: list[int] = []
    usual = late_module._combined
    monkeypatch.setattr(late_module, "_combined", lambda parts: combined.append(len(parts)) or usual(parts))
    with opened() as join:
        for number in range(5_000):
            join.push(rows(number))
            assert len(join._late._parts) * len(TYPES) < 4_096
        assert min(combined) >= 100
        assert len(join._late._blocks) == len(combined) <= 50
        # Three columns, and the labels.
        assert join.metrics()["late_bytes"] < 5_000 * 64
        assert join.late().num_rows == 5_000


@pytest.mark.parametrize("limit", ["KEPT_ROWS", "KEPT_BYTES"])
def test_the_oldest_rows_go_first_and_are_counted(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_module, limit, {"KEPT_ROWS": 1_000, "KEPT_BYTES": 200_000}[limit])
    with opened() as join:
        for number in range(0, 6_000, 2):
            join.push(rows(number, number + 1, note="n" * 100))
        join.push(rows(1_000_001))
        figures = join.metrics()
        late = join.late()
        assert figures["late"] == 6_000
        assert figures["late_dropped"] == 6_000 - late.num_rows > 0
        assert late["t_left"].to_pylist() == list(range(6_000 - late.num_rows, 6_000))
        assert figures["late_bytes"] <= late_module.KEPT_BYTES
        assert 100 < late.num_rows <= late_module.KEPT_ROWS


def test_a_single_push_over_the_limit_keeps_its_newest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_module, "KEPT_BYTES", 10_000)
    notes = ["n" * (1 + n // 10) for n in range(1_000)]
    pushed = pa.table({"k": [1] * 1_000, "t": list(range(1_000)), "note": notes}, schema=TYPES)
    with opened() as join:
        join.push(pushed)
        join.push(rows(1_000_001))
        late = join.late()
        assert 0 < late.num_rows < 1_000
        assert late["t_left"].to_pylist() == list(range(1_000 - late.num_rows, 1_000))
        assert join.metrics()["late_dropped"] == 1_000 - late.num_rows
    monkeypatch.setattr(late_module, "KEPT_BYTES", 50)
    with opened() as join:
        join.push(rows(1, note="n" * 1_000))
        join.push(rows(1_000_001))
        assert (join.late().num_rows, join.metrics()["late_dropped"], join.metrics()["late"]) == (0, 1, 1)


@pytest.mark.parametrize("algorithm", ["auto", "pim_parallel", "scalejoin"])
def test_live_joins_keep_the_same_limits(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_module, "KEPT_BYTES", 20_000)
    columns = pa.schema([("k", pa.int64()), ("t", pa.int64())])
    with ending(), sj.live(SPEC, algorithm, left_schema=columns, right_schema=columns) as join:
        left, right = join.source("left", "a"), join.source("right")
        left.push(rows(1_000).select(columns.names))
        right.push(rows(1_000).select(columns.names))
        for number in range(3_000):
            left.push(pa.table({"k": [0], "t": [number % 1_000]}, schema=columns))
            if number % 100 == 0:
                right.push(rows(1_001 + number).select(columns.names))
        join.on_rows(lambda batch: None)
        join.close()
        assert join.wait(120)
        figures, late = join.metrics(), join.late()
    assert figures["late"] == 3_000
    assert figures["late_dropped"] == 3_000 - late.num_rows > 0
    # How many depends on how pushes came together: what goes is the oldest table.
    assert late.num_rows > 0 and 0 < figures["late_bytes"] <= 20_000
    times = [number % 1_000 for number in range(3_000)]
    assert late["t_left"].to_pylist() == times[-late.num_rows :]


def test_a_failed_call_takes_its_late_rows_back() -> None:
    late = LateRows()
    late.add("left", "", "late", rows(1))
    late.trim()
    restore = late.saved()
    late.add("right", "", "late", rows(2, 3))
    assert late.nbytes > 0
    restore()
    with opened() as join:
        assert join._bound is not None
        assert read(late.take(join._bound)) == [("left", 1)]


def test_columns_that_have_a_type_only_later_are_combined_with_it() -> None:
    with sj.open(SPEC, "sweep", on_close=lambda rows: None) as join:
        join.push([{"k": 1, "t": 1_000_000, "note": None}], [{"k": 1, "t": 1_000_000}])
        for number in range(1_500):
            join.push([{"k": 1, "t": number, "note": None if number < 900 else "typed"}])
        late = join.late()
    assert late["note"].to_pylist() == [None] * 900 + ["typed"] * 600
