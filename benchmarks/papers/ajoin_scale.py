"""How state, input and the driver's part scale with executors: the distributed ad-hoc engine beside that of the driver.

A local cluster with one core for each executor. Twenty queries join two of three streams by one attribute and write
Parquet. *State* and *input* are those of the task that has most: what it holds of tuples, indexes and query-sets, and
the bytes that it reads per new tuple. With the engine of the driver, which runs with the most executors alone, its
process holds and reads everything. *Driver rows* counts the rows of input and output that the driver's Python has had.
Executors share the cores of one machine: rates say how much work there is, not how a cluster scales.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, human, judge_aim

DISTRIBUTED, DRIVER = "distributed", "driver"
_LONGEST: Final = 600.0
_WITHIN: Final = 0.2
_TENFOLD: Final = 10


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
        """Executors and tuples per second of event time; the last two have ten times the rate, and the windows."""
        counts, rate = ((1, 2), 2_000) if quick else ((1, 2, 4), 20_000)
        found = [
            {"system": system, "executors": n, "rate": rate, "window": 1}
            for n in counts
            for system in ((DRIVER, DISTRIBUTED) if n == counts[-1] else (DISTRIBUTED,))
        ]
        if not quick:
            found.append({"system": DISTRIBUTED, "executors": 2, "rate": _TENFOLD * rate, "window": 1})
            found.append({"system": DISTRIBUTED, "executors": 2, "rate": rate, "window": _TENFOLD})
        return found

    def baseline(self, cell: Cell) -> Cell | None:
        """The engine of the driver on the same cluster."""
        other = {**cell, "system": DRIVER}
        return other if cell["system"] != DRIVER and other in [*self.cells(True), *self.cells(False)] else None

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
            [sys.executable, "-m", "benchmarks.papers.ajoin_scale_program", json.dumps(spec)],
            capture_output=True,
            text=True,
            timeout=_LONGEST,
            check=False,
            cwd=Path(__file__).parents[2],
            env=environment,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return figures

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """What falls with the number of executors, and what the driver had."""
        least = min(row["rate"] for row in rows)
        ours = [row for row in rows if row["system"] == DISTRIBUTED]
        plain = {row["executors"]: row for row in ours if row["rate"] == least and row["window"] == 1}
        found = []
        for executors, row in plain.items():
            if executors > 1 and 1 in plain:
                state, read = (row[name] / plain[1][name] * executors for name in ("state_bytes", "read_bytes"))
                said = f"state {state:.2f}/n, input {read:.2f}/n of one's"
                rule = f"at most {1 + _WITHIN}/n"
                found.append(judge_aim(f"{executors} executors", said, rule, max(state, read) <= 1 + _WITHIN))
        for row in ours:
            what = "rate" if row["rate"] > least else "window" if row["window"] > 1 else None
            if what is not None and row["executors"] in plain:
                grown = row["driver_rss"] / plain[row["executors"]]["driver_rss"]
                said = f"{row['driver_rss'] / 1e6:.0f} MB, {grown:.2f} times"
                found.append(judge_aim(f"driver's memory at ten times the {what}", said, "at most 1.1", grown <= 1.1))
        had = max(row["driver_rows"] for row in ours)
        passed = f"{human(max(row['rows_in'] + row['rows_out'] for row in ours))} rows passed"
        return [*found, judge_aim("rows in the driver", f"{human(had)}; {passed}", "none", had == 0)]

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """State per executor by executors."""
        axes = figure.subplots()
        least = min(row["rate"] for row in rows)
        for system in (DRIVER, DISTRIBUTED):
            points = sorted(
                (row["executors"], row["state_bytes"])
                for row in rows
                if row["system"] == system and row["rate"] == least and row["window"] == 1
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
