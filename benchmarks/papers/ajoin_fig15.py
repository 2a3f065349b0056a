"""Many two-way queries on Spark (AJoin paper, figure 15): the ad-hoc engine beside one Spark or Flink query each.

Queries of figure 14 at 50 % similarity, with their selections, over two streams of 100 tuples a second of event time,
so that windows of 1 to 3 seconds hold what one machine can materialize the results of. All systems read the same files,
as fast as they can. The input rate counts tuples of both streams; the overall rate counts a tuple once for each query.

Spark's own queries take minutes for what the engine does in a second: they get the first three files, and a hundred of
them and more a time limit; their rate is then one that they do not reach. The engine must give as many rows for each
query on those files. Flink has all files and runs the queries as one job; its start is not counted, and its rows are
counted in the first repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from benchmarks.harness import Cell, Context, Figure, Finding, Row, human, judge_aim, judge_claim, not_tested
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_flink import run_flink
from benchmarks.papers.ajoin_spark import Ran, StreamFiles, library_join, run_each, run_engine, spark_join
from benchmarks.papers.parallel_experiment import thread_counts
from benchmarks.rivals.rival_runs import Programs
from benchmarks.spark.spark_runs import SparkExperiment
from streamjoin.adhoc import Settings
from streamjoin.queries.core.settings import Sharing

SHARED, ALL, APART = "shared by cost", "share everything", "no sharing"
SPARK, FLINK, JOIN = "one Spark query each", "one Flink query each", "spark.join"
_SHARING: Final[dict[str, Sharing]] = {SHARED: "cost", ALL: "everything", APART: "nothing"}
_RATE: Final = 100.0
_BATCH, _LARGE_BATCH, _QUICK_BATCH = 20_000, 100_000, 1_000
_FILES, _QUICK_FILES, _WARM = 7, 4, 2
_SPARK_FILES, _SPARK_WARM = 3, 1
_LIMIT, _LIMIT_OF_MANY = 150.0, 20.0
_MANY: Final = 100
"""Queries of Spark's own from which on it is enough to see how far they come."""
_AIM_SHARE, _AIM_RATIO, _AIM_ONE = 1 / 3, 20.0, 0.8


class Figure15(SparkExperiment):
    """Input and overall rate by the number of queries."""

    title = "ad-hoc engine on Spark: two-way queries at 50 % similarity, all rows materialized"
    claim = "AJoin, figure 15: overall throughput grows with the number of queries, far above one Spark query each"
    measure = "tuples_per_s"
    unit = "tuples/s"

    def __init__(self) -> None:
        super().__init__()
        self._rows: dict[tuple[int, int], tuple[int, ...]] = {}
        self._flink_rows: dict[int, tuple[int, ...]] = {}
        self._warm = False
        self._programs = Programs(_LIMIT)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Numbers of queries by system; the most queries of Spark's own last, because of what they leave behind."""
        counts, batch = ((1, 3), _QUICK_BATCH) if quick else ((1, 5, 20, 100, 500), _BATCH)
        systems: list[Cell] = [{"queries": n, "batch": batch, "system": system} for n in counts for system in _SHARING]
        kept = [cell for cell in systems if cell["system"] != APART or cell["queries"] <= _MANY]
        kept.append({"queries": 1, "batch": batch, "system": JOIN})
        if not quick:
            kept += [{"queries": n, "batch": _LARGE_BATCH, "system": SHARED} for n in (1, 100)]
            kept += [{"queries": n, "batch": batch, "system": FLINK} for n in counts if n <= _MANY]
        return [*kept, *({"queries": n, "batch": batch, "system": SPARK} for n in counts)]

    def baseline(self, cell: Cell) -> Cell | None:
        """The same queries as Spark's own."""
        return None if cell["system"] == SPARK or cell["batch"] == _LARGE_BATCH else {**cell, "system": SPARK}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run all files through the system, after a first run over little that is not counted."""
        if not self._warm:
            self._warm = True
            for system in (SHARED, JOIN, SPARK):
                self._ran({"queries": 1, "batch": _QUICK_BATCH // 2, "system": system}, context)
            self._rows.clear()
        ran = self._ran(cell, context)
        return {
            "tuples_per_s": ran.tuples_per_s,
            "overall_per_s": cell["queries"] * ran.tuples_per_s,
            "deploy_s": ran.deploy_s,
            "result_rows": sum(ran.rows),
            "whole": ran.whole,
            "how": ran.how,
        }

    def _ran(self, cell: Cell, context: Context) -> Ran:
        self._runs += 1
        checkpoint = context.scratch / f"checkpoint-{self._runs}"
        generator = ajoin.QueryGenerator(2, 50, seed=context.seed)
        queries = generator.queries(cell["queries"])
        few = cell["system"] == SPARK
        # At this similarity all queries read the pattern's two streams.
        files = StreamFiles(
            context.scratch / "streams",
            generator.pattern.streams,
            cell["batch"],
            _SPARK_FILES if few else _QUICK_FILES if context.quick else _FILES,
            _RATE,
            context.seed,
        ).write()
        if cell["system"] in _SHARING:
            settings = Settings(sharing=_SHARING[cell["system"]])
            ran = run_engine(self.spark, files, queries, settings, checkpoint, warm=_WARM)
            return self._agreed(cell, files, ran)
        if cell["system"] == FLINK:
            known = self._flink_rows.get(len(queries))
            ran = run_flink(self._programs, files, queries, thread_counts()[-1], known)
            self._programs.close()  # or its JVM would keep gigabytes from the others
            if not ran.whole:
                return ran
            self._flink_rows[len(queries)] = ran.rows
            return self._agreed(cell, files, ran)
        build = spark_join if few else library_join
        frames = [partial(self._frame, build, files, query) for query in queries]
        limit = _LIMIT_OF_MANY if few and len(queries) >= _MANY else _LIMIT
        warm = _SPARK_WARM if few else _WARM
        batch = files.batch * len(files.streams)
        ran = run_each(self.spark, frames, checkpoint, warm=warm, limit=limit, batch=batch)
        if few and ran.whole:
            again = checkpoint.with_name(f"{checkpoint.name}-engine")
            engine = run_engine(self.spark, files, queries, Settings(), again, warm=_SPARK_WARM)
            self._agreed(cell, files, engine)
        return self._agreed(cell, files, ran) if ran.whole else ran

    def _frame(self, build: Any, files: StreamFiles, query: ajoin.AJoinQuery) -> Any:
        return build([files.frame(self.spark, stream) for stream in files.streams], query)

    def _agreed(self, cell: Cell, files: StreamFiles, ran: Ran) -> Ran:
        """Fail unless every query has as many rows as in any other system over these files."""
        known = self._rows.setdefault((files.batch, files.files), ran.rows)
        common = min(len(known), len(ran.rows))
        if known[:common] != ran.rows[:common]:
            raise AssertionError(f"{dict(cell)}: rows by query are {ran.rows}, but were {known} before")
        if len(ran.rows) > len(known):
            self._rows[files.batch, files.files] = ran.rows
        return ran

    def close(self) -> None:
        """Stop Spark, and forget the counts: another seed gives others."""
        super().close()
        self._programs.close()
        self._rows.clear()
        self._flink_rows.clear()
        self._warm = False

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Input and overall rate against the number of queries; hollow where Spark's queries did not come far."""
        names = ("tuples_per_s", "input"), ("overall_per_s", "overall")
        for axes, (key, name) in zip(figure.subplots(1, 2), names, strict=True):
            for color, system in enumerate((*_SHARING, SPARK, JOIN, FLINK)):
                found = [row for row in rows if row["system"] == system and row["batch"] != _LARGE_BATCH]
                points = sorted((row["queries"], row[key], row["whole"]) for row in found)
                if not points:
                    continue
                xs, ys, whole = zip(*points, strict=True)
                axes.plot(xs, ys, color=f"C{color}", label=system)
                faces = [f"C{color}" if ended else "white" for ended in whole]
                axes.scatter(xs, ys, facecolors=faces, edgecolors=f"C{color}", zorder=3)
            axes.set(xscale="log", yscale="log", xlabel="queries", ylabel=f"{name} rate (tuples/s)")
            axes.grid(True, alpha=0.3)
        axes.legend(fontsize="small")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The paper's growth with queries, one Spark query each beside it, and our aims."""
        by_point = {(row["system"], row["queries"]): row for row in rows if row["batch"] != _LARGE_BATCH}
        most = max(row["queries"] for row in rows)
        one, last = by_point[SHARED, 1], by_point[SHARED, most]
        grown = last["overall_per_s"] / one["overall_per_s"]
        beside = one["tuples_per_s"] / by_point[JOIN, 1]["tuples_per_s"]
        parts = [
            judge_claim(
                "overall throughput grows with the number of queries",
                f"{human(grown)} times at {most} queries what it is at one",
                "more than 1",
                grown > 1,
            ),
            judge_aim(
                f"one query runs at {_AIM_ONE} of spark.join",
                f"{human(one['tuples_per_s'])} tuples/s, {beside:.2f} of it",
                f"at least {_AIM_ONE}",
                beside >= _AIM_ONE,
            ),
            not_tested("AStream, and all systems on 4 and 8 nodes", "AStream is not public, and there is one machine"),
        ]
        if (SHARED, 100) not in by_point:
            return [*parts, not_tested("20, 100 and 500 queries", "run without --quick")]
        return [*parts, *_many(by_point, {row["queries"]: row for row in rows if row["batch"] == _LARGE_BATCH})]


def _many(by_point: Mapping[tuple[str, int], Row], large: Mapping[int, Row]) -> list[Finding]:
    one, twenty, hundred, most = (by_point[SHARED, n] for n in (1, 20, 100, 500))
    share = hundred["tuples_per_s"] / one["tuples_per_s"]
    in_large = large[100]["tuples_per_s"] / large[1]["tuples_per_s"]
    everything, nothing = (hundred["tuples_per_s"] / by_point[system, 100]["tuples_per_s"] for system in (ALL, APART))
    others = "; ".join(f"{by_point[SPARK, n]['how']} (of Spark's own)" for n in (100, 500))
    flink = {n: by_point[FLINK, n] for n in (1, 20, 100)}
    gains = {n: by_point[SHARED, n]["tuples_per_s"] / row["tuples_per_s"] for n, row in flink.items()}
    return [
        judge_aim(
            "the input rate at 100 queries is a third of that at one",
            f"{share:.2f} of it (in batches of {_LARGE_BATCH:,} a stream: {in_large:.2f})",
            f"at least {_AIM_SHARE:.2f}",
            share >= _AIM_SHARE,
        ),
        judge_claim(
            "far above one Spark query each",
            f"20 queries: {human(twenty['overall_per_s'])} tuples/s overall, {human(twenty['ratio'])} times"
            f"{_unless_whole(by_point[SPARK, 20])}",
            f"at least {_AIM_RATIO:.0f} times",
            twenty["ratio"] >= _AIM_RATIO,
        ),
        judge_claim(
            "above one Flink query each, the more so the more queries there are",
            "; ".join(f"{n} queries: {beside:.2f} times{_unless_whole(flink[n])}" for n, beside in gains.items()),
            "more than 1 at 100 queries, and more than at one",
            gains[100] > max(1.0, gains[1]),
        ),
        judge_claim(
            "500 queries run at the same time",
            f"{human(most['tuples_per_s'])} tuples/s, {human(most['result_rows'])} rows, in force within "
            f"{most['deploy_s']:.1f} s; {others}",
            "they give rows",
            most["result_rows"] > 0,
        ),
        judge_claim(
            "100 queries: sharing by cost is faster than no sharing",
            f"{nothing:.2f} times; {everything:.2f} times sharing everything",
            "more than 1",
            nothing > 1,
        ),
    ]


def _unless_whole(row: Row) -> str:
    return "" if row["whole"] else f" ({row['how']})"


EXPERIMENT = Figure15()
