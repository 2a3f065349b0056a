"""The tuples that wait at the end of a backlog: in the gate for earlier ones, in a window for a match."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamjoin.spark.stages.kind_gate import HasMarks, resumed
from streamjoin.spark.stages.kind_task import RunMarks, seqs_of
from streamjoin.storage.blueprint import SIDES, Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.manifest import KEYLESS, MARKS, Manifest
from streamjoin.storage.ranges import WordRange
from streamjoin.storage.segments import Segment, stored

_EVERYWHERE = WordRange((-(1 << 63), 0), None)


@dataclass(frozen=True)
class Undecided:
    """By side: tuples in the gate, and others without a match, or in an as-of join, that may still get one.

    `windows` are released left tuples with summaries whose windows are not complete.
    """

    gate: tuple[int, int] = (0, 0)
    unmatched: tuple[int, int] = (0, 0)
    windows: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.gate) + sum(self.unmatched) + self.windows

    def __str__(self) -> str:
        parts = []
        if any(self.gate):
            parts.append(f"{_sides(self.gate)} in the gate, until every source has passed their times")
        if any(self.unmatched):
            parts.append(f"{_sides(self.unmatched)} for a match or a nearer one, until none can follow")
        if self.windows:
            parts.append(f"{self.windows:,} left with a window that right ones may still fall into")
        tuples = f"{self.total:,} tuple{'' if self.total == 1 else 's'}"
        return f"{tuples} wait{'s' if self.total == 1 else ''} undecided: {'; '.join(parts)}"


def undecided(blueprint: Blueprint, log: WindowLog, batch: int) -> Undecided:
    """What waits after `batch`, the newest one.

    Raises:
        CheckpointError: the log can't be read.
    """
    if not blueprint.numbered or batch < 0:
        return Undecided()
    manifest = log.version(batch, keep=False)
    if manifest.counts is not None:
        return Undecided(unmatched=_unmatched(blueprint, log, manifest))
    footer, _ = log.gate(batch, manifest.epoch)
    if footer.get("ended"):
        return Undecided()
    unmatched = [0, 0]
    if blueprint.preserved:
        state = resumed(blueprint, log, manifest, tuple(footer["standing"]["counts"]))
        for side in blueprint.preserved:
            marks: HasMarks = state.marks[side]
            if blueprint.shared_gate:
                entries = stored(log, blueprint, manifest, manifest.runs, MARKS + side, _EVERYWHERE, shared=False)
                marks = RunMarks(entries, marks)
            for segment in stored(log, blueprint, manifest, manifest.runs, side, _EVERYWHERE, shared=False):
                there = segment.ages(blueprint.counted[side]) >= state.gone_before[side]
                if segment.seqs is not None:
                    there &= ~marks.at(segment.words, segment.seqs)
                unmatched[side] += int(np.count_nonzero(there))
    left, right = footer["waiting"] if len(footer["waiting"]) == 2 else (*footer["waiting"], 0)
    return Undecided((left, right), (unmatched[0], unmatched[1]), footer.get("undecided", 0))


def _unmatched(blueprint: Blueprint, log: WindowLog, manifest: Manifest) -> tuple[int, int]:
    """The tuples of each side without a match that are not gone, where marks are in the runs."""
    horizons, unmatched = blueprint.horizons(manifest.clocks), [0, 0]

    def parts(number: int) -> list[Segment]:
        return stored(log, blueprint, manifest, manifest.runs, number, _EVERYWHERE, shared=False)

    for side in blueprint.preserved if blueprint.bound.match is None else (0,):
        marks = RunMarks(parts(MARKS + side))
        for segment in (*parts(side), *parts(KEYLESS + side)):
            there = segment.since(horizons[side], counted=False)
            unmatched[side] += int(np.count_nonzero(~marks.at(there.words, seqs_of(there))))
    return unmatched[0], unmatched[1]


def _sides(numbers: tuple[int, int]) -> str:
    return " and ".join(f"{number:,} {side}" for number, side in zip(numbers, SIDES, strict=True) if number)
