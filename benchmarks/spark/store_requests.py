"""Requests of a small batch with the window log in an object store, by kind, beside the same batch on a path.

The tasks of a join run in this process, batch after batch, over a log on a local path or on S3 (moto in this process,
behind a counter). Spark's own files are not counted: `docs/guides/stores.md` says how they are written.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Context, Experiment, Finding, Judgement, Row
from benchmarks.report import plot_lines
from streamjoin.storage import settings
from streamjoin.storage.log import new_epoch
from streamjoin.storage.places import place
from tests.spark.joining import CASES, blueprint, in_process, stream, tables
from tests.stores.servers import Moto

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BATCHES, _ROWS = 12, 240
_KINDS = ("conditional PUT", "PUT", "POST", "DELETE", "LIST", "HEAD", "GET", "multipart", "directory marker")


class StoreRequests(Experiment):
    """Small batches per second and requests per batch, by where the log is."""

    title = "requests of a small batch, with the log on a path and on S3"
    measure = "batches_per_s"
    unit = "batches/s"
    repeats = 1

    def __init__(self) -> None:
        self._store: Moto | None = None

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Both places, with a few numbers of partitions."""
        return [{"partitions": n, "place": at} for n in ((2, 4) if quick else (1, 2, 4, 8)) for at in ("path", "S3")]

    def baseline(self, cell: Cell) -> Cell | None:
        """The path."""
        return None if cell["place"] == "path" else {**cell, "place": "path"}

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
        for number, sides in enumerate(tables(CASES[0], *stream(CASES[0], seed=context.seed, n=_ROWS), _BATCHES)):
            if number == 2:
                counted.clear()
                begin = time.perf_counter()
            before = counted.total()
            in_process(plan, root, number, sides, epoch)  # type: ignore[arg-type]
            most = max(most, counted.total() - before)
        took = time.perf_counter() - begin
        batches = _BATCHES - 2
        result = {
            "batches_per_s": batches / took,
            "requests_per_batch": counted.total() / batches,
            "most_requests": most,
            **{kind.replace(" ", "_"): counted[kind] / batches for kind in _KINDS},
        }
        if isinstance(root, Path):
            shutil.rmtree(root)
        return result

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Requests by the number of partitions."""
        stored = [row for row in rows if row["place"] == "S3"]
        plot_lines(figure, stored, x="partitions", y="requests_per_batch", by=["place"], ylabel="requests per batch")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The aim: at most 4 requests per batch, and 2 per partition."""
        results = []
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
