"""The two executors of ad-hoc queries on Spark side by side, on two cores: rates, small batches, files.

*driver*: all tuples and rows pass the driver, which joins. *distributed*: Spark's tasks store, join and write. Both run
the queries of AJoin's figure 14 at 50 % similarity over the same files and must give the same number of rows for each
query. Beside them: what Spark takes to read the same files and throw them away (`noop`), and the Spark plan of a
join with functions that do nothing (`identity`, as in `spark_floor`), for batches of 20 rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import Cell, Context, Figure, Finding, Row, human, judge_aim
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_spark import DDL, Ran, StreamFiles, run_each, run_engine
from benchmarks.report_lines import draw_lines
from benchmarks.spark.spark_runs import SparkExperiment
from streamjoin.adhoc import ParquetSink, Settings
from streamjoin.spark import session
from streamjoin.spark.runtime.internals import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRIVER, DISTRIBUTED, NOOP, IDENTITY = "driver", "distributed", "noop", "identity"
RATE, INGEST, SMALL, FILES = "rate", "nothing selected", "20 rows", "Parquet sinks"
_EVENT_RATE: Final = 100.0
_BATCH, _INGEST_BATCH, _QUICK_BATCH, _SMALL_BATCH = 20_000, 200_000, 1_000, 10
_FILES, _SMALL_FILES, _QUICK_FILES, _WARM = 12, 40, 6, 3
_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {name: {"executor": name} for name in (DRIVER, DISTRIBUTED)}
_AIM_RATE, _AIM_HUNDRED, _AIM_INGEST, _AIM_SMALL, _AIM_CREATE, _AIM_FILES = 1.0, 1.5, 0.7, 1.5, 2, 12


class AdhocExecutors(SparkExperiment):
    """Input rate by case, number of queries and executor."""

    title = "ad-hoc queries on Spark, local[2]: joined by the driver or on executors"
    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 3
    warmups = 1

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[tuple[str, int], tuple[int, ...]] = {}

    @property
    def spark(self) -> SparkSession:
        """A session on two cores."""
        if self._spark is None:
            self._spark = session(type(self).__name__, "local[2]", memory="4g", config={"spark.ui.enabled": False})
            self._spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
        return self._spark

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Each case by executor, with what it is compared with."""
        counts, many = ((1, 5), 12) if quick else ((1, 20, 100, 500), 500)
        cells = [{"case": RATE, "queries": n, "system": system} for n in counts for system in _OPTIONS]
        cells += [{"case": INGEST, "queries": 1, "system": system} for system in (NOOP, *_OPTIONS)]
        small = 5 if quick else 100
        cells += [{"case": SMALL, "queries": small, "system": system} for system in (IDENTITY, *_OPTIONS)]
        return [*cells, *({"case": FILES, "queries": many, "system": system} for system in _OPTIONS)]

    def baseline(self, cell: Cell) -> Cell | None:
        """The executor of the driver for rates, Spark alone for reading and for small batches."""
        base = {INGEST: NOOP, SMALL: IDENTITY}.get(cell["case"], DRIVER)
        return None if cell["system"] == base else {**cell, "system": base}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run all files through the system."""
        self._runs += 1
        place = context.scratch / f"run-{self._runs}"
        generator = ajoin.QueryGenerator(2, 50, seed=context.seed)
        sizes = {SMALL: (_SMALL_BATCH, _SMALL_FILES), INGEST: (_INGEST_BATCH, _FILES)}
        batch, count = sizes.get(cell["case"], (_BATCH, _FILES))
        if context.quick:
            batch, count = min(batch, _QUICK_BATCH), _QUICK_FILES
        files = StreamFiles(
            context.scratch / "streams", generator.pattern.streams, batch, count, _EVENT_RATE, context.seed
        ).write()
        if cell["system"] in (NOOP, IDENTITY):
            build = self._identity if cell["system"] == IDENTITY else self._all
            ran = run_each(self.spark, [lambda: build(files)], place, warm=_WARM, limit=600.0, batch=batch)
            return {"tuples_per_s": ran.tuples_per_s}
        queries = generator.queries(cell["queries"])
        if cell["case"] == INGEST:
            queries = [_selecting_nothing(queries[0])]
        sink = (lambda name: ParquetSink(str(place / "out" / name))) if cell["case"] == FILES else None
        ran = run_engine(
            self.spark,
            files,
            queries,
            Settings(),
            place / "checkpoint",
            warm=_WARM,
            options=_OPTIONS[cell["system"]],
            sink=sink,
            one_more=cell["case"] == FILES,
        )
        self._agree(cell, ran)
        written = sum(1 for _ in (place / "out").rglob("*.parquet")) if sink is not None else 0
        return {
            "tuples_per_s": ran.tuples_per_s,
            "create_batches": ran.deploy_batches,
            "result_rows": sum(ran.rows),
            "files_per_batch": written / max(1, ran.batches),
            "how": ran.how,
        }

    def _agree(self, cell: Cell, ran: Ran) -> None:
        known = self._rows.setdefault((cell["case"], cell["queries"]), ran.rows)
        if known != ran.rows:
            raise AssertionError(f"{dict(cell)}: {sum(ran.rows)} rows, but {sum(known)} before")

    def _all(self, files: StreamFiles) -> DataFrame:
        left, right = (files.frame(self.spark, stream) for stream in files.streams)
        return left.union(right)

    def _identity(self, files: StreamFiles) -> DataFrame:
        """Two Python stages with a shuffle between them, which pass rows on."""
        sides = [map_in_arrow(files.frame(self.spark, stream), _pass, DDL, "identity") for stream in files.streams]
        both = sides[0].union(sides[1])
        keyed = both.withColumn("partition", (both["a0"] % 2).cast("int"))
        return map_in_arrow(keyed.repartitionById(2, keyed["partition"]).drop("partition"), _pass, DDL, "identity")

    def close(self) -> None:
        """Stop Spark and forget the counts: another seed gives others."""
        super().close()
        self._rows.clear()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Input rate against the number of queries."""
        axes = figure.subplots()
        draw_lines(axes, [row for row in rows if row["case"] == RATE], x="queries", y="tuples_per_s", by=("system",))
        axes.set(xscale="log", yscale="log")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The aims of both executors; with a local master the driver's is the default."""
        found: list[Finding] = []
        for row in rows:
            if row["system"] in _OPTIONS:
                found += _judge(row)
        return found


def _judge(row: Row) -> list[Finding]:
    case, queries, system, ratio = row["case"], row["queries"], row["system"], row.get("ratio", 1.0)
    if case == INGEST:
        said = f"{human(row['tuples_per_s'])} tuples/s, {ratio:.2f} of Spark's noop"
        rule = f"at least {_AIM_INGEST} of it"
        return [judge_aim(f"{system}: reading with nothing selected", said, rule, ratio >= _AIM_INGEST)]
    if case == SMALL:
        said = f"{1 / ratio:.2f} times the same Spark stages without a join"
        rule = f"at most {_AIM_SMALL} times"
        return [judge_aim(f"{system}: 20 rows with {queries} queries", said, rule, 1 / ratio <= _AIM_SMALL)]
    if case == FILES:
        waited, few = row["create_batches"], row["files_per_batch"]
        said, rule = f"after {waited:.0f} batches", f"within {_AIM_CREATE}"
        create = judge_aim(f"{system}: a create beside {queries} queries", said, rule, waited <= _AIM_CREATE)
        said, rule = f"{few:.1f} files per batch", f"at most {_AIM_FILES}"
        # The driver writes a file for each query and batch.
        sinks = [judge_aim(f"{queries} Parquet sinks", said, rule, few <= _AIM_FILES)] if system == DISTRIBUTED else []
        return [create, *sinks]
    if system == DRIVER:
        return []
    aim = _AIM_HUNDRED if queries == 100 else _AIM_RATE
    said = f"{human(row['tuples_per_s'])} tuples/s, {ratio:.2f} times the driver's"
    return [judge_aim(f"rate with {queries} queries", said, f"at least {aim} times", ratio >= aim)]


def _pass(batches: Any) -> Any:
    """Rows as they are."""
    yield from batches


def _selecting_nothing(query: ajoin.AJoinQuery) -> ajoin.AJoinQuery:
    """A query whose selections no tuple passes."""
    nothing = tuple(ajoin.Selection(0, "<", 0) for _ in query.selections)
    return ajoin.AJoinQuery(query.streams, query.links, nothing, query.window_seconds)


EXPERIMENT = AdhocExecutors()
