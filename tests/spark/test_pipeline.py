"""`streamjoin run`: files in, files out, malformed values, a clean stop, and errors that only Spark can find."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

import streamjoin as sj
from streamjoin.cli.main import commands
from streamjoin.config.pipeline_file import read_pipeline
from streamjoin.spark import JoinProgress
from streamjoin.spark.pipeline import run as running
from streamjoin.spark.pipeline import sources
from streamjoin.spark.pipeline.check import check_pipeline
from streamjoin.spark.pipeline.progress import beginning
from streamjoin.spark.pipeline.run import cause, run
from streamjoin.spark.pipeline.view import Totals
from streamjoin.spark.stages.scaling import asked_for
from tests.conftest import QUICK_START
from tests.formats.lakes import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FILES = """\
checkpoint = "out/checkpoint"
trigger = "available now"
partitions = 2
[source.left]
format = "json"
path = "trades"
schema = "ts TIMESTAMP, sym STRING, px DOUBLE"
malformed = "out/malformed"
[source.right]
format = "csv"
path = "quotes"
schema = "ts TIMESTAMP, sym STRING, bid DOUBLE"
where = "bid > 0"
[join]
on = "l.sym = r.sym AND abs(l.px - r.bid) <= 0.25"
window = "5 seconds"
time = "ts"
lateness = "1 minute"
[sink]
format = "json"
path = "out/matches"
select = ["sym", "px", "bid"]
"""
TRADES = [
    '{"ts": "2026-01-01T00:00:01Z", "sym": "A", "px": 10.0}',
    '{"ts": "2026-01-01T00:00:02Z", "sym": "B", "px": "dear"}',
    "not json",
    '{"ts": "2026-01-01T00:00:03Z", "sym": "A", "px": 10.5}',
]
QUOTES = [
    "2026-01-01T00:00:01Z,A,10.1",
    "2026-01-01T00:00:01Z,A,-10.1",
    "2026-01-01T00:00:02Z,A",
    "2026-01-01T00:00:04Z,A,10.4",
]


def files(directory: Path, text: str = FILES) -> Path:
    for name, lines in (("trades", TRADES), ("quotes", QUOTES)):
        (directory / name).mkdir()
        (directory / name / "1").write_text("\n".join(lines) + "\n")
    file = directory / "join.toml"
    file.write_text(text)
    return file


def said_by(file: Path, spark: SparkSession) -> str:
    console = Console(file=io.StringIO(), width=200)
    run(read_pipeline(file), console, spark=spark)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_files_to_files_and_on_again(tmp_path: Path, spark: SparkSession) -> None:
    file = files(tmp_path)
    said = said_by(file, spark)
    assert "batch 0: 2 left and 2 right rows in, 2 out, window 2 and 2, " in said
    assert "2 malformed on the left, 1 malformed on the right" in said
    assert f"malformed: 2 values on the left, in {tmp_path / 'out/malformed'}" in said
    assert "1 value on the right, only counted; to store them, set malformed = in [source.right]" in said
    matches = matched(tmp_path)
    assert matches == [{"sym": "A", "px": 10.0, "bid": 10.1}, {"sym": "A", "px": 10.5, "bid": 10.4}]
    kept = pq.read_table(tmp_path / "out/malformed").to_pylist()
    assert {row["value"] for row in kept} == {TRADES[1], TRADES[2]}

    (tmp_path / "trades" / "2").write_text('{"ts": "2026-01-01T00:00:05Z", "sym": "A", "px": 10.3}\n')
    assert "batch 1: 1 left and 0 right rows in, 2 out, window 3 and 2, " in said_by(file, spark)
    added = [{"sym": "A", "px": 10.3, "bid": bid} for bid in (10.1, 10.4)]
    assert matched(tmp_path) == [*matches[:1], *added, *matches[1:]]
    assert not spark.streams.active


def test_a_backlog_comes_in_bounded_batches(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = files(tmp_path)
    more = {"trades": '{"ts": "2026-01-01T00:00:05Z", "sym": "A", "px": 10.3}', "quotes": "2026-01-01T00:00:06Z,A,10.2"}
    for name, line in more.items():
        (tmp_path / name / "2").write_text(f"{line}\n")
        # Spark takes the oldest first.
        os.utime(tmp_path / name / "1", (1, 1))
    # Not the whole of the first file: a batch has one at least.
    monkeypatch.setattr(sources, "_MOST_BYTES", "10")
    said = said_by(file, spark)
    assert "batch 0: 2 left and 2 right rows in" in said and "batch 1: 1 left and 1 right rows in" in said
    assert "done: 2 batches, " in said
    assert sorted((row["px"], row["bid"]) for row in matched(tmp_path)) == [
        (10.0, 10.1), (10.0, 10.2), (10.3, 10.1), (10.3, 10.2), (10.3, 10.4), (10.5, 10.4)
    ]  # fmt: skip


def matched(directory: Path) -> list[dict[str, object]]:
    lines = [line for path in directory.glob("out/matches/*.json") for line in path.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda row: (row["px"], row["bid"]))


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("px DOUBLE", "px DUOBLE", 7, "DUOBLE"),
        ("bid > 0", "bit > 0", 13, "bit"),
        ('time = "ts"', 'time = "tz"', 17, "no column 'tz'"),
        ('"px", "bid"', '"px", "bit"', 22, "bit"),
        ("- r.bid)", "- r.bidd)", 15, r"unknown column r\.bidd; did you mean r\.bid"),
        ('"l.sym = r.sym AND', '"l.px + l.qx > 1 AND', 15, "qx"),
        ("l.sym = r.sym", "l.px = r.sym", 15, r"can't compare l\.px \(double\) with r\.sym"),
        ('on = "l.sym', "on = [\n'abs(l.px - r.bid) <= 1',\n{ equi = 'smy' }]\n#", 17, "no column 'smy'"),
        ('window = "5 seconds"', "window = 5", 16, "window|whole number|duration"),
        ('window = "5 seconds"', "window = [{ count = 3 }, 5]", 16, "window|whole number|duration"),
        ('window = "5 seconds"', "match = { tolerance = 5 }", 16, "duration"),
        ('lateness = "1 minute"', "lateness = 3", 18, "lateness"),
        ('where = "bid > 0"', 'by = "part"', 13, "part"),
        ('lateness = "1 minute"', 'columns = ["px", "ask"]', 18, "ask"),
    ],
)
def test_what_spark_refuses_is_named_with_its_line(
    tmp_path: Path, spark: SparkSession, old: str, new: str, line: int, words: str
) -> None:
    assert old in FILES
    file = files(tmp_path, FILES.replace(old, new, 1))
    with pytest.raises(sj.PipelineFileError, match=words) as caught:
        check_pipeline(read_pipeline(file), spark)
    assert f"join.toml, line {line}: " in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(sj.PipelineFileError) as when_run:
        said_by(file, spark)
    assert str(when_run.value) == str(caught.value)
    assert not spark.streams.active


def test_a_check_reads_no_source_and_writes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    file = tmp_path / "join.toml"
    (tmp_path / "quotes").mkdir()
    (tmp_path / "trades").mkdir()
    kafka = 'format = "kafka"\nservers = "nowhere:9092"\ntopic = "t"\nmetadata = { partition = "part" }\nby = "part"'
    file.write_text(FILES.replace('format = "json"\npath = "trades"', kafka, 1))
    columns = "ts_left timestamp, sym string, px double, part int, ts_right timestamp, bid double"
    assert check_pipeline(read_pipeline(file), spark) == f"{columns}, ts timestamp"
    assert sorted(tmp_path.rglob("*")) == [file, tmp_path / "quotes", tmp_path / "trades"]
    assert not spark.streams.active
    file.write_text(
        FILES.replace('path = "out/matches"', 'servers = "nowhere:9092"\ntopic = "m"\nkey = "smy"').replace(
            '[sink]\nformat = "json"', '[sink]\nformat = "kafka"'
        )
    )
    with pytest.raises(sj.PipelineFileError, match=r"line 23: .*smy"):
        check_pipeline(read_pipeline(file), spark)


def _refusal(file: Path, spark: SparkSession) -> str:
    with pytest.raises(sj.PipelineFileError) as caught:
        check_pipeline(read_pipeline(file), spark)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_check_refuses_a_path_that_the_run_would(tmp_path: Path, spark: SparkSession) -> None:
    file = files(tmp_path)
    file.write_text(FILES.replace('path = "trades"', 'path = "trade"'))
    assert f"line 6: path = '{tmp_path}/trade': there is no such file or directory" in _refusal(file, spark)
    with pytest.raises(sj.StreamJoinError):
        said_by(file, spark)
    file.write_text(FILES.replace('path = "trades"', f'path = "file://{tmp_path}/no"'))
    assert "line 6: path = 'file://" in _refusal(file, spark)
    file.write_text(FILES.replace('path = "trades"', 'path = "trade*"'))
    assert "sym string" in check_pipeline(read_pipeline(file), spark)
    (tmp_path / "out").touch()
    file.write_text(FILES.replace('path = "trades"', 'path = "no"').replace("sym STRING, bid", "bid"))
    with pytest.raises(sj.PipelineFileError, match=r"^4 mistakes:\n") as caught:
        check_pipeline(read_pipeline(file), spark)
    for told in (
        f"line 6: path = '{tmp_path}/no': there is no such file or directory",
        f"line 21: path = '{tmp_path}/out/matches': {tmp_path}/out is not a directory",
        f"line 1: checkpoint = '{tmp_path}/out/checkpoint': {tmp_path}/out is not a directory",
        "unknown column r.sym",
    ):
        assert told in str(caught.value)


def test_a_check_refuses_a_checkpoint_that_the_run_would(tmp_path: Path, spark: SparkSession) -> None:
    file = files(tmp_path)
    said_by(file, spark)
    assert "sym string" in check_pipeline(read_pipeline(file), spark)
    file.write_text(FILES.replace("0.25", "0.5"))
    assert re.search(r"line 1: .*holds the state of another join .*: on was", _refusal(file, spark))
    with pytest.raises(sj.CheckpointError, match="holds the state of another join"):
        said_by(file, spark)
    file.write_text(FILES.replace('time = "ts"', 'time = "ts"\nordered = true'))
    assert "line 1: " in _refusal(file, spark)
    assert "no gate came before the join and one does now: leave out ordered=True" in _refusal(file, spark)
    root = tmp_path / "out/checkpoint/streamjoin"
    (root / "join").rename(root / "mine")
    file.write_text(FILES)
    assert "with the state of 'mine', and this join is called 'join': use name='mine'" in _refusal(file, spark)


def test_a_check_refuses_a_table_that_the_run_would(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    iceberg = FILES.replace('format = "json"\npath = "out/matches"', 'format = "iceberg"\ntable = "db.matches"')
    file = files(tmp_path, iceberg)
    refusal = _refusal(file, spark)
    assert re.search(r"line 19: the Iceberg table db\.matches: URI missing", refusal)
    with pytest.raises(sj.PipelineFileError) as when_run:
        said_by(file, spark)
    assert str(when_run.value) == refusal
    options = f'options = {{ type = "sql", uri = "sqlite:///{tmp_path}/c.db", warehouse = "file://{tmp_path}/w" }}'
    file.write_text(iceberg.replace('table = "db.matches"', f'table = "db.matches"\n{options}'))
    assert "sym string" in check_pipeline(read_pipeline(file), spark)
    assert not (tmp_path / "c.db").exists()
    lake = Lake("delta", tmp_path / "lake")
    lake.sink("there").connect(pa.schema([("sym", pa.int64())]))
    place = lake.path("there")
    file.write_text(FILES.replace('format = "json"\npath = "out/matches"', f'format = "delta"\npath = "{place}"'))
    assert "line 19: " in _refusal(file, spark)


def test_a_failure_while_it_runs_is_one_line(tmp_path: Path, spark: SparkSession) -> None:
    file = files(tmp_path)
    said_by(file, spark)
    file.write_text(FILES.replace("0.25", "0.5"))
    (tmp_path / "trades" / "2").write_text('{"ts": "2026-01-01T00:00:05Z", "sym": "A", "px": 10.3}\n')
    with pytest.raises(sj.StreamJoinError, match=r"join\.toml did not start: .*0\.5") as caught:
        said_by(file, spark)
    assert "\n" not in str(caught.value)
    assert not spark.streams.active


def test_a_cause_holds_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "join.toml"
    file.write_text(
        FILES.replace('format = "json"\npath = "out', 'options.api-key = "s3same"\nformat = "json"\npath = "out')
    )
    message = "Query failed\n=== Streaming Query ===\nCaused by: java.lang.Oops: bad s3same\n\tat x.y(z)\n"
    assert cause(message, read_pipeline(file)) == "java.lang.Oops: bad ***"


RATE = """\
checkpoint = "out/checkpoint"
progress = "figures.jsonl"
[source.left]
format = "rate"
options.rowsPerSecond = 50
select = ["timestamp AS ts", "value"]
[source.right]
format = "rate"
options.rowsPerSecond = 50
select = ["timestamp AS at", "value AS number"]
[join]
on = "l.value = r.number"
window = "10 seconds"
time = ["ts", "at"]
lateness = "10 seconds"
[sink]
format = "console"
[spark]
master = "local[2]"
memory = "512m"
"""


def command(file: Path) -> list[str]:
    return [sys.executable, "-m", "streamjoin", "run", str(file)]


def test_one_signal_is_a_clean_stop_of_rows_on_a_console(tmp_path: Path) -> None:
    """By SIGINT; the Kafka tests stop theirs by SIGTERM."""
    file = tmp_path / "join.toml"
    quick = "".join(f"conf.{json.dumps(key)} = {json.dumps(value)}\n" for key, value in QUICK_START.items())
    file.write_text(RATE + quick)
    shown = tmp_path / "shown"
    with (
        shown.open("w") as out,
        subprocess.Popen(command(file), stdout=out, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process,
    ):
        assert process.stderr is not None
        seen = []
        try:
            for line in process.stderr:
                seen.append(line)
                if re.match(r"batch \d+: .* in, [1-9][\d,]* out", line):
                    process.send_signal(signal.SIGINT)
                    break
            seen += process.stderr.readlines()
            assert process.wait(timeout=240) == 0, "".join(seen)
        finally:
            process.kill()
    assert seen[-1].startswith("stopped: "), seen
    batches = {path.name for path in (tmp_path / "out/checkpoint/commits").iterdir() if path.name.isdigit()}
    assert batches, "the batch that ran was not left to end"
    rows = [line.split("|") for line in shown.read_text().splitlines() if line.startswith("|2")]
    assert rows
    assert all(row[2].strip() == row[4].strip() for row in rows)
    begun = max(json.loads(line)["start_seconds"] for line in (tmp_path / "figures.jsonl").read_text().splitlines())
    assert begun > 0, "no batch told what starting Python took"


def test_a_wrong_file_is_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "join.toml"
    file.write_text(RATE.replace("[sink]", "[sync]"))
    out = subprocess.run(command(file), capture_output=True, text=True, timeout=240, check=False)
    assert out.returncode == 2
    assert out.stderr.startswith("error: ") and len(out.stderr.splitlines()) == 1


def test_count_windows_in_order_from_several_sources(tmp_path: Path, spark: SparkSession) -> None:
    """What needs the gate: one side's tables and column tell its physical sources apart, the result keeps their order.

    Late rows, the figures of the batch and a punctuation go where the file says.
    """
    for name, lines in (
        ("left", ["1,a,10", "4,a,11", "9,a,0"]),
        ("more", ["2,b,20", "9,b,0"]),
        ("right", ["3,10", "5,11", ",12", "9,1"]),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_text("\n".join(lines) + "\n")
    file = tmp_path / "join.toml"
    file.write_text(
        """\
checkpoint = "checkpoint"
trigger = "available now"
partitions = 2
most_partitions = 3
progress = "figures.jsonl"
[[source.left]]
format = "csv"
path = "left"
schema = "ts LONG, part STRING, x LONG"
by = "part"
[[source.left]]
format = "csv"
path = "more"
schema = "ts LONG, part STRING, x LONG"
[source.right]
format = "csv"
path = "right"
schema = "ts LONG, y LONG"
[join]
on = { band = ["x", "y"], distance = 1 }
window = { count = 2 }
time = "ts"
ordered = true
punctuate = true
columns = ["x", "y"]
late = "late"
[sink]
format = "memory"
name = "matches_in_order"
"""
    )
    said_by(file, spark)
    rows = spark.table("matches_in_order").collect()
    # By the gate: 1a 2b | 3 | 4a | 5 | 9a, whose end is the bound; the left window holds the two newest of its side.
    assert [tuple(row) for row in rows] == [
        (10, 10, 3, False), (11, 10, 4, False), (11, 11, 5, False), (None, None, 9, True)
    ]  # fmt: skip
    spark.catalog.dropTempView("matches_in_order")
    assert pq.read_table(tmp_path / "late").select(["reason", "y"]).to_pylist() == [{"reason": "no time", "y": 12}]
    (figures,) = map(json.loads, (tmp_path / "figures.jsonl").read_text().splitlines())
    assert (figures["batch"], figures["rows"], figures["late"], figures["bound"]) == (0, 9, 1, 9)
    ran = CliRunner().invoke(commands, ["rescale", str(file), "3"])
    assert ran.exit_code == 0, ran.output
    assert asked_for(tmp_path / "checkpoint/streamjoin/join") == 3


def test_figures_that_can_not_be_written_are_told(tmp_path: Path, spark: SparkSession) -> None:
    file = files(tmp_path, 'progress = "trades"\n' + FILES)
    with pytest.raises(sj.PipelineFileError, match=r"progress = '.*trades' can't be written"):
        said_by(file, spark)


def test_what_beginning_costs_is_worth_a_word() -> None:
    figures = JoinProgress("join", 0, 1, 1.0, 1.0, (1, 1), 1, 1, 0, 1, 1.0, 0, None, None, None, 2.04, 31.0)
    assert beginning(figures) == (
        "batch 0 spent 2.0 s on starting Python and 31.0 s on compiling kernels (`streamjoin warmup` avoids this)"
    )
    assert beginning(replace(figures, compile_seconds=0.2)) == "batch 0 spent 2.0 s on starting Python"
    assert beginning(replace(figures, start_seconds=0.0, compile_seconds=0.0)) is None


def test_the_file_in_the_docs_runs(tmp_path: Path, spark: SparkSession) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    quotes = [{"ts": f"2026-01-01T00:00:0{i}Z", "sym": sym, "bid": 10.2} for i, sym in ((1, "A"), (8, "A"), (1, "B"))]
    for name, rows in (("trades", [json.loads(TRADES[0])]), ("quotes", quotes)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "join.toml"
    file.write_text(block)
    assert "batch 0: 1 left and 3 right rows in, 1 out, window 1 and 3, " in said_by(file, spark)
    assert pq.read_table(tmp_path / "out/matches").select(["px", "bid"]).to_pylist() == [{"px": 10.0, "bid": 10.2}]


LATER = {
    "trades": '{"ts": "2026-01-01T00:09:00Z", "sym": "Z", "px": 1.0}\n',
    "quotes": "2026-01-01T00:09:00Z,Y,1.0\n",
}


@pytest.mark.parametrize(
    ("join", "rows"),
    [
        ('window = "5 seconds"\nhow = "left"', [("A", 10.0, 10.1), ("A", 10.5, 10.4), ("C", 3.0, None)]),
        ('window = "5 seconds"\nhow = "full"', [("A", 10.0, 10.1), ("A", 10.5, 10.4), ("C", 3.0, None)]),
        ('how = "left"\nmatch = { tolerance = "5 seconds" }', [("A", 10.0, 10.1), ("A", 10.5, None), ("C", 3.0, None)]),
    ],
)
def test_kinds_of_join_from_a_file(tmp_path: Path, spark: SparkSession, join: str, rows: list[object]) -> None:
    """Unmatched rows come out once the gate has passed their window, at a later start of the same file."""
    file = files(tmp_path, FILES.replace('window = "5 seconds"', join))
    with (tmp_path / "trades" / "1").open("a") as trades:
        trades.write('{"ts": "2026-01-01T00:00:03Z", "sym": "C", "px": 3.0}\n')
    check_pipeline(read_pipeline(file), spark)
    said = said_by(file, spark)
    assert "undecided: " in said
    assert "; the next start goes on with what waits. end_of_input = true in [join] decides it" in said
    for name, line in LATER.items():
        (tmp_path / name / "2").write_text(line)
    said_by(file, spark)
    lines = [line for path in tmp_path.glob("out/matches/*.json") for line in path.read_text().splitlines()]
    given = [(row["sym"], row["px"], row.get("bid")) for row in map(json.loads, lines)]
    assert sorted(given, key=str) == sorted(rows, key=str)


def test_a_file_that_ends_its_input(tmp_path: Path, spark: SparkSession) -> None:
    text = FILES.replace('window = "5 seconds"', 'window = "5 seconds"\nhow = "left"\nend_of_input = true')
    file = files(tmp_path, text)
    (tmp_path / "trades" / "1").write_text(TRADES[0] + "\n" + TRADES[0].replace('"A"', '"C"') + "\n")
    said = said_by(file, spark)
    # Without rows no routing task runs, which would have told figures of both sides.
    assert "batch 1: 0 rows in, 1 out, " in said
    assert "undecided" not in said
    assert "done: 2 batches, " in said
    lines = [line for path in tmp_path.glob("out/matches/*.json") for line in path.read_text().splitlines()]
    assert sorted((row["sym"], row.get("bid")) for row in map(json.loads, lines)) == [("A", 10.1), ("C", None)]
    # Nothing has come since.
    file.write_text(text + '[spark]\nconf."spark.streamjoin.progress" = "false"\n')
    assert said_by(file, spark) == "done: 0 batches, 0 rows in, 0 out\n"


def test_a_checkpoint_of_its_own_is_there_until_spark_has_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listeners go on writing to the checkpoint of a query that has ended."""
    used: list[Path] = []

    class Spark:
        def stop(self) -> None:
            (used[0] / "written late").mkdir()

    def start(_: object, __: object, checkpoint: str) -> list[object]:
        used.append(Path(checkpoint))
        return []

    monkeypatch.setattr(running, "_session", lambda *_: Spark())
    monkeypatch.setattr(running, "_start", start)
    monkeypatch.setattr(running, "_watch", lambda *_: Totals())
    for name in ("PipelineFigures", "set_meanwhile"):
        monkeypatch.setattr(running, name, lambda *_: contextlib.nullcontext())
    pipeline = replace(read_pipeline(files(tmp_path)), checkpoint=None)
    run(pipeline, Console(file=io.StringIO()))
    assert not used[0].exists()
