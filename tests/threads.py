"""Steps that run at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

YIELDS_FORCED = {"STREAMJOIN_FORCED_YIELDS": "3"}
"""The environment of kernels that give way at every access to shared memory."""


def run_threads(steps: Sequence[Callable[[], object]]) -> None:
    """Run each step in a thread of its own, started in this order; raises the first error."""
    errors: list[BaseException] = []

    def run(step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def check_that_runs_hold(environment: Mapping[str, str], module: str, *arguments: str) -> None:
    """Run a module of many runs by threads in a process with this environment; it says "held" at its end."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True, text=True, timeout=540, cwd=Path(__file__).parents[1], env={**os.environ, **environment},
    )  # fmt: skip
    assert done.stdout == "held\n", done.stderr
