"""Rows that are set aside, late, without a time or malformed: each is counted once and kept, whenever it is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from streamjoin.model.errors import StreamJoinError
from streamjoin.queries.executors.spark import split
from tests.queries.journal_cases import LEFT, RIGHT, SCHEMA, Killed, killed_at
from tests.queries.looped import Looped

BAD = pa.table({"file": ["a", "a"], "value": ["!", "?"]})
BATCHES = 3


def rows_of(number: int) -> pa.Table:
    """A row in time, one that is late after the first batch and one without a time."""
    rows = [{"k": 1, "p": 10 * number, "t": number}, {"k": 1, "p": 10 * number + 1, "t": -100}]
    return pa.Table.from_pylist([*rows, {"k": 1, "p": 10 * number + 2, "t": None}], SCHEMA)


def run_it(directory: Path) -> None:
    """Whatever of three batches is not done yet."""
    run = Looped(directory)
    try:
        run.begin(LEFT, RIGHT)
        for number in range(BATCHES):
            if run.newest("l") < number:
                run.hand({"l": (number, rows_of(number))}, {"l": BAD.slice(0, number)} if number else None)
    finally:
        run.abandon()


def test_each_is_counted_once_whenever_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = 0
    for write in range(100):
        directory = tmp_path / str(write)
        with killed_at(write, bool(write % 2), monkeypatch):
            try:
                run_it(directory)
                break
            except (Killed, StreamJoinError):
                killed += 1
        run_it(directory)
        run = Looped(directory)
        with run:
            run.settle()
            info = run.catalog.streams["l"].info()
            assert (info.rows, info.late, info.untimed, info.malformed) == (9, 2, 3, 3), write
            late = run.journal.aside("late", "l")
            assert late is not None
            assert sorted(late["p"].to_pylist()) == [2, 11, 12, 21, 22]
            bad = run.journal.aside("malformed", "l")
            assert bad is not None
            assert bad["value"].to_pylist() == ["!", "!", "?"]
    assert killed > 15


def test_the_newest_of_them(tmp_path: Path) -> None:
    with Looped(tmp_path) as run:
        run.register(LEFT)
        assert run.journal.aside("malformed", "l") is None
        for number in range(3):
            run.hand(
                {"l": (number, rows_of(number).slice(0, 0))}, {"l": pa.table({"value": [f"{number}a", f"{number}b"]})}
            )
        newest = run.journal.aside("malformed", "l", 3)
        assert newest is not None
        assert newest["value"].to_pylist() == ["1b", "2a", "2b"]
        # Nothing but malformed records is a batch too, and who has read them may remove them.
        assert run.catalog.streams["l"].info().malformed == 6
        for file in (tmp_path / "malformed" / "l").iterdir():
            file.unlink()
        assert run.journal.aside("malformed", "l") is None


def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(tmp_path: Path) -> None:
    """It has no counts of malformed records, and none of what a batch set aside."""
    from streamjoin.queries.engine.journal import read_record, write_record

    with Looped(tmp_path) as run:
        run.register(LEFT)
        run.hand({"l": (0, rows_of(0))})
        run.hand({"l": (1, rows_of(1))})
    for kind, cut in (("done", lambda body: body["streams"]["l"].pop()), ("batches", lambda body: body.pop("aside"))):
        for file in (tmp_path / kind).iterdir():
            body = read_record(file)
            cut(body)
            file.unlink()
            write_record(file, json.loads(json.dumps(body)))
    with Looped(tmp_path) as run:
        info = run.catalog.streams["l"].info()
        assert (info.rows, info.late, info.untimed, info.malformed) == (6, 1, 2, 0)


def test_marked_rows_are_split_off() -> None:
    table = pa.table({"x": [1, None, 3], "bad": [None, {"value": "!", "file": "f"}, None]})
    rows, bad = split(table, "bad")
    assert rows["x"].to_pylist() == [1, 3]
    assert bad is not None
    assert bad.to_pylist() == [{"value": "!", "file": "f"}]
    assert split(rows, "bad")[1] is None
    assert split(table, None) == (table, None)
    text = split(pa.table({"x": [1], "bad": ["what it was"]}), "bad")[1]
    assert text is not None
    assert text.to_pydict() == {"bad": ["what it was"]}
