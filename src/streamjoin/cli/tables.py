"""The service's responses as tables; `--json` prints data for programs."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Record = Mapping[str, Any]
_STATES = {"running": "green", "paused": "yellow", "pending": "cyan", "failed": "red"}


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
            query_["name"],
            _state(query_["state"]),
            f"{query_['rows']:,}",
            f"{query_['rows_per_second']:,.1f}",
            _latency(query_["latency_ms"]),
            escape(str(query_["sink"])),
            escape(" ".join(str(query_["sql"]).split())),
        )
    _print(table)


def query(record: Record) -> None:
    """One query."""
    table = _table("", "")
    table.show_header = False
    columns = ", ".join(f"{name} {kind}" for name, kind in record["columns"])
    created = datetime.datetime.fromtimestamp(record["created_at"], datetime.UTC).isoformat(timespec="seconds")
    for key, value in (
        ("name", record["name"]),
        ("state", _state(record["state"])),
        ("query", escape(record["sql"])),
        ("columns", escape(columns)),
        ("created", f"{created}, batch {record['created_batch']}"),
        ("rows", f"{record['rows']:,} ({record['rows_per_second']:,.1f} per second)"),
        ("latency", _latency(record["latency_ms"])),
        ("sink", escape(str(record["sink"]))),
        *((("error", f"[red]{escape(record['error'])}[/]"),) if record["error"] else ()),
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
            stream["name"],
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
            _print(f"[red]{escape(stream['error'])}[/]{_retry(stream['retry_at'])}")


def _retry(at: float | None) -> str:
    if at is None:
        return ""
    return f"; next attempt at {datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec='seconds')}"


def aside(reply: Record) -> None:
    """Rows of a stream that were set aside."""
    if not reply["total"]:
        _print("none")
        return
    table = _table(*(name for name, _ in reply["columns"]))
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
    lines = [
        "[green]the query is valid[/]; nothing was created",
        f"[bold]columns[/]  {escape(columns)}",
        f"[bold]shares[/]   {reply['shared_joins']} joins with {escape(shared)}; {reply['new_joins']} new",
        f"[bold]cost[/]     {reply['cost_shared']:,.4g} shared, {reply['cost_apart']:,.4g} not shared (per batch)",
        *([f"[yellow]warning[/]  {escape(reply['warning'])}"] if reply.get("warning") else []),
        escape(str(reply["text"])),
    ]
    _print("\n".join(lines))


def explained(record: Record, nodes: Sequence[Record]) -> None:
    """A query's part of the plan."""
    query(record)
    table = _table("step", "what", "shared with", "a batch", "selectivity", right=("a batch", "selectivity"))
    for node in nodes:
        others = [name for name in node["queries"] if name != record["name"]]
        table.add_row(
            node["kind"],
            escape(node["label"]),
            escape(", ".join(others)) or "-",
            f"{node['rate']:,.4g}",
            f"{node['selectivity']:.1%}",
        )
    _print(table)
    for reason in dict.fromkeys(node["reason"] for node in nodes if node["reason"]):
        _print(escape(reason))


def _state(state: str) -> str:
    return f"[{_STATES.get(state, 'default')}]{state}[/]"


def _latency(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.0f} ms"
