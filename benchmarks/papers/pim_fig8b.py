"""SIGMOD paper, figure 8b: the chained index against the length of its chain, beside one B+-tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import benchmarks.papers.chain.index  # noqa: F401 - registers its kinds
from benchmarks.harness import Cell, Figure, Finding, Row, judge_claim
from benchmarks.papers.index_experiment import BASELINE, IndexExperiment, mean, pick, speeds, values
from benchmarks.papers.index_join import IndexJoin, Measured
from benchmarks.report_lines import draw_lines
from benchmarks.spreads import spread

_CHAINS = ("b_chain", "ib_chain")


class ChainLength(IndexExperiment):
    """Both chains by length."""

    title = "figure 8b: throughput against chain length, match rate 2"
    claim = (
        "figure 8b, w = 2^20: a chain of immutable trees is half as fast again as one of B+-trees; both are fastest at "
        "length 2 and slow down with every link, since a search visits them all"
    )
    against: ClassVar = {"index": BASELINE, "length": None}
    settings = ("length",)

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The paper's window."""
        window = 1 << (14 if quick else 20)
        lengths = (2, 4, 8) if quick else (2, 3, 4, 6, 8)
        chains = [{"window": window, "index": index, "length": n} for index in _CHAINS for n in lengths]
        return [{"window": window, "index": "btree", "length": None}, *chains]

    def explain(self, join: IndexJoin, measured: Measured) -> Mapping[str, Any]:
        """Nodes that a search goes through."""
        span = join.left.settings().get("span", join.windows[0])
        return {"searched_nodes": measured.steps["search"] / measured.tuples, "entries_a_link": span}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """Throughput against the length."""
        axes = figure.subplots()
        draw_lines(axes, rows, x="length", by=("index",))
        axes.set_xscale("linear")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The advantage of immutable links, the best length, the fall."""
        lengths = values(rows, "length")
        chains = {index: speeds(rows, "length", index=index) for index in _CHAINS}
        gain = mean(chains["ib_chain"][n] / chains["b_chain"][n] for n in lengths)
        longest = {index: pick(rows, index=index, length=lengths[-1])[0]["searched_nodes"] for index in _CHAINS}
        parts = [
            judge_claim(
                "IB-chain is 1.5 times as fast as B-chain on average",
                f"{gain:.2f} times",
                "at least 1.25: half of the paper's gain",
                gain >= 1.25,
                f"at length {lengths[-1]} a search visits {longest['ib_chain']:.1f} nodes of immutable trees and "
                f"{longest['b_chain']:.1f} of B+-trees, which are compared 32 keys at a time as well: the B+-tree that "
                "the paper compares with searches a node key by key",
            )
        ]
        for index, by_length in chains.items():
            best = max(by_length, key=by_length.__getitem__)
            fall = 1 - by_length[lengths[-1]] / by_length[lengths[0]]
            parts += [
                judge_claim(
                    f"{index} is fastest at length 2",
                    f"at {best}",
                    f"the best of {lengths} is 2",
                    best == lengths[0],
                    f"length 2 gives {by_length[lengths[0]] / by_length[best]:.0%} of it, and repeats at {best} give "
                    f"{spread(pick(rows, index=index, length=best)[0])} tuples/s",
                ),
                judge_claim(
                    f"{index} is noticeably slower the longer the chain",
                    f"{fall:.0%} slower at {lengths[-1]} than at {lengths[0]}",
                    "at least 25 % slower",
                    fall >= 0.25,
                ),
            ]
        speed = pick(rows, index="btree")[0]["tuples_per_s"]
        behind = [index for index in _CHAINS if chains[index][lengths[-1]] < speed]
        parts.append(
            judge_claim(
                "the longer search outweighs the cheaper expiry: long chains are behind the B+-tree",
                f"at length {lengths[-1]}: {', '.join(behind) or 'none'} behind",
                "both chains behind at the greatest length",
                len(behind) == len(_CHAINS),
                "a B+-tree deletes every expired tuple (figure 10a has the cost), a chain drops whole links",
            )
        )
        return parts


EXPERIMENT = ChainLength()
