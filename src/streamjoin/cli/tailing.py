"""`streamjoin query tail`: prints rows as they arrive, one per line, until Ctrl-C.

If the terminal is too slow and the service skips rows, their number goes to the standard error. With a limit, rows that
were skipped before the first printed row are not reported: any rows will do.
"""

from __future__ import annotations

import contextlib
import json
import sys
from time import sleep
from typing import Any, Final

import typer

from streamjoin.cli.client import Client, ServerEvent
from streamjoin.model.errors import ServiceError

_PAUSE: Final = 1.0


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
            for event in client.events(f"queries/{name}/events", after=seen):
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
        typer.echo(f"... {event.data['state']}{': ' + event.data['error'] if event.data['error'] else ''}", err=True)
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
            typer.echo("\t".join(columns))

    @property
    def wants_any(self) -> bool:
        """Whether any rows will do: there is a limit, and no row was printed yet."""
        return self._limited and not self._printed

    def rows(self, rows: list[list[Any]]) -> bool:
        """Print `rows` up to the limit; True when the limit is reached."""
        page = rows if self._left is None else rows[: self._left]
        for row in page:
            if self._as_json:
                typer.echo(json.dumps(dict(zip(self._columns, row, strict=True)), ensure_ascii=False))
            else:
                typer.echo("\t".join("" if value is None else _cell(value) for value in row))
        sys.stdout.flush()
        self._printed += len(page)
        if self._left is not None:
            self._left -= len(page)
        return self._left == 0


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
