"""SIGMOD paper, figure 8b: the chained index against the length of its chain, beside one B+-tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Cell, Row
from benchmarks.index_experiment import IndexExperiment, agrees, draw, mean, power, speeds, values
from benchmarks.index_join import IndexJoin, Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CHAINS = ("b_chain", "ib_chain")


class ChainLength(IndexExperiment):
    """Both chains by length."""

    title = "figure 8b: throughput against chain length, match rate 2"
    claim = (
        "figure 8b, w = 2^20: a chain of immutable trees is half as fast again as one of B+-trees; both are fastest at "
        "length 2 and slow down with every link, since a search visits them all"
    )
    absent = ("length",)
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
        draw(axes, rows, x="length", by=("index",))
        axes.set_xscale("linear")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The advantage of immutable links, the best length, the fall."""
        lengths = values(rows, "length")
        chains = {index: speeds(rows, "length", index=index) for index in _CHAINS}
        gain = mean(chains["ib_chain"][n] / chains["b_chain"][n] for n in lengths)
        alike = (
            "our B+-tree has nearly the immutable tree's fan-out, so neither search visits fewer nodes (searched_nodes)"
        )
        lines = [f"ib_chain is {gain:.2f} times b_chain on average (paper 1.5): {agrees(gain >= 1.2, alike)}"]
        for index, by_length in chains.items():
            best = max(by_length, key=by_length.__getitem__)
            fall = by_length[lengths[0]] / by_length[lengths[-1]]
            lines.append(
                f"{index} is fastest at length {best} (paper {lengths[0]}) and loses {1 - 1 / fall:.0%} by length "
                f"{lengths[-1]}: {agrees(best == lengths[0] and fall > 1)}"
            )
        base = speeds(rows, "window", index="btree")
        window, speed = next(iter(base.items()))
        ahead = [index for index in _CHAINS if max(chains[index].values()) > speed]
        return [*lines, f"at w = {power(window)}, ahead of btree at their best length: {', '.join(ahead) or 'neither'}"]


EXPERIMENT = ChainLength()
