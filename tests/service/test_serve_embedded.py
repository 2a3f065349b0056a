"""`streamjoin serve` without Spark: killed again and again, every row is there once; mistakes in its file."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import subprocess
from collections import Counter
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from streamjoin.model.errors import PipelineFileError
from streamjoin.queries.sources.described import described_source
from streamjoin.service.config_file import read_config
from streamjoin.service.launch import check_streams, launch
from tests.cli.commands import run
from tests.queries.looped import read_back
from tests.service.processes import LISTENING, Process, running

FILE = """\
[service]
port = 0
engine = "embedded"
[engine]
checkpoint = "data"
[streams.trades]
format = "json"
path = "trades"
schema = "ts TIMESTAMP, sym STRING, id BIGINT"
time = "ts"
lateness = "1 hour"
[streams.quotes]
format = "csv"
path = "quotes"
schema = "ts TIMESTAMP, sym STRING, id BIGINT"
where = "id >= 0"
time = "ts"
lateness = "1 hour"
[sinks.files]
format = "parquet"
path = "out/{query}"
"""
SQL = "SELECT t.id AS t, q.id AS q FROM trades t JOIN quotes q WITHIN 5 SECONDS ON t.sym = q.sym"
KILLS = int(os.environ.get("STREAMJOIN_KILLS", "1"))
STEPS, IN_STEP = 2 * KILLS, 10


def put(directory: Path, step: int) -> None:
    """A file for each stream, complete when it appears; some records are none."""
    ids = range(step * IN_STEP, (step + 1) * IN_STEP)
    moments = {n: f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z" for n in ids}
    trades = [json.dumps({"ts": at, "sym": "AB"[n % 2], "id": n}) for n, at in moments.items()]
    quotes = [f"{at},{'AB'[n % 2]},{n}" for n, at in moments.items()]
    for name, lines in (("trades", [*trades, "{"]), ("quotes", [*quotes, "2026-01-01T00:00:00Z,A,-1", "x,y"])):
        (directory / name).mkdir(exist_ok=True)
        draft = directory / name / f".{step}"
        draft.write_text("\n".join(lines) + "\n")
        draft.rename(directory / name / f"{step}")


def expected() -> set[tuple[int, int]]:
    ids = range(STEPS * IN_STEP)
    return {(t, q) for t in ids for q in range(t - 4, t + 5, 2) if q in ids}


def started(service: Process) -> httpx.Client:
    url = service.until(LISTENING)[1]
    service.until("ready: streams trades, quotes")
    return httpx.Client(base_url=f"{url}/api/v1", timeout=60)


def kill_after(service: Process, files: Path, pattern: str) -> None:
    """Kill it at the moment in which another file of this kind is there."""
    before = set(files.glob(pattern))
    while not set(files.glob(pattern)) - before:
        try:
            service.process.wait(0.005)
            raise AssertionError(f"it ended: {service.lines}")
        except subprocess.TimeoutExpired:
            continue
    service.process.kill()
    service.ended()


# The suite kills a service in `test_serve.py`, and an engine in `tests/spark/test_adhoc_killed.py`.
@pytest.mark.slow
@pytest.mark.thorough
def test_every_row_is_written_once_whenever_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "streamjoin.toml").write_text(FILE)
    for name in ("trades", "quotes"):
        (tmp_path / name).mkdir()
    command = ["-m", "streamjoin", "serve"]
    # What is written when a batch begins, in its midst, and at its end.
    moments = islice(cycle(["sources/*/*", "buckets/*", "done/*"]), KILLS)
    steps = iter(range(STEPS))
    while True:
        with running(command, tmp_path) as service, started(service) as client:
            if client.get("/queries").json()["queries"] == []:
                client.post("/queries", json={"sql": SQL, "name": "near", "sink": "files"}).raise_for_status()
            moment = next(moments, None)
            for _ in range(2):
                if (step := next(steps, None)) is not None:
                    put(tmp_path, step)
            if moment is not None:
                kill_after(service, tmp_path / "data", moment)
                continue
            with client.stream("GET", "/events") as events:
                for _ in events.iter_lines():
                    query = client.get("/queries/near").json()
                    if query["rows"] >= len(expected()):
                        break
            streams = {one["name"]: one for one in client.get("/streams").json()["streams"]}
            rows = STEPS * IN_STEP
            assert {name: one["rows"] for name, one in streams.items()} == {"trades": rows, "quotes": rows}
            assert {name: one["malformed"] for name, one in streams.items()} == {"trades": STEPS, "quotes": STEPS}
            service.process.terminate()
            assert service.ended() == 0, service.lines
            break
    assert Counter(read_back(tmp_path / "out" / "near", ["t", "q"])) == Counter(expected())


def test_a_query_is_put_into_quarantine_by_its_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "streamjoin.toml").write_text(FILE)
    for name in ("trades", "quotes"):
        (tmp_path / name).mkdir()
    config = read_config(tmp_path / "streamjoin.toml", {})
    running_engine = launch(config, print)
    running_engine.engine.create(SQL, name="near", sink=running_engine.sink("files", "near"))
    running_engine.stop()
    running_engine = launch(replace(config, quarantine=("near",)), print)
    assert running_engine.engine.query("near").state == "failed"
    running_engine.stop()
    done = run(capsys, monkeypatch, "serve", config.file, "--quarantine", "nobody", "--port", "0")
    assert (done.code, "there is no query 'nobody'; there are: near" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("id BIGINT", "id BIGNIT", "line 9: the schema"),
        ('where = "id >= 0"', 'where = "idd >= 0"', "line 16: unknown column idd; did you mean id"),
        ('where = "id >= 0"', 'select = ["id + 1"]', "line 16: select has 'id \\+ 1': name it with AS"),
        ('time = "ts"', 'time = "at"', "line 6: stream 'trades' has no time column 'at'"),
        ('lateness = "1 hour"', "lateness = 5", "line 6: the lateness of 'trades' must be a duration"),
        ('checkpoint = "data"', 'checkpoint = "data"\npartitions = 2', "line 6: partitions are cells on Spark"),
        ('engine = "embedded"', 'engine = "flink"', "line 3: engine = 'flink'"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    before: str,
    after: str,
    told: str,
) -> None:
    file = tmp_path / "streamjoin.toml"
    file.write_text(FILE.replace(before, after, 1))
    done = run(capsys, monkeypatch, "serve", str(file), "--check")
    assert done.code == 2
    assert re.search(told, done.err), done.err


def test_every_wrong_stream_is_told(tmp_path: Path) -> None:
    file = tmp_path / "streamjoin.toml"
    file.write_text(FILE.replace('time = "ts"', 'time = "at"'))
    with pytest.raises(PipelineFileError, match=r"^2 mistakes:\n.*'trades' has no time.*\n.*'quotes' has no time"):
        check_streams(read_config(file, {}))


@pytest.mark.spark
def test_the_streams_of_init_have_the_same_rows_on_spark(tmp_path: Path, spark: Any) -> None:
    """What the file computes of a number is the same in both engines, so that one word moves it."""
    file = tmp_path / "streamjoin.toml"
    file.write_text((importlib.resources.files("streamjoin") / "service" / "template.toml").read_text())
    config = read_config(file, {})
    for name, stream in config.streams.items():
        values = [*range(3_000), 10**9 + 7]
        frame = spark.createDataFrame([(n,) for n in values], "value BIGINT")
        frame = frame.selectExpr("timestamp_micros(value) AS timestamp", "value").selectExpr(*stream.source.select)
        on_spark = frame.toArrow()
        source = described_source(config, name)
        raw = pa.table({"timestamp": pa.array(values).cast(pa.timestamp("us", "UTC")), "value": values})
        here = source.selection.apply(raw.select(["timestamp", "value"]))
        assert on_spark.column_names == here.column_names
        assert [str(kind) for kind in here.schema.types] == [str(kind) for kind in on_spark.schema.types]
        assert here.to_pylist() == on_spark.to_pylist(), name
