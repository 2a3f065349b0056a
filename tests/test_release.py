"""What is published: a wheel with every file of the package, and an sdist that it can be built from."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import streamjoin
from tests.release import ROOT, build, release

PACKAGE = Path(streamjoin.__file__).parent


def test_wheel_and_sdist_have_every_file_of_the_package(tmp_path: Path) -> None:
    wheel, source = build(Path(sys.executable), tmp_path)
    files = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"streamjoin/py.typed", "streamjoin/data/flights.parquet", "streamjoin/service/page/index.html"} <= files
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == files
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        assert (ROOT / "README.md").read_text() in archive.read(metadata).decode()
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {*(f"src/{name}" for name in files), "pyproject.toml", "README.md", "LICENSE"} <= held


@pytest.mark.thorough
def test_the_wheel_joins_in_a_bare_environment(tmp_path: Path) -> None:
    release(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
