"""A test that hangs ends, and shows where every thread stood."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HANGING = """
import threading

def wait_in_a_thread():
    threading.Event().wait()

def test_that_never_ends():
    threading.Thread(target=wait_in_a_thread, daemon=True).start()
    threading.Lock().acquire()
    wait = threading.Event()
    wait.wait()
"""


def test_every_test_has_a_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < int(pytestconfig.getini("timeout")) <= 900
    assert pytestconfig.getini("timeout_method") == "thread"


def test_a_test_that_hangs_is_ended_with_the_stacks_of_all_threads(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=1", "--timeout-method=thread"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode
    dump = done.stdout + done.stderr
    assert "wait_in_a_thread" in dump
    assert "test_that_never_ends" in dump
