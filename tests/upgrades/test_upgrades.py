"""Checkpoints of earlier versions: the current code continues from them, and refuses what it can't read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from streamjoin.adhoc import Engine
from streamjoin.model.errors import CheckpointError
from tests.upgrades.old_runs import BATCHES, BEFORE, DATA, run_adhoc, run_gated, run_join

VERSIONS = sorted(path.name for path in DATA.iterdir())


@pytest.fixture(params=VERSIONS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the checkpoints of a version."""
    return Path(shutil.copytree(DATA / request.param, tmp_path / "old"))


def test_the_first_version_is_kept() -> None:
    assert VERSIONS[0] == "0.1.0"


def test_joins_continue_from_the_log_of_an_earlier_version(old: Path, tmp_path: Path) -> None:
    for name, run in (("join", run_join), ("gated", run_gated)):
        continued = run(old / name, BEFORE, BATCHES)
        assert continued == run(tmp_path / name, 0, BATCHES)[BEFORE:]  # type: ignore[operator]
        assert any(continued)


def test_an_ad_hoc_engine_continues_from_an_earlier_version(old: Path, tmp_path: Path) -> None:
    continued = run_adhoc(old / "adhoc", BEFORE, BATCHES)
    whole, before = run_adhoc(tmp_path / "new", 0, BATCHES), run_adhoc(tmp_path / "before", 0, BEFORE)
    for name, rows in continued.items():
        assert rows == whole[name] - before[name]
        assert rows


def test_a_newer_format_is_refused_and_left_as_it_is(old: Path) -> None:
    about = old / "join" / "join.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "format": "99", "shape": "round"}))
    engine = next((old / "adhoc" / "batches").iterdir())
    engine.write_bytes(engine.read_bytes().replace(b"streamjoin-adhoc 1 ", b"streamjoin-adhoc 99 ", 1))
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file() and path.name != "lock"}
    with pytest.raises(CheckpointError, match=r"has format 99 .* run the version that wrote it, or start with a new"):
        run_join(old / "join", BEFORE, BATCHES)
    with pytest.raises(CheckpointError, match=r"has format 99, .* run the version that wrote it, or start with a new"):
        Engine(checkpoint=old / "adhoc")
    assert before == {path: path.read_bytes() for path in old.rglob("*") if path.is_file() and path.name != "lock"}
