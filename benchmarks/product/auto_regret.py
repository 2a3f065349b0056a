"""What `auto` chooses beside the algorithms it could have chosen: windows, pushes, match rates, workers, conditions.

At each point the windows are filled by large pushes, as from history, and then every algorithm and `auto` get the same
pushes of the point's size, in turns. What comes before is not counted: there `auto` may change its mind. Its regret is
how many times as long as the fastest it takes. One worker is measured in CPU time, which other processes do not
disturb, several by the clock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import streamjoin as sj
from benchmarks.harness import Cell, Context, Experiment, Figure, Finding, Row, describe, judge_aim
from benchmarks.papers.parallel_experiment import thread_counts
from streamjoin.joins.auto import AlgorithmRequest
from streamjoin.joins.engine.driver import Join
from streamjoin.joins.engine.settings import OpenSettings

_AUTO = "auto"
_AIM = 1.2
_DOMAIN, _GROUPS = 1 << 40, 16
_KEY, _BAND, _KEY_BAND, _PLANE = "key", "band", "key and band", "two bands"
# A point within an interval, and comparisons that face each other like its ends over columns that are no interval.
_WITHIN, _FACING = "interval", "two comparisons"
_FILL = 1 << 14
# Turns of each algorithm that are not counted, and that are; a turn takes about this many seconds.
_SETTLING, _TURNS = 2, 3
# Before that, for each tuple of a window: `auto` moves to another algorithm once it has lost as much as moving costs.
_CHOOSING = 2e-6
_SECONDS = 0.08
# A scan of more pairs per push than this is out of the question, and so is filling a larger window by scans.
_MOST_PAIRS = 1 << 29
_LARGEST_SCANNED = 1 << 14
# Small pushes are too small for the classes of an interval index also in larger windows.
_LARGEST_SCANNED_WITHIN = 1 << 17
# The lengths of intervals differ by up to this factor.
_LENGTHS = 256
# Two bands in a large window leave thousands of candidates for each tuple, and take minutes to fill.
_MOST_CANDIDATES = 1200
_POOL = 8
# Of the whole grid every n-th point is measured, so that all pairs of values occur.
_EVERY = 6


class AutoRegret(Experiment):
    """The rate of `auto` as a share of the best one."""

    title = "auto_regret: the rate of `auto` as a share of the fastest algorithm's"
    measure = "share"
    unit = "of the best"
    repeats = 3
    warmups = 0

    def cells(self, quick: bool) -> Sequence[Cell]:
        """The grid; pushes count the tuples of both sides."""
        conditions = (_KEY, _BAND, *(() if quick else (_KEY_BAND, _PLANE)), _WITHIN, _FACING)
        windows = (1 << 10, 1 << 14) if quick else (1 << 10, 1 << 14, 1 << 17, 1 << 20)
        pushes = (2, 64, 4096) if quick else (2, 64, 1024, 8192, 1 << 17)
        matches = (2.0,) if quick else (0.1, 2.0, 10.0)
        workers = (1,) if quick else sorted({1, thread_counts()[-1]})
        grid = itertools.product(*(enumerate(values) for values in (conditions, windows, pushes, matches)))
        every = 1 if quick else _EVERY
        points = [[value for _, value in point] for point in grid if sum(place for place, _ in point) % every == 0]
        names = ("condition", "window", "push", "matches", "workers")
        cells = [dict(zip(names, (*point, n), strict=True)) for point in points for n in workers]
        return [
            cell
            for cell in cells
            if (cell["condition"] != _PLANE or _candidates(cell) <= _MOST_CANDIDATES)
            # Nothing but a scan could fill a larger window.
            and (cell["condition"] != _FACING or cell["window"] <= _LARGEST_SCANNED)
        ]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """All algorithms at one point, in turns."""
        rng = np.random.default_rng(context.seed)
        rows = max(1, cell["push"] // 2)
        fill = [(_batch(rng, cell, _FILL), _batch(rng, cell, _FILL)) for _ in range(-(-cell["window"] // _FILL))]
        pool = [(_batch(rng, cell, rows), _batch(rng, cell, rows)) for _ in range(_POOL)]
        joins = {}
        for name, arguments in _rivals(cell).items():
            # The steps of small pushes are compiled at once, not after thousands of pushes.
            settings = OpenSettings(AlgorithmRequest(**arguments), cell["workers"], max_rows=None, general_pushes=0)
            joins[name] = join = Join(_spec(cell), settings)
            for left, right in fill:
                join.push(left, right)
        spent = dict.fromkeys(joins, 0.0)
        pushed = dict.fromkeys(joins, 0)
        clock = time.process_time if cell["workers"] == 1 else time.perf_counter
        _push_for(_CHOOSING * cell["window"], joins[_AUTO], pool)
        for turn in range(_SETTLING + _TURNS):
            for name, join in joins.items():
                begin, n = clock(), 0
                while clock() - begin < _SECONDS:
                    join.push(*pool[n % _POOL])
                    n += 1
                if turn >= _SETTLING:
                    spent[name] += clock() - begin
                    pushed[name] += n
        choice = joins[_AUTO].explain()
        for join in joins.values():
            join.close()
        rates = {name: 2 * rows * pushed[name] / spent[name] for name in joins}
        best = max((name for name in rates if name != _AUTO), key=rates.__getitem__)
        return {
            "share": min(1.0, rates[_AUTO] / rates[best]),
            "regret": max(1.0, rates[best] / rates[_AUTO]),
            "best": best,
            "chosen": choice.partition("algorithm")[2].partition(":")[0].strip(),
            "tuples_per_s": rates[_AUTO],
            "best_tuples_per_s": rates[best],
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A heat map for each condition, match rate and number of workers: windows by pushes."""
        panels = sorted({(row["condition"], row["workers"], row["matches"]) for row in rows})
        across = max(1, len({panel[2] for panel in panels}))
        windows, pushes = (sorted({row[name] for row in rows}) for name in ("window", "push"))
        grid = figure.subplots(-(-len(panels) // across), across, squeeze=False)
        figure.set_size_inches(4 * across, 2.6 * len(grid))
        for axes, panel in zip(grid.flat, panels, strict=False):
            values = np.full((len(windows), len(pushes)), np.nan)
            for row in rows:
                if (row["condition"], row["workers"], row["matches"]) == panel:
                    values[windows.index(row["window"]), pushes.index(row["push"])] = row["regret"]
            axes.imshow(values, vmin=1.0, vmax=2.0, cmap="RdYlGn_r", origin="lower", aspect="auto")
            for (y, x), value in np.ndenumerate(values):
                if not np.isnan(value):
                    axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=7)
            axes.set_xticks(range(len(pushes)), [f"{push:,}" for push in pushes], fontsize=7)
            axes.set_yticks(range(len(windows)), [f"2^{window.bit_length() - 1}" for window in windows], fontsize=7)
            axes.set_title(f"{panel[0]}, {panel[2]:g} matches, {panel[1]} workers", fontsize=8)
        figure.supxlabel("tuples per push")
        figure.supylabel("window")

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """How many points are within the aim for each number of workers, and the worst of the others."""
        parts = []
        for workers in sorted({row["workers"] for row in rows}):
            own = [row for row in rows if row["workers"] == workers]
            missed = sorted((row for row in own if row["regret"] > _AIM), key=lambda row: -row["regret"])
            names = ("condition", "window", "push", "matches")
            worst = "; ".join(
                f"{row['regret']:.2f} times {row['best']} with {row['chosen']} at "
                f"{describe({name: row[name] for name in names})}"
                for row in missed[:6]
            )
            parts.append(
                judge_aim(
                    f"{workers} workers: `auto` is within {_AIM} of the fastest algorithm",
                    f"at {len(own) - len(missed)} of {len(own)} points" + (f"; {worst}" if worst else ""),
                    "at all points",
                    not missed,
                )
            )
        return parts


def _push_for(seconds: float, join: sj.Join, pool: Sequence[tuple[pa.Table, pa.Table]]) -> None:
    end = time.perf_counter() + seconds
    for left, right in itertools.cycle(pool):
        if time.perf_counter() >= end:
            return
        join.push(left, right)


def _spec(cell: Cell) -> sj.JoinSpec:
    """The join of a point; the band gives a tuple that many partners in a full window."""
    width = int(cell["matches"] * _DOMAIN / (2 * cell["window"]))
    conditions: dict[str, sj.JoinPredicate] = {
        _KEY: sj.Equi("k"),
        _BAND: sj.Band("x", "x", width),
        _KEY_BAND: sj.Equi("g") & sj.Band("x", "x", _GROUPS * width),
        # Each of the two bands lets the square root of the share pass.
        _PLANE: sj.Band("x", "x", _side(cell)) & sj.Band("y", "y", _side(cell)),
        _WITHIN: sj.Within("x", "lo", "hi"),
        _FACING: sj.Theta("l.x < r.a AND l.y > r.b"),
    }
    return sj.JoinSpec(on=conditions[cell["condition"]], window=sj.CountWindow(cell["window"]))


def _candidates(cell: Cell) -> float:
    """Those of a tuple where one of two bands finds them."""
    return float((cell["matches"] * cell["window"]) ** 0.5)


def _side(cell: Cell) -> int:
    return int(_DOMAIN / 2 * min(1.0, cell["matches"] / cell["window"]) ** 0.5)


def _batch(rng: np.random.Generator, cell: Cell, n: int) -> pa.Table:
    """Random rows with the columns of the condition, of both sides, and one payload."""
    share = min(0.25, cell["matches"] / cell["window"])
    begin, shift = rng.integers(0, _DOMAIN, n), int(_DOMAIN * (1 - (2 * share**0.5) ** 0.5))
    # The mean of lengths spread evenly by their logarithm is the longest one over the logarithm of the factor.
    longest = share * _DOMAIN * np.log(_LENGTHS)
    columns = {
        _WITHIN: {"x": begin, "lo": begin, "hi": begin + (longest / _LENGTHS ** rng.random(n)).astype(np.int64)},
        # Each of the two comparisons lets the square root of the share pass.
        _FACING: {
            **{name: rng.integers(0, _DOMAIN, n) for name in "xy"},
            "a": rng.integers(0, _DOMAIN, n) - shift,
            "b": rng.integers(0, _DOMAIN, n) + shift,
        },
        _KEY: {"k": rng.integers(0, max(1, int(cell["window"] / cell["matches"])), n)},
        _BAND: {"x": rng.integers(0, _DOMAIN, n)},
        _KEY_BAND: {"g": rng.integers(0, _GROUPS, n), "x": rng.integers(0, _DOMAIN, n)},
        _PLANE: {"x": rng.integers(0, _DOMAIN, n), "y": rng.integers(0, _DOMAIN, n)},
    }[cell["condition"]]
    return pa.table({**columns, "v": rng.random(n)})


def _rivals(cell: Cell) -> dict[str, dict[str, Any]]:
    """`auto` and every algorithm that could be the fastest at a point."""
    facing = cell["condition"] in (_WITHIN, _FACING)
    name = "interval" if facing else "sweep"
    rivals: dict[str, dict[str, Any]] = {_AUTO: {}, name: {"algorithm": name}}
    indexes = () if facing else ("hashed",) if cell["condition"] == _KEY else ("pim_tree", "btree")
    rivals |= {f"indexed over {index}": {"algorithm": "indexed", "index": index} for index in indexes}
    largest = _LARGEST_SCANNED_WITHIN if cell["condition"] == _WITHIN else _LARGEST_SCANNED
    if cell["push"] * cell["window"] <= _MOST_PAIRS and cell["window"] <= largest:
        rivals["nested_loop"] = {"algorithm": "nested_loop"}
    if cell["workers"] > 1 and cell["condition"] != _KEY and not facing:
        rivals["pim_parallel"] = {"algorithm": "pim_parallel"}
    return rivals


EXPERIMENT = AutoRegret()
