"""Grouped ad-hoc queries beside the join that they group: one, and a hundred with windows of their own.

All see the same tuples of two streams that are joined by key within a time window. The hundred are TUMBLE and HOP of
fifty lengths each; "apart" each of them finds partners and holds its groups for itself. One query is also asked with
few and with many partners for each tuple, by the number of keys alone: it enumerates no pair. CPU seconds of the
process, with one thread, so that other work on the machine does not count.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from benchmarks.harness import Cell, Context, Experiment, Figure, Row, met
from streamjoin.adhoc import Settings, Stream
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.unshared import open_core

SCHEMA: Final = pa.schema({"t": pa.int64(), "k": pa.string(), "v": pa.float64()})
JOIN, ONE, HUNDRED, APART = "the join", "one grouped query", "100 grouped queries", "100 grouped queries apart"
PARTNERS: Final = "one grouped query, by partners"
AIMS: Final = {(ONE, JOIN): 1.3, (HUNDRED, ONE): 3.0}
"""The most that one system may take of another's time."""
MOST: Final = 1.5
"""The most that many partners may cost, in times of few."""
_REACH: Final = 500
_FROM: Final = f"FROM a x JOIN b y WITHIN {_REACH} UNITS ON x.k = y.k"
_BATCH: Final = 10_000
"""Ticks of a batch."""
_WARM: Final = 2


def texts(system: str) -> list[str]:
    """The queries of a system."""
    if system == JOIN:
        return [f"SELECT x.t, x.k, x.v, y.v AS w {_FROM}"]
    select = f"SELECT x.k, window_end, count(*) AS n, max(y.v) AS top, avg(x.v) AS mean {_FROM} GROUP BY x.k, "
    if system in (ONE, PARTNERS):
        return [f"{select}TUMBLE(x.t, 5000)"]
    lengths = range(1_000, 51_000, 1_000)
    tumbled = [f"{select}TUMBLE(x.t, {length})" for length in lengths]
    return [*tumbled, *(f"{select}HOP(x.t, {length}, {3 * length})" for length in lengths)]


def batches(rows: int, keys: int, count: int, seed: int) -> list[dict[str, pa.Table]]:
    """Tuples of both streams, in batches of `rows` each."""
    rng = np.random.default_rng(seed)

    def table(number: int) -> pa.Table:
        times = np.sort(rng.integers(number * _BATCH, (number + 1) * _BATCH, rows))
        names = pa.array(np.char.add("k", rng.integers(0, keys, rows).astype(str)))
        return pa.table([pa.array(times), names, pa.array(np.round(rng.normal(100, 5, rows), 2))], schema=SCHEMA)

    return [{name: table(number) for name in "ab"} for number in range(count)]


class Groups(Experiment):
    """Input rate by number of queries and keys."""

    title = "groups: grouped queries beside their join"
    measure = "tuples_per_cpu_s"
    unit = "tuples per CPU second"
    repeats = 3
    warmups = 1

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Few matches and many groups, and the other way round."""
        rows = 2_000 if quick else 20_000
        return [
            {"keys": keys, "rows": rows, "system": system}
            for keys in ((50,) if quick else (100, 500))
            for system in (JOIN, ONE, HUNDRED, *((APART,) if keys == 500 else ()))
        ] + [{"keys": keys, "rows": rows, "system": PARTNERS} for keys in ((20, 2) if quick else (200, 2))]

    def baseline(self, cell: Cell) -> Cell | None:
        """The join alone, or one query for the hundred."""
        if cell["system"] in (JOIN, PARTNERS):
            return None
        return {**cell, "system": JOIN if cell["system"] == ONE else ONE}

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Create the queries, fill the windows, and time the batches after."""
        sharing = "nothing" if cell["system"] == APART else "cost"
        settings = Settings(lateness=0, threads=1, future=None, sharing=sharing)  # type: ignore[arg-type]
        core = open_core([Stream(name, SCHEMA, "t") for name in "ab"], settings)
        core.apply([Create(f"q{number}", text) for number, text in enumerate(texts(cell["system"]))])
        given = batches(cell["rows"], cell["keys"], 8, context.seed)
        out, took = 0, 0.0
        for number, tables in enumerate(given):
            begin = time.process_time()
            found = core.process(number, tables)
            if number >= _WARM:
                took += time.process_time() - begin
                out += sum(table.num_rows for table in found.values())
        if core.report.failures:
            raise AssertionError(f"queries failed: {core.report.failures}")
        return {"tuples_per_cpu_s": 2 * cell["rows"] * (len(given) - _WARM) / took, "cpu_s": took, "rows_out": out}

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A bar a system and number of keys."""
        axes = figure.subplots()
        names = [f"{row['system']}, {row['keys']} keys" for row in rows]
        axes.barh(names, [row["cpu_s"] for row in rows])
        axes.set(xlabel="CPU seconds for the same tuples")
        axes.invert_yaxis()

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """How many times the cost, and the aims."""
        took = {(row["keys"], row["system"]): row["cpu_s"] for row in rows}
        told = []
        for (system, other), aim in AIMS.items():
            for keys in sorted({row["keys"] for row in rows}):
                if (keys, system) in took and (keys, other) in took:
                    ratio = took[keys, system] / took[keys, other]
                    judged = met(ratio <= aim)
                    told.append(f"{keys} keys: {system} takes {ratio:.2f} times {other}; aim {aim:g}: {judged}")
        by_partners = {
            round(2 * _REACH * row["rows"] / _BATCH / row["keys"]): row["cpu_s"]
            for row in rows
            if row["system"] == PARTNERS
        }
        if len(by_partners) > 1:
            few, many = min(by_partners), max(by_partners)
            ratio = by_partners[many] / by_partners[few]
            judged = met(ratio <= MOST)
            told.append(f"{many:,} partners a tuple take {ratio:.2f} times what {few:,} take; aim {MOST:g}: {judged}")
        return told


EXPERIMENT = Groups()
