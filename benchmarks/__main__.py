"""The command line: `python -m benchmarks EXPERIMENT... [--quick] [--keep] ...`; --list, --figures, --many-cores."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import provenance, report, reproduction
from benchmarks.harness import Experiment, Unavailable, discover, load, measure, planned

HERE = Path(__file__).parent
OUT = HERE / "out"
RESULTS = HERE / "results"
MANY_CORES = 16


def main(argv: Sequence[str] | None = None, package: str = "benchmarks") -> int:
    """Run experiments of `package`; the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    out = report.console()
    if options.figures:
        options.experiments = reproduction.experiments()
    if options.many_cores:
        cores = report.machine()["cores"]
        if cores < MANY_CORES:
            out.print(f"--many-cores needs {MANY_CORES} cores, and this machine has {cores}")
            return 2
        options.results = RESULTS / f"{MANY_CORES}-cores"
        options.experiments = sorted(path.stem for path in options.results.glob("*.json"))
        arguments = [item for item in arguments if item != "--many-cores"] + ["--results", str(options.results)]
    if options.list or not options.experiments:
        _print_list(out, package)
        return 0
    if len(options.experiments) > 1:
        return _run_each(out, options, package, arguments)
    return _run_one(out, options, package, shlex.join(["python", "-m", "benchmarks", *_without_places(arguments)]))


def _without_places(arguments: Sequence[str]) -> list[str]:
    """The arguments that say what is measured, not where it is written.

    >>> _without_places(["nested", "--out", "here", "--keep", "--results=there"])
    ['nested', '--keep']
    """
    places = ("--out", "--results")
    kept = [argument for before, argument in pairwise(["", *arguments]) if before not in places]
    return [argument for argument in kept if argument.partition("=")[0] not in places]


def _keeping_refused(options: argparse.Namespace, experiment: Experiment) -> str | None:
    if options.quick:
        return "--keep is for whole runs: the figures of a --quick one say nothing."
    if options.repeats is not None and options.repeats < experiment.kept_repeats:
        return f"--keep needs at least {experiment.kept_repeats} repeats, for a median with its spread."
    commit = provenance.commit()
    if commit is None or commit.endswith("+"):
        return "--keep needs a commit without changes on top, so that the figures belong to code that can be read."
    return None


def _run_one(out: Console, options: argparse.Namespace, package: str, command: str) -> int:
    (name,) = options.experiments
    experiment = load(package, name)
    if experiment is None:
        out.print(f"There is no experiment {name!r}.", markup=False)
        _print_list(out, package)
        return 2
    if isinstance(experiment, Unavailable):
        out.print(f"{name} can't run here: {experiment.reason}", markup=False)
        out.print("What the experiments need comes with: pip install -e '.[spark,bench]'", markup=False)
        return 2
    refusal = _keeping_refused(options, experiment) if options.keep else None
    if refusal is not None:
        out.print(refusal, markup=False)
        return 2
    written, failed = _measure(out, options, name, experiment, command)
    for line in failed:
        out.print(f"failed: {line}", markup=False, soft_wrap=True)
    if options.keep and not failed:
        options.results.mkdir(parents=True, exist_ok=True)
        written = [Path(shutil.copy(path, options.results)) for path in written]
    out.print("written: " + ", ".join(_shown(path) for path in written), markup=False, soft_wrap=True)
    return 1 if failed else 0


def _run_each(out: Console, options: argparse.Namespace, package: str, arguments: Sequence[str]) -> int:
    """Each experiment in a process of its own; with --keep those that are stored and current are left out."""
    begin, status = time.monotonic(), 0
    shared = [argument for argument in arguments if argument not in {"--figures", *options.experiments}]
    for name in options.experiments:
        if options.keep and _is_current(options.results / f"{name}.json"):
            out.print(f"{name}: stored, and its code has not changed", markup=False)
            continue
        if options.minutes is not None and time.monotonic() - begin > 60 * options.minutes:
            out.print(f"{name}: not begun, as the {options.minutes:g} minutes are over; run the same again")
            status = 1
            continue
        out.print(f"{name}:", markup=False)
        one = [sys.executable, "-m", package, name, *shared]
        status = subprocess.run(one, cwd=HERE.parent, check=False).returncode or status
    return status


def _is_current(path: Path) -> bool:
    if not path.is_file():
        return False
    record: dict[str, Any] = json.loads(path.read_text())
    return provenance.changed_modules(record) == []


def _measure(
    out: Console, options: argparse.Namespace, name: str, experiment: Experiment, command: str
) -> tuple[list[Path], list[str]]:
    failed: list[str] = []
    repeats = options.repeats or (max(experiment.kept_repeats, experiment.repeats) if options.keep else None)
    total = planned(experiment, quick=options.quick, repeats=repeats)
    with report.progress(out, total) as step:
        rows = measure(experiment, seed=options.seed, quick=options.quick, repeats=repeats, step=step, failed=failed)
    record = report.document(name, experiment, rows, command, failed, seed=options.seed, quick=options.quick)
    out.print(report.table(experiment, rows))
    if experiment.claim is not None:
        out.print(f"The paper: {experiment.claim}", markup=False)
    for line in record["verdict"]:
        out.print(f"- {line}", markup=False)
    return report.write(options.out, name, experiment, record), failed


def _print_list(out: Console, package: str) -> None:
    known = dict(discover(package))
    out.print("Experiments:" if known else "There are no experiments here.")
    for name, experiment in known.items():
        text = experiment.title if isinstance(experiment, Experiment) else f"can't run here: {experiment.reason}"
        out.print(f"  {name:<20} {text}", markup=False)


def _shown(path: Path) -> str:
    """The path from where the user stands, where that is shorter."""
    absolute = path.resolve()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run experiments.")
    parser.add_argument("experiments", nargs="*", metavar="experiment", help="a name, as --list shows it")
    parser.add_argument("--list", action="store_true", help="name the experiments and stop")
    parser.add_argument("--figures", action="store_true", help="all experiments that redo a figure of a paper")
    parser.add_argument(
        "--many-cores",
        action="store_true",
        help=f"all experiments with a stored result of {MANY_CORES} cores, kept with those",
    )
    parser.add_argument("--minutes", type=float, help="with several experiments: begin none after this many minutes")
    parser.add_argument("--quick", action="store_true", help="a small grid, once: to see that it runs")
    parser.add_argument("--seed", type=int, default=0, help="of the workload (%(default)s)")
    parser.add_argument("--repeats", type=_positive, help="runs of each cell, instead of the experiment's own number")
    parser.add_argument("--out", type=Path, default=OUT, help="where JSON and picture go (benchmarks/out)")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="copy them to --results, for the repository; five repeats or more of most, from a clean commit",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where --keep copies to (benchmarks/results)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
