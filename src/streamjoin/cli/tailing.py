"""`streamjoin query tail`: rows as they come, one to a line, until Ctrl-C.

What the service skipped because the terminal was too slow is told on the standard error, never left out silently.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import typer

from streamjoin.cli.client import Client
from streamjoin.model.errors import ServiceError


def tail_rows(client: Client, name: str, *, first: int, limit: int | None, as_json: bool) -> None:
    """Print rows; returns when interrupted, at the limit, or when the query is dropped.

    Raises:
        ServiceError: there is no such query, or the service went away.
    """
    # Ctrl-C is the way to stop, also while the first answer is on its way.
    with contextlib.suppress(KeyboardInterrupt):
        start = client.get(f"queries/{name}/rows", limit=max(1, first))
        printer = _Printer([column for column, _ in start["columns"]], limit, as_json)
        newest = start["rows"][-first:] if first else []
        if printer.rows(newest):
            return
        for event in client.events(f"queries/{name}/events", after=start["total"]):
            if event.name == "rows":
                if event.data["skipped"]:
                    typer.echo(f"... {event.data['skipped']:,} rows skipped", err=True)
                if printer.rows(event.data["rows"]):
                    return
            elif event.name == "state" and event.data["state"] != "running":
                typer.echo(
                    f"... {event.data['state']}{': ' + event.data['error'] if event.data['error'] else ''}", err=True
                )
            elif event.name == "end":
                if event.data["reason"] == "dropped":
                    typer.echo("... the query was dropped", err=True)
                    return
                raise ServiceError("the service stopped")
        raise ServiceError(f"the connection to {client.url} was lost")


class _Printer:
    def __init__(self, columns: list[str], limit: int | None, as_json: bool) -> None:
        self._columns = columns
        self._left = limit
        self._as_json = as_json
        if not as_json:
            typer.echo("\t".join(columns))

    def rows(self, rows: list[list[Any]]) -> bool:
        """Print them; True when that is enough."""
        chosen = rows if self._left is None else rows[: self._left]
        for row in chosen:
            if self._as_json:
                typer.echo(json.dumps(dict(zip(self._columns, row, strict=True)), ensure_ascii=False))
            else:
                typer.echo("\t".join("" if value is None else _cell(value) for value in row))
        sys.stdout.flush()
        if self._left is not None:
            self._left -= len(chosen)
        return self._left == 0


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
