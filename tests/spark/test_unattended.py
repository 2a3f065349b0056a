"""What tasks do over Spark Connect in the driver's place, run here without Spark: starts, merges and late output."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamjoin as sj
from streamjoin.spark.runtime.unattended import CHECKPOINT, after_task, attend
from streamjoin.storage.blueprint import Blueprint
from tests.spark.joining import BACKGROUND, BAND, EPOCH, blueprint, expected, in_process, pairs, stream, tables


@dataclass
class Task:
    """What a task knows of its query."""

    properties: dict[str, str]

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)


def _task(checkpoint: Path, run: str, query: str = "query") -> Task:
    return Task({CHECKPOINT: str(checkpoint), "spark.jobGroup.id": run, "sql.streaming.queryId": query})


def _checkpoint(directory: Path, offsets: int = 0, commits: int = 0) -> Path:
    for part, entries in (("offsets", offsets), ("commits", commits)):
        (directory / part).mkdir(parents=True, exist_ok=True)
        for batch in range(entries):
            (directory / part / str(batch)).write_text("v1\n{}\n")
    (directory / "metadata").write_text(json.dumps({"id": "query"}))
    return directory


def _unattended(**changes: object) -> Blueprint:
    return replace(blueprint(BAND, 2, BACKGROUND), unattended=True, **changes)  # type: ignore[arg-type]


def _merged(plan: Blueprint, log: object, batch: int) -> None:
    """End a batch as the first task does, and wait for the merge that it may have begun."""
    after_task(plan, log, batch)
    for thread in threading.enumerate():
        if thread.name == "streamjoin-merge":
            thread.join()


def test_the_end_of_input_is_left_to_a_classic_session(tmp_path: Path) -> None:
    checkpoint = _checkpoint(tmp_path, offsets=1)
    (checkpoint / "offsets/0").write_text('v1\n{"conf":{"spark.streamjoin.end_of_input":"true"}}\n')
    with pytest.raises(sj.NotSupportedError, match="batch 0 is the end of input, which a classic session has planned"):
        attend(_unattended(), _task(checkpoint, "a"), 0)


def test_a_start_is_registered_once_by_the_first_task(tmp_path: Path) -> None:
    plan = _unattended()
    checkpoint = _checkpoint(tmp_path, offsets=1)
    first = attend(plan, _task(checkpoint, "a"), 0)
    assert attend(plan, _task(checkpoint, "a"), 0).epoch == first.epoch
    assert attend(plan, _task(checkpoint, "b"), 0).epoch > first.epoch
    assert len(list((first.root / "epochs").iterdir())) == 2
    assert (
        attend(replace(plan, checkpoint=str(checkpoint)), Task(_task(checkpoint, "a").properties), 0).root == first.root
    )


def test_what_a_task_can_not_attend(tmp_path: Path) -> None:
    plan, checkpoint = _unattended(), _checkpoint(tmp_path, offsets=2, commits=1)
    with pytest.raises(sj.StateError, match="checkpoint="):
        attend(plan, Task({}), 0)
    with pytest.raises(sj.CheckpointError, match="belongs to another query"):
        attend(plan, _task(checkpoint, "a", query="another"), 1)
    with pytest.raises(sj.CheckpointError, match="holds no query"):
        attend(plan, _task(tmp_path / "nowhere", "a"), 1)
    with pytest.raises(sj.StateError, match="left over from an earlier start"):
        attend(plan, _task(checkpoint, "a"), 0)
    (checkpoint / "streamjoin/join/versions/0000000007").mkdir(parents=True)
    with pytest.raises(sj.CheckpointError, match="the window log holds batch 7"):
        attend(plan, _task(checkpoint, "a"), 1)
    assert not (checkpoint / "streamjoin/join/epochs").exists()


def test_merges_run_in_the_worker_and_change_no_result(tmp_path: Path) -> None:
    plan = _unattended()
    left, right = stream(BAND, seed=2, n=240)
    results: list[pa.RecordBatch] = []
    seen: set[int] = set()
    for batch, sides in enumerate(tables(BAND, left, right, 24)):
        log = attend(plan, _task(_checkpoint(tmp_path, offsets=batch + 1, commits=batch), "a"), batch)
        results += in_process(plan, log.root, batch, sides, log.epoch)
        _merged(plan, log, batch)
        seen.add(log.version(batch).merged_runs)
    assert pairs(results) == expected(BAND, left, right)
    assert max(seen) > 0, "no merge was swapped in"


def test_late_output_that_a_start_left_out_is_completed(tmp_path: Path) -> None:
    """By the tasks that register the next start, and during a start by those of the next batch."""
    target = tmp_path / "late"
    plan = _unattended(late=str(target))
    (sides,) = tables(BAND, [{"ts": None, "x": 1, "id": 5}], [{"ts": EPOCH, "a": 1, "id": 0}], 1)
    log = attend(plan, _task(_checkpoint(tmp_path, 1), "a"), 0)
    in_process(plan, log.root, 0, sides, log.epoch)
    (written,) = target.iterdir()
    written.unlink()
    _merged(plan, log, 1)
    assert pq.read_table(target)["id_left"].to_pylist() == [5]
    written.rename(target / "late-join-0-0000000009.parquet")
    again = attend(plan, _task(_checkpoint(tmp_path, 2, 1), "b"), 1)
    assert again.epoch > log.epoch
    assert written.exists()
