"""Commands that ask a running service: `query ...`, `streams`, `plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from streamjoin.cli import tables
from streamjoin.cli.client import DEFAULT_URL, Client
from streamjoin.cli.local import AsJson
from streamjoin.cli.query_text import read_sql
from streamjoin.cli.tailing import tail_rows
from streamjoin.model.errors import ServiceError

commands = typer.Typer(help="Create, list, watch and drop the queries of a service.", no_args_is_help=True)

Url = Annotated[str, typer.Option("--url", envvar="STREAMJOIN_URL", help="URL of the service.")]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="STREAMJOIN_TOKEN", help="Token of the service; prefer the environment variable."),
]


_COMPLETION_SECONDS = 0.25


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


def _echo(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


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
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
) -> None:
    """Create a query; returns when it is in force."""
    client = Client(url, token)
    body = {"sql": read_sql(sql, file), "name": name, "sink": sink, "allow_scan": allow_scan}
    if dry_run:
        reply = client.post("queries", body, dry_run="true")
        _echo(reply) if as_json else tables.preview(reply)
        return
    created = client.post("queries", body)
    _echo(created) if as_json else tables.query(created)


@commands.command("list")
def list_queries(as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """List the queries."""
    reply = Client(url, token).get("queries")
    _echo(reply) if as_json else tables.queries(reply["queries"])


@commands.command("show")
def show(name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Show a query and its metrics."""
    reply = Client(url, token).get(f"queries/{_path(name)}")
    _echo(reply) if as_json else tables.query(reply)


@commands.command("drop")
def drop(name: Name, url: Url = DEFAULT_URL, token: Token = None) -> None:
    """Drop a query; returns when it is dropped."""
    Client(url, token).delete(f"queries/{_path(name)}")
    typer.echo(f"dropped {name}", err=True)


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
    """List the streams of a service with columns, rates, lag and rejected rows, or show rejected rows."""
    client = Client(url, token)
    if late is not None and malformed is not None:
        raise typer.BadParameter("give either --late or --malformed, not both")
    stream = late if late is not None else malformed
    if stream is None:
        reply = client.get("streams")
        _echo(reply) if as_json else tables.streams(reply["streams"])
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
    typer.echo(client.text("plan", format="dot" if dot else "text"))


def _path(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
