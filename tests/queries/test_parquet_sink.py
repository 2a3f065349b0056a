"""Directories of Parquet files: of one query each, with few files, which never change, and each row once."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest

from streamjoin.adhoc import Engine, ParquetSink, Settings
from streamjoin.model.errors import SpecError
from streamjoin.queries.engine import deliveries
from streamjoin.queries.sources.files import FileReader, FileSource
from tests.queries.journal_cases import LEFT, PAIRS, RIGHT, SCHEMA, Killed, killed_at, table
from tests.queries.looped import Looped, read_back

OTHER_TEXT = f"{PAIRS} WHERE x.p > 100"
OTHER_COLUMNS = "SELECT x.p AS a, y.p AS b, x.k FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"


def opened(checkpoint: Path | None = None, **settings: float) -> Engine:
    engine = Engine(checkpoint=checkpoint, settings=Settings(**settings))  # type: ignore[arg-type]
    for name in "lr":
        engine.register(name, schema=SCHEMA, time="t")
    return engine


def push_pairs(engine: Engine, *numbers: int) -> None:
    for number in numbers:
        engine.push_all({"l": table((number, number, 0)), "r": table((number, number, 0))})


def rows_of(directory: Path) -> list[int]:
    """As Polars, DuckDB and Arrow read the directory, and all alike."""
    found = [
        sorted(pl.read_parquet(directory)["a"].to_list()),
        sorted(row[0] for row in duckdb.execute(f"SELECT a FROM read_parquet('{directory}/*')").fetchall()),
        sorted(pq.read_table(directory)["a"].to_pylist()),
    ]
    assert found[0] == found[1] == found[2]
    return found[0]


@pytest.mark.parametrize("text", [OTHER_TEXT, OTHER_COLUMNS])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_directory_stays_with_the_query_whose_rows_it_has(tmp_path: Path, text: str, restarted: bool) -> None:
    out = tmp_path / "out"
    with opened(tmp_path / "checkpoint") as engine:
        engine.create(PAIRS, name="q", sink=ParquetSink(str(out)))
        push_pairs(engine, 1)
        engine.drop("q")
        if not restarted:
            with pytest.raises(SpecError, match="a directory belongs to one query"):
                engine.create(text, name="q", sink=ParquetSink(str(out)))
    with opened(tmp_path / "checkpoint") as engine:
        with pytest.raises(SpecError, match="a directory belongs to one query"):
            engine.create(text, name="q", sink=ParquetSink(str(out)))
        assert engine.queries() == []
        # The same query may go on, and another one elsewhere.
        engine.create(PAIRS, name="q", sink=ParquetSink(str(out)))
        engine.create(text, name="p", sink=ParquetSink(str(tmp_path / "other")))
        push_pairs(engine, 2)
    assert rows_of(out) == [1, 2]


def test_other_columns_are_never_mixed_and_other_queries_only_on_request(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with opened(tmp_path / "checkpoint") as engine:
        engine.create(PAIRS, name="q", sink=ParquetSink(out))
        push_pairs(engine, 1)
        engine.drop("q")
        with pytest.raises(SpecError, match="rows of another query"):
            engine.create(PAIRS, name="p", sink=ParquetSink(out))
        with pytest.raises(SpecError, match="other columns"):
            engine.create(OTHER_COLUMNS, name="p", sink=ParquetSink(out, append=True))
        engine.create(PAIRS, name="p", sink=ParquetSink(out, append=True))
        push_pairs(engine, 2)
    assert rows_of(tmp_path / "out") == [1, 2]


def test_two_queries_do_not_share_a_directory_also_while_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with opened(tmp_path / "checkpoint") as engine:
        engine.create(PAIRS, name="q", sink=ParquetSink(str(tmp_path / "out")))
        for same in ("out", "link", "out/../out"):
            with pytest.raises(SpecError, match="query 'q' writes to"):
                engine.create(PAIRS, name="p", sink=ParquetSink(str(tmp_path / same)))
    engine = opened()
    # Before the start nothing is in force, and both are asked for.
    first = engine.create(PAIRS, name="q", sink=ParquetSink(str(tmp_path / "new")))
    second = engine.create(PAIRS, name="p", sink=ParquetSink(str(tmp_path / "new")))
    with engine:
        first.wait(60)
        with pytest.raises(SpecError, match="query 'q' writes to"):
            second.wait(60)


def test_many_batches_share_a_file_that_never_changes(tmp_path: Path) -> None:
    """The first rows are there at once; the others come with one file, for readers of the directory and of news."""
    out = tmp_path / "out"
    with opened(tmp_path / "checkpoint", file_seconds=1e6) as engine:
        engine.create(PAIRS, name="q", sink=ParquetSink(str(out)))
        push_pairs(engine, 0)
        engine.process_all_available()
        (first,) = out.glob("*.parquet")
        before = first.stat()
        news = FileSource(str(out), "parquet", pq.read_schema(first)).open(tmp_path / "notes")
        seen = _news(news)
        with first.open("rb") as half_read:
            half_read.read(10)
            push_pairs(engine, *range(1, 40))
            info = engine.query("q")
            assert (info.state, info.rows, info.rows_undelivered, info.error) == ("running", 1, 39, None)
            assert rows_of(out) == [0]
            engine.process_all_available()
            assert pq.read_table(half_read)["a"].to_pylist() == [0]
        assert engine.query("q").rows == 40
        assert len(list(out.glob("*.parquet"))) == 2
        assert rows_of(out) == list(range(40))
        seen += _news(news)
        push_pairs(engine, 40)
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(seen + _news(news)) == list(range(41))
    assert len(list(out.glob("*.parquet"))) == 3


def _news(reader: FileReader) -> list[int]:
    """What a reader that reads each file once has not seen yet."""
    rows: list[int] = []
    position = getattr(reader, "seen", None)
    while (found := reader.read(position)) is not None:
        rows += found.rows["a"].to_pylist()
        position = found.position
    reader.seen = position  # type: ignore[attr-defined]
    return rows


def test_a_drop_and_many_rows_do_not_wait_for_the_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "checkpoint", file_seconds=1e6) as engine:
        engine.create(PAIRS, name="dropped", sink=ParquetSink(str(tmp_path / "dropped")))
        push_pairs(engine, 0, 1, 2)
        engine.drop("dropped")
        assert rows_of(tmp_path / "dropped") == [0, 1, 2]
        engine.create(PAIRS, name="large", sink=ParquetSink(str(tmp_path / "large")))
        push_pairs(engine, 3)
        monkeypatch.setattr(deliveries, "_LARGE", 40)
        push_pairs(engine, 4, 5)
        assert engine.query("large").rows_undelivered == 0
        assert rows_of(tmp_path / "large") == [3, 4, 5]


def test_rows_that_wait_get_their_file_when_the_pause_is_over(tmp_path: Path) -> None:
    """Also if no batch comes any more."""
    with opened(tmp_path / "checkpoint", file_seconds=0.3) as engine:
        engine.create(PAIRS, name="q", sink=ParquetSink(str(tmp_path / "out")))
        push_pairs(engine, *range(5))
        queues = engine._catalog.deliveries
        with queues._changed:
            assert queues._changed.wait_for(lambda: engine.query("q").rows == 5, 60)
    assert rows_of(tmp_path / "out") == list(range(5))


@pytest.mark.parametrize("after", [False, True])
def test_gathered_rows_are_there_once_after_a_kill_at_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Right after the file appears what waited is still in the spool, and then comes in another group."""
    settings = Settings(file_seconds=1e6)

    def fed(run: Looped, batches: int) -> None:
        if "l" not in run.catalog.streams:
            run.register(LEFT)
            run.register(RIGHT)
        if "q" not in run.catalog.entries:
            run.create("q", PAIRS, ParquetSink(str(directory / "out")))
        for number in range(batches):
            if run.newest("l") < number:
                run.hand({name: (number, table((number, number, 0))) for name in "lr"})

    killed = 0
    for write in range(60):
        directory = tmp_path / str(write)
        run = Looped(directory / "checkpoint", settings)
        fed(run, 2)
        with killed_at(write, after, monkeypatch):
            try:
                fed(run, 5)
                run.catalog.deliveries.drain()
                assert run.catalog.entries["q"].sink_error is None or "Killed" in run.catalog.entries["q"].sink_error
                done = run.catalog.entries["q"].sink_error is None
            except BaseException as error:
                assert isinstance(error, Killed) or isinstance(run.failure, Killed), error
                done = False
            run.abandon()
        if done:
            break
        killed += 1
        with Looped(directory / "checkpoint", settings) as run:
            fed(run, 7)
        assert sorted(read_back(directory / "out", ["a", "b"])) == [(n, n) for n in range(7)], write
    assert done and killed > 8
