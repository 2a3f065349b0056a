"""Latencies while queries come and go (AJoin paper, figure 18): from event to sink, and from a create to its effect.

Streams live in real time and are read once a second, as the paper batches its requests. SC1: queries come at a rate
until all run. SC2: every second ten come and the ten before go. Similarity 50 %, selections that keep half. Streams of
n-way queries are slower, because the results of each tuple are many more. Spark's own join of one of the queries runs
beside, on streams of its own: its deployment ends with its first rows, for it has no earlier sign of life.

What the aims mean here. *Deployment* lasts from the call of create or drop until the change is made, on the engine's
thread and between two batches. It is *within two batches* if at most one batch with tuples ends in that time before the
first for which the change is in force: the one that ran when it was asked for. All changes of all scenarios at ten
creates a second count, not their mean. A batch's time *does not grow with the number of queries beyond their rows* if
the median batch of those with over 80 % of the queries takes at most as many times that of those with under 30 % as it
gives rows. A whole run takes about four minutes, most of it waiting for streams in real time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.harness import Cell, Context, Figure, Finding, Row, human, judge_aim, judge_claim, not_tested
from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_live import LiveStreams, SparkQuery, check, play
from benchmarks.papers.ajoin_spark import SPARK_SETTINGS, spark_join
from benchmarks.spark.spark_runs import SparkExperiment
from benchmarks.spark.spark_workaround import session_settings
from streamjoin.adhoc import Engine

SC1, SC2, SPARK = "SC1", "SC2", "one Spark query"
_RATES: Final = {2: 500, 3: 200, 4: 100}
"""Tuples a second of each stream, by the streams of a query."""
_TRIGGER: Final = "1 second"
_LATENESS: Final = "2 seconds"
_TAIL, _QUICK_TAIL, _LONGEST = 3.0, 1.0, 60.0
_AIM_BATCHES: Final = 2


class Figure18(SparkExperiment):
    """Latencies by scenario and streams of a query."""

    title = "ad-hoc engine on Spark: latencies while queries are created and dropped"
    claim = "AJoin, figure 18: deployment within about a batch of requests (1 s); n-way joins take longer"
    measure = "deploy_ms"
    unit = "ms (less is better)"

    def __init__(self) -> None:
        super().__init__()
        self._warm = False

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Creates a second, the most queries, and streams of a query."""
        spark = {"scenario": SPARK, "creates_per_s": 1, "queries": 1, "ways": 2}
        if quick:
            points = [(SC1, 10, 20, 2), (SC2, 10, 10, 2)]
        else:
            points = [(SC1, rate, most, ways) for rate, most in ((1, 10), (10, 100)) for ways in (2, 3, 4)]
            points += [(SC2, 10, 10, 2), (SC1, 10, 500, 2)]
        named = ("scenario", "creates_per_s", "queries", "ways")
        return [spark, *(dict(zip(named, point, strict=True)) for point in points)]

    def baseline(self, cell: Cell) -> Cell | None:
        """Spark's own query, for two-way queries."""
        if cell["scenario"] == SPARK or cell["ways"] != 2:
            return None
        return {"scenario": SPARK, "creates_per_s": 1, "queries": 1, "ways": 2}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Play the scenario on streams that begin with it, after a short one that is not counted."""
        if not self._warm:
            self._warm = True
            self._engine({"scenario": SC1, "creates_per_s": 10, "queries": 5, "ways": cell["ways"]}, context)
        return self._spark_query(cell, context) if cell["scenario"] == SPARK else self._engine(cell, context)

    def _live(self, generator: ajoin.QueryGenerator, cell: Cell, context: Context) -> LiveStreams:
        self._runs += 1
        root = context.scratch / f"live-{self._runs}"
        return LiveStreams(root / "streams", generator.streams, _RATES[cell["ways"]], context.seed)

    def _engine(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        generator = ajoin.QueryGenerator(cell["ways"], 50, context.seed, selectivity=0.5)
        live = self._live(generator, cell, context)
        engine = Engine(self.spark, context.scratch / f"checkpoint-{self._runs}", trigger=_TRIGGER)
        try:
            for stream in live.streams:
                engine.register(stream, live.frame(self.spark, stream), time=ajoin.TIME, lateness=_LATENESS)
            with live:
                engine.start()
                _await_tuples(engine, live)
                tail = _QUICK_TAIL if context.quick else _TAIL
                outcome = play(engine, _changes(cell, generator, context.quick), tail)
            check(engine)
        finally:
            engine.stop()
        deployed, batches = zip(*outcome.deployments(), strict=True)
        time_grows, rows_grow = outcome.growth()
        return {
            "deploy_ms": statistics.mean(deployed),
            "deploy_max_ms": max(deployed),
            "deploy_batches": max(batches),
            **_latency(outcome.latencies),
            "batch_ms": 1e3 * statistics.median(event.seconds for event in outcome.events if event.rows_in),
            "time_grows": time_grows,
            "rows_grow": rows_grow,
            "changes": len(deployed),
            "writer_behind_ms": 1e3 * live.behind,
        }

    def _spark_query(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        generator = ajoin.QueryGenerator(cell["ways"], 50, context.seed, selectivity=0.5)
        live = self._live(generator, cell, context)
        query, probe = generator.query(), SparkQuery()
        frame = spark_join([live.frame(self.spark, stream) for stream in query.streams], query)
        writer = frame.writeStream.foreachBatch(probe.take).trigger(processingTime=_TRIGGER)
        with live, session_settings(self.spark, SPARK_SETTINGS):
            begin = time.perf_counter()
            running = writer.option("checkpointLocation", str(context.scratch / f"checkpoint-{self._runs}")).start()
            try:
                if not probe.first.wait(_LONGEST):
                    raise RuntimeError(f"Spark's query gave no row in {_LONGEST:.0f} s: {running.exception()}")
                deployed = 1e3 * (time.perf_counter() - begin)
                running.awaitTermination(1 if context.quick else 12)
                ended = [p["durationMs"]["triggerExecution"] for p in running.recentProgress if p["numInputRows"]]
            finally:
                running.stop()
        return {
            "deploy_ms": deployed,
            "deploy_max_ms": deployed,
            **_latency(probe.latencies),
            "batch_ms": statistics.median(ended),
            "changes": 1,
            "writer_behind_ms": 1e3 * live.behind,
        }

    def close(self) -> None:
        """Stop Spark."""
        super().close()
        self._warm = False

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Event-time latency with its bounds, and deployment latency, by scenario."""
        names = [_name(row) for row in rows]
        left, right = figure.subplots(1, 2, sharey=True)
        means = [row["latency_ms"] for row in rows]
        bounds = [
            [row["latency_ms"] - row["latency_min_ms"] for row in rows],
            [row["latency_max_ms"] - row["latency_ms"] for row in rows],
        ]
        left.barh(names, means, xerr=bounds, capsize=3)
        left.set(xlabel="from event to sink (ms)")
        right.barh(names, [row["deploy_ms"] for row in rows], label="mean")
        right.scatter([row["deploy_max_ms"] for row in rows], names, color="C1", zorder=3, label="most")
        right.set(xlabel="from create to effect (ms)")
        right.legend(fontsize="small")
        left.invert_yaxis()

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Deployment, what the number of streams does, and latency beside one Spark query."""
        own = [row for row in rows if row["scenario"] != SPARK]
        asked = [row for row in own if row["creates_per_s"] == 10]
        most = max(asked, key=lambda row: (row["queries"], row["deploy_batches"]))
        batches = max(row["deploy_batches"] for row in asked)
        spark = next(row for row in rows if row["scenario"] == SPARK)
        parts = [
            judge_claim(
                "deployment within about a batch of requests, 1 s",
                f"10 creates per second up to {most['queries']} queries: {most['deploy_ms']:.0f} ms on average, "
                f"{most['deploy_max_ms']:.0f} at most",
                "at most 1.5 s on average",
                most["deploy_ms"] <= 1500,
            ),
            judge_aim(
                f"deployment within {_AIM_BATCHES} batches in all scenarios",
                f"{batches:.0f} batches",
                f"at most {_AIM_BATCHES}",
                batches <= _AIM_BATCHES,
            ),
            _growth(most),
            judge_claim(
                "event-time latency comparable with one query of the underlying system",
                f"{most['queries']} queries: {most['latency_ms']:.0f} ms on average ({most['latency_min_ms']:.0f} to "
                f"{most['latency_max_ms']:.0f}), read once a second; one Spark query {spark['latency_ms']:.0f} ms, its "
                f"first rows after {spark['deploy_ms']:.0f} ms",
                "at most twice Spark's",
                most["latency_ms"] <= 2 * spark["latency_ms"],
            ),
        ]
        ways = {row["ways"]: row for row in own if row["scenario"] == SC1 and row["queries"] == 100}
        what = "n-way joins take longer, in latency and deployment"
        if len(ways) < 2:
            return [*parts, not_tested(what, "run without --quick")]
        few, many = ways[min(ways)], ways[max(ways)]
        listed = ", ".join(
            f"{n}-way {row['latency_ms']:.0f} and {row['deploy_ms']:.0f} ms" for n, row in sorted(ways.items())
        )
        longer = many["latency_ms"] > few["latency_ms"] and many["deploy_ms"] > few["deploy_ms"]
        return [*parts, judge_claim(what, f"100 queries: {listed}", "both longer with the most streams", longer)]


def _changes(cell: Cell, generator: ajoin.QueryGenerator, quick: bool) -> Iterator[ajoin.TimedChange]:
    count, rate = cell["queries"], cell["creates_per_s"]
    if cell["scenario"] == SC1:
        return ajoin.scenario_1(generator.queries(count), rate)
    turns = 2 if quick else 10
    return ajoin.scenario_2(generator.queries(count * turns), count, count / rate)


def _await_tuples(engine: Engine, live: LiveStreams) -> None:
    """Until every stream is read: what comes first is Spark's own start."""
    until = time.monotonic() + _LONGEST
    while not all(info.rows for info in engine.streams()):
        if engine.wait(0.05) or time.monotonic() > until:
            raise RuntimeError(f"not all of {live.streams} are read after {_LONGEST:.0f} s")


def _latency(found: Any) -> dict[str, float]:
    return {"latency_ms": found.mean, "latency_min_ms": found.least, "latency_max_ms": found.most}


def _growth(row: Row) -> Finding:
    what = "a batch takes no longer than its rows make it, as queries come"
    if not row["time_grows"]:
        return not_tested(what, f"too few of the batches with up to {row['queries']} queries had rows")
    return judge_aim(
        what,
        f"with over 80 % of {row['queries']} queries {row['time_grows']:.2f} times as long as with under 30 %, for "
        f"{human(row['rows_grow'])} times the rows",
        "time grows no more than rows",
        row["time_grows"] <= row["rows_grow"],
    )


def _name(row: Row) -> str:
    if row["scenario"] == SPARK:
        return SPARK
    return f"{row['scenario']} {row['creates_per_s']} q/s {row['queries']} qp, {row['ways']}-way"


EXPERIMENT = Figure18()
