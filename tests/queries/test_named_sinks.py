"""Sinks with secrets: the log has a name, or nothing, and a restart finds them again or says what to do."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from streamjoin.adhoc import KafkaSink, MemorySink, NamedSink, ParquetSink
from streamjoin.config.pipeline import is_secret
from streamjoin.model.errors import SpecError
from streamjoin.queries.sinks.base import Sink, Target
from streamjoin.queries.sinks.specs import LostSink, sink_of
from tests.queries.journal_cases import LEFT, PAIRS, RIGHT, table
from tests.queries.looped import Looped, read_back

JAAS = "kafka.sasl.jaas.config"


def everything_in(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.rglob("*") if file.is_file())


def test_a_named_sink_is_found_again_where_its_name_leads(tmp_path: Path) -> None:
    def named(name: str, query: str) -> Sink:
        if name != "files":
            raise SpecError(f"no sink {name!r}")
        return ParquetSink(str(tmp_path / "hunter2" / query))

    with Looped(tmp_path / "log", named=named) as run:
        for stream in (LEFT, RIGHT):
            run.register(stream)
        run.create("q", PAIRS, NamedSink("files", named("files", "q")))
        run.hand({"l": (0, table((1, 10, 0))), "r": (0, table((1, 20, 0)))})
    assert b"hunter2" not in everything_in(tmp_path / "log")
    with Looped(tmp_path / "log", named=named) as run:
        run.hand({"r": (1, table((1, 21, 1)))})
        assert str(run.catalog.entries["q"].sink).startswith("parquet")
    assert read_back(tmp_path / "hunter2" / "q", ["a", "b"]) == [(10, 20), (10, 21)]

    # Without it the rows wait, however often it is started, until the name leads somewhere again.
    for number in (2, 3):
        with Looped(tmp_path / "log") as run:
            run.settle()
            if number == 2:
                run.hand({"r": (2, table((1, 22, 2)))})
            entry = run.catalog.entries["q"]
            assert (entry.state, entry.undelivered) == ("running", 1)
            assert str(entry.sink) == "files, which is gone"
            run.catalog.deliveries.drain()
            assert "Engine(sinks=...)" in str(entry.info().error)
    with Looped(tmp_path / "log", named=named) as run:
        run.hand({"r": (3, table((1, 23, 3)))})
    assert read_back(tmp_path / "hunter2" / "q", ["a", "b"]) == [(10, 20), (10, 21), (10, 22), (10, 23)]


def test_a_query_whose_sink_is_gone_may_get_another(tmp_path: Path) -> None:
    with Looped(tmp_path) as run:
        for stream in (LEFT, RIGHT):
            run.register(stream)
        run.create("q", PAIRS, NamedSink("gone", MemorySink()))
        with pytest.raises(SpecError, match="which a restart brings back"):
            run.catalog.attach("q", MemorySink())
    with Looped(tmp_path) as run:
        run.settle()
        run.catalog.attach("q", MemorySink())
        run.hand({"l": (0, table((1, 10, 0))), "r": (0, table((1, 20, 0)))})
        assert run.catalog.entries["q"].rows == 1


def test_a_secret_written_out_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_secret(JAAS)
    written = KafkaSink("b:9092", "t", options={JAAS: "password=hunter2"})
    assert written.spec() is None
    assert isinstance(sink_of(None, "q"), LostSink)
    named = KafkaSink("b:9092", "t", options={JAAS: "password=${THE_PASSWORD}", "kafka.acks": "all"})
    spec = named.spec()
    assert spec is not None
    assert sink_of(spec, "q") == named
    monkeypatch.setenv("THE_PASSWORD", "hunter2")
    assert "hunter2" not in f"{named} {named!r} {spec}"
    assert named.resolved() == {
        JAAS: "password=hunter2",
        "kafka.acks": "all",
        "kafka.bootstrap.servers": "b:9092",
    }
    monkeypatch.delenv("THE_PASSWORD")
    with pytest.raises(SpecError, match="no variable 'THE_PASSWORD'"):
        named.open(Target("q", pa.schema({"a": pa.int64()}), "engine"))
