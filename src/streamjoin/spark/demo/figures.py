"""The demo's figures of a running join, from its files and from Spark's progress reports.

Nothing here takes part in the join. A match counts once it can be read: when the sink's log names its file. Its latency
starts when the feed's files with the later of its two rows are complete.
"""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamjoin.spark.runtime.checkpoints import log_root
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.places import Place, in_order

COLUMNS = (
    "result_time",
    "scheduled",
    "airport",
    "destination",
    "carrier",
    "flight",
    "delay",
    "wind",
    "visibility",
    "observed",
)
HISTORY = 40
RATE_SECONDS = 5.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Window:
    """The window log according to its newest manifest; expired rows stay in it until a merge drops them."""

    flights: int = 0
    weather: int = 0
    size: int = 0
    runs: int = 0
    late: int = 0


@dataclass
class DemoFigures:
    """The state of a run; rates are those of the last seconds, totals those of the whole run."""

    elapsed: float = 0.0
    flights: int = 0
    weather: int = 0
    matches: int = 0
    rates: tuple[float, float, float] = (0.0, 0.0, 0.0)
    latency: tuple[float, float] | None = None
    """Median and 95th percentile over all matches, in seconds."""
    window: Window = field(default_factory=Window)
    batches: int = 0
    batch_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    match_rates: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    newest: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = False

    @property
    def batch_median(self) -> float:
        """The median duration of a batch in seconds."""
        return statistics.median(self.batch_seconds) if self.batch_seconds else 0.0


class Watch:
    """Reads new entries of the sink's log, the window log and Spark's progress at every `update`."""

    def __init__(self, output: Path, start: datetime, every: timedelta) -> None:
        self.figures = DemoFigures()
        self._output = output
        self._opening_us = (start - _EPOCH) // timedelta(microseconds=1)
        self._every_us = every // timedelta(microseconds=1)
        self._committed = -1
        self._files: set[str] = set()
        self._seen: set[int] = set()
        self._weights: list[tuple[float, int]] = []
        self._samples: deque[tuple[float, int, int, int]] = deque()
        self._manifest: Place | None = None
        self._next_point = 1.0

    def update(self, elapsed: float, progress: Iterable[Mapping[str, Any]]) -> DemoFigures:
        """Read new entries; `elapsed` is the time since the feeds began."""
        figures = self.figures
        figures.elapsed = elapsed
        for batch in progress:
            self._take_progress(batch)
        for path in self._new_commits():
            self._take_commit(path)
        self._take_window()
        self._take_rates()
        return figures

    def _take_progress(self, batch: Mapping[str, Any]) -> None:
        """Read Spark's reports; an idle trigger is a batch without rows, with the number of the next batch."""
        if not batch["numInputRows"] or batch["batchId"] in self._seen:
            return
        self._seen.add(batch["batchId"])
        rows = {source["description"].rstrip("]").rsplit("/", 1)[-1]: source for source in batch["sources"]}
        self.figures.flights += rows["flights"]["numInputRows"]
        self.figures.weather += rows["weather"]["numInputRows"]
        self.figures.batches += 1
        self.figures.batch_seconds.append(batch["durationMs"]["triggerExecution"] / 1000)

    def _new_commits(self) -> list[Path]:
        """New entries of the sink's log, in order; every tenth repeats the earlier ones."""
        paths = {}
        for path in (self._output / "matches" / "_spark_metadata").glob("[0-9]*"):
            number = int(path.name.removesuffix(".compact"))
            if number > self._committed:
                paths[number] = path
        self._committed = max(paths, default=self._committed)
        return [paths[number] for number in sorted(paths)]

    def _take_commit(self, entry: Path) -> None:
        visible = entry.stat().st_mtime
        names = [json.loads(line)["path"].rsplit("/", 1)[-1] for line in entry.read_text().splitlines()[1:]]
        fresh = [name for name in names if name not in self._files]
        self._files.update(fresh)
        if not fresh:
            return
        rows = pa.concat_tables(pq.read_table(self._output / "matches" / name, columns=list(COLUMNS)) for name in fresh)
        if not rows.num_rows:
            return
        self.figures.matches += rows.num_rows
        self.figures.newest = newest(rows, 12)
        moments = rows.column("result_time").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
        slices, counts = np.unique((moments - self._opening_us) // self._every_us, return_counts=True)
        # The feeds write a slice one after the other, flights first, so no latency is too small.
        dropped = [(self._output / "flights" / f"{number:08d}.parquet").stat().st_mtime for number in slices]
        batch = [(visible - at, int(count)) for at, count in zip(dropped, counts, strict=True)]
        self._weights += batch
        self.figures.latencies.append(weighted(batch, (0.5,))[0])
        median, p95 = weighted(self._weights, (0.5, 0.95))
        self.figures.latency = median, p95

    def _take_window(self) -> None:
        versions = log_root(self._output / "checkpoint", "join") / "versions"
        try:
            latest = next(reversed(in_order(versions.glob("*/*.manifest"))), None)
            if latest is None or latest == self._manifest:
                return
            manifest = Manifest.from_json(latest.read_bytes())
        except FileNotFoundError:
            # The join pruned a version between the listing and the reading; the next update finds a newer one.
            return
        self._manifest = latest
        flights, weather = (sum(run.statistics[side].rows for run in manifest.runs) for side in (0, 1))
        blocks = [b for run in manifest.runs for piece in run.pieces for side in piece.blocks for b in side]
        late = sum(manifest.late.values())
        self.figures.window = Window(flights, weather, sum(b.length for b in blocks), len(manifest.runs), late)

    def _take_rates(self) -> None:
        figures = self.figures
        now = (figures.elapsed, figures.flights, figures.weather, figures.matches)
        self._samples.append(now)
        while len(self._samples) > 2 and self._samples[1][0] <= figures.elapsed - RATE_SECONDS:
            self._samples.popleft()
        then = self._samples[0]
        span = max(now[0] - then[0], 1e-9)
        flights, weather, matches = ((b - a) / span for a, b in zip(then[1:], now[1:], strict=True))
        figures.rates = flights, weather, matches
        if figures.elapsed >= self._next_point:
            self._next_point = figures.elapsed + 1.0
            figures.match_rates.append(matches)


def weighted(values: Sequence[tuple[float, int]], quantiles: Sequence[float]) -> list[float]:
    """Quantiles of values that each stand for a number of equal ones.

    >>> weighted([(3.0, 1), (1.0, 8), (2.0, 1)], (0.5, 0.9, 0.95))
    [1.0, 2.0, 3.0]
    """
    ordered = sorted(values)
    reached = np.cumsum([count for _, count in ordered])
    places = np.searchsorted(reached, [q * reached[-1] for q in quantiles])
    return [ordered[place][0] for place in places]


def newest(rows: pa.Table, number: int) -> list[dict[str, Any]]:
    """The latest matches, one per flight, the latest first."""
    ordered = rows.take(pc.sort_indices(rows, sort_keys=[("result_time", "descending")])[: 50 * number]).to_pylist()
    first = {(row["carrier"], row["flight"]): row for row in reversed(ordered)}
    return sorted(first.values(), key=lambda row: row["result_time"], reverse=True)[:number]
