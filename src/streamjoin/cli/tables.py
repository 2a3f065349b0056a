"""What commands print: responses as tables, data for programs (`--json`), where an error is in a query's text."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape as _escape_markup
from rich.table import Table


def read_sql(sql: str | None, file: Path | None) -> str:
    """The text of an argument, of a file, or of the standard input where the argument is `-`.

    Raises:
        typer.BadParameter: there is neither or both, or the file can't be read.
    """
    if (sql is None) == (file is None):
        raise typer.BadParameter("give the query as an argument, or a file with --file, or - for standard input")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"can't read {file}: {error}") from error
    return sys.stdin.read() if sql == "-" else str(sql)


def read_parameters(written: Sequence[str]) -> dict[str, Any]:
    """Values by name, of texts such as `px=5`; what is no JSON, as in `sym=A`, is a text.

    Raises:
        typer.BadParameter: one has no name.
    """
    values: dict[str, Any] = {}
    for one in written:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier():
            raise typer.BadParameter(f"{one!r}: write --parameter name=value, with the name after : in the query")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def visible(text: str, *, lines: bool = False) -> str:
    r"""A text whose control characters, and those that turn the direction of writing, are written as escapes.

    A terminal obeys such characters: the rows and names of others could clear it or fake its output. With
    `lines`, the ends of lines stay.

    >>> print(visible("a\x1b[31m\u202eb"), visible("é\n"))
    a\x1b[31m\u202eb é\n
    """
    return "".join(
        one
        if one.isprintable() or (lines and one == "\n")
        else one.encode("unicode_escape", "surrogatepass").decode("ascii")
        for one in text
    )


def json_text(value: object, indent: int | None = None) -> str:
    r"""A value as JSON, readable, and without characters that a terminal obeys.

    >>> print(json_text({"é": "\x9b"}))
    {"é": "\u009b"}
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def pointed(problem: Mapping[str, Any]) -> list[str]:
    r"""The lines of the query that a problem refers to, with carets under the position.

    >>> place = {"line": 1, "column": 8, "end_line": 1, "end_column": 11, "message": "?"}
    >>> print("\n".join(pointed({"places": [place], "sql": "SELECT foo FROM a"})))
      line 1, column 8:
        SELECT foo FROM a
               ^^^
    """
    lines = str(problem.get("sql") or "").split("\n")
    shown: list[str] = []
    for place in problem.get("places") or ():
        number, column = int(place["line"]), int(place["column"])
        if number > len(lines):
            continue
        line = lines[number - 1]
        end = int(place["end_column"]) if place["end_line"] == number else len(line) + 1
        shown += [
            f"  line {number}, column {column}:",
            f"    {visible(line)}",
            f"    {' ' * (column - 1)}{'^' * max(1, end - column)}",
        ]
    return shown


Record = Mapping[str, Any]
_STATES = {"running": "green", "paused": "yellow", "pending": "cyan", "degraded": "red", "failed": "red"}


def escape(text: str, *, lines: bool = False) -> str:
    """A text of others as it is shown: without markup, and without characters that steer a terminal."""
    return _escape_markup(visible(text, lines=lines))


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _print(table: Table | str) -> None:
    console = Console()
    if not console.is_terminal:
        # Piped output is not broken into lines of 80 characters.
        console = Console(width=10_000)
    console.print(table, highlight=False)


def queries(records: Sequence[Record]) -> None:
    """All queries."""
    if not records:
        _print("no queries; add one with: streamjoin query add 'SELECT ...'")
        return
    table = _table("name", "state", "rows", "rows/s", "latency", "sink", "query", right=("rows", "rows/s", "latency"))
    for query_ in records:
        table.add_row(
            escape(query_["name"]),
            _state(query_["state"]),
            f"{query_['rows']:,}",
            f"{query_['rows_per_second']:,.1f}",
            _latency(query_["latency_ms"]),
            escape(str(query_["sink"])),
            escape(" ".join(str(query_["sql"]).split())),
        )
    _print(table)
    for query_ in records:
        if query_["error"]:
            _print(f"{escape(query_['name'])}: {_problem(query_)}")


def _problem(record: Record) -> str:
    """Why a query or a stream does not do what it should."""
    waiting = record.get("rows_undelivered", 0)
    missed = record.get("rows_missed", 0)
    return (
        f"[red]{escape(record['error'])}[/]"
        + (f"; {waiting:,} rows wait for the sink" if waiting else "")
        + (f"; {missed:,} rows were missed" if missed else "")
        + _retry(record["retry_at"])
    )


def query(record: Record) -> None:
    """One query."""
    table = _table("", "")
    table.show_header = False
    columns = ", ".join(f"{name} {kind}" for name, kind in record["columns"])
    created = datetime.datetime.fromtimestamp(record["created_at"], datetime.UTC).isoformat(timespec="seconds")
    for key, value in (
        ("name", escape(record["name"])),
        ("state", _state(record["state"])),
        ("query", escape(record["sql"], lines=True)),
        ("columns", escape(columns)),
        ("created", f"{created}, batch {record['created_batch']}"),
        ("rows", f"{record['rows']:,} ({record['rows_per_second']:,.1f} per second)"),
        ("latency", _latency(record["latency_ms"])),
        ("sink", escape(str(record["sink"]))),
        *((("overflowed", f"{count:,} sums are NULL"),) if (count := record.get("overflowed")) else ()),
        *((("error", _problem(record)),) if record["error"] else ()),
    ):
        table.add_row(f"[bold]{key}[/]", str(value))
    _print(table)


def streams(records: Sequence[Record]) -> None:
    """All streams."""
    figures = ("rows", "rows/s", "lag", "late", "untimed", "malformed")
    table = _table("stream", "state", *figures, "columns", right=figures)
    for stream in records:
        lag = stream["lag_seconds"]
        columns = ", ".join(f"{name} {kind}{' (time)' * (name == stream['time'])}" for name, kind in stream["columns"])
        table.add_row(
            escape(stream["name"]),
            _state("failed" if stream["error"] else "running"),
            f"{stream['rows']:,}",
            f"{stream['rows_per_second']:,.1f}",
            "-" if lag is None else f"{lag:,.1f} s",
            *(f"{stream[kind]:,}" for kind in ("late", "untimed", "malformed")),
            escape(columns),
        )
    _print(table)
    for stream in records:
        if stream["error"]:
            _print(_problem(stream))


def _retry(at: float | None) -> str:
    if at is None:
        return ""
    return f"; next attempt at {datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec='seconds')}"


def aside(reply: Record) -> None:
    """Rows of a stream that were set aside."""
    if not reply["total"]:
        _print("none")
        return
    table = _table(*(escape(name) for name, _ in reply["columns"]))
    for row in reply["rows"]:
        table.add_row(*("" if value is None else escape(str(value)) for value in row))
    _print(table)
    shown = len(reply["rows"])
    if shown < reply["total"]:
        Console(stderr=True).print(f"the newest {shown:,} of {reply['total']:,}", highlight=False)


def preview(reply: Record) -> None:
    """The plan of a query that was not created."""
    columns = ", ".join(f"{name} {kind}" for name, kind in reply["columns"])
    shared = ", ".join(reply["shares_with"]) or "no other query"
    joins = f"{reply['shared_joins']} joins with {escape(shared)}; {reply['new_joins']} new"
    if not reply["shared_joins"] + reply["new_joins"]:
        joins = f"no join; tuples are selected in one pass with {escape(shared)}"
    lines = [
        "[green]the query is valid[/]; nothing was created",
        f"[bold]columns[/]  {escape(columns)}",
        f"[bold]shares[/]   {joins}",
        f"[bold]cost[/]     {reply['cost_shared']:,.4g} shared, {reply['cost_apart']:,.4g} not shared (per batch)",
        *([f"[yellow]warning[/]  {escape(reply['warning'])}"] if reply.get("warning") else []),
        escape(str(reply["text"]), lines=True),
    ]
    _print("\n".join(lines))


def explained(record: Record, nodes: Sequence[Record]) -> None:
    """A query's part of the plan."""
    query(record)
    table = _table("step", "what", "shared with", "rows/s", "selectivity", right=("rows/s", "selectivity"))
    # What only some queries add to the shared steps comes last in the plan.
    for node in sorted(nodes, key=lambda node: node["kind"] == "sink"):
        others = [name for name in node["queries"] if name != record["name"]]
        table.add_row(
            escape(node["kind"]),
            escape(node["label"]),
            escape(", ".join(others)) or "-",
            f"{node['rows_per_second']:,.4g}",
            f"{node['selectivity']:.1%}",
        )
    _print(table)
    made = {(one["batch"], one["what"], one["why"]) for node in nodes for one in node["decisions"] if one["changed"]}
    for batch, what, why in sorted(made):
        _print(escape(f"batch {batch}: {what}, because {why}"))


def _state(state: str) -> str:
    return f"[{_STATES.get(state, 'default')}]{state}[/]"


def _latency(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.0f} ms"
