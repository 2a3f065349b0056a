"""SIGMOD paper, figure 10c: B+-tree, IM-Tree and PIM-Tree with one thread, and PIM-Tree with many, by match rate.

`wanted` is the match rate that the band is set for. From 2^8 on a lookup costs so much that merges no longer show, and
slices spread over a period stand for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Cell, Context, Figure, Finding, Row, judge_claim
from benchmarks.papers.index_experiment import LEAST, IndexExperiment, pick, power, speeds, values
from benchmarks.papers.index_keys import keys_for
from benchmarks.papers.parallel_experiment import PARALLEL, thread_counts
from benchmarks.papers.parallel_join import ParallelJoin
from benchmarks.report_lines import draw_lines

_INDEXES = ("btree", "im_tree", "pim_tree")
_FLAT_UPTO = 2.0**4
_SLICED_FROM, _SLICES = 2.0**8, 16
_NEGLIGIBLE, _NOTICEABLE = 0.8, 0.5


class MatchRate(IndexExperiment):
    """Three indexes from a match every sixteenth tuple to a thousand a tuple."""

    title = "figure 10c: throughput against match rate"
    claim = (
        "figure 10c, w = 2^20: throughput hardly changes from match rate 2^-4 to 2^4, where traversal bounds it, and "
        "falls beyond, where leaf scans do; at high rates IM- and PIM-Tree are ahead of the B+-tree, as T_S scans "
        "faster, and threads lose their advantage"
    )
    passing = frozenset({"wanted"})

    def __init__(self) -> None:
        super().__init__()
        self._parallel: ParallelJoin | None = None

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Every fourfold rate."""
        window, exponents = (1 << 14, (-4, 4, 8)) if quick else (1 << 20, range(-4, 11, 2))
        systems = (*_INDEXES, PARALLEL)
        return [{"window": window, "index": index, "wanted": 2.0**k} for k in exponents for index in systems]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Whole periods, or slices of one, with the band of the wanted rate."""
        band = keys_for("uniform", cell["window"], cell["wanted"]).band
        least = LEAST[context.quick]
        sliced = cell["wanted"] >= _SLICED_FROM
        if cell["index"] == PARALLEL:
            threads = self._threads(cell["window"], context)
            ran = threads.run(least >> 5 if sliced else threads.whole_periods(least), band=band)
            figures = {name: ran.answer()[name] for name in ("tuples_per_s", "match_rate", "on_cpu")}
            return {**figures, "threads": threads.threads}
        join = self.settled(cell, context)
        measured = join.sample(least >> 5, _SLICES, band) if sliced else join.run(join.whole_periods(least), band=band)
        return measured.answer()

    def _threads(self, window: int, context: Context) -> ParallelJoin:
        """The settled join of all threads, the same for every rate."""
        if self._parallel is None or self._parallel.windows[0] != window:
            self.close()
            keys = keys_for("uniform", window, seed=context.seed)
            self._parallel = ParallelJoin((window, window), keys, thread_counts()[-1])
            self._parallel.settle()
        return self._parallel

    def close(self) -> None:
        """Let go of the joins and their threads."""
        if self._parallel is not None:
            self._parallel.close()
            self._parallel = None
        super().close()

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against the rate wanted."""
        axes = figure.subplots()
        draw_lines(axes, rows, x="wanted", by=("index",), log=True)
        axes.set_xlabel("matches per tuple")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Flat up to 2^4, falling beyond, who scans faster, and what threads are worth at both ends."""
        parts = []
        least, most = values(rows, "wanted")[0], values(rows, "wanted")[-1]
        for index in (*_INDEXES, PARALLEL):
            by_rate = speeds(rows, "wanted", index=index)
            flat = by_rate[_FLAT_UPTO] / by_rate[least]
            fall = by_rate[most] / by_rate[_FLAT_UPTO]
            parts += [
                judge_claim(
                    f"{index}: the speed hardly changes from match rate {power(least)} to 2^4",
                    f"{flat:.0%} of it is left",
                    f"at least {_NEGLIGIBLE:.0%}",
                    flat >= _NEGLIGIBLE,
                    f"a match costs {_match_ns(by_rate, least):.0f} ns, as a tuple's matches are put into arrival "
                    f"order and handed out, which the paper does not ask for; a tuple without one takes "
                    f"{1e9 / by_rate[least]:.0f} ns",
                ),
                judge_claim(
                    f"{index}: it falls noticeably beyond 2^4",
                    f"{fall:.0%} of it is left at {power(most)}",
                    f"at most {_NOTICEABLE:.0%}",
                    fall <= _NOTICEABLE,
                ),
            ]
        for row in pick(rows, wanted=most):
            if row["index"] in ("im_tree", "pim_tree"):
                parts.append(
                    judge_claim(
                        f"{row['index']} is ahead of btree at match rate {power(most)}, as T_S scans faster",
                        f"{row['ratio']:.2f} times",
                        "more than 1",
                        row["ratio"] > 1,
                        "putting matches into arrival order costs every index the same, and more than the scan",
                    )
                )
        gains = [
            pick(rows, index=PARALLEL, wanted=wanted)[0]["tuples_per_s"]
            / pick(rows, index="pim_tree", wanted=wanted)[0]["tuples_per_s"]
            for wanted in (least, most)
        ]
        threads = pick(rows, index=PARALLEL, wanted=least)[0]["threads"]
        costs = [
            n * 1e9 / most / pick(rows, index=index, wanted=most)[0]["tuples_per_s"]
            for index, n in (("pim_tree", 1), (PARALLEL, threads))
        ]
        parts.append(
            judge_claim(
                "threads lose their advantage at high match rates and come close to one thread",
                f"{threads} threads are {gains[0]:.2f} times one at {power(least)}, {gains[1]:.2f} at {power(most)}",
                "less at the highest rate, by a quarter at least, but not less than one thread",
                1 <= gains[1] <= 0.75 * gains[0],
                f"a match costs one thread {costs[0]:.0f} ns and each of {threads} {costs[1]:.0f}: memory is not what "
                "bounds them",
            )
        )
        return parts


def _match_ns(by_rate: Mapping[float, float], least: float) -> float:
    """What a match adds to the time of a tuple, between the least rate and 2^4; nanoseconds."""
    return (1e9 / by_rate[_FLAT_UPTO] - 1e9 / by_rate[least]) / (_FLAT_UPTO - least)


EXPERIMENT = MatchRate()
