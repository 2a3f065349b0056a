"""Queries of every kind beside each other: each gives what it gives alone, whatever becomes of the others.

Each query also runs in a core of its own, with the same life. Rows are read late, when the streams have let their
tuples go; pauses, drops, failures, restarts and batches that are computed twice or query by query come between.
"""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Stream
from streamjoin.queries.core import row_lists
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.core.changes import Change, Create, Drop, Pause, Resume
from streamjoin.queries.core.groups.feeds import GroupStore, stores_of, unpacked_waiting
from streamjoin.queries.core.kinds import joined_states
from streamjoin.queries.core.row_lists import ListedRows, read
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.engine.journal import MemoryJournal
from streamjoin.queries.engine.loop import Attempt
from tests.queries.cell_grid import Grid
from tests.seeds import FRESH, thorough_but

SCHEMA = pa.schema(
    {**dict.fromkeys(("id", "k", "p"), pa.int64()), "f": pa.float64(), "s": pa.string(), "t": pa.int64()}
)
STREAMS = [Stream(name, SCHEMA, "t") for name in "abc"]
LATENESS = 3
HUGE = "9223372036854775807"
PAIR = "x.id AS i, y.s AS j FROM {a} x"
RANGE = "RANGE BETWEEN {w} UNITS PRECEDING AND {n} UNITS FOLLOWING"
WINDOW = f"WINDOW JOIN {{b}} y ON x.k = y.k {RANGE}"
SHARED = "FROM a x JOIN b y WITHIN 2 UNITS ON x.k = y.k GROUP BY x.k"
THREE = "FROM {a} x JOIN {b} y WITHIN {w} UNITS ON x.k = y.k JOIN {c} z WITHIN 3 UNITS ON ABS(y.p - z.p) <= {n}"
TEXTS = [
    "SELECT x.id, upper(x.s) AS u, x.f FROM {a} x WHERE x.p > {n}",
    f"SELECT {PAIR} JOIN {{b}} y WITHIN {{w}} UNITS ON x.k = y.k",
    "SELECT x.id, y.f, x.p + y.p AS q FROM {a} x JOIN {b} y WITHIN {w} ROWS ON x.s = y.s AND x.p <= y.p",
    f"SELECT x.id, z.s {THREE}",
    f"SELECT {PAIR} {{outer}} JOIN {{b}} y WITHIN {{w}} UNITS ON x.k = y.k",
    "SELECT x.id FROM {a} x LEFT {lookup} JOIN {b} y WITHIN {w} UNITS ON x.k = y.k AND x.p > y.p",
    f"SELECT {PAIR} ASOF LEFT JOIN {{b}} y MATCH_CONDITION (x.t >= y.t) ON x.k = y.k",
    f"SELECT {PAIR} ASOF JOIN {{b}} y MATCH_CONDITION (x.t > y.t) ON x.k = y.k TOLERANCE {{w}} UNITS",
    f"SELECT x.id, sum(y.f) AS s, last(y.p) AS l FROM {{a}} x {WINDOW} INCLUDE PREVAILING",
    f"SELECT x.id, median(y.p) AS m FROM {{a}} x INNER {WINDOW} EXCLUDE PREVAILING",
    f"SELECT x.k, window_end, count(*) AS n, sum(y.f) AS s {SHARED}, TUMBLE(x.t, {{w}})",
    f"SELECT x.k, max(y.s) AS m {SHARED}, HOP(x.t, 2, 6) HAVING count(*) > {{n}}",
    "SELECT x.s, count(DISTINCT x.p) AS n FROM {a} x GROUP BY x.s, TUMBLE({w})",
    f"SELECT x.id, x.s FROM {{c}} x UNION ALL SELECT {PAIR} LEFT JOIN {{b}} y WITHIN 2 UNITS ON x.s = y.s",
    f"SELECT x.p * {HUGE} AS q FROM {{a}} x JOIN {{b}} y WITHIN 4 UNITS ON x.k = y.k WHERE x.p > 5",
    f"SELECT sum(y.p * {HUGE}) AS q {SHARED}, TUMBLE(x.t, {{w}})",
    f"SELECT x.id, sum(y.p * {HUGE}) AS q FROM {{a}} x {WINDOW} EXCLUDE PREVAILING",
    f"SELECT x.id FROM {{a}} x UNION ALL SELECT x.p * {HUGE} AS id FROM {{b}} x",
]
"""The last four fail at some tuples."""
Rows = Counter[tuple[Any, ...]]


def rows_of(rows: ListedRows) -> Rows:
    table = read(rows)
    table.validate(full=True)
    return normal(Counter(zip(*(column.to_pylist() for column in table.columns), strict=True)))


def normal(rows: Mapping[tuple[Any, ...], int]) -> Rows:
    """Rows in which NaN equals itself."""
    found: Rows = Counter()
    for row, count in rows.items():
        found[tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in row)] += count
    return found


def stored(core: Any, settings: Settings) -> Any:
    """A core whose state went through files."""
    state = core.snapshot()
    tables = [one.to_table(name) for name, one in state.kinds.items()]
    table = joined_states([*tables, *(store.to_table() for store in stores_of(state.kinds))])
    stores: dict[str, GroupStore] = {}
    branches = state.registry.branches
    kinds = {name: unpacked_waiting(table, branches[name].query, stores) for name in state.kinds}
    buckets = {name: tuple(Bucket.from_table(b.to_table()) for b in held) for name, held in state.buckets.items()}
    other = open_core(STREAMS, settings)
    assert not other.restore(pickle.loads(pickle.dumps(replace(state, kinds=kinds, buckets=buckets))))
    return other


class Mixed:
    """Queries that come and go, each in a core of its own too; `late` has rows that nobody has read."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed + FRESH)
        self.texts: dict[str, str] = {}
        self.paused: dict[str, bool] = {}
        self.alone: dict[str, Shared] = {}
        self.late: list[tuple[str, ListedRows, Rows]] = []
        self.newest = dict.fromkeys("abc", 0)
        self.count = self.ids = self.rows = 0

    def text(self) -> str:
        chosen = self.random
        if self.texts and chosen.random() < 0.15:
            return chosen.choice(list(self.texts.values()))
        choices: dict[str, Sequence[Any]] = {"outer": ["LEFT", "RIGHT", "FULL OUTER"], "lookup": ["SEMI", "ANTI"]}
        choices |= {**dict.fromkeys("abc", "abc"), "w": [2, 4, 8], "n": [0, 1, 3]}
        places = {name: chosen.choice(values) for name, values in choices.items()}
        return chosen.choice(TEXTS).format(**places)

    def changes(self, core: Any, creates: int) -> list[Change]:
        """What happens to queries between two batches, to each of them alone, too."""
        changes: list[Change] = []
        for name in list(self.texts):
            dice = self.random.random()
            if dice < 0.04:
                changes.append(Drop(name))
                del self.texts[name], self.paused[name], self.alone[name]
            elif dice < 0.12:
                kind = Resume if self.paused[name] else Pause
                self.paused[name] = not self.paused[name]
                self.alone[name].apply([kind(name)])
                changes.append(kind(name))
        state = core.snapshot()
        for _ in range(creates):
            name, text = f"q{self.count}", self.text()
            self.count += 1
            self.texts[name], self.paused[name] = text, False
            one = self.alone[name] = Shared(STREAMS, Settings(lateness=LATENESS, future=None, sharing="everything"))
            one.restore(replace(one.snapshot(), batch=state.batch, clocks=state.clocks))
            one.apply([Create(name, text)])
            changes.append(Create(name, text))
        return changes

    def tables(self, batch: int, is_last: bool) -> dict[str, pa.Table]:
        """Some tuples of each stream by time; those of the last batch complete every window."""
        chosen, tables = self.random, {}
        for name in "abc":
            rows: list[dict[str, Any]] = []
            for _ in range(1 if is_last else chosen.choice([0, 1, 4, 12])):
                self.ids += 1
                self.newest[name] = max(self.newest[name], 4 * batch + chosen.randrange(4))
                at = 10**4 if is_last else max(0, self.newest[name] - chosen.choice([0, 0, 0, 1, 3]))
                numbers = {"k": chosen.choice([0, 1, 2, None]), "p": chosen.choice([*range(8), None])}
                texts = {
                    "s": chosen.choice(["a", "ab", None, "z" * 50]),
                    "f": chosen.choice([None, 0.5, 1e16, -1e16, math.nan]),
                }
                rows.append({"id": self.ids, **numbers, **texts, "t": at})
            if rows:
                tables[name] = pa.Table.from_pylist(rows, SCHEMA).sort_by("t")
        return tables

    def compare(self, batch: int, tables: Mapping[str, pa.Table], found: Mapping[str, Any], failed: Any) -> None:
        """Every query alone: it fails where it does beside others, and its rows are those to be read later."""
        for name, core in self.alone.items():
            arrived = core.arrive(batch, tables)
            rows, failures = core.results(arrived)
            failures = core.finish(arrived, failures)
            assert (name in failed) == (name in failures), (self.texts[name], failed.get(name), failures)
            if failures:
                self.paused[name] = True
            else:
                self.late.append((self.texts[name], found[name], rows_of(rows[name])))

    def read(self, share: float) -> None:
        """Read some of the rows."""
        self.random.shuffle(self.late)
        count = int(share * len(self.late))
        for text, rows, wanted in self.late[:count]:
            found = rows if isinstance(rows, Counter) else rows_of(rows)
            assert found == wanted, text
            self.rows += found.total()
        del self.late[:count]


BATCHES = 7


@pytest.mark.parametrize("seed", thorough_but(range(12), 0, 1))
@pytest.mark.parametrize("sharing", ["cost", "nothing"])
def test_rows_and_failures_are_those_of_each_query_alone(
    seed: int, sharing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = Mixed(seed)
    chosen = mixed.random
    monkeypatch.setattr(row_lists, "_TOGETHER", chosen.choice([0, 200, 1 << 21]))
    group_cost = chosen.choice([0.0, 15_000.0])
    settings = Settings(
        lateness=LATENESS, future=None, replan_every=2, hysteresis=0.0, sharing=sharing, group_cost=group_cost
    )
    core: Any = open_core(STREAMS, settings)
    for batch in range(BATCHES):
        core.apply(mixed.changes(core, 2 if batch else 15))
        core = stored(core, settings) if chosen.random() < 0.3 else core
        tables = mixed.tables(batch, batch == BATCHES - 1)
        arrived = core.arrive(batch, tables)
        if chosen.random() < 0.2:
            core.results(arrived)
        if chosen.random() < 0.2:
            found, failures = Attempt(MemoryJournal(), batch, {"count": 1}).results(core, arrived, settings)
            found = {name: one.query.schema.empty_table() for name, one in core.queries.items()} | found
        else:
            found, failures = core.results(arrived)
        failures = core.finish(arrived, failures)
        mixed.compare(batch, tables, found, failures)
        mixed.read(0.3)
    mixed.read(1.0)
    assert mixed.rows > 50


@pytest.mark.parametrize("seed", thorough_but(range(12), 0, 1))
def test_cells_give_the_same(seed: int, tmp_path: Path) -> None:
    mixed = Mixed(seed)
    cells = mixed.random.randint(1, 5)
    grid = Grid(tmp_path, STREAMS, cells, 2, lateness=LATENESS, future=None, replan_every=2, hysteresis=0.0)
    grid.may_fail = True
    for batch in range(BATCHES):
        grid.core.apply(mixed.changes(grid.core, 2 if batch else 10))
        if mixed.random.random() < 0.3:
            grid.resize()
        tables = mixed.tables(batch, batch == BATCHES - 1)
        if mixed.random.random() < 0.2:
            grid.call_heavy(tables)
        rows = grid.batch(batch, tables)
        found = {name: normal(rows.get(name, {})) for name in mixed.texts}
        mixed.compare(batch, tables, found, grid.failures)
    mixed.read(1.0)
    assert mixed.rows > 20
