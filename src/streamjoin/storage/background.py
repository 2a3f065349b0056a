"""Merging runs in the background: a thread of the driver writes them, and they are swapped in between batches.

A merge reads runs of a published version, which never change, and writes their live rows as one sorted file next to
them. When the first task of a later batch finds the file complete and all of its input runs still present, it records
the merge in its piece, and the manifest after that batch lists the merged run instead of its inputs (PIM-Tree's
nonblocking merge). A merge that finishes too late is ignored and removed. When a merge is swapped in changes no result.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import numpy as np

from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.types.asof import RightByKey
from streamjoin.model.errors import StreamJoinError
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog, has_log
from streamjoin.storage.manifest import NOTHING, Clocks, Manifest, StoredRun
from streamjoin.storage.merging import due
from streamjoin.storage.ranges import LEAST, WordRange, sample
from streamjoin.storage.segments import Segment, block_rows, concatenated, layout, stored

EVERYTHING = WordRange((LEAST, 0), None)
_SAMPLE = 256

_logger = logging.getLogger(__name__)


class Merger:
    """Merges the log of one join of a running query, at most one merge at a time."""

    def __init__(self, blueprint: Blueprint, log: WindowLog) -> None:
        self._blueprint = blueprint
        self._log = log
        self._busy = threading.Lock()
        self._stopped = False

    def after(self, batch: int) -> None:
        """Start the merge that is due after `batch`, unless one is running."""
        if self._stopped or not self._busy.acquire(blocking=False):
            return
        threading.Thread(target=self._work, args=(batch,), name="streamjoin-merge", daemon=True).start()

    def stop(self) -> None:
        """Start no more merges, and wait for the running one."""
        self._stopped = True
        with self._busy:
            pass

    def _work(self, batch: int) -> None:
        try:
            merge_due(self._blueprint, self._log, batch)
        except (StreamJoinError, OSError) as error:
            # The query's tasks report a damaged log themselves; if the disk is full, only the merge is lost.
            _logger.info("a merge of the window log in %s was abandoned: %s", self._log.root, error)
        finally:
            self._busy.release()


def merge_due(blueprint: Blueprint, log: WindowLog, batch: int) -> bool:
    """Merge what is due after `batch`, or after a later one where batches went on; whether there was anything.

    A merge that waits to be swapped in comes first: another one would take the same runs, and more space.
    """
    manifest = log.latest(batch)
    if log.merges(manifest, set()):
        return False
    horizon = blueprint.horizons(manifest.clocks)
    runs = manifest.runs[manifest.kept(blueprint.horizons, blueprint.policy)]
    bounds = due([run.statistics for run in runs], horizon, blueprint.policy)
    if bounds is None:
        return False
    _write(blueprint, log, manifest, runs[slice(*bounds)], horizon)
    return True


def _write(
    blueprint: Blueprint, log: WindowLog, manifest: Manifest, runs: Sequence[StoredRun], horizon: tuple[int, int]
) -> None:
    parts = []
    for part in blueprint.parts:
        counted = blueprint.counted[part % 2]
        stored_segments = stored(log, blueprint, manifest, runs, part, EVERYTHING, shared=False)
        live = [segment.since(horizon[part % 2], counted) for segment in stored_segments]
        run = _in_order([segment for segment in live if segment.n])
        supersedes = part == 1 and run is not None and blueprint.supersedes
        parts.append(_needed(blueprint, run, manifest.clocks) if supersedes and run is not None else run)
    statistics = [
        (NOTHING if run is None else run.statistics(blueprint.counted[part % 2])).facts
        for part, run in zip(blueprint.parts, parts, strict=True)
    ]
    facts = {
        "inputs": [run.key for run in runs],
        "last": runs[-1].batch,
        "extents": statistics,
        "sample": [entry for run in parts[:2] if run is not None for entry in sample(run.words, _SAMPLE)],
    }
    blocks = [[] if run is None else block_rows(run, layout(blueprint, part)) for part, run in enumerate(parts)]
    if has_log(log.root):
        log.publish_merge(manifest.batch, blocks, facts)


def _in_order(segments: Sequence[Segment]) -> Segment | None:
    """All rows by word; among equal words, rows of earlier segments come first."""
    if not segments:
        return None
    rows = concatenated(segments)
    # The stable sort is a merge sort: it uses the sorted runs in its input, and it releases the GIL.
    return rows.take(np.argsort(rows.words, kind="stable"))


def _needed(blueprint: Blueprint, right: Segment, clocks: Clocks) -> Segment:
    """The right rows of an as-of join by key that are not superseded by others of them."""
    bound = blueprint.bound
    if bound.match is None or right.seqs is None:
        raise AssertionError("no rows of an as-of join")
    if bound.settled and len(bound.keys) == 1:
        # The words of the rows are their keys.
        by_key = RightByKey(right.words, right.ticks, right.seqs, nothing=None)
    else:
        by_key = RightByKey(KeyNumbers(bound.keys).number(1, right.rows), right.ticks, right.seqs)
    return right.take(by_key.needed(bound.match, blueprint.earliest_left(clocks)))


class Mergers:
    """The mergers of all running queries of this process, by the query's run id."""

    def __init__(self) -> None:
        self._by_run: dict[str, list[Merger]] = {}
        self._lock = threading.Lock()

    def add(self, run: str, merger: Merger) -> None:
        """Register a join of a query that starts."""
        with self._lock:
            self._by_run.setdefault(run, []).append(merger)

    def progressed(self, run: str, batch: int) -> None:
        """Start the merges that are due after `batch` of a query."""
        for merger in self._by_run.get(run, ()):
            merger.after(batch)

    def ended(self, run: str) -> None:
        """Stop the mergers of a query that has stopped."""
        with self._lock:
            mergers = self._by_run.pop(run, [])
        for merger in mergers:
            merger.stop()
