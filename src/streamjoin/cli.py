"""The command line: `streamjoin`.

Exit codes: 0 done, 1 one of our errors (it is printed, without a trace), 2 a wrong command line, 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from streamjoin._version import __version__
from streamjoin.model.errors import StreamJoinError

_commands = typer.Typer(
    name="streamjoin",
    help="Join live streams: by key, by band or by any condition.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@_commands.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@_commands.command()
def warmup() -> None:
    """Compile every kernel now, so that no join has to wait for it later."""
    from streamjoin.joins.warmup import warmup as run
    from streamjoin.kernels.compiling import WATCH

    console = Console(stderr=True)
    with console.status("compiling kernels ..."):
        for line in run():
            console.print(line, highlight=False)
    console.print(f"{WATCH.kernels} kernels compiled in {WATCH.seconds:.1f} s; the rest were cached", highlight=False)


@_commands.command()
def demo(
    seconds: Annotated[float, typer.Option(help="How long the feeds run.", min=2)] = 30,
    seed: Annotated[int, typer.Option(help="Another seed, another market.")] = 7,
    output: Annotated[Path, typer.Option(help="Where the feeds and the result go.")] = Path("demo-output"),
) -> None:
    """Join two live feeds, trades and quotes, by symbol, price band and time on Spark."""
    from streamjoin.spark.demo import run

    run(seconds=seconds, seed=seed, output=output, console=Console())


def app() -> None:
    """Run the command line; our own errors become one line and exit code 1."""
    try:
        _commands()
    except StreamJoinError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
