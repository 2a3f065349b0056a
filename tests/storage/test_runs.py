"""Starts that tasks register: all tasks of a run agree on one number, however many register at once."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import streamjoin as sj
from streamjoin.storage.claims import claim_of_run
from streamjoin.storage.log import new_epoch

DESCRIPTION = {"format": "2", "on": "l.x = r.x"}


def _register(root: Path, run: str) -> int:
    return new_epoch(root, DESCRIPTION, run)


def test_tasks_of_a_run_agree_and_runs_differ(tmp_path: Path) -> None:
    assert claim_of_run(tmp_path, "0") is None
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as tasks:
        for run in map(str, range(10)):
            numbers = {future.result() for future in [tasks.submit(_register, tmp_path, run) for _ in range(12)]}
            assert numbers == {claim_of_run(tmp_path, run)}
    known = [claim_of_run(tmp_path, str(run)) or 0 for run in range(10)]
    assert known == sorted(set(known))
    # Numbers that another task proposed in vain are no epochs.
    assert sorted(int(path.name) for path in (tmp_path / "epochs").iterdir()) == known
    assert new_epoch(tmp_path, DESCRIPTION) > known[-1]


def test_what_can_not_be_registered(tmp_path: Path) -> None:
    _register(tmp_path, "first")
    with pytest.raises(sj.CheckpointError, match="the state of another join"):
        new_epoch(tmp_path, {**DESCRIPTION, "on": "l.y = r.y"}, "second")
    assert claim_of_run(tmp_path, "second") is None
    (tmp_path / "runs/first").write_text("?")
    with pytest.raises(sj.CheckpointError, match="first"):
        claim_of_run(tmp_path, "first")
