"""For the tests of the Spark join: small streams, a quadratic check in plain Python, and two ways to run a join.

`in_process` runs the stages without Spark, so that hundreds of cases take seconds; `on_spark` runs the real thing.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.spark.stages.facts import TaskFacts
from streamjoin.spark.stages.output import plain
from streamjoin.spark.stages.parts import Spool, unpack
from streamjoin.spark.stages.route import Route, longest_stored, part_schema
from streamjoin.spark.stages.scaling import planned
from streamjoin.spark.stages.task import RangeOfBatch
from streamjoin.storage.blueprint import Blueprint
from streamjoin.storage.log import WindowLog
from streamjoin.storage.merging import MergePolicy
from streamjoin.storage.pieces import BlockRows

Row = dict[str, Any]
Batches = Sequence[tuple[pa.Table, pa.Table]]
EAGER = MergePolicy(slack=125, floor=1)

TS = pa.timestamp("us", tz="UTC")
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Case:
    """A spec with its columns, the condition in Python, and how to draw a key."""

    name: str
    on: Any
    left: pa.Schema
    right: pa.Schema
    holds: Callable[[Row, Row], bool]
    draw: Callable[[random.Random, str], dict[str, Any]]
    windows: tuple[int, int] = (40, 40)
    spec: dict[str, Any] = field(default_factory=dict)

    def bound_spec(self) -> sj.JoinSpec:
        left, right = (sj.TimeWindow(dt.timedelta(milliseconds=w)) for w in self.windows)
        return sj.JoinSpec(on=self.on, window=(left, right), time="ts", order="event_time", **self.spec)


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([("ts", TS), *columns.items(), ("id", pa.int64())])


def _maybe(rng: random.Random, value: Any) -> Any:
    return None if rng.random() < 0.08 else value


def _close(x: Any, a: Any, d: Any) -> bool:
    return x is not None and a is not None and not _nan(x) and not _nan(a) and abs(x - a) <= d


def _nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _float(rng: random.Random) -> float:
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0]
    return rng.choice(special) if rng.random() < 0.1 else rng.gauss(0, 3)


def _same(x: Any, a: Any) -> bool:
    return x is not None and a is not None and x == a


def _interval(rng: random.Random) -> Row:
    low = rng.randint(-5_000, 5_000)
    return {"lo": _maybe(rng, low), "hi": _maybe(rng, low + rng.choice([0, 1, rng.randint(2, 300), 4_000]))}


CASES = (
    Case(
        "band of integers",
        sj.Band("x", "a", 3),
        _schema(x=pa.int64()),
        _schema(a=pa.int32()),
        lambda l, r: _close(l["x"], r["a"], 3),
        lambda rng, side: {"x" if side == "left" else "a": _maybe(rng, rng.randint(-30, 30))},
    ),
    Case(
        "band of floats, one window empty",
        sj.Band("x", "x", below=0.5, above=1.0),
        _schema(x=pa.float64()),
        _schema(x=pa.float64()),
        lambda l, r: (
            l["x"] is not None
            and r["x"] is not None
            and l["x"] - r["x"] <= 0.5
            and r["x"] - l["x"] <= 1.0
            and not math.isinf(l["x"])
            and not math.isinf(r["x"])
        ),
        lambda rng, side: {"x": _maybe(rng, _float(rng))},
        windows=(60, 0),
    ),
    Case(
        "band of times",
        sj.Band("at", "at", "20 milliseconds"),
        _schema(at=TS),
        _schema(at=TS),
        lambda l, r: _close(l["at"], r["at"], dt.timedelta(milliseconds=20)),
        lambda rng, side: {"at": _maybe(rng, EPOCH + dt.timedelta(milliseconds=rng.randint(0, 400)))},
        windows=(30, 70),
    ),
    Case(
        "equal strings",
        sj.Equi("k"),
        _schema(k=pa.string()),
        _schema(k=pa.string()),
        lambda l, r: _same(l["k"], r["k"]),
        lambda rng, side: {"k": _maybe(rng, rng.choice(["", "a", "b", "ab", "ü", "long" * 9]))},
        windows=(10, 40),
    ),
    Case(
        "equal integers and a condition",
        sj.Equi("k", "j") & sj.Theta("l.v <> r.v OR r.v IS NULL"),
        _schema(k=pa.int32(), v=pa.int64()),
        _schema(j=pa.int64(), v=pa.int64()),
        lambda l, r: _same(l["k"], r["j"]) and (r["v"] is None or (l["v"] is not None and l["v"] != r["v"])),
        lambda rng, side: {
            "k" if side == "left" else "j": _maybe(rng, rng.randint(-2, 2)),
            "v": _maybe(rng, rng.randint(0, 1)),
        },
    ),
    Case(
        "key, two bands and a condition",
        sj.Equi("k") & sj.Band("x", "x", 2) & sj.Band("y", "y", 1.5) & sj.Theta("l.x + r.x > 0"),
        _schema(k=pa.string(), x=pa.int16(), y=pa.float32()),
        _schema(k=pa.string(), x=pa.int64(), y=pa.float32()),
        lambda l, r: (
            _same(l["k"], r["k"]) and _close(l["x"], r["x"], 2) and _close(l["y"], r["y"], 1.5) and l["x"] + r["x"] > 0
        ),
        lambda rng, side: {
            "k": _maybe(rng, rng.choice("ab")),
            "x": _maybe(rng, rng.randint(-2, 6)),
            "y": _maybe(rng, rng.choice([math.nan, rng.randint(0, 8) / 2])),
        },
        windows=(80, 50),
    ),
    Case(
        "key and a band of today's times",
        sj.Equi("k") & sj.Band("at", "at", below="2 seconds", above="0 seconds"),
        _schema(k=pa.int64(), at=TS),
        _schema(k=pa.int64(), at=TS),
        lambda l, r: (
            _same(l["k"], r["k"])
            and None not in (l["at"], r["at"])
            and dt.timedelta(0) <= l["at"] - r["at"] <= dt.timedelta(seconds=2)
        ),
        lambda rng, side: {
            "k": _maybe(rng, rng.randint(0, 2)),
            "at": _maybe(rng, EPOCH + dt.timedelta(microseconds=rng.randint(0, 11_000_000))),
        },
        windows=(300, 200),
    ),
    Case(
        "key and a band of large integers",
        sj.Equi("k") & sj.Band("x", "x", 9_000),
        _schema(k=pa.string(), x=pa.int64()),
        _schema(k=pa.string(), x=pa.int64()),
        lambda l, r: _same(l["k"], r["k"]) and _close(l["x"], r["x"], 9_000),
        lambda rng, side: {"k": _maybe(rng, rng.choice("ab")), "x": _maybe(rng, 10**12 + rng.randint(0, 100_000))},
        windows=(300, 200),
    ),
    Case(
        "intervals of many lengths",
        sj.Overlaps(("lo", "hi"), ("lo", "hi")),
        _schema(lo=pa.int64(), hi=pa.int64()),
        _schema(lo=pa.int64(), hi=pa.int64()),
        lambda l, r: None not in (l["lo"], l["hi"], r["lo"], r["hi"]) and l["lo"] <= r["hi"] and r["lo"] <= l["hi"],
        lambda rng, side: _interval(rng),
    ),
)
BAND = CASES[0]

BACKGROUND = MergePolicy(slack=200, floor=0, runs=2, inline=0, expired=1000)
"""Nothing is folded by the batches themselves."""


def stream(case: Case, seed: int, n: int, step: int = 6, disorder: int = 0) -> tuple[list[Row], list[Row]]:
    """`n` rows a side whose times rise by up to `step` ms, often not at all, with up to `disorder` ms of jitter."""
    rng = random.Random(seed)
    sides: list[list[Row]] = []
    for side in ("left", "right"):
        now, rows = 0, []
        for i in range(n):
            now += rng.choice([0, 0, rng.randint(0, step)])
            at = now - rng.randint(0, disorder)
            rows.append({"ts": EPOCH + dt.timedelta(milliseconds=at), **case.draw(rng, side), "id": i})
        sides.append(rows)
    return sides[0], sides[1]


def expected(case: Case, left: Sequence[Row], right: Sequence[Row]) -> Counter[tuple[int, int]]:
    """Every pair of ids that the definition asks for."""
    windows = [dt.timedelta(milliseconds=w) for w in case.windows]
    found: Counter[tuple[int, int]] = Counter()
    for l in left:
        for r in right:
            early_left = l["ts"] <= r["ts"]
            apart = r["ts"] - l["ts"] if early_left else l["ts"] - r["ts"]
            if apart <= windows[0 if early_left else 1] and case.holds(l, r):
                found[l["id"], r["id"]] += 1
    return found


def tables(case: Case, left: Sequence[Row], right: Sequence[Row], batches: int) -> list[tuple[pa.Table, pa.Table]]:
    """Both sides cut into batches; the sides keep about the same pace, so that nothing is late."""
    out = []
    for i in range(batches):
        parts = []
        for rows, schema in ((left, case.left), (right, case.right)):
            begin, end = len(rows) * i // batches, len(rows) * (i + 1) // batches
            parts.append(pa.Table.from_pylist(list(rows[begin:end]), schema=schema))
        out.append((parts[0], parts[1]))
    return out


def pairs(results: Sequence[pa.RecordBatch] | pa.Table) -> Counter[tuple[int, int]]:
    """The ids of both sides of every result row."""
    found: Counter[tuple[int, int]] = Counter()
    for batch in results.to_batches() if isinstance(results, pa.Table) else results:
        found.update(zip(batch.column("id_left").to_pylist(), batch.column("id_right").to_pylist(), strict=True))
    return found


def blueprint(case: Case, partitions: int, policy: MergePolicy = EAGER) -> Blueprint:
    bound = bind(case.bound_spec(), case.left, case.right)
    return Blueprint(bound, "join", partitions, policy, token="0" * 32)


def in_process(
    plan: Blueprint,
    root: Path,
    batch: int,
    sides: Sequence[pa.Table],
    epoch: int = 1,
    only: Sequence[int] | None = None,
    *,
    ends: bool = False,
    rows_a_task: int = 64,
) -> list[pa.RecordBatch]:
    """One batch through both stages; `only` names the ranges whose tasks get to run."""
    log = WindowLog(root, epoch, plan, batch if ends else None)
    before = log.version(batch - 1)
    points, longest = planned(plan, before), longest_stored(plan, before)
    sent: dict[int, list[pa.RecordBatch]] = {partition: [] for partition in range(plan.partitions)}
    facts: list[TaskFacts] = []
    for side, table in enumerate(sides):
        for rows in table.combine_chunks().to_batches(max_chunksize=rows_a_task):
            for part in Route(plan, side).cut(rows, points, longest, len(facts), 0, 0):
                sent[part.partition] += part.packed(Spool.of(log, batch))
            facts.append(TaskFacts(side, len(facts)).after(plan, rows))
    schemas = part_schema(plan, 0), part_schema(plan, 1)
    results = []
    for partition, received in sent.items():
        if not only or partition in only:
            _, both = unpack(reversed(received), schemas)
            results += list(plain(plan, RangeOfBatch(plan, log, batch, partition).join(both, facts[::-1])))
    return results


def write_files(directory: Path, batches: Batches) -> None:
    """One Parquet file a side and batch, in the order of their times."""
    for side, name in enumerate(("left", "right")):
        (directory / name).mkdir(parents=True)
        for i, sides in enumerate(batches):
            path = directory / name / f"{i:04}.parquet"
            pq.write_table(sides[side], path)
            os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))


def streams(spark: Any, directory: Path, left: pa.Schema, right: pa.Schema, per_batch: int = 1) -> tuple[Any, Any]:
    """Both sides as streaming DataFrames over the files, `per_batch` files a batch."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def read(name: str, schema: pa.Schema) -> Any:
        reader = spark.readStream.schema(from_arrow_schema(schema)).option("maxFilesPerTrigger", per_batch)
        return reader.parquet(str(directory / name))

    return read("left", left), read("right", right)


def run_to_parquet(joined: Any, directory: Path) -> pa.Table:
    """Run a query over all that is there into Parquet files, and read them back."""
    query = (
        joined.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "out"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return read_parquet(directory / "out")


def read_parquet(directory: Path) -> pa.Table:
    """What a streaming query committed: the files its own log names, and no others."""
    import json

    names = set()
    for entry in sorted((directory / "_spark_metadata").iterdir()):
        if not entry.name.startswith("."):
            names |= {json.loads(line)["path"].rsplit("/", 1)[1] for line in entry.read_text().splitlines()[1:]}
    assert names, "no files were written"
    return pa.concat_tables(pq.read_table(directory / name) for name in sorted(names))


def interrupted_blocks(*before: Callable[[], object]) -> Iterator[BlockRows]:
    """A block that is asked for when its file is half written."""
    for step in before:
        step()
    yield BlockRows(pa.record_batch({"#word": pa.array([1], pa.int64())}), 1, 1)
