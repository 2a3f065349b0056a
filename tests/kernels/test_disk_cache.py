"""Compiled kernels on disk: whom they serve, and when they are compiled anew."""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import streamjoin.jit
import streamjoin.kernels
from streamjoin.jit.disk_cache import KernelCache, SourceDigest
from streamjoin.jit.flags import is_compiled, kernel

PROGRAM = """
import numpy as np
from streamjoin.jit.compiling import WATCH
from streamjoin.kernels.folder.indirect import twice_of
assert twice_of(np.arange(4)) == 12
print(WATCH.kernels)
"""
CALLEE = """
from streamjoin.jit.flags import kernel

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
from streamjoin.jit.flags import kernel

@kernel
def twice_of(values):
    return 2 * total_of(values)
"""


def environment_with(directory: Path) -> Path:
    """The package as another environment would have it, with two small kernels of its own."""
    package = Path(streamjoin.__file__).parent
    kernels = directory / "streamjoin" / "kernels"
    shutil.copytree(package / "kernels", kernels)
    for name in ("jit", "model"):
        shutil.copytree(package / name, directory / "streamjoin" / name)
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


@pytest.mark.slow
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
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records] == ["compiled kernels can't be kept"]


STRANGER = {
    "__init__.py": "",
    "constants.py": "STEP = 1\n",
    "inner/__init__.py": "from .steps import step\n",
    "inner/steps.py": "from streamjoin.jit.flags import kernel\n\n@kernel\ndef step(x):\n    return x + 1\n",
    "inner/others.py": """
import numba
from numba import types
from numba.extending import intrinsic, overload
from ..constants import STEP

@numba.njit
def by_numba(x):
    return x + 1

def constant(builder, like):
    return like.type(1)

@intrinsic
def by_builder(context, x):
    def codegen(context, builder, signature, args):
        return builder.add(args[0], constant(builder, args[0]))
    return types.int64(types.int64), codegen

def replaced(x):
    raise NotImplementedError

@overload(replaced)
def _replacement(x):
    return lambda x: x + 1
""",
    "callers.py": """
import stranger.inner.steps as aliased
import stranger.inner.others
from streamjoin.jit.flags import kernel
from . import constants
from .constants import STEP
from .inner import step as renamed
from .inner.others import by_numba as numbas, by_builder, replaced

@kernel
def nothing(x): return x + 1
@kernel
def renamed_export(x): return renamed(x)
@kernel
def attribute(x): return aliased.step(x)
@kernel
def path(x): return stranger.inner.steps.step(x)
@kernel
def indirect(x): return attribute(x)
@kernel
def plain_njit(x): return numbas(x)
@kernel
def intrinsics_helper(x): return by_builder(x)
@kernel
def overloaded(x): return replaced(x)
@kernel
def constant(x): return x + STEP
@kernel
def constant_of_module(x): return x + constants.STEP
@kernel
def constant_by_path(x): return x + stranger.inner.others.STEP

def bind(function):
    @kernel
    def closure(x): return function(x)
    return closure
closure = bind(renamed)
""",
}
CALLS_ALL = """
from streamjoin.jit.disk_cache import KernelCache
from stranger import callers
for name, each in sorted(vars(callers).items()):
    if isinstance(getattr(each, "_cache", None), KernelCache) and name != "renamed":
        print(name, each(1), sum(each.stats.cache_hits.values()))
"""
BY_STEPS = {"attribute", "closure", "indirect", "path", "renamed_export"}
BY_OTHERS = {"intrinsics_helper", "overloaded", "plain_njit"}
BY_CONSTANTS = {"constant", "constant_by_path", "constant_of_module"}


@pytest.mark.slow
def test_what_a_strangers_kernel_is_compiled_from_is_followed_wherever_it_lies(tmp_path: Path) -> None:
    package = tmp_path / "stranger"
    (package / "inner").mkdir(parents=True)
    for file, text in STRANGER.items():
        (package / file).write_text(text)
    paths = os.pathsep.join([str(tmp_path), str(Path(streamjoin.__file__).parents[1])])
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": paths}
    # Two sources of one size, changed within a second, would have the same bytecode file.
    variables["PYTHONDONTWRITEBYTECODE"] = "1"

    def ran() -> dict[str, tuple[int, bool]]:
        done = subprocess.run(
            [sys.executable, "-c", CALLS_ALL], capture_output=True, text=True, timeout=120, check=True, env=variables
        )
        lines = map(str.split, done.stdout.splitlines())
        return {name: (int(result), loaded == "1") for name, result, loaded in lines}

    def edit(file: str, before: str, after: str) -> None:
        text = (package / file).read_text()
        assert before in text
        (package / file).write_text(text.replace(before, after))

    names = {"nothing", *BY_STEPS, *BY_OTHERS, *BY_CONSTANTS}
    assert ran() == dict.fromkeys(names, (2, False))
    assert ran() == dict.fromkeys(names, (2, True))
    edit("inner/steps.py", "x + 1", "x + 3")
    assert ran() == {name: (4, False) if name in BY_STEPS else (2, True) for name in names}
    edit("inner/others.py", "x + 1", "x + 3")
    edit("inner/others.py", "like.type(1)", "like.type(3)")
    edit("constants.py", "STEP = 1", "STEP = 3")
    assert ran() == {name: (4, name in BY_STEPS) if name != "nothing" else (2, True) for name in names}
    # What was compiled before the change is still there.
    edit("constants.py", "STEP = 3", "STEP = 1")
    edit("callers.py", "def nothing(x): return x + 1", "def nothing(x): return x + 5")
    assert {name: ran_as for name, ran_as in ran().items() if name in BY_CONSTANTS} == dict.fromkeys(
        BY_CONSTANTS, (2, True)
    )


def test_every_kernel_has_a_digest() -> None:
    """One without is compiled in every process."""
    kernels = [
        value
        for package in (streamjoin.jit, streamjoin.kernels)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(getattr(value, "_cache", None), KernelCache)
    ]
    assert len({str(SourceDigest(each)) for each in kernels}) > 100


def test_what_has_no_digest_is_compiled_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    size_of = numba.vectorize(lambda x: x + 1)

    def caller(values: np.ndarray) -> int:
        return int(size_of(values)[0])

    assert kernel(caller)(np.arange(3)) == 1
    assert not is_compiled(kernel(caller))
    assert not list(tmp_path.rglob("*.nbc"))
