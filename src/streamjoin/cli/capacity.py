"""`streamjoin capacity`: what a pipeline's join will need at a rate, computed from constants measured on a machine."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from streamjoin.model.errors import SpecError

if TYPE_CHECKING:
    from streamjoin.config.pipeline import Pipeline
    from streamjoin.spark.capacity.estimate import Estimate, Load, MachineConstants

_RATE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([kKMG]?)(?:\s*(?:rows?)?(?:/s)?)")
_FACTORS = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_MOST = 100_000
_SOURCES = "the file has one source a side, no by=, position=, idle or positions"


def capacity(
    file: Annotated[Path, typer.Argument(help="The pipeline file.")],
    rate: Annotated[str | None, typer.Option(help="Rows per second of both sides together: 5M, 200k, 1500.")] = None,
    window: Annotated[
        str | None, typer.Option(help="'10 minutes' or '1000000 rows'; default: the file's window or tolerance.")
    ] = None,
    executors: Annotated[int, typer.Option(help="Number of executors.", min=1, max=_MOST)] = 1,
    cores: Annotated[int, typer.Option(help="Cores of an executor: tasks at a time.", min=1, max=1024)] = 4,
    ranges: Annotated[
        int | None,
        typer.Option(help="Tasks that join; default: the file's partitions, or all cores.", min=1, max=_MOST),
    ] = None,
    inputs: Annotated[
        int | None, typer.Option(help="Input partitions of all sources; default: all cores.", min=1, max=_MOST)
    ] = None,
    constants: Annotated[
        Path | None, typer.Option(help="File with the constants; default: beside FILE, ending in .constants.toml.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure the constants on this machine first, in about a minute.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute what a pipeline's join will need on Spark: time, memory and requests by task, and what saturates first.

    --calibrate runs the stages of this join here and writes what they took to a file, which can be passed on.
    """
    from streamjoin.config.pipeline_file import read_pipeline
    from streamjoin.spark.capacity.constants import read_constants
    from streamjoin.spark.capacity.estimate import estimate, sustained

    if rate is None and not calibrate:
        raise typer.BadParameter("give --rate, such as --rate 5M, or --calibrate, or both")
    per_second = None if rate is None else rows_per_second(rate)
    pipeline = read_pipeline(file)
    path = constants or file.with_suffix(".constants.toml")
    if path.resolve() == file.resolve():
        raise SpecError(f"--constants {path} is the pipeline file itself: name another file")
    seconds = None if per_second is None else _window(pipeline, window, per_second)
    if calibrate:
        _calibrate(pipeline, path)
    known = read_constants(path, pipeline)
    if per_second is None or seconds is None:
        return
    load = _load(pipeline, per_second, seconds, executors, cores, ranges, inputs)
    found, most = estimate(known, load), sustained(known, load)
    if as_json:
        record = {"load": asdict(load), "sustained": most, "scarcest": found.scarcest, **asdict(found)}
        typer.echo(json.dumps({**record, "constants": str(path), "advice": advice(found, load)}))
        return
    typer.echo(f"{pipeline.name}: computed from {path}")
    typer.echo(described(known, load, found, most))


def rows_per_second(text: str) -> float:
    """The number of rows in a rate.

    >>> rows_per_second("5M"), rows_per_second("200k rows/s"), rows_per_second("1500")
    (5000000.0, 200000.0, 1500.0)
    """
    match = _RATE.fullmatch(text.strip())
    value = 0.0 if match is None else float(match[1]) * _FACTORS[match[2]]
    if match is None or not 0 < value <= 1e12:
        raise SpecError(f"--rate {text!r}: rows per second are a number above 0, such as 5M, 200k or 1500")
    return value


def _window(pipeline: Pipeline, window: str | None, rate: float) -> float:
    """The seconds for which a row is kept: of the longer window, where the sides differ."""
    from streamjoin.model.window import CountWindow, Window, as_window

    spec = pipeline.spec
    match = spec.match
    windows: tuple[Window, ...] = spec.windows if window is None else (as_window(window),)
    tolerance = getattr(match, "tolerance", None)
    if window is None and match is not None:
        windows = () if tolerance is None else (as_window(tolerance),)
    found = []
    for own in windows:
        if isinstance(own, CountWindow):
            # Of each side, which has half of the rows.
            found.append(own.n / (rate / 2))
        elif own.is_duration:
            found.append(own.length / 1e9)
    seconds = max(found, default=0.0)
    if not seconds > 0:
        raise SpecError(
            f"{pipeline.file} does not say for how many seconds a row is kept: give --window '10 minutes' or "
            "'1000000 rows'"
        )
    return seconds


def _load(
    pipeline: Pipeline, rate: float, window: float, executors: int, cores: int, ranges: int | None, inputs: int | None
) -> Load:
    from streamjoin.model.durations import nanoseconds
    from streamjoin.spark.capacity.estimate import Load

    partitions = pipeline.join.partitions
    own = executors * cores if partitions == "auto" else partitions
    every = pipeline.trigger.every
    return Load(
        rate, window, executors, cores, min(_MOST, ranges or own), min(_MOST, inputs or executors * cores),
        None if every is None else nanoseconds(every) / 1e9,
    )  # fmt: skip


def _calibrate(pipeline: Pipeline, path: Path) -> None:
    from streamjoin.spark.capacity.calibrate import calibrated
    from streamjoin.spark.capacity.constants import write_constants
    from streamjoin.spark.pipeline.check import checking_session, planned_join

    console = Console(stderr=True)
    with console.status("measuring what the stages of this join take here ..."):
        spark = checking_session(pipeline)
        try:
            found = calibrated(planned_join(pipeline, spark), spark)
        finally:
            spark.stop()
        write_constants(path, pipeline, found)
    console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


def described(constants: MachineConstants, load: Load, found: Estimate, most: float) -> str:
    """The figures as text."""
    from streamjoin.spark.capacity.estimate import GATES

    counts, log = found.counts, found.counts.log
    every = "one batch after the other" if load.every is None else f"a batch every {_time(load.every)}"
    alone = ""
    if constants.shape.gate == "one task":
        alone = f"; that task takes {_time(found.gate_task)} of a batch"
    elif constants.shape.one_range:
        alone = "; all rows are in one range, as there is no key to divide them by"
    times = f", {_bytes(counts.told)} of them the times that every range gets" if counts.told else ""
    merges = f" and {log.merged:,.0f} by the driver" if log.merged else ""
    verdict = "keeps up" if found.keeps_up else "does NOT keep up"
    asked = f"{load.rate:,.0f} rows/s, window {_time(load.window)}, {every}; {load.executors:,} executors of "
    asked += f"{load.cores} cores, {counts.ranges:,} ranges, {load.inputs:,} input partitions"
    tasks = (
        f"routing {_time(found.route_task)}, joining {_time(found.join_task)} with {_bytes(found.memory)} of memory "
    )
    tasks += f"in Python and {found.task_requests:.1f} requests to a store"
    shuffled = f"{_bytes(counts.shuffled)} a batch{times}; {counts.parts + counts.markers:,.0f} parts and markers"
    stored = f"{log.stored:,.0f} rows in {log.runs:.0f} runs, manifest {_bytes(counts.manifest)}; a batch writes "
    stored += f"{_bytes(counts.written)}, {log.folded:,.0f} rows again{merges}, with {counts.requests:,.0f} requests"
    stored += f"; hosts fetch {_bytes(counts.fetched)}" if counts.fetched else ""
    first = f"{found.scarcest} saturates first, {found.used[found.scarcest]:.0%} used; "
    first += f"about {most:,.0f} rows/s is the most" if most else "so many tasks take too long even without rows"
    lines = (
        ("asked", asked),
        ("order", f"{GATES[constants.shape.gate]}{alone}"),
        ("batch", f"{counts.rows:,.0f} rows in {_time(found.seconds)}: {verdict}"),
        ("tasks", tasks),
        ("driver", f"{_time(found.driver)}, {found.driver_share:.0%} of the batch"),
        ("shuffle", shuffled),
        ("log", stored),
        ("first", first),
        ("used", ", ".join(f"{name} {share:.0%}" for name, share in found.used.items())),
        ("change", advice(found, load)),
    )
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label + ':':{width + 2}}{text}" for label, text in lines)


def advice(found: Estimate, load: Load) -> str:
    """What to change for the resource that is used up first."""
    scarce = found.scarcest
    if scarce == "cores":
        needed = max(1, -(-int(load.executors * found.used["cores"] * 1000) // 700))
        return f"{needed:,} executors of {load.cores} cores would be used to 70 %; fewer columns= cost less, too"
    return {
        "driver": "a longer trigger, so that there are fewer batches; fewer ranges, so that there are fewer tasks",
        "merges": "a longer trigger or a shorter window: fewer runs are merged then",
        "network": "fewer columns=, larger executors in place of many, or fewer ranges",
        "store": "a longer trigger or fewer ranges: each range writes a file a batch",
        "the gate's task": "the kind of join: one on equalities or bands, or an inner one on intervals, keeps no task "
        "that sees every row",
        "the gate in every range": f"the order: an unordered join has no gate where {_SOURCES}, and windows are of "
        "time; more ranges do not help, each of them reads all times",
    }[scarce]


def _time(seconds: float) -> str:
    """Seconds in a unit that fits.

    >>> _time(0.012), _time(2.5), _time(600)
    ('12 ms', '2.5 s', '10 min')
    """
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 300 else f"{seconds / 60:,.3g} min"


def _bytes(size: float) -> str:
    """Bytes in a unit that fits.

    >>> _bytes(900), _bytes(1.5e6), _bytes(2e12)
    ('900 B', '1.5 MB', '2,000 GB')
    """
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if size >= factor:
            return f"{size / factor:,.4g} {unit}" if size < 1000 * factor else f"{size / factor:,.0f} {unit}"
    return f"{size:.0f} B"
