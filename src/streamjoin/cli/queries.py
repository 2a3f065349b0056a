"""Commands that ask a running service: `query ...`, `streams`, `plan`.

`query tail` prints rows as they arrive, one per line, until Ctrl-C. If the terminal is too slow and rows are no longer
kept when it reads on, their number goes to the standard error. With a limit, rows that were skipped before the first
printed row are not reported: any rows will do.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from time import sleep
from typing import IO, Annotated, Any, Final

import typer

from streamjoin.cli import tables
from streamjoin.cli.client import DEFAULT_URL, Client, ServerEvent
from streamjoin.cli.local import AsJson
from streamjoin.cli.tables import json_text, read_parameters, read_sql, visible
from streamjoin.model.errors import ServiceError, SetupError

commands = typer.Typer(help="Create, list, watch and drop the queries of a service.", no_args_is_help=True)

Url = Annotated[str, typer.Option("--url", envvar="STREAMJOIN_URL", help="URL of the service.")]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="STREAMJOIN_TOKEN", help="Token of the service; prefer the environment variable."),
]


class RowsFormat(StrEnum):
    """The formats of `query rows`."""

    JSONL = "jsonl"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


_COMPLETION_SECONDS = 0.25


_PAUSE: Final = 1.0
_ROWS_IN_PAGE: Final = 10_000


def tail_rows(client: Client, name: str, *, first: int, limit: int | None, as_json: bool) -> None:
    """Print rows; returns when interrupted, at the limit, or when the query is dropped.

    Raises:
        ServiceError: there is no such query, or the service went away.
    """
    # Ctrl-C ends the command, also while it waits for the first response.
    with contextlib.suppress(KeyboardInterrupt):
        start = client.get(f"queries/{name}/rows", limit=max(1, first))
        printer = _Printer([column for column, _ in start["columns"]], limit, as_json)
        newest = start["rows"][-first:] if first else []
        if printer.rows(newest):
            return
        seen = start["total"]
        while True:
            before = seen
            for event in client.events(f"queries/{name}/events", after=seen, every="true"):
                if event.name == "rows":
                    seen = event.data["total"]
                if _shown(event, printer):
                    return
            # The service gave the slot to another reader: continue after the last row.
            if seen == before:
                sleep(_PAUSE)


def _shown(event: ServerEvent, printer: _Printer) -> bool:
    """Print an event; True if it was the last one."""
    if event.name == "rows":
        if event.data["skipped"] and not printer.wants_any:
            typer.echo(f"... {event.data['skipped']:,} rows skipped", err=True)
        return printer.rows(event.data["rows"])
    if event.name == "state" and event.data["state"] != "running":
        why = f": {visible(event.data['error'])}" if event.data["error"] else ""
        typer.echo(f"... {event.data['state']}{why}", err=True)
    if event.name == "end":
        if event.data["reason"] != "dropped":
            raise ServiceError("the service stopped")
        typer.echo("... the query was dropped", err=True)
        return True
    return False


class _Printer:
    def __init__(self, columns: list[str], limit: int | None, as_json: bool) -> None:
        self._columns = columns
        self._left = limit
        self._limited, self._printed = limit is not None, 0
        self._as_json = as_json
        if not as_json:
            typer.echo("\t".join(visible(column) for column in columns))

    @property
    def wants_any(self) -> bool:
        """Whether any rows will do: there is a limit, and no row was printed yet."""
        return self._limited and not self._printed

    def rows(self, rows: list[list[Any]]) -> bool:
        """Print `rows` up to the limit; True when the limit is reached."""
        page = rows if self._left is None else rows[: self._left]
        for row in page:
            if self._as_json:
                typer.echo(json_text(dict(zip(self._columns, row, strict=True))))
            else:
                typer.echo("\t".join("" if value is None else _cell(value) for value in row))
        sys.stdout.flush()
        self._printed += len(page)
        if self._left is not None:
            self._left -= len(page)
        return self._left == 0


def save_rows(
    client: Client, name: str, kind: str, file: IO[bytes], *, after: str, limit: int | None
) -> tuple[int, str]:
    """Write the rows after a cursor that are kept as one file; returns their number, and the cursor after them.

    Raises:
        ServiceError: the service can't be reached, or refuses the cursor.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    from streamjoin.model import json_values

    opened = {"arrow": pa.ipc.new_stream, "csv": pa.csv.CSVWriter, "parquet": pa.parquet.ParquetWriter}
    written, last = 0, None
    with contextlib.ExitStack() as stack:
        writer: Any = None
        while limit is None or written < limit:
            most = _ROWS_IN_PAGE if limit is None else min(_ROWS_IN_PAGE, limit - written)
            wanted = "jsonl" if kind == "jsonl" else "arrow"
            content, told = client.page(f"queries/{name}/rows", format=wanted, after=after, limit=most)
            after = told["next"]
            if int(told["missed"]):
                typer.echo(f"... {int(told['missed']):,} rows are no longer kept", err=True)
            # As many as there were at first: rows may come faster than they are written.
            last = int(told["total"]) if last is None else last
            if kind == "jsonl":
                written += content.count(b"\n")
                file.write(content)
            else:
                table = pa.ipc.open_stream(content).read_all()
                if kind == "csv":
                    table = json_values.flat(table)
                writer = writer or stack.enter_context(opened[kind](file, table.schema))
                writer.write_table(table)
                written += table.num_rows
            if int(told["total"]) - int(told["remaining"]) >= last:
                break
    return written, after


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return visible(text.replace("\\", "\\\\"))


def _asked(context: typer.Context, path: str) -> Any:
    """The response of the service on the command line, for the shell's completion; None without a service.

    The user is waiting at the keyboard, so a service that does not answer at once is ignored.
    """
    import os

    url = context.params.get("url") or os.environ.get("STREAMJOIN_URL", DEFAULT_URL)
    token = context.params.get("token") or os.environ.get("STREAMJOIN_TOKEN")
    try:
        return Client(url, token, timeout=_COMPLETION_SECONDS, patience=0.0).get(path)
    except ServiceError:
        return None


def _names(context: typer.Context, incomplete: str) -> list[str]:
    """The names of queries with this prefix."""
    reply = _asked(context, "queries")
    queries = reply.get("queries", []) if isinstance(reply, dict) else []
    return [query["name"] for query in queries if query["name"].startswith(incomplete)]


def _sinks(context: typer.Context, incomplete: str) -> list[str]:
    """The sinks of the service's file with this prefix."""
    reply = _asked(context, "info")
    sinks = reply.get("sinks", []) if isinstance(reply, dict) else []
    return [name for name in sinks if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="The query's name.", autocompletion=_names)]
Sql = Annotated[str | None, typer.Argument(help="The query; - reads standard input.")]
SqlFile = Annotated[Path | None, typer.Option("--file", "-f", help="Read the query from a file.")]


UNWELL = 4
"""The exit code of `query list`, `query show` and `streams` where something of what they show fails."""


def _exit_if_unwell(queries: Sequence[Mapping[str, Any]] = (), streams: Sequence[Mapping[str, Any]] = ()) -> None:
    if any(query["state"] in ("degraded", "failed") for query in queries) or any(s["error"] for s in streams):
        raise typer.Exit(UNWELL)


def _echo(value: Any) -> None:
    typer.echo(json_text(value, 2))


@commands.command("add")
def add(
    sql: Sql = None,
    file: SqlFile = None,
    name: Annotated[str | None, typer.Option(help="Name of the query; generated if not given.")] = None,
    sink: Annotated[
        str | None, typer.Option(help="One of the sinks in the service's file.", autocompletion=_sinks)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check it and show what it would share and cost.")
    ] = False,
    allow_scan: Annotated[
        bool, typer.Option("--allow-scan", help="Allow a join without key or band to compare very many pairs.")
    ] = False,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter", "-p", metavar="NAME=VALUE", help="A value for :name in the query; may be repeated."
        ),
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Create a query; returns when it is in force."""
    client = Client(url, token)
    body: dict[str, Any] = {"sql": read_sql(sql, file), "name": name, "sink": sink, "allow_scan": allow_scan}
    if parameters:
        body["parameters"] = read_parameters(parameters)
    if dry_run:
        reply = client.post("queries", body, dry_run="true")
        _echo(reply) if as_json else tables.preview(reply)
        return
    created = client.post("queries", body)
    _echo(created) if as_json else tables.query(created)


@commands.command("list")
def list_queries(as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """List the queries; exit code 4 if one is degraded or failed."""
    reply = Client(url, token).get("queries")
    _echo(reply) if as_json else tables.queries(reply["queries"])
    _exit_if_unwell(reply["queries"])


@commands.command("show")
def show(name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Show a query and its metrics; exit code 4 if it is degraded or failed."""
    reply = Client(url, token).get(f"queries/{_path(name)}")
    _echo(reply) if as_json else tables.query(reply)
    _exit_if_unwell([reply])


@commands.command("drop")
def drop(name: Name, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Drop a query; returns when it is dropped."""
    Client(url, token).delete(f"queries/{_path(name)}")
    typer.echo(f"dropped {visible(name)}", err=True)


@commands.command("pause")
def pause(name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Pause a query: it produces no rows until it is resumed."""
    reply = Client(url, token).post(f"queries/{_path(name)}/pause")
    _echo(reply) if as_json else tables.query(reply)


@commands.command("resume")
def resume(name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Resume a paused query."""
    reply = Client(url, token).post(f"queries/{_path(name)}/resume")
    _echo(reply) if as_json else tables.query(reply)


@commands.command("tail")
def tail(
    name: Name,
    rows: Annotated[int, typer.Option("--rows", "-n", help="Start with this many of the newest rows.", min=0)] = 10,
    limit: Annotated[int | None, typer.Option("--limit", help="Stop after this many rows.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Print the rows of a query as they arrive, until Ctrl-C (exit code 0) or until it is dropped."""
    tail_rows(Client(url, token), _path(name), first=rows, limit=limit, as_json=as_json)


@commands.command("rows")
def rows(
    name: Name,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; the standard output if not given.")
    ] = None,
    kind: Annotated[
        RowsFormat | None,
        typer.Option("--format", help="By the file's name if not given, else jsonl.", case_sensitive=False),
    ] = None,
    after: Annotated[
        str, typer.Option("--after", help="Begin after this cursor, which this command has printed, or row number.")
    ] = "0",
    limit: Annotated[int | None, typer.Option("--limit", help="Maximum number of rows.", min=1)] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Write all rows of a query that the service keeps, and the cursor after them to the standard error."""
    known = {".arrow": "arrow", ".arrows": "arrow", ".csv": "csv", ".parquet": "parquet"}
    chosen = kind.value if kind is not None else known.get(output.suffix.lower() if output else "", "jsonl")
    client = Client(url, token)
    if output is None:
        written, cursor = save_rows(client, _path(name), chosen, sys.stdout.buffer, after=after, limit=limit)
    else:
        # The cursor is refused before an existing file is touched.
        client.page(f"queries/{_path(name)}/rows", format="arrow", after=after, limit=1)
        try:
            with output.open("wb") as file:
                written, cursor = save_rows(client, _path(name), chosen, file, after=after, limit=limit)
        except OSError as error:
            raise SetupError(f"can't write {output}: {error.strerror}") from error
    typer.echo(f"{written:,} rows; the next ones: --after {cursor}", err=True)


@commands.command("explain")
def explain(name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Show a query's part of the shared plan: what it shares with which queries, and measurements."""
    client = Client(url, token)
    query = client.get(f"queries/{_path(name)}")
    plan_ = client.get("plan", format="json")
    nodes = [node for node in plan_["nodes"] if name in node["queries"]]
    kept = {node["id"] for node in nodes}
    edges = [edge for edge in plan_["edges"] if edge["from"] in kept and edge["to"] in kept]
    if as_json:
        _echo({"query": query, "nodes": nodes, "edges": edges})
        return
    tables.explained(query, nodes)


def streams(
    late: Annotated[
        str | None, typer.Option(metavar="STREAM", help="Show the newest late rows of this stream.")
    ] = None,
    malformed: Annotated[
        str | None,
        typer.Option(metavar="STREAM", help="Show the newest records of this stream that could not be decoded."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Maximum number of rows.", min=1, max=10_000)] = 100,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """List the streams of a service with columns, rates, lag and rejected rows, or show rejected rows.

    Exit code 4 if one of the listed streams can't be read.
    """
    client = Client(url, token)
    if late is not None and malformed is not None:
        raise typer.BadParameter("give either --late or --malformed, not both")
    stream = late if late is not None else malformed
    if stream is None:
        reply = client.get("streams")
        _echo(reply) if as_json else tables.streams(reply["streams"])
        _exit_if_unwell(streams=reply["streams"])
        return
    kind = "late" if late is not None else "malformed"
    reply = client.get(f"streams/{_path(stream)}/{kind}", limit=str(limit))
    _echo(reply) if as_json else tables.aside(reply)


def plan(
    as_json: AsJson = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print it as DOT for Graphviz.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Show the shared plan of a service with measurements."""
    client = Client(url, token)
    if as_json:
        _echo(client.get("plan", format="json"))
        return
    typer.echo(visible(client.text("plan", format="dot" if dot else "text"), lines=True))


def _path(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
