"""Queries of all kinds but plain joins on Spark's executors: the rows of one core, through crashes and silence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Budget, ParquetSink, Settings, Stream
from streamjoin.model.errors import StateError
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.executors.distributed.journal import FiledJournal
from tests.queries.core_cases import rows_of
from tests.spark.adhoc_streams import SCHEMA, FileStream, engine_on, table_of, written

pytestmark = pytest.mark.spark

QUERIES = {
    "full": "SELECT x.p AS a, y.p AS b FROM l x FULL JOIN r y WITHIN 5 SECONDS ON x.k = y.k",
    "anti": "SELECT x.p AS a FROM l x ANTI JOIN r y WITHIN 3 SECONDS ON x.k = y.k",
    "semi": "SELECT x.p AS a FROM l x SEMI JOIN r y WITHIN 3 SECONDS ON x.k = y.k",
    "asof": "SELECT x.p AS a, y.p AS b FROM l x ASOF LEFT JOIN r y MATCH_CONDITION (x.ts >= y.ts) ON x.k = y.k "
    "TOLERANCE 4 SECONDS",
    "latest": "SELECT x.p AS a, y.p AS b FROM l x ASOF JOIN r y MATCH_CONDITION (x.ts >= y.ts) ON x.k = y.k",
    "around": "SELECT x.p AS a, sum(y.p) AS b, last(y.p) AS c FROM l x WINDOW JOIN r y ON x.k = y.k RANGE BETWEEN "
    "3 SECONDS PRECEDING AND 2 SECONDS FOLLOWING INCLUDE PREVAILING",
    "by band": "SELECT x.p AS a, count(*) AS n FROM l x INNER WINDOW JOIN r y RANGE BETWEEN CURRENT ROW AND 3 SECONDS "
    "FOLLOWING EXCLUDE PREVAILING ON ABS(x.p - y.p) <= 1",
    "band": "SELECT x.p AS a, y.p AS b FROM l x LEFT JOIN r y WITHIN 3 SECONDS ON ABS(x.p - y.p) <= 1",
    "all": "SELECT x.p AS a, y.p AS b FROM l x FULL JOIN r y WITHIN 1 SECONDS ON ABS(x.p - y.p) <= 1",
    "chain": "SELECT x.p AS a, y.p AS b, z.p AS c FROM l x JOIN r y WITHIN 2 SECONDS ON x.k = y.k "
    "LEFT JOIN l z WITHIN 2 SECONDS ON z.k = y.k AND z.p < y.p",
    "groups": "SELECT window_end AS a, x.k AS b, count(*) AS n, sum(x.p) AS s FROM l x JOIN r y WITHIN 3 SECONDS "
    "ON x.k = y.k GROUP BY x.k, TUMBLE(x.ts, INTERVAL '4' SECOND)",
    "tops": "SELECT window_end AS a, x.k AS b, avg(y.p) AS n FROM l x JOIN r y WITHIN 3 SECONDS ON x.k = y.k GROUP BY "
    "x.k, HOP(x.ts, INTERVAL '1' SECOND, INTERVAL '3' SECOND) QUALIFY row_number() OVER (PARTITION BY window_end "
    "ORDER BY n) <= 2",
    "hops": "SELECT window_start AS a, count(*) AS b, arg_max(p, ts) AS c FROM l GROUP BY HOP(ts, INTERVAL '2' SECOND, "
    "INTERVAL '5' SECOND)",
    "beyond": "SELECT x.p AS a, sum(y.p + 9223372036854775000) AS b, count(*) AS n FROM l x WINDOW JOIN r y "
    "ON x.k = y.k RANGE BETWEEN 3 SECONDS PRECEDING AND 2 SECONDS FOLLOWING EXCLUDE PREVAILING",
    "beyond, in groups": "SELECT window_end AS a, sum(p + 9223372036854775000) AS b, count(*) AS n FROM r "
    "GROUP BY k, TUMBLE(ts, INTERVAL '4' SECOND)",
    "union": "SELECT p AS a, k AS b FROM r WHERE k > 3 UNION ALL SELECT x.p, y.p FROM l x LEFT JOIN r y WITHIN "
    "5 SECONDS ON x.k = y.k UNION ALL SELECT p, p FROM l",
}
STEPS = 4


def tuples(stream: str, step: int) -> pa.Table:
    """Keys of which some are NULL and some have no partner; the last step passes every window."""
    shift = 0.0 if stream == "l" else 0.25
    second = 4.0 * step if step < STEPS - 1 else 1000.0
    keys = [None if row == 3 else (7 * row + 3 * step + (stream == "r")) % 11 for row in range(12)]
    return table_of(*((key, 12 * step + row, second + row / 4 + shift) for row, key in enumerate(keys)))


def wanted_rows() -> dict[str, Counter[Any]]:
    """What one core gives of the same batches."""
    core = Shared([Stream(name, SCHEMA, "ts") for name in ("l", "r")], Settings(lateness="10 seconds"))
    core.apply([Create(name, text) for name, text in QUERIES.items()])
    found: dict[str, Counter[Any]] = {name: Counter() for name in QUERIES}
    for step in range(STEPS):
        for name, table in core.process(step, {stream: tuples(stream, step) for stream in ("l", "r")}).items():
            found[name] += rows_of(table)
    return found


def write(directory: Path, step: int) -> None:
    for stream in ("l", "r"):
        FileStream(directory / stream).write(tuples(stream, step))


def test_rows_are_those_of_one_core_through_a_crash_and_with_another_number_of_cells(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_on(spark, tmp_path, cells=3) as engine:
        for name, text in QUERIES.items():
            budget = Budget(candidates=10**9, rows=10**9)
            engine.create(text, name=name, sink=ParquetSink(str(tmp_path / "out" / name)), budget=budget)
        write(tmp_path, 0)
        engine.process_all_available()
        # What waits is stored after the rows are listed, and before the batch counts as done.

        def crash(*_: Any) -> None:
            raise RuntimeError("the process dies here")

        with monkeypatch.context() as patch:
            patch.setattr(FiledJournal, "write_waiting", crash)
            write(tmp_path, 1)
            with pytest.raises(StateError, match="dies here"):
                engine.wait(120)
    with engine_on(spark, tmp_path, cells=2) as engine:
        for step in (2, 3):
            write(tmp_path, step)
            engine.process_all_available()
        assert all(info.state == "running" for info in engine.queries())
        assert engine.metrics().rows_in == 2 * 12 * STEPS
        overflowed = {info.name: info.overflowed for info in engine.queries() if info.overflowed}
    wanted = wanted_rows()
    # The sum of two is beyond its type.
    assert overflowed == {
        name: sum(times for (_, total, n), times in wanted[name].items() if total is None and n)
        for name in ("beyond", "beyond, in groups")
    }
    assert all(overflowed.values())
    for name in QUERIES:
        assert written(tmp_path / "out" / name) == wanted[name], name
        assert sum(wanted[name].values()) > 3, name
    left = {entry.name for entry in (tmp_path / "checkpoint" / "waiting").iterdir()}
    # The lists of two batches, and a file of each cell for either.
    assert len([name for name in left if name.isdigit()]) == 2
    assert len(left) <= 2 + 2 * 2


def test_silence_lets_unmatched_tuples_out_without_another_tuple(spark: Any, tmp_path: Path) -> None:
    """Both streams are silent from then on: the clock of the right one follows that of the left one."""
    with engine_on(spark, tmp_path, idle="2 seconds", newest_rows=100) as engine:
        engine.create(QUERIES["anti"], name="anti")
        engine.create(QUERIES["groups"], name="groups")
        FileStream(tmp_path / "r").rows((9, 0, 0.0), (1, 4, 0.5))
        FileStream(tmp_path / "l").rows((3, 3, 0.0), (1, 1, 0.0), (2, 2, 60.0))
        assert next(engine.iterate("anti", timeout=120)).to_pylist() == [{"a": 3}]
        assert [row["s"] for row in next(engine.iterate("groups", timeout=120)).to_pylist()] == [1]


def test_a_query_that_fails_in_one_cell_loses_what_waits_in_all(spark: Any, tmp_path: Path) -> None:
    """Its sum exceeds 64 bits for one key; after the pause only tuples that came since then wait."""
    text = "SELECT x.p * 9000000000000000000 AS a FROM l x LEFT JOIN r y WITHIN 3 SECONDS ON x.k = y.k"
    left, right = FileStream(tmp_path / "l"), FileStream(tmp_path / "r")
    with engine_on(spark, tmp_path, cells=3, newest_rows=100) as engine:
        engine.create(text, name="large")
        engine.create(QUERIES["anti"], name="anti")
        engine.create(QUERIES["full"], name="poor", budget=Budget(rows=1))
        left.rows(*((key, 0, 0.0) for key in range(9)), (50, 1, 0.1))
        engine.process_all_available()
        left.rows((51, 2, 0.2))
        right.rows((50, 1, 0.1), (51, 1, 0.2))
        engine.process_all_available()
        info = engine.query("large")
        assert info.state == "failed" and "does not fit int64" in str(info.error)
        # Each of its two rows is in a cell of its own.
        assert "rows" in str(engine.query("poor").error)
        engine.resume("large")
        left.rows((60, 1, 1.0))
        right.rows((99, 0, 100.0))
        engine.process_all_available()
        assert engine.rows("large")["a"].to_pylist() == [9 * 10**18]
        assert sorted(engine.rows("anti")["a"].to_pylist()) == [0] * 9 + [1]
