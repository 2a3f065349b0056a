"""What the first push costs: README's ten lines in a process of their own, with an empty and with a filled cache.

CPU seconds of the whole process, import of everything included. Beside it, what no user of Arrow and Numba can
avoid: importing both and making a table, and compiling one trivial function. Byte code is there in every run but the
warm-up, as it is after an installation.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Cell, Context, Experiment, Figure, Row, met

README = Path(__file__).parents[2] / "README.md"
EMPTY, FILLED = "empty", "filled"
IMPORTS, TRIVIAL, TEN_LINES, KEY, SWEEP, INDEXED = (
    "imports alone", "a trivial njit", "ten lines", "by a string key", "with sweep", "with an index",
)  # fmt: skip
_AIMS = {EMPTY: 6.0, FILLED: 1.5}
_PREAMBLE = 'import pyarrow as pa\nimport numba\nnumbers = pa.table({"x": [1.0, 2.0]})["x"].to_numpy()\n'
_KEY = """
import pyarrow as pa
import streamjoin as sj
left, right = pa.table({"sym": ["A", "B"]}), pa.table({"sym": ["B", "C"]})
with sj.open(sj.JoinSpec(on=sj.Equi("sym"), window=sj.CountWindow(100_000))) as join:
    print(join.push(left, right).num_rows)
"""


def ten_lines() -> str:
    """README's first program."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    if found is None:
        raise AssertionError("README has no program")
    return found[1]


def programs() -> dict[str, str]:
    """Each program by name."""
    ten = ten_lines()
    if "sj.open(spec)" not in ten:
        raise AssertionError("README's ten lines do not open their spec as sj.open(spec)")
    return {
        IMPORTS: _PREAMBLE,
        TRIVIAL: _PREAMBLE + "print(numba.njit(lambda values: values[0] + 1)(numbers))\n",
        TEN_LINES: ten,
        KEY: _KEY,
        SWEEP: ten.replace("sj.open(spec)", 'sj.open(spec, "sweep")'),
        INDEXED: ten.replace("sj.open(spec)", 'sj.open(spec, "indexed")'),
    }


def cpu_seconds(program: str, cache: Path, bytecode: Path) -> tuple[float, str]:
    """User and system seconds of a new process that runs `program`, and what it printed."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")}
    environment = {**inherited, "XDG_CACHE_HOME": str(cache), "PYTHONPYCACHEPREFIX": str(bytecode)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


class FirstPush(Experiment):
    """CPU seconds until the first rows are there."""

    title = "first_push: README's ten lines in a new process, CPU seconds"
    measure = "runs_per_cpu_s"
    unit = "runs per CPU second"
    repeats = 5
    warmups = 1

    def __init__(self) -> None:
        self._runs = 0

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each program with both caches; the quick form leaves out what takes long to compile."""
        names = (TEN_LINES, KEY) if quick else (TEN_LINES, KEY, SWEEP, INDEXED)
        return [
            {"program": IMPORTS, "cache": EMPTY},
            {"program": TRIVIAL, "cache": EMPTY},
            *({"program": name, "cache": cache} for name in names for cache in (EMPTY, FILLED)),
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the program once; a filled cache is what its last run left."""
        if cell["cache"] == EMPTY:
            self._runs += 1
        cache = context.scratch / f"cache-{self._runs}"
        seconds, output = cpu_seconds(programs()[cell["program"]], cache, context.scratch / "bytecode")
        kept = list(cache.rglob("*.nbc"))
        return {
            "runs_per_cpu_s": 1 / seconds,
            "cpu_s": seconds,
            "lines": len(output.splitlines()),
            "kernels": len(kept),
        }

    def baseline(self, cell: Cell) -> Cell | None:
        """The imports, which every program needs."""
        return None if cell["program"] == IMPORTS else {"program": IMPORTS, "cache": EMPTY}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A bar a program and cache."""
        axes = figure.subplots()
        names = [f"{row['program']}, {row['cache']} cache" for row in rows]
        axes.barh(names, [row["cpu_s"] for row in rows])
        axes.set(xlabel="CPU seconds of the process")
        axes.invert_yaxis()

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aims of the ten lines, and what the imports alone cost."""
        at = {(row["program"], row["cache"]): row["cpu_s"] for row in rows}
        told = [
            f"ten lines, {cache} cache: {at[TEN_LINES, cache]:.2f} CPU seconds; "
            f"aim {aim}: {met(at[TEN_LINES, cache] < aim)}"
            for cache, aim in _AIMS.items()
            if (TEN_LINES, cache) in at
        ]
        if (IMPORTS, EMPTY) in at:
            told.append(f"importing Arrow and Numba and making a table take {at[IMPORTS, EMPTY]:.2f} of them")
        return told


EXPERIMENT = FirstPush()
