"""Commands that need no service: init, serve's refusals, run by flags, bench, version, doctor."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import streamjoin as sj
from streamjoin.cli import experiments
from streamjoin.cli.main import commands, exit_code
from tests.cli.commands import Done, run

Cli = Callable[..., Done]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("STREAMJOIN_")]:
        monkeypatch.delenv(name)
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def test_every_command_of_the_docs_is_there() -> None:
    found = {command.name or command.callback.__name__ for command in commands.registered_commands}  # type: ignore[union-attr]
    assert found >= {"demo", "run", "serve", "init", "streams", "plan", "bench", "doctor", "warmup", "version"}
    told = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    for name in (*found, "query add", "query list", "query show", "query drop", "query tail", "query explain"):
        assert f"`streamjoin {name}" in told, name


def test_version_as_json(cli: Cli) -> None:
    assert json.loads(cli("version", "--json").out) == {"version": sj.__version__}


def test_init_writes_a_file_that_serve_takes(cli: Cli) -> None:
    assert cli("init").code == 0
    checked = cli("serve", "--check")
    assert (checked.code, checked.out.strip()) == (
        0,
        "http://127.0.0.1:8765: streams trades, quotes, aircraft; sinks files",
    )
    again = cli("init")
    assert (again.code, "--force" in again.err) == (2, True)
    Path("streamjoin.toml").write_text("")
    assert cli("init", "--force").code == 0
    assert "[streams.trades]" in Path("streamjoin.toml").read_text()
    assert cli("init", "deep/er/other.toml").code == 0
    assert cli("serve", "deep/er/other.toml", "--check", "--port", "99").out.startswith("http://127.0.0.1:99")


def test_a_wrong_service_file_names_the_line(cli: Cli) -> None:
    assert "streamjoin init" in cli("serve").err
    cli("init")
    file = Path("streamjoin.toml")
    lines = file.read_text().replace("port = 8765", "prot = 8765")
    file.write_text(lines)
    number = lines.split("\n").index("prot = 8765") + 1
    done = cli("serve")
    assert done.code == 2
    assert done.err.strip() == f"error: streamjoin.toml, line {number}: [service] takes no 'prot'; did you mean 'port'?"


def test_serving_other_machines_needs_a_token(cli: Cli) -> None:
    cli("init")
    done = cli("serve", "--host", "0.0.0.0")
    assert done.code != 0
    assert "a token is needed" in done.err


@pytest.fixture
def files(tmp_path: Path) -> Path:
    trades = pa.table({"ts": [1, 2, 4, 9], "sym": ["A", "B", "A", "B"], "px": [10.0, 20.0, 11.0, 21.0]})
    quotes = pa.table({"ts": [1, 3, 5, 20], "sym": ["A", "A", "B", "B"], "bid": [10.5, 11.2, 20.1, 20.9]})
    pyarrow.parquet.write_table(trades, tmp_path / "trades.parquet")
    pyarrow.csv.write_csv(quotes, tmp_path / "quotes.csv")
    return tmp_path


FLAGS = ("--left", "trades.parquet", "--right", "quotes.csv", "--on", "l.sym = r.sym AND abs(l.px - r.bid) <= 1")


def test_run_joins_two_files_by_flags(files: Path, cli: Cli) -> None:
    done = cli("run", *FLAGS, "--window", "3", "--time", "ts")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    found = [(row["px"], row["bid"]) for row in rows]
    assert found == [(10.0, 10.5), (11.0, 10.5), (11.0, 11.2), (20.0, 20.1)]
    assert "4 rows" in done.err
    by_rows = cli("run", *FLAGS, "--window", "100 rows")
    assert len(by_rows.out.splitlines()) == 7
    by_name = cli("run", *FLAGS[:-1], "sym", "--window", "100 rows")
    assert len(by_name.out.splitlines()) >= 7


@pytest.mark.parametrize(
    ("flags", "pairs"),
    [
        (("--how", "left"), [(10.0, 10.5), (11.0, 10.5), (11.0, 11.2), (20.0, 20.1), (21.0, None)]),
        (("--how", "right"), [(10.0, 10.5), (11.0, 10.5), (11.0, 11.2), (20.0, 20.1), (None, 20.9)]),
        (("--how", "semi"), [(10.0,), (11.0,), (20.0,)]),
        (("--how", "anti"), [(21.0,)]),
    ],
)
def test_run_joins_files_in_every_way(files: Path, cli: Cli, flags: tuple[str, ...], pairs: list[Any]) -> None:
    done = cli("run", *FLAGS, "--window", "3", "--time", "ts", *flags)
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    names = ("px", "bid")[: len(pairs[0])]
    assert [tuple(row[name] for name in names) for row in rows] == pairs


def test_run_looks_up_files_as_of_a_time(files: Path, cli: Cli) -> None:
    flags = ("run", *FLAGS[:4], "--on", "l.sym = r.sym", "--time", "ts")

    def pairs(*more: str) -> list[tuple[float, float | None]]:
        done = cli(*flags, *more)
        assert done.code == 0, done.err
        return [(row["px"], row["bid"]) for row in map(json.loads, done.out.splitlines())]

    assert pairs("--asof", "backward") == [(10.0, 10.5), (11.0, 11.2), (21.0, 20.1)]
    assert pairs("--asof", "backward", "--no-exact", "--tolerance", "2") == [(11.0, 11.2)]
    assert pairs("--asof", "forward", "--tolerance", "4", "--how", "left") == [
        (10.0, 10.5),
        (20.0, 20.1),
        (11.0, None),
        (21.0, None),
    ]
    done = cli(*flags[:5], "--time", "ts", "--asof", "nearest", "--tolerance", "1")
    assert len(done.out.splitlines()) == 3, done.err


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json", "arrow"])
def test_run_writes_what_it_prints(files: Path, cli: Cli, suffix: str) -> None:
    printed = cli("run", *FLAGS, "--window", "3", "--time", "ts").out
    out = files / "out" / f"rows.{suffix}"
    assert cli("run", *FLAGS, "--window", "3", "--time", "ts,ts", "--out", str(out)).code == 0
    kinds = {"json": lambda: [json.loads(line) for line in out.read_text().splitlines()]}
    read = {
        "parquet": lambda: pyarrow.parquet.read_table(out).to_pylist(),
        "csv": lambda: pyarrow.csv.read_csv(out).to_pylist(),
        "arrow": lambda: pa.ipc.open_file(out).read_all().to_pylist(),
        **kinds,
    }[suffix]()
    assert read == [json.loads(line) for line in printed.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "missing: --left, --right, --on, --window"),
        (("join.toml", "--left", "x"), "not both"),
        (("join.toml", "--how", "left"), "not both"),
        ((*FLAGS, "--window", "3", "--how", "outer"), "it is one of 'inner'"),
        ((*FLAGS, "--window", "3", "--tolerance", "3"), "belong to an as-of join"),
        ((*FLAGS, "--asof", "backward"), "missing: --time"),
        ((*FLAGS, "--time", "ts", "--asof", "behind"), "the direction is"),
        ((*FLAGS, "--time", "ts", "--asof", "forward"), "tolerance"),
        ((*FLAGS, "--window", "soon"), "not a duration"),
        ((*FLAGS, "--window", "3", "--time", "a,b,c"), "--time"),
        ((*FLAGS[:-1], "l.sym ==== r.sym", "--window", "3 rows"), "column"),
        (("--left", "none.csv", *FLAGS[2:], "--window", "3 rows"), "no such file"),
        (("--left", "notes.txt", *FLAGS[2:], "--window", "3 rows"), "is none of"),
        ((*FLAGS, "--window", "3 rows", "--out", "rows.xml"), "ends with one of"),
        ((*FLAGS, "--window", "3 rows", "--suffixes", "_l"), "two different texts"),
        ((*FLAGS, "--window", "3 rows", "--columns", "symbol"), "the result has no column 'symbol'"),
        (("join.toml", "--both-keys"), "not both"),
        ((*FLAGS, "--window", "3 rows", "--time", "when"), "when"),
        ((*FLAGS[:-1], "l.symb = r.sym", "--window", "3 rows"), "unknown column l.symb; did you mean l.sym?"),
        ((*FLAGS[:-1], "l.sym = r.bid", "--window", "3 rows"), "can't compare l.sym"),
    ],
)
def test_wrong_flags_are_told(files: Path, cli: Cli, arguments: tuple[str, ...], told: str) -> None:
    (files / "notes.txt").write_text("x")
    done = cli("run", *arguments)
    assert done.code == 2
    assert told in " ".join(done.err.replace("│", " ").split())


def test_run_takes_times_with_a_zone_and_of_different_units(files: Path, cli: Cli) -> None:
    moments = [datetime(2024, 5, 1, 12, 0, second, tzinfo=UTC) for second in (1, 2, 4, 9)]
    trades = pa.table({"ts": pa.array(moments, pa.timestamp("ns", "Europe/Berlin")), "sym": ["A", "B", "A", "B"]})
    quotes = pa.table({"ts": pa.array(moments, pa.timestamp("ms", "UTC")), "sym": ["A", "A", "B", "B"]})
    pyarrow.parquet.write_table(trades, files / "a.parquet")
    pyarrow.parquet.write_table(quotes, files / "b.parquet")
    flags = ("run", "--left", "a.parquet", "--right", "b.parquet", "--on", "l.sym = r.sym", "--time", "ts")
    for window, expected in (("2 seconds", [(1, 1), (1, 2), (2, 4), (4, 2), (9, 9)]), ("0 s", [(1, 1), (9, 9)])):
        for out in ("rows.parquet", "rows.arrow"):
            done = cli(*flags, "--window", window, "--out", out)
            assert done.code == 0, done.err
        rows = pyarrow.parquet.read_table(files / "rows.parquet")
        seconds = [[moment.second for moment in rows[name].to_pylist()] for name in ("ts_left", "ts_right", "ts")]
        assert sorted(zip(seconds[0], seconds[1], strict=True)) == expected
        assert seconds[2] == [max(pair) for pair in zip(seconds[0], seconds[1], strict=True)]
        assert rows.schema.field("ts").type == pa.timestamp("ns", "Europe/Berlin")
    printed = cli(*flags, "--window", "0 s").out.splitlines()
    assert json.loads(printed[0])["ts_right"] == "2024-05-01T12:00:01.000Z"


def test_columns_are_chosen_and_named_by_flags(files: Path, cli: Cli) -> None:
    flags = ("run", *FLAGS, "--window", "3", "--time", "ts")
    assert set(json.loads(cli(*flags).out.splitlines()[0])) >= {"sym", "ts_left", "ts_right", "ts"}
    named = cli(*flags, "--suffixes", "_t,_q", "--both-keys", "--result-time", "at", "--columns", "sym_q, ts_t")
    assert set(json.loads(named.out.splitlines()[0])) == {"sym_q", "ts_t", "at"}


def test_late_rows_are_counted(files: Path, cli: Cli) -> None:
    table = pa.table({"ts": [5, 1, 6], "sym": ["A"] * 3, "px": [10.0] * 3})
    pyarrow.parquet.write_table(table, files / "trades.parquet")
    done = cli("run", *FLAGS, "--window", "3", "--time", "ts")
    assert "1 late rows were left out" in done.err
    assert "too late" not in cli("run", *FLAGS, "--window", "3", "--time", "ts", "--lateness", "4").err


def test_experiments_are_listed_and_found_only_in_a_checkout(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert experiments.checkout() == Path(__file__).parents[2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiments, "__file__", str(tmp_path / "a" / "b" / "c" / "experiments.py"))
    done = cli("bench")
    assert done.code == 1
    assert "make bench" in done.err
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text("")
    (tmp_path / "benchmarks" / "harness.py").write_text(
        "class Experiment:\n    title = 'a title'\n\ndef discover(name):\n    yield 'one', Experiment()\n"
    )
    (tmp_path / "benchmarks" / "__main__.py").write_text("import sys; sys.exit(len(sys.argv))")
    assert json.loads(cli("bench", "--json").out)["experiments"][0]["title"] == "a title"
    assert cli("bench").out.split() == ["one", "a", "title"]
    assert cli("bench", "one", "--quick", "--repeats", "2").code == 7


def test_exit_codes() -> None:
    assert exit_code(sj.SetupError("x")) == 1
    assert exit_code(sj.PipelineFileError("x")) == 2
    assert exit_code(sj.SchemaError("x")) == 2
    assert exit_code(sj.InputError("x")) == 1
    assert exit_code(sj.QueryError("x")) == 2
    assert exit_code(sj.ServiceError("x")) == 3
    assert exit_code(sj.ServiceError("x", 503)) == 1
    assert exit_code(sj.ServiceError("x", 422)) == 2
