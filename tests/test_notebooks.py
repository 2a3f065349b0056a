"""The notebooks run from their first cell to their last and show what is stored in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.notebooks import NOTEBOOKS, executed, outputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.spark] * ("spark" in path.stem), id=path.stem) for path in NOTEBOOKS]
)
def test_a_notebook_shows_what_is_stored(path: Path) -> None:
    import nbformat

    assert outputs(executed(path)) == outputs(nbformat.read(path, as_version=4))
