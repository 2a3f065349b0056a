"""What `--slowest` stores and prints: phases of a test put together, files out of their tests, children counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import durations


def test_phases_and_tests_are_put_together_and_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "STORED", tmp_path / "build" / "durations.json")
    noted = durations.Durations()
    for test, seconds, used in (
        ("a.py::x", 1.0, 0.5),
        ("a.py::x", 2.0, 0.5),
        ("b.py::y", 5.0, 4.0),
        ("a.py::z", 4.0, 3),
    ):
        report: Any = SimpleNamespace(nodeid=test, duration=seconds, processor=used)
        noted.pytest_runtest_logreport(report)
    said: list[str] = []
    reporter: Any = SimpleNamespace(section=said.append, write_line=said.append)
    noted.pytest_terminal_summary(reporter)
    assert json.loads((tmp_path / "build" / "durations.json").read_text()) == {
        "files": {"a.py": [7.0, 4.0], "b.py": [5.0, 4.0]},
        "tests": {"b.py::y": [5.0, 4.0], "a.py::z": [4.0, 3.0], "a.py::x": [3.0, 1.0]},
    }
    assert [line.split()[-1] for line in said[1:4]] == ["b.py::y", "a.py::z", "a.py::x"]
    assert [line.split()[:3] for line in said[5:7]] == [["7.0", "4.0", "a.py"], ["5.0", "4.0", "b.py"]]


def test_children_count_while_they_run_and_when_they_have_ended() -> None:
    program = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    before = durations.processor_seconds()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert durations.processor_seconds() - before >= 0.2
        child.communicate(b"\n")
    assert durations.processor_seconds() - before >= 0.2
