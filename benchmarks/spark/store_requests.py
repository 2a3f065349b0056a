"""Requests of a small batch with the window log in an object store, by kind, beside the same batch on a path.

The tasks of a join run in this process, batch after batch, over a log on a local path or on S3 (moto in this process,
behind a counter), with up to a thousand ranges. Spark's own files are not counted: `docs/guides/stores.md` says how
they are written. Every process parses the manifest once a batch; the processor time is that of all tasks, one after the
other.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Judgement, Row, judge_aim
from benchmarks.report_lines import draw_lines
from streamjoin.storage import settings
from streamjoin.storage.log import WindowLog, new_epoch
from streamjoin.storage.manifest import Manifest
from streamjoin.storage.places import place
from tests.spark.joining import CASES, blueprint, in_process, stream, tables
from tests.stores.servers import Moto

_BATCHES, _ROWS, _ROWS_A_RANGE = 12, 240, 30
_GROWTH = 1.2
_KINDS = ("conditional PUT", "PUT", "POST", "DELETE", "LIST", "HEAD", "GET", "multipart", "directory marker")


class StoreRequests(Experiment):
    """Small batches per second and requests per batch, by where the log is."""

    title = "requests of a small batch, with the log on a path and on S3"
    measure = "batches_per_s"
    unit = "batches/s"
    repeats = 1
    against: ClassVar = {"place": "path"}

    def __init__(self) -> None:
        self._store: Moto | None = None

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Both places, with a few numbers of partitions."""
        numbers = (2, 4) if quick else (1, 2, 4, 8, 100, 1000)
        return [{"partitions": n, "place": at} for n in numbers for at in ("path", "S3")]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the batches; those after the second one count, because the first ones have nothing to remove."""
        os.environ["STREAMJOIN_CACHE_DIR"] = str(context.scratch / "cache")
        if self._store is None:
            self._store = Moto()
            self._store.use()
        counted = self._store.server.requests
        name = uuid.uuid4().hex
        root = place(self._store.location(name) if cell["place"] == "S3" else str(context.scratch / name))
        plan = blueprint(CASES[0], cell["partitions"])
        epoch = new_epoch(root, plan.description)
        most = 0
        rows = max(_ROWS, _ROWS_A_RANGE * cell["partitions"])
        for number, sides in enumerate(tables(CASES[0], *stream(CASES[0], seed=context.seed, n=rows), _BATCHES)):
            if number == 2:
                counted.clear()
                begin, spent = time.perf_counter(), time.process_time()
            before = counted.total()
            in_process(plan, root, number, sides, epoch, rows_a_task=1 << 20)  # type: ignore[arg-type]
            most = max(most, counted.total() - before)
        took, spent = time.perf_counter() - begin, time.process_time() - spent
        batches = _BATCHES - 2
        manifest = WindowLog(root, epoch, plan).version(_BATCHES - 1)
        text = manifest.to_json()
        parsing = time.process_time()
        Manifest.from_json(text)
        result = {
            "batches_per_s": batches / took,
            "requests_per_batch": counted.total() / batches,
            "most_requests": most,
            "cpu_ms_per_range": 1000 * spent / batches / cell["partitions"],
            "manifest_kb": len(text) / 1000,
            "parse_ms": 1000 * (time.process_time() - parsing),
            "largest_range": manifest.skew / 1000,
            **{kind.replace(" ", "_"): counted[kind] / batches for kind in _KINDS},
        }
        if isinstance(root, Path):
            shutil.rmtree(root)
        return result

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Requests by the number of partitions."""
        stored = [row for row in rows if row["place"] == "S3"]
        draw_lines(figure.subplots(), stored, x="partitions", y="requests_per_batch", by=("place",), log=True)

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """At most 4 requests per batch, and 2 per partition; what a range costs does not grow with their number."""
        results = []
        by_number = {row["partitions"]: row["cpu_ms_per_range"] for row in rows if row["place"] == "path"}
        few, most = (min(by_number, key=lambda n: abs(n - 100)), max(by_number)) if by_number else (0, 0)
        if most > few:
            share = by_number[most] / by_number[few]
            results.append(
                judge_aim(
                    f"a range among {most:,} costs what one among {few:,} does",
                    f"{share:.2f} times the processor time, {by_number[most]:.1f} ms",
                    "at most 1.2 times",
                    met=share <= _GROWTH,
                )
            )
        for row in rows:
            if row["place"] == "S3":
                aim = 4 + 2 * row["partitions"]
                met = Judgement.MET if row["most_requests"] <= aim else Judgement.MISSED
                ours = f"{row['requests_per_batch']:.1f} on average, at most {row['most_requests']:g}"
                claim = f"{row['partitions']} partitions: at most {aim} requests per batch"
                results.append(Finding(claim, ours, "every batch is within the aim", met))
        return results

    def close(self) -> None:
        """Stop the store."""
        settings.use(None)
        if self._store is not None:
            self._store.stop()
            self._store = None


EXPERIMENT = StoreRequests()
