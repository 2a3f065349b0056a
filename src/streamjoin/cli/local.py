"""Commands that need no service: demo, run, rescale, bench, doctor, warmup, version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from streamjoin._version import __version__
from streamjoin.model.errors import PipelineFileError, SetupError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def version(as_json: AsJson = False) -> None:
    """Print the version."""
    typer.echo(json.dumps({"version": __version__}) if as_json else __version__)


def warmup() -> None:
    """Compile every kernel now, so that no join has to wait for it later."""
    from streamjoin.jit.compiling import WATCH
    from streamjoin.joins import warming as engine
    from streamjoin.queries.executors import warming as adhoc
    from streamjoin.spark.runtime import warming as spark

    def steps() -> Iterator[str]:
        yield from engine.warm()
        spark.warm()
        yield "joins on Spark"
        adhoc.warm()
        yield "ad-hoc queries"

    console = Console(stderr=True)
    WATCH.shows = False
    with console.status("compiling kernels ..."):
        before = 0.0
        for step in steps():
            console.print(f"{step}: {WATCH.seconds - before:.1f} s of compiling", highlight=False)
            before = WATCH.seconds
    console.print(f"{WATCH.kernels} kernels compiled in {WATCH.seconds:.1f} s; the rest were cached", highlight=False)


def demo(
    seconds: Annotated[float, typer.Option(help="How long the month of flights lasts, in seconds.", min=2)] = 30,
    seed: Annotated[int | None, typer.Option(hidden=True)] = None,
    output: Annotated[Path, typer.Option(help="Directory for the feeds and the result.")] = Path("demo-output"),
) -> None:
    """Join a month of real flights with the weather at their airports on Spark, as both arrive."""
    from streamjoin.spark.demo.run import run as run_demo

    if seed is not None:
        Console(stderr=True).print("--seed is ignored and will be removed: the demo's data is real.", highlight=False)
    run_demo(seconds=seconds, output=output, console=Console())


def run(
    file: Annotated[Path | None, typer.Argument(help="The pipeline: sources, join, sink.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the file, with types, columns and local paths.")
    ] = False,
    left: Annotated[Path | None, typer.Option(help="Without a pipeline: the left file or directory.")] = None,
    right: Annotated[Path | None, typer.Option(help="The right file or directory.")] = None,
    on: Annotated[
        str | None, typer.Option(help="The condition, such as 'l.sym = r.sym AND abs(l.px - r.bid) <= 1'.")
    ] = None,
    window: Annotated[str | None, typer.Option(help="'5 seconds', '1000 rows', or a number for integer times.")] = None,
    time: Annotated[str | None, typer.Option(help="The time column, or 'left,right'; not for row windows.")] = None,
    lateness: Annotated[str | None, typer.Option(help="How far a row may be behind the newest time.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of the result, separated by commas, such as 'sym,px'; default: all.")
    ] = None,
    suffixes: Annotated[
        str | None, typer.Option(help="Suffixes for columns that both sides have; default: '_left,_right'.")
    ] = None,
    both_keys: Annotated[
        bool, typer.Option("--both-keys", help="Keep the key columns of both sides, with suffixes.")
    ] = False,
    result_time: Annotated[str | None, typer.Option(help="Name of the result's time column.")] = None,
    how: Annotated[
        str | None, typer.Option(help="inner, left, right, full, semi or anti; with --asof inner, left or anti.")
    ] = None,
    asof: Annotated[
        str | None, typer.Option(help="Match each left row with one right row: backward, forward or nearest in time.")
    ] = None,
    tolerance: Annotated[
        str | None, typer.Option(help="With --asof: the largest distance, '5 seconds' or a number for integer times.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact/--no-exact", help="With --asof: whether equal times match.")] = True,
    out: Annotated[Path | None, typer.Option(help="Output file: .parquet, .csv, .json or .arrow.")] = None,
) -> None:
    """Run a join: a pipeline file on Spark, or two files in this process.

    By flags: --left, --right, --on and --window join Parquet, CSV, JSON or Arrow files without Spark; rows go to --out,
    or to the standard output as JSON lines. --how left gives the left rows without a match as well; --asof backward
    looks up the last right row before each left one, and takes --tolerance in place of --window.
    """
    from streamjoin.cli.join_files import FileJoin, join_files

    file_join = FileJoin(
        left, right, on, window, time, lateness, columns, suffixes, both_keys, result_time, how, asof, tolerance, exact
    )
    if file is not None:
        if file_join != FileJoin() or out is not None:
            raise typer.BadParameter("give either a pipeline file or flags, not both")
        _run_pipeline(file, check)
        return
    needed = {"--left": left, "--right": right, "--on": on, "--window": window}
    if asof is not None:
        needed = {"--left": left, "--right": right, "--time": time}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise typer.BadParameter(f"give a pipeline file, or all of {', '.join(needed)} (missing: {', '.join(missing)})")
    join_files(file_join, out, Console(stderr=True))


def _run_pipeline(file: Path, check: bool) -> None:
    from streamjoin.config.pipeline_file import read_pipeline
    from streamjoin.spark.pipeline.run import run as run_pipeline
    from streamjoin.spark.pipeline.view import describe

    pipeline = read_pipeline(file)
    if check:
        from streamjoin.spark.pipeline.check import check_pipeline

        console = Console(stderr=True)
        try:
            with console.status("checking types and columns ..."):
                columns = f"\nresult: {check_pipeline(pipeline)}"
        except SetupError as error:
            columns = ""
            console.print(f"types and columns were not checked: {error}", markup=False, highlight=False, soft_wrap=True)
        typer.echo(describe(pipeline) + columns)
        return
    run_pipeline(pipeline, Console(stderr=True))


def rescale(
    file: Annotated[Path, typer.Argument(help="The pipeline file that is running.")],
    partitions: Annotated[int, typer.Argument(help="New number of tasks.", min=1)],
) -> None:
    """Change the number of partitions of a running pipeline, up to its most_partitions."""
    from streamjoin.config.pipeline_file import read_pipeline
    from streamjoin.spark import rescale as ask

    pipeline = read_pipeline(file)
    if pipeline.checkpoint is None:
        raise PipelineFileError(f"{file} names no checkpoint, so its join can't be found: add one and start it again")
    ask(pipeline.checkpoint, partitions)
    typer.echo(f"the join runs with {partitions} partitions after the current batch or the next one")


def doctor(
    as_json: AsJson = False,
    fetch: Annotated[bool, typer.Option("--fetch", help="Fetch Spark's Kafka connector first.")] = False,
) -> None:
    """Check Java, Spark, compiled kernels, Kafka jars and memory; exit code 1 if joins can't run."""
    from streamjoin.spark.runtime import doctor as checks
    from streamjoin.spark.runtime import jars

    if fetch:
        jars.fetch()
    findings = checks.examine()
    typer.echo(json.dumps(checks.as_data(findings), indent=2) if as_json else checks.as_text(findings))
    raise typer.Exit(0 if checks.is_healthy(findings) else 1)


def bench(
    experiment: Annotated[str | None, typer.Argument(help="Name of the experiment; without it, list all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run a small grid once, as a smoke test.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Store the result in the repository.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 0,
    repeats: Annotated[int | None, typer.Option(help="Number of runs per cell.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="List the experiments as JSON.")] = False,
) -> None:
    """Run an experiment, or list all; needs a checkout of the repository."""
    from streamjoin.cli.experiments import listed, run_experiment

    if experiment is None:
        typer.echo(listed(as_json))
        return
    arguments = [experiment, *(["--quick"] if quick else []), *(["--keep"] if keep else []), "--seed", str(seed)]
    raise typer.Exit(run_experiment([*arguments, *(["--repeats", str(repeats)] if repeats else [])]))
