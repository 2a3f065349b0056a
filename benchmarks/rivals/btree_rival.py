"""The C++ join over B+-trees that `push_cost` and `sweep` run beside ours: compiled once with -O3, one thread."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

RIVAL = "C++ B+-tree"
_SOURCE = Path(__file__).parent / "btree_window_join.cpp"


def compiler() -> str | None:
    """A C++ compiler, where there is one."""
    return shutil.which("g++") or shutil.which("clang++")


def run_rival(
    scratch: Path, window: int, rows: int, pushes: int, *, band: int, spread: int, seed: int
) -> tuple[float, int]:
    """Join `pushes` batches of `rows` rows a side with full windows: the CPU seconds, and the number of result rows."""
    program = scratch / "btree_window_join"
    if not program.exists():
        command = [compiler() or "g++", "-O3", "-march=native", "-std=c++17", "-o", str(program), str(_SOURCE)]
        subprocess.run(command, check=True, timeout=300)
    command = [str(program), *map(str, (window, rows, pushes, band, spread, seed))]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    return float(output.split()[0]), int(output.split()[1])
