"""Delta and Iceberg tables as streams: what they have, what is appended, and what can't be a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Engine
from streamjoin.model.errors import NotSupportedError, StateError
from streamjoin.queries.sinks.base import Target
from streamjoin.queries.sources import tables
from streamjoin.queries.sources.tables import DeltaSource, IcebergSource
from tests.formats.lakes import KINDS, Lake

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.int64()})


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    place = Lake(request.param, tmp_path / "lake")
    place.create("t", SCHEMA)
    return place


def source(lake: Lake) -> DeltaSource | IcebergSource:
    return DeltaSource(lake.path("t")) if lake.kind == "delta" else IcebergSource("tests.t", options=lake.catalog)


def rows(*values: tuple[int, int]) -> pa.Table:
    return pa.Table.from_pylist([{"k": k, "t": t} for k, t in values], SCHEMA)


def append(lake: Lake, *values: tuple[int, int]) -> None:
    """Without streamjoin."""
    if lake.kind == "iceberg":
        lake.open("t").append(rows(*values))
        return
    from deltalake import write_deltalake

    write_deltalake(lake.path("t"), rows(*values), mode="append")


def read_all(lake: Lake, position: Any = None) -> tuple[list[int], Any]:
    """What is there from a position on, with a new reader for each read as after restarts; and where it ends."""
    found: list[int] = []
    while True:
        reader = source(lake).open(None)
        batch = reader.read(position)
        reader.close()
        if batch is None:
            return found, position
        found += batch.rows["t"].to_pylist()
        position = batch.position


def test_rows_at_first_and_rows_that_are_appended(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    # A read takes one file.
    monkeypatch.setattr(tables, "MOST_BYTES", 1)
    append(lake, (1, 0), (1, 1))
    append(lake, (1, 2))
    found, position = read_all(lake)
    assert sorted(found) == [0, 1, 2]
    assert read_all(lake, position) == ([], position)
    append(lake, (1, 3))
    lake.sink("t").open(Target("q", SCHEMA, "engine")).write(0, rows((1, 4), (1, 5)))
    found, later = read_all(lake, position)
    assert found == [3, 4, 5], "in the order of versions, each once"
    assert read_all(lake, position) == ([3, 4, 5], later)


def test_a_deletion_is_an_error_and_compaction_is_none(lake: Lake) -> None:
    append(lake, (1, 0))
    _, position = read_all(lake)
    if lake.kind == "delta":
        append(lake, (1, 1))
        _, position = read_all(lake, position)
        lake.open("t").optimize.compact()
        append(lake, (1, 2))
        found, position = read_all(lake, position)
        assert found == [2]
    lake.open("t").delete("t = 0")
    with pytest.raises(StateError, match="deletes or changes rows"):
        read_all(lake, position)


def test_a_table_joins_a_stream_and_goes_on_after_a_restart(lake: Lake, tmp_path: Path) -> None:
    sql = "SELECT x.t AS a, y.t AS b FROM l x JOIN r y WITHIN 100 UNITS ON x.k = y.k"
    wanted = [[(0, 5)], [(0, 5), (7, 5)]]
    for start in range(2):
        engine = Engine(checkpoint=tmp_path / "c")
        engine.register("l", source=source(lake), time="t", lateness=100)
        engine.register("r", schema=SCHEMA, time="t", lateness=100)
        with engine:
            if not start:
                engine.create(sql, name="q", sink=lake.sink("out"))
                engine.push("r", rows((1, 5)))
                # A query sees what comes after it.
                append(lake, (1, 0), (2, 1))
            engine.process_all_available()
        assert lake.rows("out") == wanted[start]
        append(lake, (1, 7))


def test_a_partitioned_delta_table(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    lake = Lake("delta", tmp_path)
    schema = pa.schema({"k": pa.string(), "t": pa.int64(), "d": pa.int32()})
    given = [{"k": "a b/c", "t": 0, "d": 1}, {"k": None, "t": 1, "d": 2}, {"k": "x", "t": 2, "d": None}]
    table = pa.Table.from_pylist(given, schema)
    write_deltalake(lake.path("t"), table, partition_by=["k", "d"])
    found: list[Any] = []
    reader, position = source(lake).open(None), None
    write_again = [True]
    while (batch := reader.read(position)) is not None or write_again:
        if batch is None:
            write_again.clear()
            write_deltalake(lake.path("t"), table, mode="append")
            continue
        found += batch.rows.to_pylist()
        position = batch.position
    assert sorted(found, key=str) == sorted(given * 2, key=str)


def test_what_can_not_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    with pytest.raises(StateError, match="the Delta table"):
        source(lake).open(None)
    with pytest.raises(StateError, match="the Iceberg table"):
        source(Lake("iceberg", tmp_path / "i")).open(None)
    lake.create("t", SCHEMA, configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(NotSupportedError, match="deletionVectors"):
        source(lake).open(None)


def test_a_log_that_is_gone_is_an_error(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    lake.create("t", SCHEMA)
    _, position = read_all(lake)
    append(lake, (1, 0))
    append(lake, (1, 1))
    lake.open("t").create_checkpoint()
    (Path(lake.path("t")) / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(StateError, match="no longer has the log of version 1"):
        read_all(lake, position)
