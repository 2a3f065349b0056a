"""Compiled kernels on disk: whom they serve, and when they are compiled anew."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import streamjoin
from streamjoin.kernels import disk_cache
from streamjoin.kernels.flags import is_compiled, kernel

PROGRAM = """
import numpy as np
from streamjoin.kernels.compiling import WATCH
from streamjoin.kernels.folder.indirect import twice_of
assert twice_of(np.arange(4)) == 12
print(WATCH.kernels)
"""
CALLEE = """
from streamjoin.kernels.flags import kernel

@kernel
def total_of(values):
    total = 0
    for value in values:
        total += value
    return total
"""
CALLER = """
from streamjoin.kernels.folder.direct import (
    total_of,
)
from streamjoin.kernels.flags import kernel

@kernel
def twice_of(values):
    return 2 * total_of(values)
"""


def environment_with(directory: Path) -> Path:
    """The package as another environment would have it, with two small kernels of its own."""
    package = Path(streamjoin.__file__).parent
    kernels = directory / "streamjoin" / "kernels"
    shutil.copytree(package / "kernels", kernels)
    shutil.copytree(package / "model", directory / "streamjoin" / "model")
    for file in package.glob("*.py"):
        shutil.copy(file, directory / "streamjoin")
    (kernels / "folder").mkdir()
    (kernels / "folder" / "direct.py").write_text(CALLEE)
    (kernels / "folder" / "indirect.py").write_text(CALLER)
    return directory


def compiled_in(directory: Path, cache: Path) -> int:
    variables = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True,
        env={**variables, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(directory)},
    )  # fmt: skip
    return int(done.stdout)


def test_environments_of_the_same_versions_share_kernels(tmp_path: Path) -> None:
    one, other = (environment_with(tmp_path / name) for name in ("one", "other"))
    assert compiled_in(one, tmp_path / "cache") == 2
    assert compiled_in(other, tmp_path / "cache") == 0
    # A changed callee compiles its caller anew, and leaves the other environment what it had.
    callee = other / "streamjoin" / "kernels" / "folder" / "direct.py"
    callee.write_text(callee.read_text().replace("total = 0", "total = 0 * 1"))
    assert compiled_in(other, tmp_path / "cache") == 2
    assert compiled_in(one, tmp_path / "cache") == 0


def add_one(values: np.ndarray) -> int:
    return values.size + 1


def test_a_damaged_file_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    values = np.arange(3)
    assert not is_compiled(kernel(add_one))
    assert kernel(add_one)(values) == 4
    (file,) = tmp_path.rglob("*.nbc")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert kernel(add_one)(values) == 4
    assert "can't be loaded" in caplog.text
    caplog.clear()
    again = kernel(add_one)
    assert is_compiled(again)
    assert again(values) == 4
    assert sum(again.stats.cache_hits.values()) == 1  # type: ignore[attr-defined]
    assert not caplog.records


def test_a_directory_that_cannot_be_written_to_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert kernel(add_one)(np.arange(3)) == 4
        assert kernel(add_one)(np.arange(4)) == 5
    assert [record.message.partition(" in ")[0] for record in caplog.records] == ["compiled kernels can't be kept"]


def test_a_kernel_depends_on_every_module_it_imports() -> None:
    of_trees = {f"trees.{name}" for name in ("pim", "css", "btree", "entries")}
    assert of_trees | {"machine", "flags"} <= disk_cache.needs("trees.pim")
    assert "trees.pim" not in disk_cache.needs("batch.sorting")
    # Every name that a kernel module imports is found, else it would depend on all of them.
    everything = disk_cache.needs("no such module")
    for module in everything:
        assert disk_cache.needs(module) < everything, module
