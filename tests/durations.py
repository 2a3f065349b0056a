"""How long each test and each file took, in seconds and in seconds of the processor, over all workers.

`make test` asks for it with `--slowest`: the figures are then stored in `build/durations.json`, and the slowest tests
and files are printed. On a machine that is shared, the processor's seconds are the ones to judge by: they count this
process, the children it has waited for and the ones that still run, a Spark session's Java among them.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

STORED = Path(__file__).parents[1] / "build" / "durations.json"
TESTS, FILES = 30, 15
_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds() -> float:
    """Of this process and all that descend from it, so far."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system + sum(map(_used, _children(os.getpid())))


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        # Gone meanwhile, or a system without these files: what it used is counted when it has been waited for.
        pass
    return found


def _used(process: int) -> float:
    """Of a child that still runs, with its own children."""
    try:
        # The name in brackets may hold blanks; what follows it is numbers.
        numbers = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, numbers[11:15])) / _TICKS + sum(map(_used, _children(process)))


class Durations:
    """Notes what each phase of a test used, where it runs; gathers that where the run is summed up."""

    def __init__(self) -> None:
        self._before = processor_seconds()
        self.tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def pytest_collection_finish(self) -> None:
        """What finding the tests took is no test's."""
        self._before = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        now = processor_seconds()
        # A child that ends without being waited for is no longer counted, what it used before included.
        report.processor = max(0.0, now - self._before)
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        taken = self.tests[report.nodeid]
        taken[0] += report.duration
        taken[1] += getattr(report, "processor", 0.0)

    def files(self) -> dict[str, list[float]]:
        found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for test, taken in self.tests.items():
            file = found[test.partition("::")[0]]
            file[0] += taken[0]
            file[1] += taken[1]
        return found

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files = self.files()
        STORED.parent.mkdir(exist_ok=True)
        stored = {
            "files": {name: [round(n, 2) for n in taken] for name, taken in _slowest(files)},
            "tests": {name: [round(n, 2) for n in taken] for name, taken in _slowest(self.tests)},
        }
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
        for title, found, most in (("tests", self.tests, TESTS), ("files", files, FILES)):
            terminalreporter.section(f"slowest {title}: seconds, seconds of the processor")
            for name, taken in _slowest(found)[:most]:
                terminalreporter.write_line(f"{taken[0]:8.1f} {taken[1]:8.1f}  {name}")
        seconds, processor = (sum(taken[n] for taken in files.values()) for n in (0, 1))
        terminalreporter.write_line(f"{seconds:8.1f} {processor:8.1f}  in all, over the workers; stored in {STORED}")


def _slowest(taken: dict[str, list[float]]) -> list[tuple[str, list[float]]]:
    return sorted(taken.items(), key=lambda one: -one[1][0])
