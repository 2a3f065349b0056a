"""Steps of the window log that meet those of another process: what vanishes, appears or is half there in between.

Each test lets the other one act at the very moment that matters, so that none depends on luck.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from streamjoin.model.errors import CheckpointError
from streamjoin.spark.stages import spending
from streamjoin.spark.stages.gate import Collect, Gate
from streamjoin.spark.stages.parts import MARKER, markers
from streamjoin.spark.stages.punctuation import Punctuation, punctuations, write_punctuation
from streamjoin.spark.stages.route import Route
from streamjoin.spark.stages.scaling import ask_for
from streamjoin.spark.stages.task import JoinTask
from streamjoin.storage.background import merge_due
from streamjoin.storage.log import WindowLog, new_epoch
from streamjoin.storage.pieces import atomic
from streamjoin.storage.places import entries
from tests.spark.gated import gated_batch, gated_plan, gated_table
from tests.spark.joining import (
    BACKGROUND,
    BAND,
    blueprint,
    expected,
    in_process,
    interrupted_blocks,
    pairs,
    stream,
    tables,
)


def test_a_start_that_was_killed_while_it_took_its_number_stops_no_later_one(tmp_path: Path) -> None:
    description = blueprint(BAND, 2).description
    first = new_epoch(tmp_path, description)
    (tmp_path / "epochs" / f".{first + 1:08}.0123456789abcdef").touch()
    assert new_epoch(tmp_path, description) > first


def test_old_punctuations_may_go_while_all_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "streamjoin/join"
    log.mkdir(parents=True)
    (log / "join.json").touch()
    (tmp_path / "commits").mkdir()
    for batch in range(90, 111):
        write_punctuation(log, 1, Punctuation(batch, batch, batch, 0, 0))
        (tmp_path / f"commits/{batch}").touch()
    read = Path.read_bytes

    def meanwhile(path: Path) -> bytes:
        monkeypatch.undo()
        write_punctuation(log, 1, Punctuation(200, 200, 200, 0, 0))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", meanwhile)
    assert punctuations(tmp_path)["batch"].to_pylist() == list(range(100, 111))
    (log / "punctuations/0000000105.00000001.json").write_bytes(b"{")
    with pytest.raises(CheckpointError, match="is damaged"):
        punctuations(tmp_path)


def test_a_merge_that_takes_longer_than_a_batch_is_not_swept_away(tmp_path: Path) -> None:
    """After each commit the driver removes what nobody needs: not the draft of the merge that it is writing."""
    left, right = stream(BAND, seed=1, n=120, step=1)
    plan = blueprint(BAND, 2, BACKGROUND)
    log = WindowLog(tmp_path, 1, plan)
    batches = tables(BAND, left, right, 12)
    for i in range(4):
        in_process(plan, tmp_path, i, batches[i])
    then = log.version(3)
    facts = {"inputs": [run.key for run in then.runs]}

    def batches_go_on() -> None:
        for i in (4, 5, 6):
            in_process(plan, tmp_path, i, batches[i])
            log.prune(log.version(i))

    log.publish_merge(3, (interrupted_blocks(batches_go_on), []), facts)
    (merge,) = tmp_path.rglob("*.merge")
    behind = merge.with_name(f".{merge.name.replace('.00000001.', '.00000000.')}.killed")
    behind.touch()
    log.prune(log.version(6))
    assert merge.exists()
    assert not behind.exists()
    assert log.merges(log.version(6), set()) == [f"{merge.parent.name}/{merge.name}"]
    log.prune(then)
    assert merge.exists(), "one that hears late of a commit knows nothing of later merges"


def test_a_task_does_not_look_at_what_others_are_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network file systems remember listings: this one would be half of what the next batch goes on from."""
    plan = blueprint(BAND, 2, BACKGROUND)
    seen = []
    monkeypatch.setattr("streamjoin.storage.log.entries", lambda place: [seen.append(place.name), *entries(place)][1:])
    for i, sides in enumerate(tables(BAND, *stream(BAND, seed=1, n=60, step=1), 3)):
        in_process(plan, tmp_path, i, sides, only=[1])
        in_process(plan, tmp_path, i, sides)
        assert f"{i:010}" not in seen
        seen.clear()
        merge_due(plan, WindowLog(tmp_path, 1, plan), i)
        assert f"{i:010}" in seen


def test_a_figure_that_can_not_be_kept_costs_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "_shared", bytearray(spending._UNTOLD.pack(1.0, 1.0)))
    (tmp_path / "versions").touch()
    spending.tell(WindowLog(tmp_path, 1, blueprint(BAND, 1)), 0, 0)
    with pytest.raises(CheckpointError, match="can't be written: "), atomic(tmp_path / "versions/0/a"):
        pass


@pytest.mark.parametrize("meanwhile", ["nothing", "another number of ranges", "a merge"])
def test_tasks_that_see_different_versions_give_no_rows(
    meanwhile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queries on one checkpoint, or a store on which the last one to write a piece wins."""
    left, right = stream(BAND, seed=1, n=60, step=1)
    plan = blueprint(BAND, 2, BACKGROUND)
    (tmp_path / "join.json").touch()
    log = WindowLog(tmp_path, 1, plan)
    batches = tables(BAND, left, right, 6)
    found: Counter[tuple[int, int]] = Counter()
    for i in range(5):
        found.update(pairs(in_process(plan, tmp_path, i, batches[i])))
        if i == 3 and meanwhile == "a merge":
            assert merge_due(plan, log, 3)
            hidden = next(tmp_path.rglob("*.merge")).rename(tmp_path / "merge")
    for stage in ("route", "task"):
        monkeypatch.setattr(f"streamjoin.spark.stages.{stage}.open_log", lambda _: (log, 5))
    sent: dict[int, list[pa.RecordBatch]] = {0: [], 1: []}
    for side in (0, 1):
        for row in Route(plan, side)(iter(batches[5][side].combine_chunks().to_batches())):
            for i, target in enumerate(row.column(0).to_pylist()):
                sent[target].append(row.select(range(5)).slice(i, 1))
    if meanwhile != "nothing":
        if meanwhile == "a merge":
            hidden.rename(tmp_path / "versions/merged/0000000003.00000001.merge")
        else:
            ask_for(tmp_path, 1)
        in_process(plan, tmp_path, 4, batches[4], epoch=2)
        # What this process has read of its own start holds; the tasks are those of another one.
        monkeypatch.setattr("streamjoin.storage.log._parsed", {})
        for parts in sent.values():
            with pytest.raises(CheckpointError, match=r"different versions.*restart the query"):
                list(JoinTask(plan)(iter(parts)))
        assert not list((tmp_path / "versions").glob("0000000005/*"))
        return
    for parts in sent.values():
        found.update(pairs(list(JoinTask(plan)(iter(parts)))))
    assert found == expected(BAND, left, right)


@pytest.mark.parametrize("shared", [False, True])
def test_the_tasks_behind_a_gate_go_by_what_the_gate_said(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is one task, or all routing tasks."""
    gate = gated_plan().gate
    assert gate is not None
    plan = replace(gated_plan(), gate=replace(gate, shared=shared))
    gated_batch(plan, tmp_path, 0, {(0, 0): gated_table((5, 7, 0)), (1, 0): gated_table((6, 7, 1))})
    log = WindowLog(tmp_path, 1, plan)
    for stage in ("gate", "route", "task"):
        monkeypatch.setattr(f"streamjoin.spark.stages.{stage}.open_log", lambda _: (log, 1))
    first = Route if shared else Collect
    routed = [row for side in (0, 1) for row in first(plan, side, 0)(iter(gated_table((9, 7, 2)).to_batches()))]
    sent: dict[int, list[pa.RecordBatch]] = {partition: [] for partition in range(plan.partitions)}
    for row in routed if shared else Gate(plan)(iter(routed)):
        for i, target in enumerate(row.column(0).to_pylist()):
            sent[target].append(row.select(range(5)).slice(i, 1))
    found = [row for parts in sent.values() for row in JoinTask(plan)(iter(parts))]
    assert any(side != MARKER for row in found for side in row.column(1).to_pylist())
    for parts in sent.values():
        with pytest.raises(CheckpointError, match="different versions"):
            list(JoinTask(plan)(iter([*parts, markers(plan.partitions, 4)])))


def test_what_a_task_can_not_remove_costs_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = stream(BAND, seed=1, n=200)
    plan = blueprint(BAND, 2)
    tried: list[Path] = []

    def busy(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith("."):
            unlink(path, missing_ok)
        else:
            tried.append(path)
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", busy)
    found: Counter[tuple[int, int]] = Counter()
    for i, sides in enumerate(tables(BAND, left, right, 6)):
        found.update(pairs(in_process(plan, tmp_path, i, sides)))
    assert found == expected(BAND, left, right)
    assert tried
    monkeypatch.undo()
    log = WindowLog(tmp_path, 1, plan)
    log.prune(log.version(5))
    assert not any(path.exists() for path in tried)
