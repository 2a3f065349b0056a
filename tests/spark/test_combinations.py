"""Every predicate with every window, order and number of sources against the oracle on real Spark, many in one query.

Each combination is a join of its own with a name of its own; their results travel together, tagged, so that one query
of a few batches checks them all. The suite runs those in which every two settings meet; `make fuzz` runs all.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamjoin as sj
from streamjoin.spark import Source, join
from streamjoin.testing import oracle
from tests.oracles.market import market_frames
from tests.seeds import FRESH, thorough_but

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

# Values of the size that real data has, as far apart as a band that is a part of them.
BASE, STEP = 10**12, 3_000

SCHEMA = pa.schema([("t", pa.int64()), ("x", pa.int64()), ("k", pa.string()), ("id", pa.int64())])
Row = dict[str, Any]


def _near(a: Any, b: Any, d: int) -> bool:
    return a is not None and b is not None and abs(a - b) <= d


def _same(a: Any, b: Any) -> bool:
    return a is not None and a == b


PREDICATES: dict[str, tuple[Any, Callable[[Any, Any], bool]]] = {
    "band": (sj.Band("x", "x", STEP), lambda l, r: _near(l["x"], r["x"], STEP)),
    "key": (sj.Equi("k"), lambda l, r: _same(l["k"], r["k"])),
    "theta": (
        sj.Theta(f"l.x + {2 * STEP} < r.x OR l.k = r.k"),
        lambda l, r: (None not in (l["x"], r["x"]) and l["x"] + 2 * STEP < r["x"]) or _same(l["k"], r["k"]),
    ),
    "all": (
        sj.Equi("k") & sj.Band("x", "x", 2 * STEP) & sj.Theta("l.id % 3 <> r.id % 3"),
        lambda l, r: _same(l["k"], r["k"]) and _near(l["x"], r["x"], 2 * STEP) and l["id"] % 3 != r["id"] % 3,
    ),
}
WINDOWS: dict[str, tuple[Any, tuple[str, int], tuple[str, int]]] = {
    "time": (sj.TimeWindow(6), ("time", 6), ("time", 6)),
    "count": (sj.CountWindow(9), ("count", 9), ("count", 9)),
    "both": ((sj.CountWindow(12), sj.TimeWindow(3)), ("count", 12), ("time", 3)),
}


@dataclass(frozen=True)
class Combination:
    predicate: str
    window: str
    ordered: bool
    sources: int

    @property
    def name(self) -> str:
        return f"{self.predicate}-{self.window}-{'in-order' if self.ordered else 'any-order'}-{self.sources}"

    @property
    def gated(self) -> bool:
        return self.ordered or self.sources > 1 or self.window != "time"


ALL = [Combination(*c) for c in itertools.product(PREDICATES, WINDOWS, (True, False), (1, 2))]
PAIRS = [
    Combination(predicate, window, (i + j) % 2 == 0, 1 + (i // 2 + j) % 2)
    for i, predicate in enumerate(PREDICATES)
    for j, window in enumerate(WINDOWS)
]
"""Every two settings of different kinds meet in one of them."""
OTHERS = [case for case in ALL if case not in PAIRS]


def _stream(seed: int, first: int) -> list[Row]:
    rng = random.Random(seed)
    now, rows = 0, []
    for i in range(45):
        now += rng.choice([0, 0, 1, 2])
        x, k = rng.choice([None, *(BASE + STEP * i for i in range(8))]), rng.choice([None, "a", "b", "c"])
        rows.append({"t": now, "x": x, "k": k, "id": first + i})
    return rows


def _expected(case: Combination, left: list[list[Row]], right: list[Row]) -> list[tuple[int, int]]:
    sources = [(False, f"{i:04}", rows) for i, rows in enumerate(left[: case.sources])] + [(True, "0000", right)]
    events = [oracle.Event(side, row, row["t"], name) for side, name, rows in sources for row in rows]
    events = oracle.event_time_order(events)
    if case.gated:
        bound = min((rows[-1]["t"], side, name) for side, name, rows in sources)
        events = [e for e in events if (e.ts, e.right, e.source) <= bound]
    _, left_window, right_window = WINDOWS[case.window]
    pairs = oracle.join(events, PREDICATES[case.predicate][1], left_window, right_window)
    ids = [[e.row["id"] for e in events if e.right == side] for side in (False, True)]
    return [(ids[0][l], ids[1][r]) for l, r in pairs]


def _spec(case: Combination) -> sj.JoinSpec:
    """Without an order: it is event time wherever there is a time column."""
    return sj.JoinSpec(PREDICATES[case.predicate][0], WINDOWS[case.window][0], time="t")


def _embedded(case: Combination, left: list[list[Row]], right: list[Row]) -> list[tuple[int, int]]:
    """The rows of `sj.open` for the same spec, before its end: what a query on Spark has given out."""
    names = [f"{i:04}" for i in range(case.sources)]
    sources = {"left": names, "right": ["0000"]}
    join = sj.open(_spec(case), left_schema=SCHEMA, right_schema=SCHEMA, sources=sources)
    tables = [join.push(left=pa.Table.from_pylist(left[i], SCHEMA), source=name) for i, name in enumerate(names)]
    tables.append(join.push(right=pa.Table.from_pylist(right, SCHEMA), source="0000"))
    if not case.gated:
        tables.append(join.close())
    return [(row["id_left"], row["id_right"]) for table in tables for row in table.to_pylist()]


def _joined(case: Combination, left: list[DataFrame], right: DataFrame) -> DataFrame:
    spec = _spec(case)
    # Spark reads sources of one partition each in one task.
    frames = [frame.coalesce(1) if case.ordered else frame for frame in left[: case.sources]]
    sources = [Source(frame, position="id") for frame in frames] if case.sources > 1 else frames[0]
    right = right.coalesce(1) if case.ordered else right
    found = join(
        sources, right, spec, ordered=case.ordered, positions=case.gated, name=case.name, partitions=2,
        columns=["id_left", "id_right"],
    )  # fmt: skip
    order = ["position", "partner"] if case.gated else ["CAST(0 AS BIGINT) AS position", "CAST(0 AS BIGINT) AS partner"]
    return found.selectExpr(f"'{case.name}' AS name", "id_left", "id_right", *order)


@pytest.mark.filterwarnings("ignore:with time= the default order:FutureWarning")
@pytest.mark.parametrize("part", thorough_but(range(4), 0))
def test_every_combination_is_the_oracles(spark: SparkSession, tmp_path: Path, part: int) -> None:
    streams = {"a": _stream(FRESH + 1, 0), "b": _stream(FRESH + 2, 100), "c": _stream(FRESH + 3, 200)}
    for name, rows in streams.items():
        (tmp_path / name).mkdir()
        for i in range(2):
            half = pa.Table.from_pylist(rows[22 * i : 22 + 23 * i], SCHEMA)
            path = tmp_path / name / f"{i}.parquet"
            pq.write_table(half, path)
            os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))
    frames = {
        name: spark.readStream.schema("t long, x long, k string, id long")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / name))
        for name in streams
    }
    cases = OTHERS[part - 1 :: 3] if part else PAIRS
    together = reduce(lambda a, b: a.union(b), (_joined(c, [frames["a"], frames["b"]], frames["c"]) for c in cases))
    query = together.writeStream.format("memory").queryName(f"part{part}").trigger(availableNow=True).start()
    query.awaitTermination()
    found: dict[str, list[tuple[int, ...]]] = {case.name: [] for case in cases}
    for row in spark.table(f"part{part}").collect():
        found[row.name].append((row.position, row.partner, row.id_left, row.id_right))
    for case in cases:
        wanted = _expected(case, [streams["a"], streams["b"]], streams["c"])
        pairs = [entry[2:] for entry in sorted(found[case.name])]
        assert len(wanted) > 10, case.name
        assert (pairs if case.gated else sorted(pairs)) == (wanted if case.gated else sorted(wanted)), case.name
        assert _embedded(case, [streams["a"], streams["b"]], streams["c"]) == wanted, case.name
        if case.ordered:
            assert found[case.name] == sorted(found[case.name]), case.name


def test_every_two_settings_meet() -> None:
    def meeting(cases: list[Combination]) -> set[tuple[tuple[str, object], ...]]:
        return {pair for case in cases for pair in itertools.combinations(vars(case).items(), 2)}

    assert meeting(PAIRS) == meeting(ALL)


@pytest.mark.parametrize("ordered", [False, True])
def test_no_pair_is_further_apart_than_its_window_says(spark: SparkSession, tmp_path: Path, ordered: bool) -> None:
    """The join that `tests/joins/test_default_order.py` runs through the other doors, without an order as there."""
    left, right, wanted = market_frames()
    # The gate waits for a row behind the last: one without a partner lets all pairs out.
    last = pa.array([max(side["ts"].to_pylist()[-1] for side in (left, right)) + dt.timedelta(hours=1)])
    frames = []
    for name, rows in (("left", left), ("right", right)):
        end = pa.table({"sym": [name], "ts": last, "id": [-1]}, rows.schema)
        (tmp_path / name).mkdir()
        pq.write_table(pa.concat_tables([rows, end]), tmp_path / name / "rows.parquet")
        frames.append(spark.readStream.schema("sym string, ts timestamp_ntz, id long").parquet(str(tmp_path / name)))
    spec = sj.JoinSpec(on=sj.Equi("sym"), window=sj.TimeWindow("5 seconds"), time="ts")
    found = join(frames[0], frames[1], spec, ordered=ordered, partitions=2, columns=["id_left", "id_right"])
    name = f"market{ordered}"
    query = found.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    query.awaitTermination()
    pairs = [[row.id_left, row.id_right] for row in spark.table(name).collect()]
    assert (pairs if ordered else sorted(pairs)) == (wanted if ordered else sorted(wanted))
