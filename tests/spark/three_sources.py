"""For the tests behind a gate on real Spark: three small sources as files, what their join is, and what was written."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.testing import conformance, oracle
from streamjoin.testing.cases import JoinCase
from tests.oracles.expected import expected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, int]
SCHEMA = pa.schema([("t", pa.int64()), ("x", pa.int64()), ("id", pa.int64())])
SPEC = sj.JoinSpec(sj.Band("x", "x", 1), (sj.CountWindow(20), sj.TimeWindow(9)), time="t", order="event_time")
COUNT_SPEC = sj.JoinSpec(sj.Band("x", "x", 1), sj.CountWindow(15), time="t", order="event_time")


def rising_rows(seed: int, n: int, first_id: int = 0) -> list[dict[str, int]]:
    rng = random.Random(seed)
    now, rows = 0, []
    for i in range(n):
        now += rng.choice([0, 0, 1, 2])
        rows.append({"t": now, "x": rng.randint(0, 12), "id": first_id + i})
    return rows


def write_source(directory: Path, rows: Sequence[dict[str, int]], files: int) -> None:
    directory.mkdir(parents=True)
    for i in range(files):
        part = rows[len(rows) * i // files : len(rows) * (i + 1) // files]
        path = directory / f"{i:04}.parquet"
        pq.write_table(pa.Table.from_pylist(list(part), SCHEMA), path)
        os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))


def read_source(spark: SparkSession, directory: Path, per_batch: int = 1) -> DataFrame:
    reader = spark.readStream.schema("t long, x long, id long").option("maxFilesPerTrigger", per_batch)
    return reader.parquet(str(directory))


def rows_in_order(directory: Path) -> pa.Table:
    """The committed files batch by batch, and within a batch by partition, as their names say."""
    tables = []
    for entry in sorted((directory / "out/_spark_metadata").glob("[0-9]*"), key=lambda path: int(path.name)):
        names = [json.loads(line)["path"].rsplit("/", 1)[1] for line in entry.read_text().splitlines()[1:]]
        tables += [pq.read_table(directory / "out" / name) for name in sorted(names)]
    return pa.concat_tables(tables)


def three_sources() -> list[list[dict[str, int]]]:
    return [rising_rows(1, 90), rising_rows(2, 60, 1000), rising_rows(3, 120, 2000)]


def expected_of_three() -> list[tuple[int, int]]:
    """The oracle's pairs of the three sources."""
    a, b, c = three_sources()
    return expected_pairs([a, b], c, SPEC)


def expected_pairs(
    left: Sequence[Sequence[dict[str, int]]], right: Sequence[dict[str, int]], spec: sj.JoinSpec
) -> list[tuple[int, int]]:
    """The oracle's pairs of ids up to what every source has passed, for a spec that joins rows at most 1 apart in x."""
    sources = [(0, f"{i:04}", rows) for i, rows in enumerate(left)] + [(1, "0000", right)]
    events = [oracle.Event(bool(side), row, row["t"], name) for side, name, rows in sources for row in rows]
    bound = min((rows[-1]["t"], side, name) for side, name, rows in sources)
    ready = [e for e in oracle.event_time_order(events) if (e.ts, int(e.right), e.source) <= bound]
    ids = [[e.row["id"] for e in ready if e.right == side] for side in (False, True)]
    windows = [("count", w.n) if isinstance(w, sj.CountWindow) else ("time", w.length) for w in spec.windows]
    pairs = oracle.join(ready, lambda l, r: abs(l["x"] - r["x"]) <= 1, *windows)
    return [(ids[0][l], ids[1][r]) for l, r in pairs]


def embedded_rows(left: Sequence[Row], right: Sequence[Row], spec: sj.JoinSpec) -> pa.Table:
    """The rows that the embedded engine gives before the end of its input."""
    with sj.open(spec, on_close=lambda _: None) as join:
        return join.push(*(pa.Table.from_pylist(list(rows), SCHEMA) for rows in (left, right)))


def expected_rows(left: Sequence[Row], right: Sequence[Row], spec: sj.JoinSpec) -> list[conformance.IdPair]:
    """The oracle's rows of a kind of join that are decided when both sides end.

    For an outer join of count windows on rows at most 1 apart in x, or an as-of join of equal x.
    """
    events = oracle.event_time_order(
        [oracle.Event(bool(side), row, row["t"]) for side, rows in enumerate((left, right)) for row in rows]
    )
    bound = min((rows[-1]["t"], side) for side, rows in enumerate((left, right)))
    ready = tuple(e for e in events if (e.ts, int(e.right)) <= bound)
    apart = 1 if spec.match is None else 0
    through = ready if spec.match is None else tuple(events)
    case = JoinCase(spec, lambda l, r: abs(l["x"] - r["x"]) <= apart, (SCHEMA, SCHEMA), through, ())
    rows = expected(case)
    if isinstance(spec.match, sj.AsOf):
        reach = 0 if spec.match.direction == "backward" else bind(spec, SCHEMA, SCHEMA).windows[1].size
        decided = {e.row["id"] for e in events if not e.right and e.ts + reach < bound[0]}
        return [row for row in rows if row[0] in decided]
    waiting: set[int] = set()
    for side, window in zip((False, True), bind(spec, SCHEMA, SCHEMA).windows, strict=True):
        waiting.update([e.row["id"] for e in ready if e.right == side][-window.size :])
    return [row for row in rows if None not in row or not waiting & set(row)]
