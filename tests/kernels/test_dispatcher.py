"""Kernels that other kernels call: without a wrapper, once for all constants if inlined, and callable from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamjoin.kernels.flags import is_compiled, kernel, melted


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that an earlier run has left on disk would be compiled already."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))


def kernels() -> tuple[Any, Any]:
    @melted
    def scale(values: Any, factor: int) -> int:
        return int(values[0] * factor)

    @kernel
    def total(values: Any) -> int:
        return scale(values, 2) + scale(values, 3) + scale(values, values.size)

    return scale, total


def test_an_inlined_kernel_is_compiled_once_for_all_constants() -> None:
    scale, total = kernels()
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
