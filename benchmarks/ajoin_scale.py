"""How state, input and the driver's part scale with executors: the distributed ad-hoc engine beside that of the driver.

A local cluster with one core for each executor. Twenty queries join two of three streams by one attribute and write
Parquet. *State* and *input* are those of the task that has most: what it holds of tuples, indexes and query-sets, and
the bytes that it reads per new tuple. With the engine of the driver every task holds and maps everything.
*Driver rows* counts the rows of input and output that the driver's Python has had. Executors share the cores of one
machine: rates say how much work there is, not how a cluster scales.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import Cell, Context, Experiment, Row, human

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTRIBUTED, DRIVER = "distributed", "driver"
_LONGEST: Final = 600.0
_WITHIN: Final = 0.2


class AJoinScale(Experiment):
    """State and input per executor, by the number of executors and the rate of the streams."""

    title = "ad-hoc engine on a local cluster: state and input per executor, and rows in the driver"
    claim = "AJoin: nothing is centralized"
    measure = "state_bytes"
    unit = "bytes of state per executor (less is better)"
    repeats = 1
    warmups = 0

    def __init__(self) -> None:
        self._runs = 0

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Executors and tuples per second of event time; the last cell has ten times the rate."""
        counts = (1, 2) if quick else (1, 2, 4)
        rates = (2_000,) if quick else (20_000, 200_000)
        found = [
            {"system": system, "executors": n, "rate": rates[0]} for n in counts for system in (DRIVER, DISTRIBUTED)
        ]
        found += [{"system": DISTRIBUTED, "executors": 2, "rate": rate} for rate in rates[1:]]
        return found

    def baseline(self, cell: Cell) -> Cell | None:
        """The engine of the driver with as many tasks."""
        return {**cell, "system": DRIVER} if cell["system"] == DISTRIBUTED and cell["rate"] < 100_000 else None

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the engine in a process of its own, with a cluster of its own."""
        self._runs += 1
        directory = context.scratch / f"run-{self._runs}"
        directory.mkdir(parents=True)
        spec = {
            **cell,
            "directory": str(directory),
            "batch": cell["rate"],
            "files": 4 if context.quick else 8,
            "queries": 20,
            "seed": context.seed,
        }
        environment = {**os.environ, "SPARK_HOME": str(_linked_home(directory))}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.ajoin_scale_program", json.dumps(spec)],
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
            cwd=Path(__file__).parents[1],
            env=environment,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """What falls with the number of executors, and what the driver had."""
        found = {(row["system"], row["executors"], row["rate"]): row for row in rows}
        lines = []
        least = min(row["rate"] for row in rows)
        alone = found.get((DISTRIBUTED, 1, least))
        for (system, executors, rate), row in found.items():
            if system == DISTRIBUTED and rate == least and alone is not None and executors > 1:
                state, read = (row[name] / alone[name] * executors for name in ("state_bytes", "read_bytes"))
                fits = "within" if max(state, read) <= 1 + _WITHIN else "NOT within"
                lines.append(
                    f"{executors} executors: state {state:.2f}/n and input {read:.2f}/n of one's ({fits} {_WITHIN:.0%})"
                )
        for (system, executors, rate), row in found.items():
            lines.append(
                f"{system}, {executors} executors, {human(rate)} tuples/s: {human(row['driver_rows'])} of "
                f"{human(row['rows_in'] + row['rows_out'])} rows in the driver, {row['driver_rss'] / 1e6:.0f} MB there"
            )
        return lines

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """State per executor by executors."""
        axes = figure.subplots()
        least = min(row["rate"] for row in rows)
        for system in (DRIVER, DISTRIBUTED):
            points = sorted(
                (row["executors"], row["state_bytes"])
                for row in rows
                if row["system"] == system and row["rate"] == least
            )
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=system)
        axes.set_xlabel("executors")
        axes.set_ylabel("bytes of state per executor")
        axes.set_ylim(bottom=0)
        axes.legend()


def _linked_home(directory: Path) -> Path:
    """The pip package's Spark under another directory: a local cluster leaves its executors' files there."""
    import pyspark

    home = directory / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


EXPERIMENT = AJoinScale()
