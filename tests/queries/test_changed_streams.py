"""A stream of a checkpoint that comes back with another lateness or further columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Engine, Settings
from streamjoin.model.errors import SchemaError
from streamjoin.windows.clock import NEVER, Horizon

PLAIN = pa.schema({"k": pa.int64(), "t": pa.int64()})
WIDE = pa.schema({"k": pa.int64(), "venue": pa.string(), "t": pa.int64()})
PAIRS = "SELECT x.t AS a, y.t AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"
OUTER = "SELECT x.t AS a, y.t AS b FROM l x LEFT JOIN r y WITHIN 5 UNITS ON x.k = y.k"
VENUES = "SELECT x.venue, y.t AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"


def engine_on(checkpoint: Path | None, left: pa.Schema = PLAIN, lateness: int = 0, sharing: Any = "cost") -> Engine:
    engine = Engine(checkpoint=checkpoint, settings=Settings(sharing=sharing))
    engine.register("l", schema=left, time="t", lateness=lateness)
    engine.register("r", schema=PLAIN, time="t")
    return engine


def push(engine: Engine, stream: str, *times: int, **more: Any) -> None:
    engine.push(stream, [{"k": 1, "t": time, **more} for time in times])


def rows(engine: Engine, name: str) -> list[tuple[Any, ...]]:
    found = engine.rows(name)
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=repr)


@pytest.mark.parametrize("sharing", ["cost", "nothing"])
def test_a_new_column_is_null_for_the_tuples_that_are_there(tmp_path: Path, sharing: str) -> None:
    with engine_on(tmp_path, sharing=sharing) as engine:
        engine.create(PAIRS, name="pairs")
        engine.create(OUTER, name="outer")
        push(engine, "l", 10, 11)
    with engine_on(tmp_path, WIDE, sharing=sharing) as engine:
        engine.create(VENUES, name="venues")
        push(engine, "r", 12)
        # Old tuples meet new ones by the queries that were there; a new query sees what comes after it.
        assert rows(engine, "pairs") == [(10, 12), (11, 12)]
        push(engine, "l", 13, venue="XETR")
        assert rows(engine, "pairs") == [(10, 12), (11, 12), (13, 12)]
        assert rows(engine, "venues") == [("XETR", 12)]
        assert dict(engine.streams()[0].columns)["venue"] == "string"
    # And the next restart, with what the log and the state have of before and after the change.
    with engine_on(tmp_path, WIDE, sharing=sharing) as engine:
        push(engine, "r", 14)
        assert rows(engine, "pairs") == [(10, 14), (11, 14), (13, 14)]
        assert rows(engine, "venues") == [("XETR", 14)]
        push(engine, "l", 100, venue=None)
        push(engine, "r", 100)
        assert ("XETR", 14) in rows(engine, "venues")
        assert rows(engine, "outer") == [(10, 14), (100, 100), (11, 14), (13, 14)]


def test_another_lateness_never_takes_back_what_is_decided(tmp_path: Path) -> None:
    with engine_on(tmp_path, lateness=5) as engine:
        engine.create(OUTER, name="outer")
        push(engine, "l", 100)
        push(engine, "r", 50, 100)
        push(engine, "l", 96)
        assert engine.streams()[0].late == 0
    # More lateness: the bound stays at 95 until the stream is 20 past it.
    with engine_on(tmp_path, lateness=20) as engine:
        push(engine, "l", 94, 95)
        assert engine.streams()[0].late == 1
        push(engine, "l", 120)
    with engine_on(tmp_path, lateness=20) as engine:
        push(engine, "l", 99, 100)
        assert engine.streams()[0].late == 2
    # Less lateness holds at once.
    with engine_on(tmp_path, lateness=0) as engine:
        push(engine, "l", 119, 120)
        assert engine.streams()[0].late == 3


def test_a_change_is_in_the_changelog_once(tmp_path: Path) -> None:
    for lateness in (0, 5, 5):
        with engine_on(tmp_path, lateness=lateness) as engine:
            push(engine, "l", 10)
    assert [record.name for record in engine.changelog()] == ["l", "r", "l"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema({"t": pa.int64()}), "other columns: k int64, t int64, now t int64"),
        (pa.schema({"k": pa.int32(), "t": pa.int64()}), "other columns: k int64"),
    ],
)
def test_other_changes_are_refused_and_change_nothing(tmp_path: Path, schema: pa.Schema, message: str) -> None:
    with engine_on(tmp_path) as engine:
        engine.create(PAIRS, name="pairs")
        push(engine, "l", 10)
    engine = Engine(checkpoint=tmp_path)
    with pytest.raises(SchemaError, match=message):
        engine.register("l", schema=schema, time="t")
    engine.stop()
    with engine_on(tmp_path) as engine:
        push(engine, "r", 10)
        assert rows(engine, "pairs") == [(10, 10)]


def test_a_query_over_all_columns_is_in_the_way_of_further_ones(tmp_path: Path) -> None:
    with engine_on(tmp_path) as engine:
        engine.create("SELECT x.*, y.t AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k", name="all")
    engine = Engine(checkpoint=tmp_path)
    engine.register("r", schema=PLAIN, time="t")
    with pytest.raises(SchemaError, match="query 'all' takes all columns of it"):
        engine.register("l", schema=WIDE, time="t")
    engine.register("l", schema=PLAIN, time="t", lateness=3)
    with engine:
        push(engine, "l", 10)
        push(engine, "r", 10)
        assert rows(engine, "all") == [(1, 10, 10)]


def test_a_horizon_keeps_its_bound() -> None:
    top = (1 << 63) - 1
    assert Horizon(3, 0).with_lateness(7).bound == NEVER
    for clock in (0, 100, top, -top):
        for before in (0, 5, 1 << 40):
            for after in (0, 5, 1 << 40):
                old = Horizon.resumed(before, clock)
                new = old.with_lateness(after)
                assert new.lateness == after
                assert new.bound >= old.bound
                assert new.bound >= max(NEVER, clock - after)
