"""What can happen to a log: a full disk, a file gone or changed, half a checkpoint. Never a wrong result."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.spark import join
from streamjoin.spark.runtime import checkpoints
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog, late_files
from tests.spark.gated import gated_batch, gated_plan, gated_table
from tests.spark.joining import (
    CASES,
    blueprint,
    expected,
    in_process,
    pairs,
    run_to_parquet,
    stream,
    streams,
    tables,
    write_files,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAND = CASES[0]


def test_a_full_disk_fails_the_batch_which_then_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = stream(BAND, seed=3, n=200)
    plan = blueprint(BAND, 2)
    found: Counter[tuple[int, int]] = Counter()
    for i, sides in enumerate(tables(BAND, left, right, 8)):
        writes = 0

        def full(descriptor: int, at: int = i) -> None:
            nonlocal writes
            writes += 1
            if writes > at % 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(sj.CheckpointError, match=r"No space left on device.*restart the query"):
                in_process(plan, tmp_path, i, sides, epoch=2 * i + 1)
        assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
        found += pairs(in_process(plan, tmp_path, i, sides, epoch=2 * i + 2))
    assert found == expected(BAND, left, right)


def _filled(root: Path, batches: int) -> tuple[Blueprint, list[Any]]:
    left, right = stream(BAND, seed=3, n=200)
    plan, sides = blueprint(BAND, 2), tables(BAND, left, right, 8)
    for i in range(batches):
        in_process(plan, root, i, sides[i])
    return plan, sides


@pytest.mark.parametrize("harm", ["gone", "cut", "changed", "foreign"])
@pytest.mark.parametrize("kind", ["piece", "manifest"])
def test_a_harmed_file_stops_the_join_and_says_what_to_do(harm: str, kind: str, tmp_path: Path) -> None:
    plan, sides = _filled(tmp_path, 5)
    log = WindowLog(tmp_path, 1, plan)
    log.version(4)
    path = next((tmp_path / "versions/0000000004").glob(f"*.{kind}"))
    whole = path.read_bytes()
    # Within the first block of a piece: its footer is not read again once there is a manifest.
    at = 100 if kind == "piece" else len(whole) // 2
    changed = bytearray(whole)
    changed[at] ^= 8
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": whole[:at], "changed": bytes(changed), "foreign": b"PAR1" * 50}[harm])
    log = WindowLog(tmp_path, 2, plan)
    if (kind, harm) == ("manifest", "gone"):
        # It is made of the pieces again.
        log.version(4)
        assert path.read_bytes() == whole
        return
    with pytest.raises(sj.CheckpointError, match=r"batch 5 failed: .* to restart from batch 4"), log.advising(5):
        in_process(plan, tmp_path, 5, sides[5], epoch=2)
    for older in tmp_path.glob("versions/000000000[0-3]/*"):
        older.unlink()
    with pytest.raises(sj.CheckpointError, match="No version of the log is complete"), log.advising(5):
        in_process(plan, tmp_path, 5, sides[5], epoch=2)


def test_an_older_whole_version_is_named(tmp_path: Path) -> None:
    plan, sides = _filled(tmp_path, 4)
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    in_process(plan, tmp_path, 4, sides[4])
    # What a restart no longer needs was removed; here a copy brings it back.
    shutil.copytree(tmp_path.with_name("copy"), tmp_path, dirs_exist_ok=True)
    next((tmp_path / "versions/0000000004").glob("*.piece")).unlink()
    log = WindowLog(tmp_path, 2, plan)
    with (
        pytest.raises(
            sj.CheckpointError,
            match=r"version is that of batch 3: if a function .* batch 4 runs again.*to restart from batch 4",
        ),
        log.advising(5),
    ):
        log.version(4)
    with pytest.raises(sj.CheckpointError, match="it continues with batch 4"), log.advising(4):
        raise sj.CheckpointError("no room")


def test_a_harmed_gate_is_told(tmp_path: Path) -> None:
    plan = gated_plan()
    gated_batch(plan, tmp_path, 0, {(0, 0): gated_table((1, 7, 0), (5, 7, 1)), (1, 0): gated_table((1, 7, 10))})
    (gate,) = tmp_path.rglob("*.gate")
    gate.write_bytes(gate.read_bytes()[:-1])
    with pytest.raises(sj.CheckpointError, match=r"gate of the window log is damaged"):
        gated_batch(plan, tmp_path, 1, {})


@pytest.mark.spark
@pytest.mark.parametrize(
    "lost",
    [
        ("checkpoint/offsets", "checkpoint/commits", "checkpoint/sources", "out"),
        ("checkpoint/streamjoin/join/versions",),
    ],
    ids=["Spark's part", "our part"],
)
def test_a_checkpoint_deleted_by_half_is_detected(spark: SparkSession, tmp_path: Path, lost: tuple[str, ...]) -> None:
    from pyspark.errors import StreamingQueryException

    left, right = stream(BAND, seed=6, n=60)
    write_files(tmp_path, tables(BAND, left, right, 1))
    sides = streams(spark, tmp_path, BAND.left, BAND.right)
    run_to_parquet(join(*sides, BAND.bound_spec()), tmp_path)
    for part in lost:
        shutil.rmtree(tmp_path / part)
    (tmp_path / "left/0000.parquet").rename(tmp_path / "left/again.parquet")
    failures = (StreamingQueryException, sj.CheckpointError)
    with pytest.raises(failures, match=r"is incomplete|does not hold batch 0"):
        run_to_parquet(join(*sides, BAND.bound_spec()), tmp_path)


@pytest.mark.spark
def test_commits_that_come_later_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    left, right = stream(BAND, seed=3, n=40)
    write_files(tmp_path / "in", tables(BAND, left, right, 2))
    joined = join(*streams(spark, tmp_path / "in", BAND.left, BAND.right), BAND.bound_spec())
    writer = joined.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    # No other sink is at hand that Spark allows it for.
    writer = writer.option("_asyncProgressTrackingOverrideSinkSupportCheck", True)
    writer = writer.option("asyncProgressTrackingEnabled", True).trigger(processingTime="0 seconds")
    with pytest.raises(sj.SetupError, match=r"asyncProgressTrackingEnabled .* remove the option"):
        writer.start()


def test_a_late_output_that_fails_costs_neither_the_log_nor_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    plan = replace(blueprint(BAND, 2), late=str(tmp_path / "file" / "late"))
    left, right = stream(BAND, seed=3, n=200)
    log = WindowLog(tmp_path / "log", 1, plan)
    for i, sides in enumerate(tables(BAND, left, right, 8)[:3]):
        in_process(plan, log.root, i, sides)
    log.write_late(0, 0, pa.table({"id": [1]}))
    monkeypatch.setitem(checkpoints._running, "run", [checkpoints.RunningJoin(plan, log, "")])
    checkpoints._progressed("run", 2)
    assert "late rows could not be written" in caplog.text
    assert not (log.root / "versions/0000000000").exists()
    assert len(late_files(log.root)) == 1
