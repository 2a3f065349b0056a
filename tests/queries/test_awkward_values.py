"""Values and names that real data has and that were not thought of: each keeps its rows, and ends nothing."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Engine, Settings
from streamjoin.queries.core.shared_join import FirstJoinRun
from streamjoin.queries.sources.rate import RateSource


def opened(schema: pa.Schema, checkpoint: Path | None = None, **options: Any) -> Engine:
    engine = Engine(checkpoint=checkpoint, **options)
    for name in "lr":
        engine.register(name, schema=schema, time="t")
    return engine


def rows_of(schema: pa.Schema, rows: list[dict[str, Any]], select: str, condition: str) -> list[dict[str, Any]]:
    with opened(schema) as engine:
        engine.create(f"SELECT {select} FROM l x JOIN r y WITHIN 5 UNITS ON {condition}", name="q")
        table = pa.Table.from_pylist(rows, schema)
        engine.push_all({"l": table, "r": table})
        assert engine.query("q").error is None
        found: list[dict[str, Any]] = engine.rows("q").to_pylist()
        return found


@pytest.mark.parametrize("select", ["x.p", "x.p, y.k"])
@pytest.mark.parametrize("kind", ["ASOF", "ASOF LEFT", "ASOF ANTI"])
def test_an_as_of_join_that_uses_no_column_of_its_partner(kind: str, select: str, tmp_path: Path) -> None:
    if "ANTI" in kind and "y.k" in select:
        select = "x.k"
    schema = pa.schema({"k": pa.int64(), "p": pa.int64(), "t": pa.int64()})
    for run in range(2):
        with opened(schema, tmp_path) as engine:
            if not run:
                engine.create(f"SELECT {select} FROM l x {kind} JOIN r y MATCH_CONDITION (x.t >= y.t)", name="q")
            for moment in (10 * run + 1, 10 * run + 2):
                row = [{"k": 1, "p": moment, "t": moment}]
                engine.push_all({"l": row, "r": row} if run or moment > 1 else {"l": row})
            assert (engine.query("q").state, engine.error) == ("running", None)
    # The first tuple has no partner, and the last may still get a nearer one.
    with opened(schema, tmp_path) as engine:
        assert engine.query("q").rows == {"ASOF": 2, "ASOF LEFT": 3, "ASOF ANTI": 1}[kind]


def test_uint64_joins_floats() -> None:
    schema = pa.schema({"u": pa.uint64(), "f": pa.float64(), "t": pa.int64()})
    values = [(0, 0.0), (2**63, 2.0**63), (2**64 - 1, 2.0**64), (7, 7.5)]
    rows = [{"u": u, "f": f, "t": 1} for u, f in values]
    equal = rows_of(schema, rows, "x.u AS u, y.f AS f", "x.u = y.f")
    assert [(row["u"], row["f"]) for row in equal] == values[:3]
    near = rows_of(schema, rows, "x.u AS u, y.f AS f", "ABS(x.u - y.f) <= 0.5")
    assert {(row["u"], row["f"]) for row in near} == set(values)


def test_two_comparisons_that_say_equal_hold_for_infinities() -> None:
    schema = pa.schema({"v": pa.float64(), "t": pa.int64()})
    rows = [{"v": v, "t": 1} for v in (math.inf, -math.inf, 1.0, math.nan, None)]
    for condition in ("x.v <= y.v AND x.v >= y.v", "x.v BETWEEN y.v AND y.v"):
        found = rows_of(schema, rows, "x.v AS a, y.v AS b", condition)
        assert sorted((row["a"], row["b"]) for row in found) == [(v, v) for v in (-math.inf, 1.0, math.inf)]


@pytest.mark.parametrize(
    ("expression", "type_", "values"),
    [
        ("COALESCE(x.u, y.u)", pa.uint64(), [2**64 - 1, None, 2**63]),
        ("COALESCE(x.u, 3)", pa.uint64(), [2**64 - 1, 3, 2**63]),
        ("CASE WHEN x.k = 1 THEN x.u ELSE 0 END", pa.uint64(), [2**64 - 1, 0, 0]),
        ("GREATEST(x.u, 5)", pa.uint64(), [2**64 - 1, 5, 2**63]),
        ("COALESCE(x.u, x.i)", pa.decimal128(20, 0), [2**64 - 1, -5, 2**63]),
        ("COALESCE(x.i, 3)", pa.int64(), [-5, -5, 3]),
    ],
)
def test_a_choice_among_uint64_keeps_its_values(expression: str, type_: pa.DataType, values: list[int]) -> None:
    schema = pa.schema({"k": pa.int64(), "u": pa.uint64(), "i": pa.int64(), "t": pa.int64()})
    rows = [
        {"k": 1, "u": 2**64 - 1, "i": -5, "t": 1},
        {"k": 2, "u": None, "i": -5, "t": 1},
        {"k": 3, "u": 2**63, "i": None, "t": 1},
    ]
    with opened(schema) as engine:
        engine.create(f"SELECT {expression} AS c FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k", name="q")
        table = pa.Table.from_pylist(rows, schema)
        engine.push_all({"l": table, "r": table})
        found = engine.rows("q")
        assert engine.query("q").error is None
        assert (found.schema.types, found["c"].to_pylist()) == ([type_], values)


AWKWARD: dict[str, tuple[pa.DataType, Any]] = {
    "empty struct": (pa.struct([]), {}),
    "list of empty structs": (pa.list_(pa.struct([])), [{}]),
    "month interval": (pa.month_day_nano_interval(), (1, 2, 3)),
    "binary of no bytes": (pa.binary(0), b""),
    "list of no values": (pa.list_(pa.int8(), 0), []),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_what_parquet_cannot_hold_is_set_aside_and_read_back(name: str, tmp_path: Path) -> None:
    type_, value = AWKWARD[name]
    schema = pa.schema({"t": pa.int64(), "c": type_})
    for run in range(2):
        with opened(schema, tmp_path) as engine:
            engine.push("l", pa.table([pa.array([None], pa.int64()), pa.array([value], type_)], schema=schema))
            assert engine.late("l") == pa.table(
                [pa.array([None] * (run + 1), pa.int64()), pa.array([value] * (run + 1), type_)], schema=schema
            )
            assert engine.error is None


def test_a_time_in_seconds_beyond_the_range_of_milliseconds_is_set_aside(tmp_path: Path) -> None:
    schema = pa.schema({"t": pa.timestamp("s")})
    far = pa.array([2**55], pa.int64()).cast(pa.timestamp("s"))
    with opened(schema, tmp_path) as engine:
        # What Parquet holds comes back beside it.
        engine.push("l", pa.table([pa.nulls(1, pa.timestamp("s"))], schema=schema))
        engine.push("l", pa.table([far], schema=schema))
        assert engine.late("l")["t"].cast(pa.int64()).to_pylist() == [None, 2**55]


NAMES = ("#number", "#ticks", "#gate", "#tick", "#row")


def test_columns_may_have_the_names_that_the_checkpoint_uses(tmp_path: Path) -> None:
    schema = pa.schema({"k": pa.int64(), **dict.fromkeys(NAMES, pa.int64()), "t": pa.int64()})
    columns = ", ".join(f'y."{name}"' for name in NAMES)
    sql = f"SELECT {columns} FROM l x ASOF JOIN r y MATCH_CONDITION (x.t >= y.t) ON x.k = y.k"
    for run in range(3):
        with opened(schema, tmp_path) as engine:
            if not run:
                engine.create(sql, name="q")
                engine.push("r", [{"k": 1, "t": 1, **{name: n for n, name in enumerate(NAMES)}}])
            row = {"k": 1, "t": 10 * run + 5, **dict.fromkeys(NAMES, 0)}
            engine.push("l", [row])
            engine.push("r", [{**row, "k": 2, "t": 10 * run + 6}])
            assert engine.rows("q").to_pylist() == [{name: n for n, name in enumerate(NAMES)}]


def test_another_rate_goes_on_from_the_time_of_the_last_row() -> None:
    now = [10**9]
    position: Any = None
    times: list[int] = []
    values: list[int] = []
    for rate in (50, 100, 7, 50):
        source = RateSource(rate, clock=lambda: now[0])
        for _ in range(2):
            now[0] += 2 * 10**9
            read = source.read(position)
            assert read is not None
            position = read.position
            times += read.rows["timestamp"].cast(pa.int64()).to_pylist()
            values += read.rows["value"].to_pylist()
    assert times == sorted(times) and values == list(range(len(values)))
    # All that is due has come, and nothing that is not.
    assert now[0] // 1000 - 2 * 10**6 // 7 <= times[-1] <= now[0] // 1000
    # A position of an earlier version has no rate.
    assert RateSource(2, clock=lambda: 3 * 10**9).read({"start": 0, "next": 4}).rows.num_rows == 2  # type: ignore[union-attr]


def test_the_query_that_a_batch_is_at_is_named_with_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One first join hangs while the other threads go on with the rest, and end: the one that hangs is named."""
    schema = pa.schema({"k": pa.int64(), "t": pa.int64(), **{f"c{n}": pa.int64() for n in range(8)}})
    others, release = threading.Semaphore(0), threading.Event()
    probe = FirstJoinRun._probe

    def slow(self: Any, target: Any, probes: Any) -> Any:
        if "slow" in target.steps[0].queries:
            release.wait(60)
        return probe(self, target, probes)

    run = FirstJoinRun.run

    def noted(self: Any) -> Any:
        found = run(self)
        if self._batch.fresh:
            others.release()
        return found

    monkeypatch.setattr(FirstJoinRun, "_probe", slow)
    monkeypatch.setattr(FirstJoinRun, "run", noted)
    with opened(schema, settings=Settings(threads=3)) as engine:
        for n in range(7):
            engine.create(f"SELECT x.k FROM l x JOIN r y WITHIN 5 UNITS ON x.c{n} = y.c{n}", name=f"q{n}")
        engine.create("SELECT x.k FROM l x JOIN r y WITHIN 5 UNITS ON x.c7 = y.c7", name="slow")
        rows = pa.table({name: [1] * 8000 if name == "t" else range(8000) for name in schema.names}, schema=schema)
        pushing = threading.Thread(target=engine.push_all, args=({"l": rows, "r": rows},))
        pushing.start()
        for _ in range(7):
            assert others.acquire(timeout=60)
        running = engine.activity()
        release.set()
        pushing.join(60)
        assert running is not None and running.queries == ("slow",)
