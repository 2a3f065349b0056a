"""What the stored checkpoints were made of: `python -m tests.upgrades.old_runs` writes those of the current version.

Each version whose files differ from the one before adds a directory below `data`; none is ever written again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa

from streamjoin import __version__
from streamjoin.adhoc import Engine
from streamjoin.storage.log import new_epoch
from streamjoin.storage.places import Place
from tests.spark.gated import gated_batch, gated_plan, gated_spec, gated_table
from tests.spark.joining import BACKGROUND, CASES, blueprint, in_process, pairs, stream, tables

DATA = Path(__file__).with_name("data")
BEFORE, BATCHES = 4, 7
CASE = next(case for case in CASES if case.name == "key, two bands and a condition")
SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("t", pa.int64())])
SQL = {
    "pairs": "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 50 UNITS ON x.k = y.k",
    "bands": "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 20 UNITS ON ABS(x.k - y.k) <= 1",
    "left": "SELECT x.p AS a, y.p AS b FROM l x LEFT JOIN r y WITHIN 10 UNITS ON x.k = y.k",
}


def run_join(root: Place, first: int, last: int) -> list[Counter[tuple[int, int]]]:
    """Batches of a join over the log in `root`, from a start of its own; the pairs of each."""
    plan = blueprint(CASE, 2, BACKGROUND)
    batches = tables(CASE, *stream(CASE, seed=9, n=20 * BATCHES), BATCHES)
    epoch = new_epoch(root, plan.description)
    return [pairs(in_process(plan, root, i, batches[i], epoch)) for i in range(first, last)]  # type: ignore[arg-type]


def run_gated(root: Place, first: int, last: int) -> list[list[tuple[object, ...]]]:
    """The same of a join with a gate, which has rows that wait."""
    plan = gated_plan(gated_spec(how="full"))
    epoch = new_epoch(root, plan.description, former=plan.former_description)
    results = []
    for i in range(first, last):
        sent = {(0, 0): gated_table((3 * i, 7, 2 * i)), (1, 0): gated_table((3 * i + 1, 7, 2 * i + 1))}
        rows = gated_batch(plan, root, i, sent, epoch=epoch)  # type: ignore[arg-type]
        results.append(sorted((tuple(row.values()) for row in rows.to_pylist()), key=str))
    return results


def run_adhoc(checkpoint: Path, first: int, last: int) -> dict[str, Counter[tuple[object, ...]]]:
    """Tuples from `first` to `last` through an ad-hoc engine; the rows of each query."""
    with Engine(checkpoint=checkpoint) as engine:
        for name in "lr":
            engine.register(name, schema=SCHEMA, time="t")
        if not first:
            for name, sql in SQL.items():
                engine.create(sql, name=name)
        for i in range(first, last):
            for name in "lr":
                rows = [{"k": (i + n) % 3, "p": f"{name}{i}.{n}", "t": 5 * i + n} for n in range(4)]
                engine.push(name, pa.Table.from_pylist(rows, SCHEMA))
        return {
            name: Counter(tuple(row.values()) for row in engine.newest(name, 10_000).table.to_pylist()) for name in SQL
        }


if __name__ == "__main__":
    target = DATA / __version__
    run_join(target / "join", 0, BEFORE)
    run_gated(target / "gated", 0, BEFORE)
    run_adhoc(target / "adhoc", 0, BEFORE)
