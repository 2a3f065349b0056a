"""Streams of a service's file on Spark: what can't be decoded is set aside and can be read; sources may be away."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamjoin.model.errors import PipelineFileError, StreamJoinError
from streamjoin.queries.engine import executor
from streamjoin.queries.engine.engine import Engine
from streamjoin.service import launch
from streamjoin.service.config import ServiceConfig
from streamjoin.service.config_file import read_config
from streamjoin.service.launch_spark import register_on_spark
from streamjoin.spark.pipeline.sources import MARK, open_marked

pytestmark = pytest.mark.spark

FILE = """\
[engine]
checkpoint = "data"
[streams.trades]
format = "json"
path = "trades"
schema = "ts TIMESTAMP, sym STRING, px DOUBLE"
time = "ts"
[streams.quotes]
format = "csv"
path = "quotes"
schema = "at TIMESTAMP, sym STRING, bid DOUBLE"
# What fails on a value that is not there is only ever computed of a row.
where = "bid > 0 AND assert_true(bid IS NOT NULL) IS NULL"
select = ["at AS ts", "upper(sym) AS sym", "coalesce(bid, raise_error('no bid')) AS bid"]
time = "ts"
lateness = "1 minute"
[streams.orders]
format = "json"
path = "orders"
schema = "ts TIMESTAMP, parts ARRAY<STRING>"
select = ["ts", "explode(parts) AS part"]
time = "ts"
[streams.everything]
format = "csv"
path = "quotes"
schema = "at TIMESTAMP, sym STRING, bid DOUBLE"
select = ["*", "bid * 2 AS twice"]
time = "at"
lateness = "1 minute"
"""
LINES = {
    "trades": [
        '{"ts": "2026-01-01T00:00:01Z", "sym": "A", "px": 10.0}',
        '{"ts": "2026-01-01T00:00:02Z", "sym": "B", "px": "dear"}',
        "not json",
        '{"ts": "2026-01-01T00:00:03Z", "sym": "A", "px": 10.5}',
    ],
    "quotes": [
        "2026-01-01T00:00:01Z,a,10.1",
        "2026-01-01T00:00:01Z,a,-10.1",
        "2026-01-01T00:00:02Z,a",
        "2026-01-01T00:00:04Z,a,cheap",
    ],
    "orders": [
        '{"ts": "2026-01-01T00:00:01Z", "parts": ["x", "y"]}',
        '{"ts": "2026-01-01T00:00:01Z", "parts": 7}',
        '{"ts": "2026-01-01T00:00:01Z", "parts": []}',
    ],
}
NEAR = "SELECT t.px, q.bid FROM trades t JOIN quotes q WITHIN 5 SECONDS ON t.sym = q.sym"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name, lines in LINES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_text("\n".join(lines) + "\n")
    found = tmp_path / "streamjoin.toml"
    found.write_text(FILE)
    return found


def engine_of(spark: Any, file: Path) -> Engine:
    config = read_config(file, {})
    engine = Engine(spark, config.checkpoint)
    register_streams(engine, spark, config)
    return engine


def register_streams(engine: Engine, spark: Any, config: ServiceConfig) -> dict[str, StreamJoinError]:
    """Register the streams of the file; returns those that can't be opened now."""
    return launch.register_all(engine, config, partial(register_on_spark, spark, config))


def test_they_are_counted_once_and_kept(file: Path, spark: Any) -> None:
    engine = engine_of(spark, file)
    engine.create(NEAR, name="near")
    with engine:
        engine.process_all_available()
        counts = {info.name: (info.rows, info.malformed) for info in engine.streams()}
        assert counts == {"trades": (2, 2), "quotes": (1, 2), "orders": (2, 1), "everything": (2, 2)}
        assert sorted(engine.rows("near").to_pylist(), key=str) == [
            {"px": 10.0, "bid": 10.1},
            {"px": 10.5, "bid": 10.1},
        ]
        bad = engine.malformed("trades").to_pylist()
        assert {row["value"] for row in bad} == {LINES["trades"][1], LINES["trades"][2]}
        assert {row["file"].rpartition("/")[2] for row in bad} == {"1"}
        assert '"sym":"B"' in next(row["read"] for row in bad if "dear" in row["value"])
        assert engine.malformed("orders")["value"].to_pylist() == [LINES["orders"][1]]
        assert engine.malformed("quotes", 1).num_rows == 1
        assert set(engine.malformed("everything")["value"].to_pylist()) == set(LINES["quotes"][2:])
        assert MARK not in [name for info in engine.streams() for name, _ in info.columns]
        (file.parent / "trades" / "2").write_text("{\n")
        engine.process_all_available()
    again = engine_of(spark, file)
    try:
        assert {info.name: info.malformed for info in again.streams()} == {
            "trades": 3,
            "quotes": 2,
            "orders": 1,
            "everything": 2,
        }
        assert again.malformed("trades")["value"].to_pylist()[-1] == "{"
        assert again.late("trades").num_rows == 0
    finally:
        again.stop()


def test_one_pass_unless_a_row_becomes_several(file: Path, spark: Any) -> None:
    """Reading everything twice is for what can't be guarded."""
    config = read_config(file, {})
    twice = {
        name: "Union" in str(open_marked(spark, config, name).frame._jdf.queryExecution()) for name in config.streams
    }
    assert twice == {"trades": False, "quotes": False, "orders": True, "everything": True}


def test_a_source_that_is_away_at_the_start_is_opened_when_it_is_back(
    file: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(executor, "LONGEST_PAUSE", 0.02)
    file.write_text(FILE[: FILE.index("[streams.orders]")])
    (file.parent / "trades").rename(file.parent / "away")
    config = read_config(file, {})
    engine = Engine(spark, config.checkpoint)
    with pytest.raises(PipelineFileError, match=r"line 3: .*trades"):
        # Nobody has read it yet, so the path may be wrong.
        register_streams(engine, spark, config)
    engine.stop()
    (file.parent / "away").rename(file.parent / "trades")
    with engine_of(spark, file) as engine:
        engine.process_all_available()
    (file.parent / "trades").rename(file.parent / "away")
    engine = Engine(spark, config.checkpoint)
    failures = register_streams(engine, spark, config)
    assert list(failures) == ["trades"]
    with engine:
        failed = threading.Event()
        monkeypatch.setattr(launch._LOG, "error", lambda *_: failed.set())
        absent = launch.AbsentStreams(engine, partial(register_on_spark, spark, config, engine), failures)
        assert failed.wait(60)
        told = {info.name: info for info in engine.streams()}
        assert "stream 'trades' can't be opened: " in str(told["trades"].error)
        assert told["trades"].retry_at is not None and told["quotes"].error is None
        (file.parent / "away").rename(file.parent / "trades")
        absent._threads[0].join(60)
        (file.parent / "trades" / "3").write_text('{"ts": "2026-01-01T00:00:09Z", "sym": "A", "px": 1.0}\n')
        engine.process_all_available()
        trades = next(info for info in engine.streams() if info.name == "trades")
        assert (trades.rows, trades.error, trades.retry_at) == (3, None, None)
        absent.stop()
    file.write_text(file.read_text().replace("px DOUBLE", "px DUOBLE"))
    engine = Engine(spark, config.checkpoint)
    with pytest.raises(PipelineFileError, match="DUOBLE"):
        register_streams(engine, spark, read_config(file, {}))
    engine.stop()
