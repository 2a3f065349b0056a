"""Batches that end when the test says so."""

from __future__ import annotations

import threading
from typing import Any

from streamjoin.queries.core.arrivals import Arrived
from tests.service.ticking import TickingEngine


class HeldRows:
    """Computes rows once `released` is set; `entered` is set when a batch has come so far."""

    def __init__(self, rows_out: Any) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        self._results = rows_out.results
        rows_out.results = self.results

    def results(self, arrived: Arrived) -> Any:
        if arrived.buckets:
            self.entered.set()
            self.released.wait()
        return self._results(arrived)


def hold(engine: TickingEngine) -> HeldRows:
    """Have the next batch with tuples wait."""
    return HeldRows(engine._loop.rows_out)
