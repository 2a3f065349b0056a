"""Random workloads and NEXMark through the engine on Spark, whoever joins: the oracle, and DuckDB."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from benchmarks.rivals import nexmark
from streamjoin.adhoc import Engine, Settings, Stream
from streamjoin.queries.language.sql import parse
from streamjoin.spark.demo.feeds import drop
from tests.oracles import adhoc_cases, row_evaluator
from tests.oracles.adhoc_oracle import Arrival, Life, gate_order, rows
from tests.oracles.row_evaluator import plain
from tests.queries.core_cases import Rows, lateness_of
from tests.queries.duckdb_twin import duckdb_rows
from tests.seeds import thorough_but

pytestmark = pytest.mark.spark

TYPES = {"int64": "BIGINT", "double": "DOUBLE", "string": "STRING", "timestamp[us]": "TIMESTAMP_NTZ"}
DISTRIBUTED = {"executor": "distributed", "partitions": 2}
FEW = settings(
    max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)


def stream_reader(spark: Any, directory: Path, schema: Any) -> Any:
    directory.mkdir(parents=True)
    ddl = ", ".join(f"`{field.name}` {TYPES[str(field.type)]}" for field in schema)
    return spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(str(directory))


def in_microseconds(table: Any) -> Any:
    """Spark's times have microseconds."""
    for number, field in enumerate(table.schema):
        if str(field.type).startswith("timestamp"):
            table = table.set_column(number, field.name, table.column(number).cast("timestamp[us]"))
    return table


class Played:
    """A workload played into an engine, batch by batch; which tuples came in which batch is what its events say."""

    def __init__(self, spark: Any, directory: Path, case: adhoc_cases.AdhocCase, options: Any) -> None:
        self.case, self.directory, self.spark = case, directory, spark
        self.got: dict[str, Rows] = {query.name: Rows() for query in case.queries}
        self.engine = Engine(
            spark,
            directory / "checkpoint",
            Settings(lateness=lateness_of(case), replan_every=2, newest_rows=100_000),
            **options,
        )
        self.arrived: dict[tuple[str, int], int] = {}
        self.last = 0
        self.seen = dict.fromkeys(case.schemas, 0)

    def play(self) -> None:
        case, engine = self.case, self.engine
        for name, schema in case.schemas.items():
            table = in_microseconds(schema.empty_table())
            engine.register(name, stream_reader(self.spark, self.directory / name, table.schema), time=adhoc_cases.TIME)
        with engine:
            for number in range(len(case.batches)):
                for query in case.queries:
                    if query.life.dropped == number:
                        self.keep(query.name)
                        engine.drop(query.name)
                    if query.life.created == number:
                        engine.create(query.text, name=query.name)
                for name, table in case.tables(number).items():
                    if table.num_rows:
                        drop(in_microseconds(table), self.directory / name / f"{number:04}.parquet")
                engine.process_all_available()
            for info in engine.queries():
                self.keep(info.name)
            self.changes = engine.changelog()
        assert engine.error is None

    def keep(self, name: str) -> None:
        table = self.engine.rows(name, 100_000)
        self.got[name] = Rows(zip(*(column.to_pylist() for column in table.columns), strict=True))


def note_arrivals(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which file came in which batch: Spark's batch n of a stream is its n-th file with rows."""
    journal = played.engine._journal
    write: Callable[..., None] = journal.write_input

    def noting(arrived: Any, consumed: dict[str, int], held: Any, serial: int) -> None:
        write(arrived, consumed, held, serial)
        for stream, number in consumed.items():
            played.arrived.setdefault((stream, number), arrived.batch)

    monkeypatch.setattr(journal, "write_input", noting)


@pytest.mark.parametrize("options", [{}, DISTRIBUTED], ids=["driver", "distributed"])
def test_random_workloads_give_what_the_oracle_says(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, options: Any
) -> None:
    @FEW
    @given(adhoc_cases.cases(most_queries=4, most_batches=3))
    def check(case: adhoc_cases.AdhocCase) -> None:
        played = Played(spark, tmp_path_factory.mktemp("played"), case, options)
        with pytest.MonkeyPatch.context() as patch:
            note_arrivals(played, patch)
            played.play()
        files = {name: [n for n, batch in enumerate(case.batches) if batch[name]] for name in case.schemas}
        arrivals = gate_order(
            [
                Arrival(
                    stream,
                    {name: plain(value) for name, value in row.items()},
                    case._ts(row),
                    played.arrived[stream, place],
                )
                for stream, numbers in files.items()
                for place, number in enumerate(numbers)
                for row in case.batches[number][stream]
            ]
        )
        for query in case.queries:
            when = {record.action: record.batch for record in played.changes if record.name == query.name}
            if "create" in when:
                wanted = rows(arrivals, query.meaning, Life(when["create"], when.get("drop")))
                assert played.got[query.name] == wanted, query.text

    check()


UNSOLD = "SELECT a.id FROM auction a LEFT ANTI JOIN bid b WITHIN 2 SECONDS ON a.id = b.auction AND b.price > 200"


def unsold(batches: list[dict[str, pa.Table]]) -> set[int]:
    """The auctions without a good bid near in time, as far as the times of bids have passed."""
    auctions, bids = ([row for batch in batches for row in batch[name].to_pylist()] for name in ("auction", "bid"))
    near = dt.timedelta(seconds=2)
    good = {
        auction["id"]
        for auction in auctions
        for bid in bids
        if bid["auction"] == auction["id"]
        and bid["price"] > 200
        and abs(bid[nexmark.TIME] - auction[nexmark.TIME]) <= near
    }
    passed = max(bid[nexmark.TIME] for bid in bids) - near
    return {auction["id"] for auction in auctions if auction[nexmark.TIME] < passed} - good


@pytest.mark.parametrize("options", thorough_but([{}, DISTRIBUTED], DISTRIBUTED), ids=["driver", "distributed"])
def test_nexmark_through_the_engine_is_what_duckdb_says(spark: Any, tmp_path: Path, options: Any) -> None:
    batches = [nexmark.events(100, seed=5, first=first, rate=10) for first in range(0, 400, 100)]
    house = [
        Stream(name, in_microseconds(schema.empty_table()).schema, nexmark.TIME)
        for name, schema in nexmark.SCHEMAS.items()
    ]
    engine = Engine(spark, tmp_path / "checkpoint", Settings(newest_rows=100_000), **options)
    for stream in house:
        engine.register(stream.name, stream_reader(spark, tmp_path / stream.name, stream.schema), time=nexmark.TIME)
    for name, text in nexmark.QUERIES.items():
        engine.create(text, name=name)
    engine.create(UNSOLD, name="unsold")
    with engine:
        for number, tables in enumerate(batches):
            for name, table in tables.items():
                if table.num_rows:
                    drop(in_microseconds(table), tmp_path / name / f"{number:04}.parquet")
            # A listing during which files appear may hold the later of two without the earlier, which is then late.
            engine.process_all_available()
        for name, text in nexmark.QUERIES.items():
            plan = parse(text, house, name)
            found = Rows(tuple(row.values()) for row in row_evaluator.rows_of(engine.rows(name, 100_000)))
            assert found == duckdb_rows(plan, [{n: in_microseconds(t) for n, t in b.items()} for b in batches])
            assert sum(found.values()) > 3
        assert set(engine.rows("unsold", 100_000)["id"].to_pylist()) == unsold(batches)
        events = engine.metrics()
        assert events.partitions == options.get("partitions", 0)
