"""What a join will need: the arithmetic beside counted runs of the real stages, and what it says of loads and kinds."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.config.pipeline_file import read_pipeline
from streamjoin.model.binding import bind
from streamjoin.model.errors import PipelineFileError
from streamjoin.spark.capacity import calibrate
from streamjoin.spark.capacity.calibrate import SparkSeconds, calibrated, fitted, rehearsed
from streamjoin.spark.capacity.constants import read_constants, write_constants
from streamjoin.spark.capacity.estimate import (
    Assumed,
    JoinShape,
    Load,
    MachineConstants,
    counts_of,
    estimate,
    log_load,
    manifest_bytes,
    sustained,
)
from streamjoin.spark.capacity.rehearsal import BatchOfRehearsal, Rehearsal, shape_of
from streamjoin.spark.pipeline.check import planned_join
from streamjoin.storage import object_clients
from streamjoin.storage.blueprint import Blueprint, GatePlan, SourcePlan
from streamjoin.storage.log import WindowLog, _mapped, _parsed
from streamjoin.storage.merging import MergePolicy
from streamjoin.storage.places import place
from tests.spark.capacity_cases import PIPELINE, SIMPLE
from tests.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", tz="UTC")),
        ("k", pa.int64()),
        ("j", pa.int64()),
        ("v", pa.float64()),
        ("s", pa.string()),
    ]
)
ONE = (SourcePlan("0000"),)
BY = (SourcePlan("0000", by="s", position="k"),)
SPARK = SparkSeconds(0.5, 0.002, 0.003, 1e-9)


def plan(spec: sj.JoinSpec, gate: GatePlan | None = None) -> Blueprint:
    return Blueprint(bind(spec.in_order(), SCHEMA, SCHEMA), "join", 4, gate=gate, token="0" * 32)


KINDS = {
    "none": plan(sj.JoinSpec(sj.Equi("k"), "10 minutes", "ts")),
    "band": plan(sj.JoinSpec(sj.Band("v", "v", 0.5), "10 minutes", "ts")),
    "facts": plan(sj.JoinSpec(sj.Equi("s"), "10 minutes", "ts", how="left")),
    "every range": plan(
        sj.JoinSpec(sj.Equi("v"), sj.CountWindow(9), "ts", order="event_time"), GatePlan((BY, BY), shared=True)
    ),
    "one task": plan(
        sj.JoinSpec(sj.Overlaps(("k", "j"), ("k", "j")), "10 minutes", "ts", how="left"), GatePlan((ONE, ONE))
    ),
}
LOAD = Load(1e6, 600.0, 20, 4, 80, 80)


@pytest.mark.parametrize(("rows", "window"), [(200, 20), (1000, 6)])
def test_the_log_has_the_runs_that_the_policy_makes(tmp_path: Path, rows: int, window: int) -> None:
    policy = MergePolicy(floor=64, inline=512)
    rehearsal = Rehearsal(KINDS["none"], tmp_path, 2, rows, policy, window)
    batches = [rehearsal.batch() for _ in range(2 * window + 50)][window + 25 :]
    computed = log_load(float(rows), float(window), policy)

    def mean(name: str) -> float:
        return sum(float(getattr(batch, name)) for batch in batches) / len(batches)

    assert computed.runs == pytest.approx(mean("runs"), rel=0.05)
    assert computed.stored == pytest.approx(mean("stored"), rel=0.05)
    # The window is a tick longer than so many batches: a few rows may wait for the one after.
    assert computed.folded == pytest.approx(mean("folded"), abs=0.03 * rows)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_of_other_sizes_follow_from_those_that_were_measured(kind: str, tmp_path: Path) -> None:
    measured = rehearsed(KINDS[kind], tmp_path / "measured", (200, 800), 4)
    constants = fitted(shape_of(KINDS[kind]), measured, SPARK)
    for ranges, rows in ((4, 400), (8, 1600)):
        rehearsal = Rehearsal(KINDS[kind], tmp_path / f"{ranges}", ranges, rows)
        *_, batch = [rehearsal.batch() for _ in range(4)]
        load = Load(float(rows), 6.0, 1, 1, ranges, 2, every=1.0)
        counts = counts_of(constants, load, 1.0)
        assert counts.rows == batch.rows
        # Of a few copies each is a part of its own.
        assert counts.parts == pytest.approx(batch.parts, abs=3 * (kind == "band"))
        assert counts.copies == pytest.approx(batch.copies, rel=0.25, abs=8)
        collected = (rows * constants.bytes.row + 2 * constants.bytes.part) * (kind == "one task")
        sent = counts.shuffled - counts.told - counts.markers * constants.bytes.part - collected
        assert sent == pytest.approx(batch.part_bytes, rel=0.1)
        assert counts.told == pytest.approx(batch.told_bytes, rel=0.1)
        manifest = manifest_bytes(constants.bytes, batch.runs, ranges, rows)
        assert manifest == pytest.approx(batch.manifest_bytes, rel=0.1)


class Hosts(Rehearsal):
    """Ranges run on random ones of some hosts, each with a cache and a process of its own."""

    hosts = 1
    caches = Path()

    def _at(self, host: int) -> None:
        os.environ["STREAMJOIN_CACHE_DIR"] = f"{self.caches}/{host}"
        _mapped.clear()
        _parsed.clear()

    def batch(self, *, watched: bool = False) -> BatchOfRehearsal:
        self._at(0)
        return super().batch(watched=watched)

    def _joined(self, log: WindowLog, number: int, partition: int, *rest: Any) -> int:
        self._at(random.Random(100 * number + partition).randrange(self.hosts))
        found = super()._joined(WindowLog(log.root, log.epoch, log.blueprint), number, partition, *rest)
        self._at(0)
        return found


@pytest.mark.slow
def test_requests_of_a_batch_are_those_that_a_store_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore()
    object_clients._client.cache_clear()
    try:
        for name, value in {**store.environment, "STREAMJOIN_CACHE_DIR": ""}.items():
            monkeypatch.setenv(name, value)
        store.empty_bucket("capacity")
        for hosts, ranges in ((1, 2), (1, 8), (2, 8)):
            root = place(f"s3://capacity/{hosts}-{ranges}")
            rehearsal = Hosts(KINDS["none"], root, ranges, 2000)
            rehearsal.hosts, rehearsal.caches = hosts, tmp_path / f"{hosts}-{ranges}"
            for _ in range(6):
                rehearsal.batch()
            store.requests.clear()
            for _ in range(3):
                rehearsal.batch()
            computed = counts_of(SIMPLE, Load(2000.0, 6.0, hosts, 1, ranges, 1, every=1.0), 1.0).requests
            assert store.requests.total() / 3 == pytest.approx(computed, rel=0.25 if hosts > 1 else 0)
    finally:
        store.stop()


def test_what_saturates_first_depends_on_the_kind() -> None:
    def of(gate: str, **changes: float) -> MachineConstants:
        seconds = dataclasses.replace(SIMPLE.seconds, **changes)
        return dataclasses.replace(SIMPLE, shape=JoinShape(gate), seconds=seconds)  # type: ignore[arg-type]

    assert estimate(of("none", route_row=1e-5, join_row=1e-5), LOAD).scarcest == "cores"
    assert estimate(of("one task", gate_row=5e-7), LOAD).scarcest == "the gate's task"
    assert estimate(of("every range", gate_row=5e-7), LOAD).scarcest == "the gate in every range"
    assert estimate(of("none", merged_row=1e-4), dataclasses.replace(LOAD, every=1.0)).scarcest == "merges"
    assert estimate(of("none", batch=30.0, launch=0.2), LOAD).scarcest == "driver"
    slow = dataclasses.replace(SIMPLE, assumed=Assumed(network_bytes=3e6))
    assert estimate(slow, LOAD).scarcest == "network"
    busy = dataclasses.replace(SIMPLE, assumed=Assumed(store_requests=5.0))
    assert estimate(busy, LOAD).scarcest == "store"


def test_executors_raise_the_rate_of_a_join_without_a_gate_and_not_beyond_a_lone_task() -> None:
    more = dataclasses.replace(LOAD, executors=40, ranges=160, inputs=160)
    cores = dataclasses.replace(SIMPLE.seconds, route_row=1e-5, merged_row=0.0)
    free = dataclasses.replace(SIMPLE, seconds=cores)
    assert sustained(free, more) == pytest.approx(2 * sustained(free, LOAD), rel=0.1)
    alone = dataclasses.replace(SIMPLE, shape=JoinShape("one task"))
    assert sustained(alone, more) == pytest.approx(sustained(alone, LOAD), rel=0.1)
    assert sustained(alone, LOAD) < 1 / SIMPLE.seconds.gate_row


def test_a_batch_is_as_long_as_its_rows_take() -> None:
    found = estimate(SIMPLE, LOAD)
    assert found.keeps_up
    assert found.counts.rows == pytest.approx(LOAD.rate * found.seconds, rel=0.05)
    at_trigger = estimate(SIMPLE, dataclasses.replace(LOAD, every=10.0))
    assert (at_trigger.keeps_up, at_trigger.counts.rows) == (True, 1e7)
    assert at_trigger.seconds < 10
    assert not estimate(SIMPLE, dataclasses.replace(LOAD, rate=1e10)).keeps_up
    assert not estimate(SIMPLE, dataclasses.replace(LOAD, every=0.1)).keeps_up


def test_a_task_needs_memory_for_its_range_and_for_the_times_of_all() -> None:
    every = dataclasses.replace(LOAD, every=1.0)
    few, many = (estimate(SIMPLE, dataclasses.replace(every, ranges=n)).memory for n in (8, 80))
    assert few > 5 * (many - SIMPLE.bytes.task_memory)
    gated = estimate(dataclasses.replace(SIMPLE, shape=JoinShape("every range")), every)
    assert gated.memory - many == pytest.approx(1e6 * SIMPLE.bytes.gate_memory)
    assert gated.counts.told == pytest.approx(80 * (1e6 * SIMPLE.bytes.time + 80 * SIMPLE.bytes.time_part))


def test_constants_are_read_as_they_were_written(tmp_path: Path) -> None:
    file, path = tmp_path / "join.toml", tmp_path / "join.constants.toml"
    file.write_text(PIPELINE)
    pipeline = read_pipeline(file)
    constants = dataclasses.replace(SIMPLE, shape=JoinShape("every range", ordered=True), copies=0.125)
    write_constants(path, pipeline, constants)
    assert read_constants(path, pipeline) == constants
    # They do not depend on the window, nor on where rows come from and go to.
    for before, after in (('"5 seconds"', '"9 minutes"'), ("out/matches", "out/others"), ('"trades"', '"more"')):
        file.write_text(PIPELINE.replace(before, after))
        assert read_constants(path, read_pipeline(file)) == constants


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("route_row = 2e-07", "route_row = -1", "route_row = -1: it is a number from 0"),
        ("route_row = 2e-07", "route_row = nan", "it is a number from 0"),
        ("route_row = 2e-07", 'route_row = "x"', "route_row is a whole number or a number"),
        ("route_row = 2e-07\n", "", "[seconds] has no 'route_row'"),
        ("route_row", "route_rows", "did you mean 'route_row'?"),
        ("[bytes]", "[byte]", "did you mean 'bytes'?"),
        ("store_requests = 3500.0", "store_requests = 0", "it is a number above 0"),
        ('gate = "none"', 'gate = "some"', "gate"),
        ("indexed = true", 'indexed = "yes"', "indexed"),
    ],
)
def test_wrong_constants_are_refused_with_their_line(tmp_path: Path, before: str, after: str, told: str) -> None:
    file, path = tmp_path / "join.toml", tmp_path / "join.constants.toml"
    file.write_text(PIPELINE)
    write_constants(path, read_pipeline(file), SIMPLE)
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(PipelineFileError) as raised:
        read_constants(path, read_pipeline(file))
    assert told in str(raised.value)
    assert f"{path}, line " in str(raised.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [("<= 0.25", "<= 0.5"), ('"5 seconds"', '"5 rows"'), ("px DOUBLE", "px DOUBLE, size LONG")],
)
def test_constants_of_another_join_are_refused(tmp_path: Path, before: str, after: str) -> None:
    file, path = tmp_path / "join.toml", tmp_path / "join.constants.toml"
    file.write_text(PIPELINE)
    write_constants(path, read_pipeline(file), SIMPLE)
    file.write_text(PIPELINE.replace(before, after))
    with pytest.raises(PipelineFileError, match=r"constants of another join.*--calibrate"):
        read_constants(path, read_pipeline(file))


def test_a_calibration_measures_the_join_of_a_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"_RANGES": (1, 2), "_COLD": 1, "_MANY": 6, "_LARGE": 1 << 16, "_SPARK_BATCHES": 3}
    for name, value in small.items():
        monkeypatch.setattr(calibrate, name, value)
    file, path = tmp_path / "join.toml", tmp_path / "join.constants.toml"
    file.write_text(PIPELINE)
    pipeline = read_pipeline(file)
    found = calibrated(planned_join(pipeline, spark), spark, (100, 400), 3)
    assert found.shape == JoinShape("none")
    assert found.seconds.batch > 0
    assert found.seconds.join_row + found.seconds.join_task > 0
    assert 24 < found.bytes.row < 60
    write_constants(path, pipeline, found)
    assert read_constants(path, pipeline) == found
