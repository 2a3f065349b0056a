"""The command line: `streamjoin`.

Exit codes: 0 done, or stopped by one SIGINT or SIGTERM where that is the way to stop; 1 one of our errors (it is
printed, without a trace); 2 a wrong command line or pipeline file, where trying again does not help; 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from streamjoin._version import __version__
from streamjoin.model.errors import PipelineFileError, StreamJoinError

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


@_commands.command()
def run(
    file: Annotated[Path, typer.Argument(help="The pipeline: sources, join, sink.")],
    check: Annotated[bool, typer.Option("--check", help="Read the file, say what it means, and run nothing.")] = False,
) -> None:
    """Run a join from a file: from Kafka, files or a rate source, to Kafka, files or the console."""
    from streamjoin.spark.pipeline import run as run_pipeline
    from streamjoin.spark.pipeline_file import read_pipeline
    from streamjoin.spark.pipeline_view import describe

    pipeline = read_pipeline(file)
    if check:
        typer.echo(describe(pipeline))
        return
    run_pipeline(pipeline, Console(stderr=True))


@_commands.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    fetch: Annotated[bool, typer.Option("--fetch", help="Fetch Spark's Kafka connector first.")] = False,
) -> None:
    """Say what of Java, Spark, compiled kernels, Kafka jars and memory is there; exit code 1 if joins can't run."""
    import json

    from streamjoin.spark import doctor, jars

    if fetch:
        jars.fetch()
    findings = doctor.examine()
    typer.echo(json.dumps(doctor.as_data(findings), indent=2) if as_json else doctor.as_text(findings))
    raise typer.Exit(0 if doctor.is_healthy(findings) else 1)


def app() -> None:
    """Run the command line; our own errors become one line and exit code 1."""
    try:
        _commands()
    except StreamJoinError as error:
        Console(stderr=True).print("[bold red]error:[/]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, PipelineFileError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
