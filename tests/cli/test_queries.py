"""The commands that ask a service, against a running one; and what they say when there is none."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from streamjoin.cli import client
from streamjoin.cli import queries as tailing
from streamjoin.cli.client import Client, ServerEvent
from streamjoin.cli.queries import _names, _sinks
from streamjoin.config.pipeline import PipelineSink
from streamjoin.model import json_values
from streamjoin.model.errors import ServiceError
from streamjoin.service.config import ServiceConfig
from tests.cli.commands import Done, run
from tests.service.conftest import NEAR, Live, Start, live, start

__all__ = ["live", "start"]
Cli = Callable[..., Done]
TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, live: Live) -> Cli:
    monkeypatch.setenv("STREAMJOIN_URL", live.url)
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def test_parameters_are_read_as_json_or_as_text(live: Live, cli: Cli) -> None:
    text = "SELECT t.sym FROM trades t WHERE t.sym = :sym AND t.px IN :px"
    made = cli("query", "add", text, "--parameter", "sym=A B", "-p", "px=[1, 2]", "--json")
    assert json.loads(made.out)["sql"] == "SELECT t.sym FROM trades t WHERE t.sym = 'A B' AND t.px IN (1, 2)"
    assert cli("query", "add", text, "-p", "sym").code == 2


def test_a_query_is_added_listed_shown_paused_and_dropped(live: Live, cli: Cli) -> None:
    made = cli("query", "add", NEAR, "--name", "near")
    assert made.code == 0
    assert "near" in made.out
    live.engine.tick()
    listed = json.loads(cli("query", "list", "--json").out)["queries"]
    assert [(query["name"], query["state"]) for query in listed] == [("near", "running")]
    assert "running" in cli("query", "list").out
    shown = json.loads(cli("query", "show", "near", "--json").out)
    assert shown["rows"] == live.engine.query("near").rows > 0
    assert f"{shown['rows']:,}" in cli("query", "show", "near").out
    assert json.loads(cli("query", "pause", "near", "--json").out)["state"] == "paused"
    assert "paused" in cli("query", "show", "near").out
    assert json.loads(cli("query", "resume", "near", "--json").out)["state"] == "running"
    assert cli("query", "drop", "near").code == 0
    assert "no queries" in cli("query", "list").out
    gone = cli("query", "show", "near")
    assert (gone.code, gone.err.strip()) == (1, "error: there is no query 'near'")


def test_a_degraded_query_is_told_and_is_an_exit_code(live: Live, cli: Cli) -> None:
    cli("query", "add", NEAR, "--name", "near")
    assert (cli("query", "list").code, cli("streams").code) == (0, 0)
    live.engine.fail_stream("quotes", "stream 'quotes' failed: no [broker]")
    listed = cli("query", "list")
    assert listed.code == 4
    assert listed.out.splitlines()[1].split()[:2] == ["near", "degraded"]
    assert listed.out.splitlines()[2] == "near: stream 'quotes' failed: no [broker]"
    shown = cli("query", "show", "near")
    assert shown.code == 4
    assert "stream 'quotes' failed: no [broker]" in shown.out
    assert cli("query", "list", "--json").code == cli("query", "show", "near", "--json").code == 4
    assert cli("streams").code == 4
    live.engine.recover_stream("quotes")
    assert (cli("query", "list").code, cli("query", "show", "near").code, cli("streams").code) == (0, 0, 0)


def test_a_command_waits_for_an_engine_that_is_starting(live: Live, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    service = live.app.state.service
    service.phase = "starting"
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            service.phase = "running"

    monkeypatch.setattr(client, "sleep", pause)
    done = cli("query", "add", NEAR, "--name", "near")
    assert (done.code, done.err.strip(), len(pauses)) == (0, "the engine is starting ...", 3)
    assert [query.name for query in live.engine.queries()] == ["near"]
    service.phase = "starting"
    with pytest.raises(ServiceError, match="the engine is starting; try again soon"):
        Client(live.url, patience=0.0).get("queries")
    service.phase = "stopping"
    assert cli("query", "list").err.strip() == "error: the service is stopping"


def test_a_query_comes_from_a_file_or_the_standard_input(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: Live
) -> None:
    file = tmp_path / "near.sql"
    file.write_text(NEAR)
    assert json.loads(cli("query", "add", "--file", str(file), "--json").out)["sql"] == NEAR
    monkeypatch.setattr(sys, "stdin", io.StringIO(NEAR))
    assert cli("query", "add", "-").code == 0
    assert len(live.engine.queries()) == 2
    for wrong in ([], [NEAR, "--file", str(file)], ["--file", str(tmp_path / "none.sql")]):
        assert cli("query", "add", *wrong).code == 2


def test_a_wrong_query_is_pointed_at(cli: Cli) -> None:
    done = cli("query", "add", NEAR.replace("t.px,", "t.price,"))
    assert done.code == 2
    lines = done.err.splitlines()
    assert lines[0].startswith("error: t has no column 'price'; it has: ts, sym, px, qty")
    assert lines[2][lines[3].index("^") : lines[3].rindex("^") + 1] == "t.price"


def test_a_dry_run_and_explain(live: Live, cli: Cli) -> None:
    cli("query", "add", NEAR, "--name", "near")
    told = cli("query", "add", f"{NEAR} WHERE t.qty > 2", "--dry-run")
    assert "shares   2 joins with near; 0 new" in told.out
    assert json.loads(cli("query", "add", NEAR, "--dry-run", "--json").out)["shares_with"] == ["near"]
    assert len(live.engine.queries()) == 1
    live.engine.tick()
    explained = cli("query", "explain", "near")
    assert "quotes ⋈ trades" in explained.out
    reason = "near computes its own join steps, because no other query has them"
    assert f"batch 0: {reason}\n" in explained.out or f"batch 1: {reason}\n" in explained.out
    assert "share_eagerly" not in explained.out and "\\n" not in explained.out
    data = json.loads(cli("query", "explain", "near", "--json").out)
    kept = {node["id"] for node in data["nodes"]}
    assert all({edge["from"], edge["to"]} <= kept for edge in data["edges"])


def test_streams_and_plan(live: Live, cli: Cli) -> None:
    assert [s["name"] for s in json.loads(cli("streams", "--json").out)["streams"]] == ["trades", "quotes", "clicks"]
    assert "ts timestamp[us] (time)" in cli("streams").out
    assert cli("streams", "--malformed", "trades").out == "none\n"
    bad = pa.table({"file": ["a", "a"], "value": ["[bold]", "not json"]})
    live.engine.tick(malformed={"trades": bad})
    assert "2" in cli("streams").out.splitlines()[1].split()
    assert [line.split() for line in cli("streams", "--malformed", "trades").out.splitlines()] == [
        ["file", "value"],
        ["a", "[bold]"],
        ["a", "not", "json"],
    ]
    newest = cli("streams", "--malformed", "trades", "--limit", "1")
    assert "[bold]" not in newest.out
    assert newest.err == "the newest 1 of 2\n"
    assert json.loads(cli("streams", "--late", "quotes", "--json").out)["total"] == 0
    live.engine.fail_stream("quotes", "stream 'quotes' failed: no [broker]")
    live.engine.tick()
    lines = cli("streams").out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["trades", "running"],
        ["quotes", "failed"],
        ["clicks", "running"],
    ]
    assert lines[4:] == ["stream 'quotes' failed: no [broker]; next attempt at 2026-01-01T00:00:00+00:00"]
    assert cli("streams", "--late", "nowhere").code == 1
    assert cli("streams", "--late", "quotes", "--malformed", "quotes").code == 2
    cli("query", "add", NEAR)
    live.engine.tick()
    told = cli("plan").out
    assert "1 queries, sharing: cost" in told
    assert "└─ quotes by quotes.bid - trades.px BETWEEN -1 AND 1 and quotes.sym = trades.sym: one query uses it" in told
    assert "computes its own join steps, because no other query has them" in told
    assert not re.findall(r"share_eagerly|\bgroup \d|\bs\d\.", told + cli("plan", "--dot").out)
    assert cli("plan", "--dot").out.startswith("digraph")
    assert {node["kind"] for node in json.loads(cli("plan", "--json").out)["nodes"]} >= {"source", "join", "sink"}


def test_tail_prints_the_newest_rows_first_and_ends_at_its_limit(live: Live, cli: Cli) -> None:
    cli("query", "add", NEAR, "--name", "near")
    live.engine.tick()
    rows = live.engine.newest("near", 5).table.to_pylist()
    done = cli("query", "tail", "near", "-n", "5", "--limit", "5", "--json")
    assert done.code == 0
    assert [json.loads(line) for line in done.out.splitlines()] == rows
    table = cli("query", "tail", "near", "-n", "2", "--limit", "2").out.splitlines()
    assert table == ["sym\tpx\tbid", *("\t".join(map(str, row.values())) for row in rows[-2:])]
    assert cli("query", "tail", "nothing").code == 1


def tailed(monkeypatch: pytest.MonkeyPatch, *events: ServerEvent | BaseException | type[BaseException]) -> None:
    def script(*_: object, **__: object) -> object:
        for event in events:
            if not isinstance(event, ServerEvent):
                raise event
            yield event

    monkeypatch.setattr(Client, "events", script)


def test_rows_are_written_in_every_format_and_go_on_at_the_cursor(live: Live, cli: Cli, tmp_path: Path) -> None:
    live.create(name="near")
    live.engine.tick()
    expected = live.engine.page("near", 0, 1000).table
    done = cli("query", "rows", "near")
    assert [list(json.loads(line).values()) for line in done.out.splitlines()] == json_values.rows(expected)
    for suffix, read in (
        ("parquet", pa.parquet.read_table),
        ("arrows", lambda file: pa.ipc.open_stream(file.read_bytes()).read_all()),
        ("csv", pa.csv.read_csv),
    ):
        file = tmp_path / f"near.{suffix}"
        first = cli("query", "rows", "near", "--output", str(file), "--limit", "4")
        assert first.err.startswith("4 rows; the next ones: --after ")
        cursor = first.err.split()[-1]
        assert json_values.rows(read(file)) == json_values.rows(expected.slice(0, 4))
        cli("query", "rows", "near", "--output", str(file), "--after", cursor)
        assert json_values.rows(read(file)) == json_values.rows(expected.slice(4))
        # A cursor that is refused leaves the file as it is.
        before = file.read_bytes()
        refused = cli("query", "rows", "near", "--output", str(file), "--after", "garbage")
        assert (refused.code, "is no cursor" in refused.err, file.read_bytes() == before) == (2, True, True)


def rows_event(*rows: list[object], skipped: int = 0, total: int = 0) -> ServerEvent:
    return ServerEvent("rows", {"rows": list(rows), "skipped": skipped, "total": total})


def test_ctrl_c_is_the_way_to_end_a_tail(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("query", "add", NEAR, "--name", "near")
    tailed(monkeypatch, rows_event(["A", 1, None], ["B\t", 2, 2.5], skipped=7), KeyboardInterrupt)
    done = cli("query", "tail", "near")
    assert done.code == 0
    assert done.out.splitlines()[1:] == ["A\t1\t", "B\\t\t2\t2.5"]
    assert "7 rows skipped" in done.err


def test_a_tail_with_a_limit_does_not_begin_with_what_it_did_not_want(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("query", "add", NEAR, "--name", "near")
    three = [["A", 1, 1.0], ["B", 2, 2.0], ["C", 3, 3.0]]
    tailed(monkeypatch, rows_event(*three, skipped=27_034))
    done = cli("query", "tail", "near", "--limit", "2")
    assert (done.code, done.out.splitlines()[1:], done.err) == (0, ["A\t1\t1.0", "B\t2\t2.0"], "")
    # A gap between rows that are printed is told all the same.
    tailed(monkeypatch, rows_event(three[0]), rows_event(*three[1:], skipped=9))
    done = cli("query", "tail", "near", "--limit", "2")
    assert (done.out.splitlines()[1:], done.err) == (["A\t1\t1.0", "B\t2\t2.0"], "... 9 rows skipped\n")


def test_a_tail_that_gave_up_its_place_goes_on_where_it_was(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("query", "add", NEAR, "--name", "near")
    asked: list[object] = []
    pauses: list[float] = []

    def script(*_: object, after: int, every: str) -> Iterator[ServerEvent]:
        assert every == "true"
        asked.append(after)
        if len(asked) == 1:
            yield rows_event(["A", 1, 1.0], total=5)
        elif len(asked) == 3:
            yield rows_event(["B", 2, 2.0], total=6)
            raise ServiceError("no service answers")

    monkeypatch.setattr(Client, "events", script)
    monkeypatch.setattr(tailing, "sleep", pauses.append)
    done = cli("query", "tail", "near")
    assert (done.code, done.out.splitlines()[1:]) == (3, ["A\t1\t1.0", "B\t2\t2.0"])
    assert (asked, pauses) == ([0, 5, 5], [1.0])


def test_how_a_tail_ends_otherwise(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("query", "add", NEAR, "--name", "near")
    tailed(
        monkeypatch,
        ServerEvent("state", {"state": "failed", "error": "disk full"}),
        ServerEvent("end", {"reason": "dropped"}),
    )
    done = cli("query", "tail", "near")
    assert (done.code, done.err.splitlines()) == (0, ["... failed: disk full", "... the query was dropped"])
    tailed(monkeypatch, ServerEvent("end", {"reason": "stopping"}))
    assert cli("query", "tail", "near").code == 3
    tailed(monkeypatch, ServiceError("the connection was lost"))
    assert cli("query", "tail", "near").code == 3
    with pytest.raises(ServiceError):
        tailing.tail_rows(Client("http://127.0.0.1:1"), "near", first=1, limit=None, as_json=False)


def test_without_a_service_it_says_how_to_start_one(cli: Cli) -> None:
    done = cli("query", "list", "--url", "http://127.0.0.1:1")
    assert done.code == 3
    assert "streamjoin serve" in done.err
    for wrong in ("ftp://x", "http://", "http://x:port"):
        assert cli("streams", "--url", wrong).code == 2


def test_the_token_comes_from_the_environment_and_is_never_shown(
    start: Start, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = start(config=ServiceConfig(token=TOKEN))
    monkeypatch.setenv("STREAMJOIN_URL", locked.url)
    refused = cli("query", "list")
    assert refused.code == 1
    assert "STREAMJOIN_TOKEN" in refused.err
    monkeypatch.setenv("STREAMJOIN_TOKEN", TOKEN)
    assert cli("query", "list").code == 0
    assert TOKEN not in cli("query", "list", "--help").out
    assert TOKEN not in repr(Client(locked.url, TOKEN))


def completed(words: str, url: str) -> tuple[list[str], set[str]]:
    """What the shell offers for the last word, and the packages that were imported for it."""
    program = "import sys; sys.argv[0] = 'streamjoin'; from streamjoin.cli import app; app()"
    environment = {
        **os.environ,
        "STREAMJOIN_URL": url,
        "_STREAMJOIN_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    return done.stdout.split(), imported


def test_names_and_sinks_are_completed_without_loading_the_engine(start: Start) -> None:
    live = start(
        config=ServiceConfig(sinks={name: PipelineSink("parquet", path="{query}") for name in ("files", "topic")})
    )
    for name in ("near", "nearer", "far"):
        live.create(name=name)
    names, imported = completed("streamjoin query show ne", live.url)
    assert names == ["near", "nearer"]
    # A person waits for it: what takes long to import has no place in it.
    assert "typer" in imported
    assert not imported & {"numpy", "pyarrow", "numba", "pandas", "pyspark", "sqlglot", "fastapi", "uvicorn"}
    assert completed("streamjoin query add SELECT --sink f", live.url)[0] == ["files"]
    assert completed(f"streamjoin query tail --url {live.url} fa", "http://127.0.0.1:1")[0] == ["far"]
    assert completed("streamjoin query show ", "http://127.0.0.1:1")[0] == []


def test_a_service_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        waits: list[float] = []

        class Connection(http.client.HTTPConnection):
            def __init__(self, *arguments: Any, timeout: float, **options: Any) -> None:
                waits.append(timeout)
                super().__init__(*arguments, timeout=timeout, **options)  # type: ignore[misc]

        monkeypatch.setattr(client.http.client, "HTTPConnection", Connection)  # type: ignore[attr-defined]
        context: Any = SimpleNamespace(params={"url": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        assert (_names(context, ""), _sinks(context, "")) == ([], [])
    assert waits == [0.25, 0.25]


def test_completion_of_the_shell_is_there(cli: Cli) -> None:
    assert "--install-completion" in cli("--help").out


def test_characters_that_steer_a_terminal_are_escaped(live: Live, cli: Cli) -> None:
    """In names, texts, errors and rows, as tables and as JSON."""
    steering = "\x1b]0;owned\x07\x9b31m\u202e\r\x7f"
    outputs = f"t.px AS \"a\x1b[2J\", '{steering}' AS told"
    sql = f"SELECT {outputs} FROM trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym"
    live.engine.create(sql, name="near")
    live.engine.tick()
    live.engine.fail_stream("trades", f"stream 'trades' failed: {steering}")
    commands = [("query", "list"), ("query", "show", "near"), ("streams",), ("query", "explain", "near"), ("plan",)]
    commands += [("query", "tail", "near", "--limit", "2"), ("query", "add", f"SELECT {steering}")]
    for command in commands:
        for more in ((), ("--json",)):
            done = cli(*command, *more)
            odd = {one for one in done.out + done.err if not one.isprintable() and one not in "\n\t"}
            assert not odd, (command, more, odd)
    assert "\\x1b]0;owned\\x07\\x9b31m\\u202e\\r\\x7f" in cli("query", "list").out
    row = json.loads(cli("query", "tail", "near", "--limit", "1", "--json").out)
    assert row["told"] == steering
