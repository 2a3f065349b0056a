"""The command line: `python -m benchmarks EXPERIMENT [--quick] [--keep] ...`, or `--list`."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import report
from benchmarks.harness import Experiment, Unavailable, discover, measure, planned

HERE = Path(__file__).parent
OUT = HERE / "out"
RESULTS = HERE / "results"


def main(argv: Sequence[str] | None = None, package: str = "benchmarks") -> int:
    """Run one experiment of `package`; the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(arguments)
    out = report.console()
    found = dict(discover(package))
    if options.list or options.experiment is None:
        _print_list(out, found)
        return 0
    experiment = found.get(options.experiment)
    if experiment is None:
        out.print(f"There is no experiment {options.experiment!r}.", markup=False)
        _print_list(out, found)
        return 2
    if isinstance(experiment, Unavailable):
        out.print(f"{options.experiment} can't run here: {experiment.reason}", markup=False)
        out.print("What the experiments need comes with: pip install -e '.[spark,bench]'", markup=False)
        return 2
    if options.keep and options.quick:
        out.print("--keep is for whole runs: the figures of a --quick one say nothing.")
        return 2
    command = shlex.join(["python", "-m", "benchmarks", *arguments])
    written, failed = _run(out, options, experiment, command)
    for line in failed:
        out.print(f"failed: {line}", markup=False, soft_wrap=True)
    if options.keep and not failed:
        options.results.mkdir(parents=True, exist_ok=True)
        written = [Path(shutil.copy(path, options.results)) for path in written]
    out.print("written: " + ", ".join(_shown(path) for path in written), markup=False, soft_wrap=True)
    return 1 if failed else 0


def _run(
    out: Console, options: argparse.Namespace, experiment: Experiment, command: str
) -> tuple[list[Path], list[str]]:
    failed: list[str] = []
    total = planned(experiment, quick=options.quick, repeats=options.repeats)
    with report.progress(out, total) as step:
        rows = measure(
            experiment, seed=options.seed, quick=options.quick, repeats=options.repeats, step=step, failed=failed
        )
    record = report.document(
        options.experiment, experiment, rows, command, failed, seed=options.seed, quick=options.quick
    )
    out.print(report.table(experiment, rows))
    if experiment.claim is not None:
        out.print(f"The paper: {experiment.claim}", markup=False)
    for line in record["verdict"]:
        out.print(f"- {line}", markup=False)
    return report.write(options.out, options.experiment, experiment, record), failed


def _print_list(out: Console, found: dict[str, Experiment | Unavailable]) -> None:
    out.print("Experiments:" if found else "There are no experiments here.")
    for name, experiment in found.items():
        text = experiment.title if isinstance(experiment, Experiment) else f"can't run here: {experiment.reason}"
        out.print(f"  {name:<20} {text}", markup=False)


def _shown(path: Path) -> str:
    """The path from where the user stands, where that is shorter."""
    absolute = path.resolve()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run one experiment.")
    parser.add_argument("experiment", nargs="?", help="its name, as --list shows it")
    parser.add_argument("--list", action="store_true", help="name the experiments and stop")
    parser.add_argument("--quick", action="store_true", help="a small grid, once: to see that it runs")
    parser.add_argument("--seed", type=int, default=0, help="of the workload (%(default)s)")
    parser.add_argument("--repeats", type=_positive, help="runs of each cell, instead of the experiment's own number")
    parser.add_argument("--out", type=Path, default=OUT, help="where JSON and picture go (benchmarks/out)")
    parser.add_argument("--keep", action="store_true", help="copy them to benchmarks/results, for the repository")
    parser.set_defaults(results=RESULTS)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
