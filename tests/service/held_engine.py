"""An executor whose batches end when the test says so."""

from __future__ import annotations

import threading
from typing import Any

from streamjoin.queries.core.arrivals import Arrived
from streamjoin.queries.engine.executor import InProcess, Outputs, TupleCore
from tests.service.ticking import TickingEngine


class HeldRows(InProcess):
    """Computes rows once `released` is set; `entered` is set when a batch has come so far."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def results(self, core: TupleCore, arrived: Arrived) -> Outputs:
        if arrived.buckets:
            self.entered.set()
            self.released.wait()
        return super().results(core, arrived)


def hold(engine: TickingEngine) -> HeldRows:
    """Have the next batch with tuples wait."""
    held = HeldRows()
    rows_out: Any = engine._loop.rows_out
    rows_out.executor = held
    return held
