"""`make cluster`: joins on a cluster whose network is slow, loses packets and breaks; the output must be exact.

Two runs over the same input: one undisturbed, and one with a delay of 20 ms and a loss of 1 %, in which a worker's host
is cut off for 30 s, another one loses its power, and the driver's host is cut off from the store. A driver that fails
is started again, as a supervisor would. Both outputs are compared with the definition and with each other.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.archive import write_archive
from tests.cluster.machines import HOSTS, Machines, free_namespace_reason
from tests.cluster.network import NamespacesUnavailableError, Network
from tests.spark.every_kind import BATCHES, check_output, check_same, write_input
from tests.spark.exactly_once_driver import KINDS

PARTITION_S = 30.0
STORE_CUT_S = 20.0
PATIENCE = 1800.0
"""Seconds after which a run is taken for stuck."""
MOST_STARTS = 10
LAP = 5


def main() -> int:
    """Run both; returns the exit status."""
    # Whatever ends this program, no host stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    reason = free_namespace_reason() if os.geteuid() == 0 else "root is needed to make namespaces"
    if reason is not None:
        return _unavailable(reason)
    try:
        with tempfile.TemporaryDirectory(prefix="streamjoin-cluster-") as scratch, Network(*HOSTS) as network:
            return _on(network, Path(scratch))
    except NamespacesUnavailableError as error:
        return _unavailable(str(error))


def _unavailable(reason: str) -> int:
    _tell(f"not run: this machine does not let us make a network of namespaces ({reason})")
    return 3


def _on(network: Network, directory: Path) -> int:
    archive = directory / "environment.zip"
    size = write_archive(archive)
    _tell(f"{len(HOSTS)} hosts; an archive of {size >> 20} MiB brings Python's packages to the executors")
    undisturbed, disturbed = directory / "undisturbed", directory / "disturbed"
    for target in (undisturbed, disturbed):
        write_input(target, LAP)
    with Machines(network, directory, archive) as machines:
        Run(machines, undisturbed).to_the_end()
        check_output(undisturbed, LAP)
        _tell("undisturbed: the output is that of the definition")
        run = Run(machines, disturbed)
        run.disturb()
        check_output(disturbed, LAP)
        check_same(disturbed, undisturbed)
        frames = f"{network.switch.lost} of {network.switch.passed} frames were lost"
        _tell(f"disturbed: the same output; {frames}, and the driver was started {run.starts} times")
    return 0


class Run:
    """The driver's program over one directory, as often as it is started."""

    def __init__(self, machines: Machines, directory: Path) -> None:
        self._machines = machines
        self._directory = directory
        self._began = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def to_the_end(self) -> None:
        """Run it until it has joined everything."""
        self._until(lambda: False)

    def disturb(self) -> None:
        """Break the network and a host while it runs."""
        switch = self._machines.network.switch
        self._until_batches(2 * len(KINDS))
        switch.delay, switch.loss = 0.020, 0.01
        _tell("20 ms of delay, 1 % of loss")
        self._until_batches(len(KINDS))
        switch.cut("worker-1")
        _tell(f"worker-1 is cut off for {PARTITION_S:.0f} s")
        self._until_after(PARTITION_S)
        switch.heal()
        self._until_batches(len(KINDS))
        self._machines.kill("worker-2")
        _tell("worker-2 is killed")
        self._until_batches(len(KINDS))
        switch.cut("driver", ["store"])
        _tell(f"the driver is cut off from the store for {STORE_CUT_S:.0f} s")
        self._until_after(STORE_CUT_S)
        switch.heal()
        ended_early = self._process is None
        self.to_the_end()
        assert not ended_early, "the input was joined before the last disturbance ended: use more batches"

    def _batches(self) -> int:
        """How many batches are in the output of all joins."""
        return sum(len(list(self._directory.glob(f"{kind}/out/_spark_metadata/[0-9]*"))) for kind in KINDS)

    def _until_batches(self, more: int) -> None:
        wanted = min(self._batches() + more, BATCHES * len(KINDS))
        self._until(lambda: self._batches() >= wanted)

    def _until_after(self, seconds: float) -> None:
        ending = time.monotonic() + seconds
        self._until(lambda: time.monotonic() >= ending)

    def _until(self, reached: Callable[[], bool]) -> None:
        """Run the program, again when it fails, until something is reached or it has joined everything."""
        while not reached():
            if self._process is None:
                if self._batches() == BATCHES * len(KINDS) and self.starts:
                    return
                self._process = self._machines.drive(self._directory, self._directory.name)
                self.starts += 1
                assert self.starts <= MOST_STARTS, self._machines.log("driver")[-6000:]
            try:
                status = self._process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                assert time.monotonic() - self._began < PATIENCE, self._machines.log("driver")[-6000:]
                continue
            self._process = None
            if status:
                _tell(f"the driver failed: {_reason(self._machines.log('driver'))}; it is started again")
            elif self._batches() == BATCHES * len(KINDS):
                return


def _reason(log: str) -> str:
    """The last error in a driver's log, without the stack of Java's."""
    lines = [line for line in log.splitlines() if re.match(r"\S*(Error|Exception|Failure)\b", line)]
    return lines[-1][:300] if lines else "without a word"


def _tell(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
