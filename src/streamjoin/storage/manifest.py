"""Manifests: the content of one version of the log.

A manifest depends only on the previous manifest and on the footers of its version's pieces, so every task that
assembles it gets the same bytes. It lists all files of the version and their blocks, so a task opens only the blocks
that overlap its range.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.errors import CheckpointError
from streamjoin.storage.merging import MergePolicy, RunStatistics, first_folded, spent
from streamjoin.storage.pieces import Block
from streamjoin.storage.ranges import WordRange, thinned
from streamjoin.windows.intervals import NO_CLASS

SAMPLE = 256
"""Words kept of each run's distribution; twice as many as ranges, if these are more."""

NOTHING = RunStatistics(0, 0, 0)

MARKS, KEYLESS, WAITING = 2, 4, 6
"""In a run, the numbers of the first of two parts: marks of both sides, their rows without a key, rows that wait.

Rows wait for a gate: those of the newest version count, and its piece has all of them.
"""

Clocks = tuple[int | None, int | None]
Horizons = Callable[[Clocks], tuple[int, int]]
"""A function from both clocks to the oldest ages that are alive: `Blueprint.horizons`."""


@dataclass(frozen=True)
class PieceRef:
    """A piece of a run: its file, relative to the log, and the blocks of its parts.

    Parts are the rows of both sides; in some joins there are more.
    """

    file: str
    blocks: tuple[tuple[Block, ...], ...]

    def part(self, number: int) -> tuple[Block, ...]:
        """The blocks of a part; most joins have only the rows of both sides."""
        return self.blocks[number] if number < len(self.blocks) else ()


@dataclass(frozen=True)
class StoredRun:
    """A sorted run: the pieces of all ranges of the version that wrote it.

    `statistics` are those of the rows of both sides, `others` those of its other parts, if it has any.
    """

    batch: int
    statistics: tuple[RunStatistics, RunStatistics]
    sample: tuple[tuple[int, int], ...]
    pieces: tuple[PieceRef, ...]
    others: tuple[RunStatistics, ...] = ()

    def lives(self, horizon: tuple[int, int]) -> bool:
        """Whether something in the run is not older than the horizon of its side."""
        parts = enumerate((*self.statistics, *self.others))
        return any(part.rows and part.newest >= horizon[number % 2] for number, part in parts)

    @property
    def key(self) -> str:
        """The identity of the run."""
        return self.pieces[0].file

    def overlapping(self, part: int, words: WordRange) -> Iterator[tuple[str, Block]]:
        """The file and the block of each block of a part that overlaps a range of words, in order."""
        files, blocks, first, last = self._extents[part] if part in self._extents else self._extents_of(part)
        for i in np.flatnonzero(words.touched(first, last)).tolist():
            yield files[i], blocks[i]

    @functools.cached_property
    def _extents(self) -> dict[int, tuple[list[str], list[Block], Array, Array]]:
        """For each part that was asked for: its blocks with their files, and their smallest and largest words."""
        return {}

    def _extents_of(self, part: int) -> tuple[list[str], list[Block], Array, Array]:
        found = [(piece.file, block) for piece in self.pieces for block in piece.part(part)]
        blocks = [block for _, block in found]
        first, last = (np.array([getattr(b, end) for b in blocks], np.int64) for end in ("first", "last"))
        self._extents[part] = [file for file, _ in found], blocks, first, last
        return self._extents[part]


@dataclass(frozen=True)
class Manifest:
    """One version: its runs, oldest first, and the progress of each side.

    Args:
        clocks: the largest ticks of each side so far; after a gate, its progress (`Blueprint.horizons`).
        fresh: the number of rows of the newest batch.
        fresh_sample: a sample of the words of these rows.
        late: the rows that were not joined, by side and reason, since the start.
        wanted: the number of ranges that a user requested.
        pace: how far the newest batch advanced the clocks.
        skew: the rows of the newest batch in its largest range divided by the average, in thousandths.
        counts: the rows of each side since the start, where rows are numbered as they arrive.
        overflowed: the sums of a join with summaries that their type could not hold, since the start.
    """

    batch: int
    epoch: int
    clocks: Clocks
    fresh: int
    late: Mapping[str, int]
    runs: tuple[StoredRun, ...]
    fresh_sample: tuple[tuple[int, int], ...] = ()
    wanted: int | None = None
    pace: tuple[int, int] = (0, 0)
    skew: int = 1000
    counts: tuple[int, int] | None = None
    overflowed: int = 0

    @functools.cached_property
    def files(self) -> frozenset[str]:
        """Every piece file that this version needs."""
        return frozenset(piece.file for run in self.runs for piece in run.pieces)

    @property
    def merged_runs(self) -> int:
        """How many of the runs were merged in the background."""
        return sum(run.key.endswith(".merge") for run in self.runs)

    @property
    def samples(self) -> list[tuple[int, int]]:
        """The distribution of all stored words."""
        return [entry for run in self.runs for entry in run.sample]

    def longest(self, side: int) -> int:
        """The class of the longest interval that is stored of a side; 0 without any."""
        blocks = (block for run in self.runs for piece in run.pieces for block in piece.blocks[side])
        return max((b.length_class for b in blocks if b.length_class not in (None, NO_CLASS)), default=0)

    def kept(self, horizons: Horizons, policy: MergePolicy) -> slice:
        """The runs that the next version keeps; older and newer runs are folded into its new run."""
        if policy.whole:
            return slice(0, 0)
        statistics = [run.statistics for run in self.runs]
        end = first_folded(statistics, horizons(self.clocks), self.fresh, policy)
        left, right = (None if at is None else at + step for at, step in zip(self.clocks, self.pace, strict=True))
        return slice(spent(statistics[:end], horizons((left, right)), self.fresh, policy), end)

    def to_json(self) -> bytes:
        """The bytes of the manifest file."""
        body = {
            "batch": self.batch,
            "epoch": self.epoch,
            "clocks": self.clocks,
            "fresh": self.fresh,
            "fresh_sample": self.fresh_sample,
            "late": dict(self.late),
            "wanted": self.wanted,
            "pace": self.pace,
            "skew": self.skew,
            **({} if self.counts is None else {"counts": self.counts}),
            **({"overflowed": self.overflowed} if self.overflowed else {}),
            "runs": [
                {
                    "batch": run.batch,
                    "extents": [e.facts for e in (*run.statistics, *run.others)],
                    "sample": run.sample,
                    "pieces": [
                        {"file": p.file, "blocks": [[b.packed() for b in part] for part in p.blocks]}
                        for p in run.pieces
                    ],
                }
                for run in self.runs
            ],
        }
        text = json.dumps(body, separators=(",", ":"), sort_keys=True).encode()
        return b"%s\n%08x" % (text, zlib.crc32(text))

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """The manifest in a file; raises ValueError, KeyError or TypeError for anything else."""
        text, _, checksum = text.rpartition(b"\n")
        if b"%08x" % zlib.crc32(text) != checksum:
            raise ValueError
        body = json.loads(text)
        left, right = body["clocks"]
        runs = tuple(_run(run["batch"], run["extents"], run["sample"], run["pieces"]) for run in body["runs"])
        fresh = tuple((word, rows) for word, rows in body["fresh_sample"])
        wanted, pace, counts = body["wanted"], body.get("pace", (0, 0)), body.get("counts")
        return cls(
            body["batch"], body["epoch"], (left, right), body["fresh"], body["late"], runs, fresh, wanted,
            (pace[0], pace[1]), body.get("skew", 1000), None if counts is None else (counts[0], counts[1]),
            body.get("overflowed", 0),
        )  # fmt: skip


EMPTY = Manifest(-1, 0, (None, None), 0, {}, ())
"""The manifest before the first batch."""


def _run(batch: int, statistics: Any, sample: Any, pieces: Any) -> StoredRun:
    left, right, *others = (RunStatistics.of(part) for part in statistics)
    return StoredRun(
        batch,
        (left, right),
        tuple((word, rows) for word, rows in sample),
        tuple(PieceRef(p["file"], tuple(map(Block.unpacked, p["blocks"]))) for p in pieces),
        tuple(others),
    )


def assemble(
    base: Manifest,
    pieces: Sequence[tuple[str, Mapping[str, Any]]],
    horizons: Horizons,
    merges: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> Manifest:
    """The version after `base`, from its pieces: (file, footer), in the order of their ranges.

    `merges` are the files, with footers, that replace the runs they were merged from.
    """
    footers = [footer for _, footer in pieces]
    batch, epoch = footers[0]["batch"], footers[0]["epoch"]
    clocks = _clocks(base, footers)
    folded = set(footers[0]["folded"])
    facts = footers[0].get("facts")
    if any(set(f["folded"]) != folded or f["batch"] != batch or f.get("facts") != facts for f in footers):
        raise CheckpointError(f"the pieces of version {batch} of the window log disagree; start with a new checkpoint")
    horizon = horizons(clocks)
    kept = [run for run in _swapped(base.runs, merges) if run.batch not in folded and run.lives(horizon)]
    if ended := bool(footers[0].get("ended")):
        # What follows the end of input is joined with nothing from before it.
        kept, clocks = [], (None, None)
    late = dict(base.late)
    for footer in footers:
        for reason, rows in footer["late"].items():
            late[reason] = late.get(reason, 0) + rows
    new = _made(batch, pieces)
    runs = (*kept, new) if new.pieces and not ended else tuple(kept)
    fresh = sum(f["fresh"] for f in footers)
    left, right = (0 if a is None or b is None else b - a for a, b in zip(base.clocks, clocks, strict=True))
    sample, wanted = _sample(footers, "fresh_sample"), footers[0].get("wanted")
    skew = 1000 * max(f["fresh"] for f in footers) * len(footers) // fresh if fresh else 1000
    counts = footers[0].get("counts")
    counts = None if counts is None else (counts[0], counts[1])
    overflowed = base.overflowed + sum(footer.get("overflowed", 0) for footer in footers)
    return Manifest(batch, epoch, clocks, fresh, late, runs, sample, wanted, (left, right), skew, counts, overflowed)


def _made(batch: int, pieces: Sequence[tuple[str, Mapping[str, Any]]]) -> StoredRun:
    """The run that consists of `pieces`; a run without rows has none."""
    footers = [footer for _, footer in pieces]
    return StoredRun(
        batch,
        (_statistics(footers, 0), _statistics(footers, 1)),
        _sample(footers, "sample"),
        tuple(
            PieceRef(file, tuple(map(Block.unpacked, footer["blocks"])))
            for file, footer in pieces
            if any(footer["blocks"])
        ),
        tuple(_statistics(footers, part) for part in range(2, len(footers[0]["extents"]))),
    )


def _swapped(runs: Sequence[StoredRun], merges: Sequence[tuple[str, Mapping[str, Any]]]) -> list[StoredRun]:
    """The runs, with merged runs in place of their inputs."""
    out = list(runs)
    for file, footer in merges:
        keys = [run.key for run in out]
        begin = keys.index(footer["inputs"][0])
        merged_run = _made(footer["last"], [(file, footer)])
        out[begin : begin + len(footer["inputs"])] = [merged_run] if merged_run.pieces else []
    return out


def _sample(footers: Sequence[Mapping[str, Any]], name: str) -> tuple[tuple[int, int], ...]:
    entries = [(w, n) for footer in footers for w, n in footer[name]]
    return tuple(thinned(entries, max(SAMPLE, 2 * len(footers))))


def _clocks(base: Manifest, footers: Sequence[Mapping[str, Any]]) -> Clocks:
    left, right = (
        max((c for c in (base.clocks[side], *(f["clocks"][side] for f in footers)) if c is not None), default=None)
        for side in (0, 1)
    )
    return left, right


def _statistics(footers: Sequence[Mapping[str, Any]], side: int) -> RunStatistics:
    pieces = [RunStatistics.of(footer["extents"][side]) for footer in footers if footer["extents"][side][0]]
    if not pieces:
        return NOTHING
    rows, oldest, newest = sum(e.rows for e in pieces), min(e.oldest for e in pieces), max(e.newest for e in pieces)
    ages: tuple[int, ...] = ()
    # Versions before had one age between the oldest and the newest, or none.
    if len({len(e.ages) for e in pieces}) == 1:
        ages = tuple(
            sum(age * e.rows for age, e in zip(part, pieces, strict=True)) // rows
            for part in zip(*(e.ages for e in pieces), strict=True)
        )
    return RunStatistics(rows, oldest, newest, ages)
