"""`python -m benchmarks.speed_table`: writes the table of speeds in docs/speed.md, and some lines in README.

The parts between the two markers are made here from the stored results; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, human
from benchmarks.readme_part import RESULTS, SPEED_PAGE, ReadmePart

PART = ReadmePart("speed", "benchmarks.speed_table")
_NEAR = 1.2


@dataclass(frozen=True)
class Line:
    """One line: the row of a stored result with the values of `cell`, beside the one that differs from it by `base`."""

    what: str
    experiment: str
    cell: Mapping[str, Any]
    unit: str
    baseline: str
    base: Mapping[str, Any]
    measure: str | None = None
    per_s: bool = True
    readme: str = ""
    """What README calls it; nothing where README leaves it out."""


_WINDOW, _BATCH = {"window": 1 << 20}, {"window": 1 << 20, "batch": 1 << 16}
LINES = (
    Line(
        "band join, window 2^20, batches of 2 x 65,536, rows gathered, one worker", "sweep",
        {**_BATCH, "system": "sweep", "workers": 1}, "tuples/s",
        "DuckDB re-joining the window", {"system": "duckdb re-join"},
        readme="band join, window of 2^20, one worker",
    ),
    Line(
        "the same, two workers", "sweep", {**_BATCH, "system": "sweep", "workers": 2}, "tuples/s",
        "DuckDB re-joining the window", {"system": "duckdb re-join", "workers": 1},
    ),
    Line(
        "2-D band, nested loop, one worker", "nested", {**_WINDOW, "system": "nested_loop", "workers": 1},
        "comparisons/s", "NumPy", {"system": "numpy"},
    ),
    Line(
        "tuple by tuple over a PIM-Tree, window 2^20, tasks of 64", "index_speed",
        {**_WINDOW, "task": 64, "index": "pim_tree", "through": "push_task"}, "tuples/s",
        "our B+-tree", {"index": "btree"},
    ),
    Line(
        "`push` of 32 + 32 rows, window 2^20", "push_cost", {**_WINDOW, "rows": 32, "system": "push of tables"},
        "tuples/s", "a B+-tree join in C++, one thread", {"system": "C++ B+-tree"},
        readme="`push` of 32 + 32 rows, window of 2^20",
    ),
    Line(
        "`push` of 1,024 + 1,024 rows, window 2^20", "push_cost",
        {**_WINDOW, "rows": 1024, "system": "push of tables"}, "tuples/s",
        "a B+-tree join in C++, one thread", {"system": "C++ B+-tree"},
    ),
    Line(
        "`sj.live`, pushes of 64 tuples from two threads, window 65,536, rows with payload", "live_rate",
        {"system": "live", "rows": 64, "sources": 2}, "tuples/s",
        "`sj.open` in batches of 131,072", {"system": "push", "rows": 1 << 16},
        readme="`sj.live`, pushes of 64 tuples, window of 65,536",
    ),
    Line(
        "`sj.live` with `low_latency_handshake`, window 65,536, at 80 % of its own rate, median from push to consumer",
        "live_latency", {"algorithm": "low_latency_handshake", "load": 80, "window": 1 << 16}, "ms",
        "`handshake`", {"algorithm": "handshake"}, per_s=False,
    ),
    Line(
        "Spark, window of a million, batches of a million rows", "spark_band",
        {"window": 1_000_000, "batch": 1_000_000, "system": "spark.join"}, "rows/s",
        "explode into cells", {"system": "workaround"}, readme="on Spark, window and batches of a million",
    ),
    Line(
        "Spark, the same with batches of 100,000 rows", "spark_band",
        {"window": 1_000_000, "batch": 100_000, "system": "spark.join"}, "rows/s",
        "explode into cells", {"system": "workaround"},
    ),
    Line(
        "Spark, window of 100,000, batches of a million rows", "spark_limit",
        {"batch": 1_000_000, "system": "spark.join"}, "rows/s",
        "`transformWithState`", {"system": "transformWithState"},
    ),
    Line(
        "Spark, window of 100,000, a batch of 20 rows", "spark_limit", {"batch": 20, "system": "spark.join"}, "ms",
        "`transformWithState`", {"system": "transformWithState"}, measure="batch_ms", per_s=False,
    ),
    Line(
        "index of sorted runs, window 2^18, pushes of 4,096", "memory",
        {"window": 1 << 18, "push": 4096, "algorithm": "sweep"}, "bytes a tuple",
        "our B+-tree", {"algorithm": "indexed over btree"}, measure="index_bytes", per_s=False,
    ),
    Line(
        "100 ad-hoc queries over the same streams on Spark, tuples times queries", "ajoin_fig15",
        {"queries": 100, "batch": 20_000, "system": "shared by cost"}, "tuples/s overall",
        "one Spark query each", {"system": "one Spark query each"}, measure="overall_per_s",
        readme="100 SQL queries on Spark, tuples times queries",
    ),
    Line(
        "16 cores: band join, window 2^20, batches of 2 x 262,144, rows gathered, 16 workers", "16-cores/cores",
        {"system": "sweep", "workers": 16}, "tuples/s", "one worker", {"workers": 1},
    ),
    Line(
        "16 cores: 2-D band, nested loop, 16 workers", "16-cores/cores",
        {"system": "nested_loop, 2-D band", "workers": 16}, "comparisons/s", "one worker", {"workers": 1},
    ),
    Line(
        "inside the harness, 16 cores: `pim_parallel`, window 2^20, 16 threads", "16-cores/pim_fig12a",
        {**_WINDOW, "self_join": False, "system": "pim_parallel", "threads": 16}, "tuples/s",
        "one thread over a PIM-Tree", {"system": "pim_tree", "threads": 1},
    ),
    Line(
        "inside the harness, 16 cores: `scalejoin`, 2-D band, 16 threads", "16-cores/scalejoin_fig5",
        {**_WINDOW, "threads": 16}, "comparisons/s", "one thread", {"threads": 1},
    ),
)  # fmt: skip


def render(results: Path = RESULTS) -> str:
    """The whole table; experiments without a stored result are named below it."""
    table = ["| what | figure | baseline | experiment, runs, day |", "|---|---|---|---|"]
    missing = []
    for line in LINES:
        found = _measured(line, results)
        if found is None:
            missing.append(f"{line.what} (`{line.experiment}`)")
        else:
            record, row, figures = found
            table.append(f"| {line.what} | {figures} | {_origin(record, row)} |")
    if missing:
        table += ["", f"Not stored: {'; '.join(missing)}."]
    return "\n".join([*table, *_of_auto(results / "auto_regret.json")])


def brief(results: Path = RESULTS) -> str:
    """README's table: the lines that it has a name for."""
    table = ["| what | figure | baseline | experiment |", "|---|---|---|---|"]
    for line in LINES:
        found = _measured(line, results) if line.readme else None
        if found is not None:
            table.append(f"| {line.readme} | {found[2]} | `{line.experiment}` |")
    return "\n".join(table)


def _measured(line: Line, results: Path) -> tuple[Mapping[str, Any], Row, str] | None:
    """The stored record and row of a line, and its figure and baseline as two cells; None where nothing is stored."""
    path = results / f"{line.experiment}.json"
    record = json.loads(path.read_text()) if path.is_file() else {"rows": []}
    row = _row(record["rows"], line.cell)
    if row is None:
        return None
    base = _row(record["rows"], {**line.cell, **line.base})
    measure = line.measure or record["measure"]
    other = "" if base is None else f"{line.baseline}: {_figure(base[measure], line)}"
    return record, row, f"{_figure(row[measure], line)} {line.unit} | {other}"


def _of_auto(path: Path) -> list[str]:
    """How far the automatic choice is from the best, over the whole grid."""
    if not path.is_file():
        return []
    regrets = [row["regret"] for row in json.loads(path.read_text())["rows"]]
    near = sum(regret <= _NEAR for regret in regrets)
    text = (
        f"`algorithm='auto'`, the default, is within {_NEAR} times of the fastest algorithm at {near} of "
        f"{len(regrets)} points of a grid of conditions, windows, pushes, match rates and workers, at worst "
        f"{max(regrets):.2f} times (`make bench EXPERIMENT=auto_regret`)."
    )
    return ["", text]


def _row(rows: Sequence[Row], cell: Mapping[str, Any]) -> Row | None:
    return next((row for row in rows if all(row.get(name) == value for name, value in cell.items())), None)


def _figure(value: float, line: Line) -> str:
    return human(value) if line.per_s else f"{value:.1f}"


def _origin(record: Mapping[str, Any], row: Row) -> str:
    return f"`{record['experiment']}`, {row['repeats']}, {record['date'][:10]}"


if __name__ == "__main__":
    PART.write(brief())
    print(PART.write(render(), SPEED_PAGE))
