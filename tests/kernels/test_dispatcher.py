"""Kernels that other kernels call: without a wrapper, once for all constants, and callable from Python."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamjoin.jit.flags import inlined, is_compiled, kernel


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that an earlier run has left on disk would be compiled already."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))


def kernels(decorate: Any = inlined) -> tuple[Any, Any]:
    @decorate  # type: ignore[untyped-decorator]
    def scale(values: Any, factor: int) -> int:
        return int(values[0] * factor)

    @kernel
    def total(values: Any) -> int:
        return int(scale(values, 2) + scale(values, 3) + scale(values, values.size))

    return scale, total


@pytest.mark.parametrize("decorate", [kernel, inlined])
def test_a_kernel_is_compiled_once_for_all_constants(decorate: Any) -> None:
    scale, total = kernels(decorate)
    assert total(np.array([5])) == 30
    assert len(scale.overloads) == 1
    assert not scale.is_callable
    assert total.is_callable


def test_an_inner_kernel_can_be_called_from_python_later() -> None:
    scale, total = kernels()
    values = np.array([5])
    assert total(values) == 30
    assert not is_compiled(scale)
    assert scale(values, 4) == 20
    assert is_compiled(scale)
    # Kernels that were compiled with the inner one, and those that come later, both work.
    assert total(values) == 30

    @kernel
    def twice(values: Any) -> int:
        return int(2 * scale(values, 7))

    assert twice(values) == 70
    assert len(scale.overloads) == 1


# The exception of the inner kernel takes its arguments from the environment of that function.
PROGRAM = """
import sys
import numpy as np
from streamjoin.jit.flags import kernel

@kernel
def inner(value):
    if value > 1:
        raise ValueError("too large", value, "by", value - 1)
    return value

@kernel
def middle(value):
    return inner(value) + 1

@kernel
def outer(value):
    return middle(value) + 1

@kernel
def other(value):
    return middle(value) + 2

called = outer if sys.argv[1] == "outer" else other
try:
    print(called(1), called(5))
except ValueError as error:
    print(error.args)
"""


def test_an_inner_kernel_has_its_environment_also_from_the_disk(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)

    def run(called: str) -> str:
        ran = subprocess.run([sys.executable, file, called], capture_output=True, text=True, check=True, timeout=300)
        return ran.stdout.strip()

    # Compiled; loaded; compiled with inner kernels that were loaded.
    expected = "('too large', 5, 'by', 4)"
    assert [run("outer"), run("outer")] == [expected, expected]
    assert run("other") == expected


def test_collection_goes_on_after_a_kernel_was_compiled() -> None:
    scale, total = kernels()
    assert gc.isenabled()
    assert total(np.array([5])) == 30
    assert gc.isenabled()
    gc.disable()
    try:
        assert scale(np.array([5.0]), 4) == 20
        assert not gc.isenabled()
    finally:
        gc.enable()
