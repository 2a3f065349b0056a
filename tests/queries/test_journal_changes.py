"""The changelog in the engine's log: queries that take the name of one before, and records that may go."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

from streamjoin.adhoc import Stream
from streamjoin.model.errors import CheckpointError
from streamjoin.queries.engine.journal import FileJournal, read_record, write_record
from streamjoin.queries.engine.stored import EngineChange, StreamDefinition
from streamjoin.queries.language.sql import parse
from tests.queries.looped import Looped

SCHEMA = pa.schema({"k": pa.int64(), "p": pa.int64(), "t": pa.int64()})
LEFT, RIGHT = (Stream(name, SCHEMA, "t") for name in ("l", "r"))
PAIRS = "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k"


def table(*found: tuple[int, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in found], SCHEMA)


def test_a_restart_tells_a_query_from_the_one_that_had_its_name(tmp_path: Path) -> None:
    with Looped(tmp_path) as run:
        run.register(LEFT)
        run.register(RIGHT)
        run.create("a", PAIRS)
    run = Looped(tmp_path)
    # Both at one boundary, and after the state that the first run left.
    text = (
        "SELECT u.p AS a, w.p AS b FROM r u JOIN l v WITHIN 5 UNITS ON u.k = v.k JOIN l w WITHIN 5 UNITS ON u.k = w.k"
    )
    query = parse(text, [LEFT, RIGHT], "a")
    run.wait(EngineChange("drop", "a"), EngineChange("create", "a", query))
    run.hand({"l": (0, table((1, 10, 0)))})
    run.abandon()
    with Looped(tmp_path) as run:
        run.hand({"r": (0, table((1, 20, 1)))})
        assert run.catalog.entries["a"].query.text == text
        assert run.catalog.entries["a"].rows == 1


def test_a_query_was_created_at_the_same_time_after_a_restart(tmp_path: Path) -> None:
    with Looped(tmp_path) as run:
        run.register(LEFT)
        run.register(RIGHT)
        run.create("a", PAIRS)
        before = run.catalog.entries["a"].created_at
    with Looped(tmp_path) as run:
        assert run.catalog.entries["a"].created_at == before == run.catalog.changelog[-1].at


def test_decisions_keep_their_queries_and_older_ones_have_none(tmp_path: Path) -> None:
    with Looped(tmp_path) as run:
        run.register(LEFT)
        run.register(RIGHT)
        run.create("a", PAIRS)
    with Looped(tmp_path) as run:
        assert [decision.queries for decision in run.loop.explain().decisions] == [("a",)]
    newest = max((tmp_path / "state").iterdir())
    body = read_record(newest)
    for decision in body["decisions"]:
        del decision["queries"]
    write_record(newest, body)
    with Looped(tmp_path) as run:
        run.create("b", PAIRS)
        assert [decision.queries for decision in run.loop.explain().decisions] == [(), ("b",)]


@pytest.mark.parametrize("kept", [2, 5])
def test_changes_that_no_restart_needs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(FileJournal, "changes_kept", kept)
    serials: list[int] = []
    for _ in range(4):
        with Looped(tmp_path) as run:
            if not run.catalog.streams:
                run.register(LEFT)
                run.register(RIGHT)
            else:
                assert [record.serial for record in run.catalog.changelog] == serials, "what was told stays"
                assert set(run.catalog.entries) == {"kept"}
            for action in ("create", "pause", "resume", "drop"):
                run.create("a", PAIRS) if action == "create" else run.ask_for(action, "a")
            if "kept" not in run.catalog.entries:
                run.create("kept", PAIRS)
            serials = [record.serial for record in run.catalog.changelog]
            assert serials == list(range(run.catalog.serial - kept + 1, run.catalog.serial + 1))
        left = sorted(int(file.name) for file in (tmp_path / "changes").iterdir())
        states = sorted(int(file.name) for file in (tmp_path / "state").iterdir())
    assert serials[-1] == 2 + 5 + 3 * 4
    assert left == list(range(min(states[0], serials[-1] - kept) + 1, serials[-1] + 1))
    # The newest state may be lost: the one before and the changes since then lead to the same.
    (tmp_path / "state" / f"{states[-1]:012}").unlink()
    with Looped(tmp_path) as run:
        assert set(run.catalog.entries) == {"kept"} and run.catalog.serial == serials[-1]
    (tmp_path / "changes" / f"{left[1]:012}").unlink()
    with pytest.raises(CheckpointError, match="changelog are missing"):
        Looped(tmp_path)


def test_a_record_says_when_its_change_was_made_and_not_when_it_was_asked_for(tmp_path: Path) -> None:
    with Looped(tmp_path) as run:
        before = time.time()
        run.wait(EngineChange("register", "l", stream=StreamDefinition(LEFT, 0), at=5.0))
        assert before <= run.catalog.changelog[-1].at <= time.time()
