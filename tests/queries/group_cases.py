"""Grouped queries drawn at random with their tuples and lives, what the oracle wants of them, and stored cores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from streamjoin.adhoc import Stream
from streamjoin.queries.core.changes import Create, Drop, Pause, Resume
from streamjoin.queries.core.groups.feeds import GroupStore, stores_of, unpacked_waiting
from streamjoin.queries.core.kinds import joined_states
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.unshared import open_core
from tests.oracles import groups_oracle as oracle
from tests.oracles.groups_oracle import Life, Meaning
from tests.queries.cell_grid import Grid

SCHEMA = pa.schema({"k": pa.string(), "f": pa.float64(), "i": pa.int64(), "t": pa.int64()})
STREAMS = [Stream(name, SCHEMA, "t") for name in ("a", "b", "c")]
OUTPUTS: dict[str, tuple[str, Any]] = {
    "n": ("count(*)", len),
    "nf": ("count({0}.f)", lambda rows, x: len(oracle.present([row[x]["f"] for row in rows]))),
    "sf": ("sum({0}.f)", lambda rows, x: oracle.total([row[x]["f"] for row in rows])),
    "af": ("avg({0}.f)", lambda rows, x: oracle.average([row[x]["f"] for row in rows])),
    "si": ("sum({0}.i)", lambda rows, x: oracle.total([row[x]["i"] for row in rows])),
    "lo": ("min({0}.f)", lambda rows, x: oracle.least([row[x]["f"] for row in rows])),
    "hi": ("max({0}.i)", lambda rows, x: oracle.least([row[x]["i"] for row in rows], max)),
    "ls": ("min({0}.k)", lambda rows, x: oracle.least([row[x]["k"] for row in rows])),
    "df": ("count(DISTINCT {0}.f)", lambda rows, x: oracle.distinct([row[x]["f"] for row in rows])),
    "mf": ("median({0}.f)", lambda rows, x: oracle.middle([row[x]["f"] for row in rows])),
    "am": ("arg_max({0}.f, {0}.i)", lambda rows, x: oracle.best([(row[x]["f"], row[x]["i"]) for row in rows], max)),
}
KEYS: dict[str, Any] = {
    "{0}.k": lambda x: lambda row: row[x]["k"],
    "{0}.f": lambda x: lambda row: row[x]["f"],
    "{0}.i % 2": lambda x: (
        lambda row: None if row[x]["i"] is None else abs(row[x]["i"]) % 2 * (-1) ** (row[x]["i"] < 0)
    ),
}


@dataclass(frozen=True)
class GroupQuery:
    name: str
    text: str
    meaning: Meaning
    life: Life


@dataclass(frozen=True)
class GroupCase:
    batches: list[dict[str, list[dict[str, Any]]]]
    lateness: int
    queries: list[GroupQuery]

    def tables(self, batch: int) -> dict[str, pa.Table]:
        return {name: pa.Table.from_pylist(rows, SCHEMA) for name, rows in self.batches[batch].items()}

    def wanted(self, query: GroupQuery) -> list[list[dict[str, Any]]]:
        return oracle.rows_by_batch(self.batches, self.lateness, query.meaning, query.life)


FLOATS = st.sampled_from([None, 0.0, -0.0, 1.0, 0.1, -2.5, 1e16, -1e16, 5e-324, 1.7e308, math.nan, math.inf, -math.inf])
INTS = st.sampled_from([None, 0, 1, -3, 7, 2**62, -(2**63), 2**63 - 1])


Shape = tuple[int, int, str, str | None, list[tuple[str, str]]]
"""How many streams are joined within which distance, which, by whose time their rows are grouped, and by which keys."""


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    count = draw(st.integers(1, 3))
    aliases = "xyz"[:count]
    keys = st.lists(st.tuples(st.sampled_from([*KEYS]), st.sampled_from(aliases)), max_size=2, unique=True)
    time = draw(st.sampled_from([None, *aliases]))
    return count, draw(st.integers(1, 4)), draw(st.sampled_from(["aba", "abc"])), time, draw(keys)


@st.composite
def group_queries(draw: st.DrawFn, number: int, batches: int, shape: Shape | None) -> GroupQuery:
    count, reach, chain, time, keys = draw(shapes()) if shape is None else shape
    aliases = dict(zip("xyz", chain, strict=True))
    streams = {alias: aliases[alias] for alias in "xyz"[:count]}
    text = f"FROM {streams['x']} x"
    for before, alias in zip("xy", "yz", strict=True):
        if alias in streams:
            text += f" JOIN {streams[alias]} {alias} WITHIN {reach} UNITS ON {before}.k = {alias}.k"
    size = draw(st.integers(1, 12))
    slide = draw(st.sampled_from([size, size, 1, max(1, size // 2), max(1, size - 1)]))
    names = draw(st.lists(st.sampled_from([*OUTPUTS]), min_size=1, max_size=4, unique=True))
    owner = draw(st.sampled_from([*streams]))
    column = "" if time is None else f"{time}.t, "
    window = f"TUMBLE({column}{size})" if slide == size else f"HOP({column}{slide}, {size})"
    key_texts = [key.format(alias) for key, alias in keys]
    selected = [f"{key} AS k{n}" for n, key in enumerate(key_texts)]
    selected += [f"{OUTPUTS[name][0].format(owner)} AS {name}" for name in names]
    text = f"SELECT window_start, window_end, {', '.join(selected)} {text} GROUP BY {', '.join([window, *key_texts])}"
    having, top = draw(st.integers(0, 3)) == 0, draw(st.integers(0, 2)) == 0
    if having:
        text += " HAVING count(*) > 1" if "n" not in names else " HAVING n > 1"
    ranked = "n" if "n" in names else names[0]
    ties = draw(st.booleans())
    if top and ranked not in ("ls",):
        function = "rank" if ties else "row_number"
        text += f" QUALIFY {function}() OVER (PARTITION BY window_end ORDER BY {ranked} DESC) <= 2"
    outputs = {}
    for name in names:
        make = OUTPUTS[name][1]
        outputs[name] = make if name == "n" else (lambda rows, make=make: make(rows, owner))
    meaning = Meaning(
        streams,
        reach,
        time,
        size,
        slide,
        [KEYS[key](alias) for key, alias in keys],
        {**outputs, **({} if "n" in names else {"#n": len})},
        (lambda group: group["n" if "n" in group else "#n"] > 1) if having else (lambda group: True),
        (ranked, 2, ties) if top and ranked not in ("ls",) else None,
    )
    begin = draw(st.sampled_from([0, 0, 1, batches - 1]))
    middle = draw(st.sampled_from([begin + 1, batches, batches + 2, batches + 2]))
    again = middle + draw(st.integers(1, 2)) if draw(st.booleans()) else batches + 9
    end = draw(st.sampled_from([batches + 9, again + 1]))
    runs = [(begin, middle), (again, end)] if again < batches else [(begin, middle)]
    return GroupQuery(f"q{number}", text, meaning, Life(runs))


@st.composite
def group_cases(draw: st.DrawFn) -> GroupCase:
    count, lateness = draw(st.integers(2, 5)), draw(st.integers(0, 3))
    # Mostly queries over one join, which share it.
    shape = draw(shapes()) if draw(st.integers(0, 2)) else None
    queries = [draw(group_queries(n, count + 1, shape)) for n in range(draw(st.integers(1, 4)))]
    batches, now = [], 0
    for _ in range(count):
        tuples = {}
        for stream in draw(st.sampled_from(["abc", "abc", "ab", "a", "c"])):
            times = draw(st.lists(st.integers(now - lateness - 1, now + 5), min_size=1, max_size=6))
            tuples[stream] = [
                {"k": draw(st.sampled_from(["p", "p", "q", None])), "f": draw(FLOATS), "i": draw(INTS), "t": time}
                for time in times
            ]
        batches.append(tuples)
        now += draw(st.integers(0, 6))
    batches.append({stream: [{"k": "z", "f": None, "i": 0, "t": now + 40}] for stream in "abc"})
    return GroupCase(batches, lateness, queries)


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows in which NaN equals itself."""
    return [
        {name: oracle.NAN if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
        for row in table.to_pylist()
    ]


def stored(core: Any, case: GroupCase, chosen: Settings) -> Any:
    """A core whose state went through files."""
    state = core.snapshot()
    tables = [one.to_table(name) for name, one in state.kinds.items()]
    table = joined_states([*tables, *(store.to_table() for store in stores_of(state.kinds))])
    stores: dict[str, GroupStore] = {}
    kinds = {name: unpacked_waiting(table, state.registry.queries[name].query, stores) for name in state.kinds}
    other = open_core(STREAMS, chosen)
    other.restore(replace(state, kinds=kinds))
    return other


def change(core: Any, case: GroupCase, batch: int) -> None:
    """Create, pause, resume and drop what begins or ends with a batch."""
    for query in case.queries:
        for number, (begin, end) in enumerate(query.life.runs):
            if end == batch:
                core.apply([Pause(query.name) if number + 1 < len(query.life.runs) else Drop(query.name)])
            if begin == batch:
                core.apply([Resume(query.name) if number else Create(query.name, query.text)])


def check(case: GroupCase, chosen: Settings, *, stores: bool = False, grid: Grid | None = None) -> None:
    core: Any = open_core(STREAMS, chosen) if grid is None else grid.core
    wanted = {query.name: case.wanted(query) for query in case.queries}
    last = len(case.batches)
    for batch in range(last):
        change(core, case, batch)
        if stores:
            core = stored(core, case, chosen)
        if grid is None:
            found = core.process(batch, case.tables(batch))
            assert not core.report.failures
        else:
            grid.resize()
            grid.batch(batch, case.tables(batch))
            found = grid.grouped
        for query in case.queries:
            rows = [] if query.name not in found else plain(found[query.name])
            hidden = [{k: v for k, v in row.items() if k != "#n"} for row in wanted[query.name][batch]]
            assert rows == hidden, (query.text, batch, rows, hidden)
