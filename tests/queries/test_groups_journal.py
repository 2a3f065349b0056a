"""Open groups in the engine's log: kills at any write, restarts, pauses, silence, and the answer of a create."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import ParquetSink, Settings
from streamjoin.model.errors import StreamJoinError
from tests.queries.journal_cases import LEFT, RIGHT, Killed, killed_at, table
from tests.queries.looped import Looped, read_back

PAIRS = "FROM l x JOIN r y WITHIN 3 UNITS ON x.k = y.k GROUP BY x.k, "
QUERIES = {
    "small": f"SELECT window_end, x.k AS k, count(*) AS n, sum(y.p) AS s {PAIRS}TUMBLE(x.t, 10)",
    "slid": f"SELECT window_end, x.k AS k, max(y.p) AS n, avg(x.p) AS s {PAIRS}HOP(x.t, 5, 20)",
    "alone": "SELECT window_end, x.k AS k, count(*) AS n, min(x.p) AS s FROM l x GROUP BY x.k, TUMBLE(x.t, 15)",
}
BATCHES: list[dict[str, pa.Table]] = [
    {"l": table((1, 1, 0), (2, 2, 1)), "r": table((1, 10, 0), (2, 30, 1))},
    {"r": table((2, 20, 3), (1, 40, 6)), "l": table((1, 3, 6), (2, 4, 9))},
    {"l": table((2, 5, 14), (1, 5, 15)), "r": table((2, 7, 13), (1, 8, 17))},
    {"l": table((1, 6, 20)), "r": table((1, 50, 20), (1, 51, 21))},
    {"l": table((1, 9, 34)), "r": table((1, 80, 33))},
    {"l": table((9, 9, 190)), "r": table((8, 80, 190))},
]


class Workload:
    """Drives the batches through restarts; the last query is created in mid-window."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run: Looped | None = None

    def steps(self) -> None:
        run = self.run = self.run or Looped(self.directory / "checkpoint", Settings(future=None))
        run.begin(LEFT, RIGHT)
        for number, batch in enumerate(BATCHES):
            if number == 0:
                self.create("small", "alone")
            if number == 1:
                self.create("slid")
            run.go_on(number, batch)

    def create(self, *names: str) -> None:
        assert self.run is not None
        for name in names:
            if name not in self.run.catalog.entries:
                self.run.create(name, QUERIES[name], ParquetSink(str(self.directory / name)))

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        assert self.run is not None and self.run.failure is None
        self.run.stop()
        return {name: sorted(read_back(self.directory / name, ("window_end", "k", "n", "s"))) for name in QUERIES}


def test_every_group_once_wherever_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calm = Workload(tmp_path / "calm")
    calm.steps()
    wanted = calm.rows()
    assert wanted["small"][:3] == [(10, 1, 2, 50), (10, 2, 2, 50), (20, 1, 1, 8)]
    assert wanted["alone"][0] == (15, 1, 2, 1) and sum(n for _, _, n, _ in wanted["alone"]) == 8
    assert [row[0] for row in wanted["slid"]][:2] == [25, 25]
    for number, write in enumerate(range(8, 62, 5)):
        killed = Workload(tmp_path / f"killed at {write}")
        with killed_at(write, bool(number % 2), monkeypatch):
            with contextlib.suppress(Killed, StreamJoinError):
                killed.steps()
            if killed.run is not None:
                killed.run.abandon()
                killed.run = None
        killed.steps()
        assert killed.rows() == wanted, write
