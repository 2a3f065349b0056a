"""`python -m benchmarks.paired REVISION EXPERIMENT...`: this tree beside an older one, in turns on the same machine.

Each pair runs an experiment (`--quick`) once in a checkout of the revision and once here, and the other way round in
the next pair, so that what else the machine does falls on both. A row's figure is the ratio of this tree to the older
one: the median over the pairs, and the least and greatest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
Rows = list[tuple[str, float]]
"""The rows of a run in its order: what each is about, and its figure."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pairs and print a table for each experiment; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paired", description=__doc__)
    parser.add_argument("revision", help="the commit to compare with")
    parser.add_argument("experiments", nargs="+")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args(argv)
    out = Console()
    with tempfile.TemporaryDirectory(prefix="streamjoin-paired-") as place:
        older = Path(place) / "older"
        _git("worktree", "add", "--detach", str(older), options.revision)
        try:
            for experiment in options.experiments:
                pairs = list(_pairs(experiment, older, options.pairs, out))
                out.print(_table(experiment, pairs))
        finally:
            _git("worktree", "remove", "--force", str(older))
    return 0


def _git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _pairs(experiment: str, older: Path, count: int, out: Console) -> Iterator[tuple[Rows, Rows]]:
    for number in range(count):
        found = {}
        for tree in (older, ROOT) if number % 2 == 0 else (ROOT, older):
            out.print(f"{experiment}: pair {number + 1} of {count}, {'older' if tree == older else 'this'} tree")
            found[tree] = _run(experiment, tree)
        yield found[older], found[ROOT]


def _run(experiment: str, tree: Path) -> Rows:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "benchmarks", experiment, "--quick", "--out", place]
        paths = f"{tree / 'src'}{os.pathsep}{tree}"
        done = subprocess.run(
            command, cwd=tree, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{experiment} failed in {tree}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        record = json.loads((Path(place) / f"{experiment}.json").read_text())
    return [(_settings(row), float(row.get(record["measure"]) or 0)) for row in record["rows"]]


def _settings(row: Mapping[str, Any]) -> str:
    """What a row is about: its columns that are no measurements.

    >>> _settings({"window": 8, "system": "sweep", "tuples_per_s": 1.5})
    'window=8 system=sweep'
    """
    return " ".join(f"{name}={value}" for name, value in row.items() if isinstance(value, int | str))


def _table(experiment: str, pairs: Sequence[tuple[Rows, Rows]]) -> Table:
    table = Table("row", "older", "this", "ratio", "least to greatest", title=experiment)
    medians = []
    for at, (name, _) in enumerate(pairs[0][0]):
        figures = [(old[at][1], new[at][1]) for old, new in pairs]
        ratios = [new / old for old, new in figures if old and new]
        if ratios:
            medians.append(statistics.median(ratios))
            olds, news = (statistics.median(side) for side in zip(*figures, strict=True))
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            table.add_row(name, f"{olds:.4g}", f"{news:.4g}", f"{medians[-1]:.3f}", spread)
    if medians:
        table.add_section()
        table.add_row("all rows", "", "", f"{statistics.geometric_mean(medians):.3f}", "geometric mean")
    return table


if __name__ == "__main__":
    sys.exit(main())
