"""Skewed keys on Spark: each shape beside uniform keys with the same window and the same number of results a row.

Half of the stream on one key, Zipf 1.2, and a Gaussian whose middle drifts across the domain. The match rate is the
same in both cells of a pair, so what differs is how evenly ranges can be cut. The spread of the tasks' times, the
longest over the average, is printed beside the speed.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Figure, Row, met
from benchmarks.spark.spark_runs import Files, SparkExperiment, Timed, speed, steady
from benchmarks.workload import Side

if TYPE_CHECKING:
    from streamjoin.model.predicates import JoinPredicate

SHAPES = ("half on one key", "Zipf 1.2", "drifting Gaussian")
SKEWED, UNIFORM = "skewed", "uniform"
MATCH_RATE = 20
_DOMAIN, _AIM, _STEP_US = 1 << 20, 0.7, 1_000
_ZIPF_KEYS = 100_000
_SIGMA = _DOMAIN / 64


def repeats_of(shape: str) -> float:
    """The chance that two rows of a shape have the same key."""
    if shape == "half on one key":
        return 0.25
    weights = np.arange(1, _ZIPF_KEYS + 1, dtype=np.float64) ** -1.2
    return float(((weights / weights.sum()) ** 2).sum())


def window_of(shape: str) -> int:
    """Tuples a side that give the match rate."""
    return 20_000 if shape == "drifting Gaussian" else max(2, round(MATCH_RATE / repeats_of(shape)))


def keys(shape: str, skewed: bool, side: Side, start: int, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Rows `start` to `start + count` of one side."""
    rng = np.random.default_rng([seed, side == "right", start])
    if shape == "drifting Gaussian":
        if not skewed:
            return rng.integers(0, _DOMAIN, count)
        middle = _DOMAIN * (0.1 + 0.8 * ((start + np.arange(count)) % 1_000_000) / 1_000_000)
        return (middle + rng.normal(0, _SIGMA, count)).astype(np.int64)
    if not skewed:
        return rng.integers(0, max(1, round(1 / repeats_of(shape))), count)
    if shape == "half on one key":
        return np.where(rng.random(count) < 0.5, 7, rng.integers(0, _DOMAIN, count))
    weights = np.arange(1, _ZIPF_KEYS + 1, dtype=np.float64) ** -1.2
    return rng.choice(_ZIPF_KEYS, count, p=weights / weights.sum())


def condition(shape: str, skewed: bool) -> JoinPredicate:
    """Equality of keys, or for the Gaussian a band that gives the match rate."""
    if shape != "drifting Gaussian":
        return sj.Equi("key")
    # Two rows of one Gaussian are as near as two of a uniform domain of 2 sqrt(pi) sigma.
    domain = 2 * np.sqrt(np.pi) * _SIGMA if skewed else _DOMAIN
    return sj.Band("key", "key", max(1, round(MATCH_RATE * domain / window_of(shape) / 2)))


class SparkSkew(SparkExperiment):
    """Rows a second with skewed keys."""

    title = "spark_skew: skewed keys on Spark beside uniform ones of the same match rate"
    measure = "rows_per_s"

    def cells(self, quick: bool) -> Sequence[Cell]:  # noqa: ARG002 - only the batches differ
        """Each shape skewed and uniform."""
        return [{"shape": shape, "keys": kind} for shape in SHAPES for kind in (SKEWED, UNIFORM)]

    def baseline(self, cell: Cell) -> Cell | None:
        """Uniform keys."""
        return {**cell, "keys": UNIFORM} if cell["keys"] == SKEWED else None

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the batches of one cell."""
        shape, skewed = cell["shape"], cell["keys"] == SKEWED
        rows, batches = (5_000, 6) if context.quick else (100_000, 12)

        def table(side: Side, number: int) -> pa.Table:
            first = number * rows
            ticks = pa.array((first + np.arange(rows)) * _STEP_US, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
            found = keys(shape, skewed, side, first, rows, context.seed)
            return pa.table({"ts": ticks, "key": found, "payload": np.arange(first, first + rows)})

        files = Files(context, f"{shape} {cell['keys']}").write(lambda side: [table(side, i) for i in range(batches)])
        window = sj.TimeWindow(timedelta(microseconds=window_of(shape) * _STEP_US))
        spec = sj.JoinSpec(condition(shape, skewed), window, time="ts", order="event_time")
        checkpoint = context.scratch / "checkpoint"
        build = functools.partial(sj.spark.join, spec=spec, partitions=4)
        ran = steady(self.timed(build, files, checkpoint), 2)
        return {
            "rows_per_s": speed(ran),
            "match_rate": sum(b.results for b in ran) / sum(b.rows for b in ran),
            "spread": spread(ran),
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Bars by shape."""
        axes = figure.subplots()
        for offset, kind in ((-0.2, UNIFORM), (0.2, SKEWED)):
            speeds = [row["rows_per_s"] for row in rows if row["keys"] == kind]
            axes.bar([i + offset for i in range(len(SHAPES))], speeds, 0.4, label=kind)
        axes.set_xticks(range(len(SHAPES)), SHAPES)
        axes.set(ylabel="rows/s")
        axes.legend()

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The share of the uniform speed by shape, and the aim."""
        return [
            f"{row['shape']}: {row['ratio']:.0%} of the speed with uniform keys; aim {_AIM:.0%}: "
            f"{met(row['ratio'] >= _AIM)}; longest task over average: {row['spread']:.2f}"
            for row in rows
            if "ratio" in row
        ]


def spread(batches: Sequence[Timed]) -> float:
    """The longest task of a batch over the average one, the median of all batches."""
    return statistics.median(
        max(b.tasks) / statistics.mean(b.tasks) if b.tasks and max(b.tasks) else 1.0 for b in batches
    )


EXPERIMENT = SparkSkew()
