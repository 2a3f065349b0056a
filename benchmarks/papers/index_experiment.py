"""What the experiments on the indexes share: settled joins kept between repeats, the baseline, words for verdicts.

The baseline is `btree` at the same point. A join is brought to its steady state once and then goes on from repeat to
repeat: its stream has no end, and a B+-tree of 2^23 entries takes half a minute to fill and turn over.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.harness import Cell, Context, Experiment, Row
from benchmarks.papers.index_join import TASK, IndexJoin, Measured
from benchmarks.papers.index_keys import keys_for

BASELINE = "btree"
SAME = 0.1
"""Two figures closer than this share of each other count as the same."""

LEAST = {True: 1 << 17, False: 1 << 19}
"""Tuples measured at least, in a quick run and in a whole one."""
_KEPT_BYTES = 4 << 30


class IndexExperiment(Experiment):
    """Throughput of a band join over an index; a cell has at least a `window` and an `index`."""

    measure = "tuples_per_s"
    unit = "tuples/s"
    repeats = 3
    warmups = 0  # settling a join warms it up
    against: ClassVar = {"index": BASELINE}

    settings: ClassVar[Sequence[str]] = ()
    """The parameters of a cell that are settings of the index."""
    passing: ClassVar[frozenset[str]] = frozenset()
    """The parameters of a cell that the contents of the indexes do not depend on: such cells share one join."""
    across = "window"
    lines: ClassVar[Sequence[str]] = ("index",)

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], IndexJoin] = {}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Measure the next whole periods of the settled join."""
        join = self.settled(cell, context)
        measured = join.run(join.whole_periods(LEAST[context.quick]), cell.get("task", TASK))
        return {**measured.answer(), **self.explain(join, measured)}

    def explain(self, join: IndexJoin, measured: Measured) -> Mapping[str, Any]:  # noqa: ARG002
        """What a row says besides speed and match rate."""
        return {}

    def make(self, cell: Cell, seed: int) -> IndexJoin:
        """The join of a cell, empty."""
        window = cell["window"]
        return IndexJoin(cell["index"], (window, window), keys_for("uniform", window, seed=seed), self.chosen(cell))

    def chosen(self, cell: Cell) -> dict[str, float]:
        """The settings that a cell gives its index."""
        return {name: cell[name] for name in self.settings if cell.get(name) is not None}

    def settled(self, cell: Cell, context: Context) -> IndexJoin:
        """The join of a cell in its steady state, kept where there is memory to keep it."""
        state = (context.seed, *(item for item in cell.items() if item[0] not in self.passing))
        if state in self._kept:
            return self._kept[state]
        join = self.make(cell, context.seed)
        join.settle()
        if join.nbytes + sum(kept.nbytes for kept in self._kept.values()) <= _KEPT_BYTES:
            self._kept[state] = join
        return join

    def close(self) -> None:
        """Let go of the joins."""
        self._kept.clear()


def pick(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def speeds(rows: Iterable[Row], by: str, **wanted: Any) -> dict[Any, float]:
    """Throughput by one parameter, in its order."""
    found = {row[by]: row["tuples_per_s"] for row in pick(rows, **wanted) if row[by] is not None}
    return dict(sorted(found.items()))


def values(rows: Iterable[Row], key: str) -> list[Any]:
    """The distinct values of a parameter, in order."""
    return sorted({row[key] for row in rows if row[key] is not None})


def mean(figures: Iterable[float]) -> float:
    """The mean of ratios."""
    return statistics.geometric_mean(figures)


def agrees(holds: bool, because: str = "") -> str:
    """The word for a shape, and the known reason where it is another."""
    return "agrees" if holds else f"differs: {because}" if because else "differs"


def power(number: float) -> str:
    """A power of two as such.

    >>> power(1 << 20), power(0.125), power(3)
    ('2^20', '2^-3', '3')
    """
    exponent = 0
    scaled = float(number)
    while scaled > 1:
        scaled, exponent = scaled / 2, exponent + 1
    while 0 < scaled < 1 and exponent > -64:
        scaled, exponent = scaled * 2, exponent - 1
    return f"2^{exponent}" if 2.0**exponent == number else f"{number:g}"
