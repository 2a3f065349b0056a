"""An executor whose batches end when the test says so."""

from __future__ import annotations

import threading

from streamjoin.adhoc.core.arrivals import Arrived
from streamjoin.adhoc.core.contract import Core
from streamjoin.adhoc.engine.executor import InProcess, Outputs
from tests.service.ticking import TickingEngine


class HeldRows(InProcess):
    """Computes rows once `released` is set; `entered` is set when a batch has come so far."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def results(self, core: Core, arrived: Arrived) -> Outputs:
        if arrived.buckets:
            self.entered.set()
            self.released.wait()
        return super().results(core, arrived)


def hold(engine: TickingEngine) -> HeldRows:
    """Have the next batch with tuples wait."""
    held = HeldRows()
    engine._loop.executor = held
    return held
