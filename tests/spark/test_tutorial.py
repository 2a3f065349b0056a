"""The tutorial, from its first line to its last, prints what it says."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.documents import run_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_tutorial_prints_what_it_says(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_page(Path(__file__).parents[2] / "docs" / "tutorial.md")
