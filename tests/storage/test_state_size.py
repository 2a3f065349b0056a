"""How many rows the log holds beside those that are alive: the policy over the metadata of many batches, without rows.

Each run is a list of intervals of ages, from which its statistics follow; versions are assembled as tasks do it, and a
merge in the background is finished when the next batch begins and swapped in by the one after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from streamjoin.storage import merging
from streamjoin.storage.manifest import EMPTY, Clocks, Manifest, StoredRun, assemble
from streamjoin.storage.merging import MergePolicy, RunStatistics, due

Ages = list[tuple[int, int]]
WINDOW = 200_000


def _count(ages: Ages) -> int:
    return sum(end - begin for begin, end in ages)


def _since(ages: Ages, horizon: int) -> Ages:
    return [(max(begin, horizon), end) for begin, end in ages if end > horizon]


def _statistics(ages: Ages, parts: int = 16) -> list[int]:
    rows, edges = _count(ages), []
    for part in range(1, parts):
        place = rows * part // parts
        for begin, end in sorted(ages):
            if place < end - begin:
                edges.append(begin + place)
                break
            place -= end - begin
    return (
        RunStatistics(rows, min(a for a, _ in ages), max(b for _, b in ages) - 1, tuple(edges)).facts
        if rows
        else [0] * 3
    )


class SimulatedLog:
    """The versions of a log whose rows are intervals of ages, the same on both sides."""

    def __init__(self, policy: MergePolicy) -> None:
        self._policy = policy
        self._rows: dict[str, Ages] = {}
        self._clock = 0
        self._merge: tuple[str, dict[str, Any]] | None = None
        self.version: Manifest = EMPTY

    def _horizons(self, clocks: Clocks) -> tuple[int, int]:
        return merging.horizons(clocks, (WINDOW, WINDOW), 0)

    def add(self, rows: int) -> float:
        """A batch of as many rows a side; returns the rows on disk over those that are alive."""
        before, batch = self.version, self.version.batch + 1
        kept = before.kept(self._horizons, self._policy)
        folded = [*before.runs[: kept.start], *before.runs[kept.stop :]]
        ages = [(self._clock, self._clock + rows)]
        self._clock += rows
        horizon = self._horizons((self._clock - 1, self._clock - 1))
        ages = _since([*(age for run in folded for age in self._rows[run.key]), *ages], horizon[0])
        merges = [self._merge] if self._merge and self._applies(self._merge[1], before.runs[kept]) else []
        file = f"{batch:010}/piece"
        self._rows[file] = ages
        footer = {
            **self._piece(ages), "batch": batch, "epoch": 1, "base": 1, "folded": [run.batch for run in folded],
            "clocks": [self._clock - 1] * 2, "fresh": 2 * rows, "fresh_sample": [], "late": {}, "swapped": [],
        }  # fmt: skip
        self.version = assemble(before, [(file, footer)], self._horizons, merges)
        self._merge = None
        pending = self._start_merge(batch, horizon)
        stored = sum(_count(self._rows[run.key]) for run in self.version.runs)
        live = sum(_count(_since(self._rows[run.key], horizon[0])) for run in self.version.runs)
        assert live == min(self._clock, WINDOW + 1)
        return (stored + pending) / live

    def _applies(self, footer: dict[str, Any], runs: Sequence[StoredRun]) -> bool:
        return set(footer["inputs"]) <= {run.key for run in runs}

    def _start_merge(self, batch: int, horizon: tuple[int, int]) -> int:
        runs = self.version.runs[self.version.kept(self._horizons, self._policy)]
        bounds = due([run.statistics for run in runs], horizon, self._policy)
        if bounds is None:
            return 0
        inputs = runs[slice(*bounds)]
        ages = _since([age for run in inputs for age in self._rows[run.key]], horizon[0])
        file = f"merged/{batch}.merge"
        self._rows[file] = ages
        self._merge = file, {
            **self._piece(ages), "inputs": [run.key for run in inputs], "last": inputs[-1].batch, "batch": batch,
            "epoch": 1,
        }  # fmt: skip
        return _count(ages)

    def _piece(self, ages: Ages) -> dict[str, Any]:
        block = [[0, 0, _count(ages), 0, 0, 0]]
        return {"extents": [_statistics(ages)] * 2, "sample": [], "blocks": [block, block]}


@pytest.mark.parametrize("percent", [400, 100, 95, 75, 62, 50, 45, 40, 32, 24, 13, 10, 5, 2, 1])
def test_a_quarter_of_the_rows_on_disk_is_expired_at_most(percent: int) -> None:
    log = SimulatedLog(MergePolicy())
    ratios = [log.add(WINDOW * percent // 100) for _ in range(600 // percent + 12)]
    # How long batches are is known after the second one.
    assert max(ratios[2:]) <= 1.25
    assert len(log.version.runs) <= 24


def test_a_run_is_not_moved_for_a_few_expired_rows() -> None:
    log = SimulatedLog(MergePolicy())
    for _ in range(20):
        log.add(WINDOW * 30 // 100)
        assert len(log.version.runs[-1].pieces) == 1
        assert log.version.runs[-1].statistics[0].rows == WINDOW * 30 // 100
