"""All commands, and the exit codes of errors.

Exit codes: 0 done, or stopped by one SIGINT or SIGTERM where that is the way to stop; 1 an error of streamjoin
(printed without a stack trace); 2 a wrong command line, file or query, where a retry does not help; 3 no service
answers; 4 a listed query or stream does not work (`queries.UNWELL`); 130 interrupted.
"""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from streamjoin.cli import local, queries, service
from streamjoin.cli.capacity import capacity
from streamjoin.cli.tables import pointed, visible
from streamjoin.model.errors import ServiceError, SpecError, StreamJoinError

commands = typer.Typer(
    name="streamjoin",
    help="Join live streams: by key, by band or by any condition.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _command in (
    local.demo,
    local.run,
    local.rescale,
    capacity,
    service.serve,
    service.init,
    queries.streams,
    queries.plan,
    local.bench,
    local.doctor,
    local.warmup,
    local.version,
):
    commands.command()(_command)
commands.add_typer(queries.commands, name="query")


def exit_code(error: StreamJoinError) -> int:
    """The exit code of an error."""
    if isinstance(error, ServiceError):
        if error.status is None:
            return 3
        return 2 if error.status == 422 else 1
    return 2 if isinstance(error, SpecError) else 1


def app() -> None:
    """Run the command line; streamjoin's errors become one line and an exit code."""
    try:
        commands()
    except StreamJoinError as error:
        console = Console(stderr=True)
        console.print("[bold red]error:[/]", escape(visible(str(error), lines=True)), highlight=False, soft_wrap=True)
        if isinstance(error, ServiceError):
            for line in pointed(error.problem):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
