"""`streamjoin query tail`: rows as they come, one to a line, until Ctrl-C.

What the service skipped because the terminal was too slow is told on the standard error, never left out silently. With
a limit, rows before the first one printed are not missed: whoever wants two rows wants any two.
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
    # Ctrl-C is the way to stop, also while the first answer is on its way.
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
            # The service gave the place to another reader: go on where this one was.
            if seen == before:
                sleep(_PAUSE)


def _shown(event: ServerEvent, printer: _Printer) -> bool:
    """Print what an event says; True when that is the end."""
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
        """Whether any rows will do: so many are wanted, and none was printed that others should follow on."""
        return self._limited and not self._printed

    def rows(self, rows: list[list[Any]]) -> bool:
        """Print them; True when that is enough."""
        chosen = rows if self._left is None else rows[: self._left]
        for row in chosen:
            if self._as_json:
                typer.echo(json.dumps(dict(zip(self._columns, row, strict=True)), ensure_ascii=False))
            else:
                typer.echo("\t".join("" if value is None else _cell(value) for value in row))
        sys.stdout.flush()
        self._printed += len(chosen)
        if self._left is not None:
            self._left -= len(chosen)
        return self._left == 0


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
