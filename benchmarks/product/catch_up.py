"""After a pause: how soon an engine answers again, and what memory it takes, by how it takes what it has missed.

Each run is a process of its own that goes on from a copy of one checkpoint, with a clock that is ahead by the pause.
The baseline takes all that was missed in one batch.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.harness import Cell, Context, Experiment, Figure, Row, met

WHOLE, BOUNDED = "whole", "bounded"
KEYS = 1009
SQL = "SELECT a.k, a.v, b.v AS other FROM a JOIN b WITHIN 2 SECONDS ON a.k = b.k WHERE a.v % 50 > {v} % 40"
AIM_S = 10.0
"""Within which the engine answers again."""
ROOT = Path(__file__).parents[2]


class CatchUp(Experiment):
    """The time until a create is answered, after a pause."""

    title = "ad-hoc engine: answers after a pause"
    measure = "answers_per_s"
    unit = "1/s until the first answer"
    repeats = 3
    warmups = 0
    against: ClassVar = {"mode": WHOLE}

    def __init__(self) -> None:
        """Checkpoints are made once for each size."""
        self._made: dict[tuple[int, int], tempfile.TemporaryDirectory[str]] = {}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """In one batch, and in bounded ones."""
        size = {"queries": 20, "rows": 200, "pause_s": 120} if quick else {"queries": 120, "rows": 400, "pause_s": 1500}
        return [{"mode": mode, **size} for mode in (WHOLE, BOUNDED)]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """One restart."""
        size = cell["rows"], cell["queries"]
        if size not in self._made:
            self._made[size] = tempfile.TemporaryDirectory()
            _run("prepare", self._made[size].name, *size)
        copy = context.scratch / "checkpoint"
        shutil.copytree(self._made[size].name, copy)
        found: dict[str, float] = json.loads(_run("restart", str(copy), cell["rows"], cell["pause_s"], cell["mode"]))
        shutil.rmtree(copy)
        return {"answers_per_s": 1 / found["answered_s"], **found}

    def close(self) -> None:
        """Remove the checkpoints."""
        while self._made:
            self._made.popitem()[1].cleanup()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Seconds and memory by mode."""
        for axes, (what, unit) in zip(
            figure.subplots(1, 2), (("answered_s", "s until an answer"), ("memory_mb", "MB at most")), strict=True
        ):
            axes.bar([row["mode"] for row in rows], [row[what] for row in rows])
            axes.set(ylabel=unit)

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The ratios to one batch, and the aim."""
        by_mode = {row["mode"]: row for row in rows}
        whole, bounded = by_mode[WHOLE], by_mode[BOUNDED]
        judged = met(bounded["answered_s"] <= AIM_S)
        soon = (
            f"the engine answers after {bounded['answered_s']:.1f} s, {bounded['ratio']:.1f} times as soon as with one "
            f"batch; aim {AIM_S:.0f} s: {judged}"
        )
        cost = (
            f"its memory is {bounded['memory_mb'] / whole['memory_mb']:.2f} of that with one batch, its longest batch "
            f"{bounded['longest_batch_s'] / whole['longest_batch_s']:.2f}, the time until all is caught up "
            f"{bounded['caught_up_s'] / whole['caught_up_s']:.2f}"
        )
        return [soon, cost]


def _run(*arguments: object) -> str:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.product.catch_up_program", *map(str, arguments)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


EXPERIMENT = CatchUp()
