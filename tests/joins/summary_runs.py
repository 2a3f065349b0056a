"""Cases of summaries and joins that run them: columns at the ends of their types, disorder, sources, cuts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import streamjoin as sj
from tests.oracles.summary_oracle import LISTED, PLAIN, Event, Row, Rule, summarised

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("sym", pa.string()),
        ("t", pa.int64()),
        ("px", pa.float64()),
        ("qty", pa.int64()),
        ("u", pa.uint64()),
        ("amount", pa.decimal128(20, 2)),
        ("name", pa.string()),
        ("w", pa.int32()),
    ]
)
MIN, MAX = -(2**63), 2**63 - 1
FLOATS = st.sampled_from(
    [None, 0.0, -0.0, 1.0, 0.1, 1e16, -1e16, 5e-324, 1.7e308, -1.7e308, math.nan, math.inf, -math.inf, 2.5, 101.25]
)
PLAIN_FLOATS = st.sampled_from([0.1, 0.2, 0.3, 1e16, 1.0, -1e16, 101.25, 3e-9])
WHOLES = st.sampled_from([None, 0, 1, -1, MAX, MIN, 7])
TIMES = st.integers(0, 12)
END_TIMES = st.sampled_from([MIN, MIN + 1, MIN + 3, -1, 0, 2, MAX - 3, MAX - 1, MAX])
CONDITIONS: dict[str, tuple[Any, Callable[[Row, Row], bool]]] = {
    "key": ("sym", lambda l, r: l["sym"] is not None and l["sym"] == r["sym"]),
    "none": (None, lambda l, r: True),
    "two keys": (
        ["sym", "w"],
        lambda l, r: None not in (l["sym"], l["w"]) and (l["sym"], l["w"]) == (r["sym"], r["w"]),
    ),
    "band": (sj.Band("w", "w", 1), lambda l, r: None not in (l["w"], r["w"]) and abs(l["w"] - r["w"]) <= 1),
    "key and condition": (
        ["sym", "l.w < r.w"],
        lambda l, r: l["sym"] is not None and l["sym"] == r["sym"] and None not in (l["w"], r["w"]) and l["w"] < r["w"],
    ),
}


Push = tuple[bool, str, tuple[Row, ...]]


@dataclass(frozen=True)
class Case:
    """A spec, the rule that the oracle follows, and the tuples as they are pushed: side, source, rows."""

    spec: sj.JoinSpec
    rule: Rule
    texts: tuple[str, ...]
    pushes: tuple[Push, ...]

    @property
    def events(self) -> list[Event]:
        """All tuples in gate order."""
        placed = [
            (row["t"], right, source, Event(right, row, row["t"]))
            for right, source, rows in self.pushes
            for row in rows
        ]
        return [event for *_, event in sorted(placed, key=lambda entry: entry[:3])]

    def expected(self, late: Sequence[int] = ()) -> list[list[Any]]:
        """The oracle's rows, without late tuples."""
        events = [event for event in self.events if event.row["id"] not in set(late)]
        return [normal(row) for row in summarised(events, self.rule, self.texts)]


def normal(row: Sequence[Any]) -> list[Any]:
    """A row in which equal numbers are equal to the bit, and NaN is itself."""
    return [repr(value) if isinstance(value, float) else value for value in row]


@st.composite
def rows_of(draw: st.DrawFn, times: st.SearchStrategy[int], floats: st.SearchStrategy[Any]) -> Row:
    """One tuple, without its number."""
    return {
        "sym": draw(st.sampled_from([None, "A", "B", "A"])),
        "t": draw(times),
        "px": draw(floats),
        "qty": draw(WHOLES),
        "u": draw(st.sampled_from([None, 0, 1, 2**64 - 1])),
        "amount": draw(st.sampled_from([None, Decimal("0.01"), Decimal("-99999999.99")])),
        "name": draw(st.sampled_from([None, "x", "y", "z"])),
        "w": draw(st.sampled_from([None, 0, 1, 2, 3])),
    }


@st.composite
def summary_cases(
    draw: st.DrawFn,
    *,
    ends: bool = False,
    plain: bool = False,
    lateness: int = 10**6,
    equalities: bool = False,
    rising: bool = False,
) -> Case:
    """A case; `ends` has times at the ends of int64, `plain` the summaries alone that windows' ends decide.

    `equalities` has no other conditions, and in `rising` cases every source sends in the order of time.
    """
    self_join = draw(st.booleans())
    name = draw(st.sampled_from(["key", "none", "two keys"] if plain or equalities else sorted(CONDITIONS)))
    on, match = CONDITIONS[name]
    lengths = st.sampled_from([-(2**64) + 1, MIN, -5, 0, 3, MAX, 2**64 - 1]) if ends else st.integers(-8, 8)
    low, high = sorted((draw(lengths), draw(lengths)))
    how = draw(st.sampled_from(["left", "inner"]))
    prevailing = name in ("key", "none", "two keys") and draw(st.booleans())
    itself = self_join and draw(st.booleans())
    texts = draw(st.lists(st.sampled_from([*PLAIN, *([] if plain else LISTED)]), min_size=1, max_size=5, unique=True))
    spec = sj.JoinSpec(
        on=on,
        time="t",
        how=how,
        self_join=self_join,
        lateness=2**64 - 1 if ends else lateness,
        match=sj.Summary(
            {f"s{number}": text for number, text in enumerate(texts)},
            between=(low, high),
            prevailing=prevailing,
            itself=itself,
        ),
    )
    rule = Rule(match, low, high, how, prevailing, self_join, itself)
    row = rows_of(END_TIMES if ends else TIMES, draw(st.sampled_from([FLOATS, PLAIN_FLOATS])))
    pushes, n = [], 0
    for _ in range(draw(st.integers(1, 7))):
        rows = []
        for own in draw(st.lists(row, min_size=1, max_size=8)):
            rows.append({"id": n, **own})
            n += 1
        pushes.append((not self_join and draw(st.booleans()), draw(st.sampled_from(["a", "b"])), tuple(rows)))
    return Case(spec, rule, tuple(texts), _rising(pushes) if rising else tuple(pushes))


def _rising(pushes: Sequence[Push]) -> tuple[Push, ...]:
    """The rows of each source in the order of time, in as many pushes as before."""
    queues = {
        (right, source): sorted((row for *key, rows in pushes for row in rows if key == [right, source]), key=_time)
        for right, source, _ in pushes
    }
    return tuple((right, source, tuple(queues[right, source].pop(0) for _ in rows)) for right, source, rows in pushes)


def _time(row: Row) -> int:
    return int(row["t"])


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows as a table."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def opened(case: Case, **settings: Any) -> sj.Join:
    """The case's join, with all of its sources."""
    sides = ("left",) if case.spec.self_join else ("left", "right")
    schemas = {f"{side}_schema": SCHEMA for side in sides}
    return sj.open(case.spec, sources={side: ["a", "b"] for side in sides}, **schemas, **settings)


def ran(case: Case, join: sj.Join, cuts: Sequence[int] = ()) -> tuple[list[list[Any]], list[int]]:
    """The rows of a join, and the numbers of late tuples; pushes are cut into tables of these sizes, in turn."""
    parts, late, turn = [], [], 0
    for right, source, rows in case.pushes:
        begin = 0
        while begin < len(rows):
            size = cuts[turn % len(cuts)] if cuts else len(rows)
            turn += 1
            table = table_of(rows[begin : begin + size])
            parts.append(join.push(**{"right" if right else "left": table}, source=source))
            late += _late(join)
            begin += size
    parts.append(join.close())
    late += _late(join)
    return [row for part in parts for row in rows_in(part, case)], late


def rows_in(table: pa.Table, case: Case) -> list[list[Any]]:
    """The number and the summaries of each row."""
    names = ["id", *(f"s{number}" for number in range(len(case.texts)))]
    columns = [table.column(name).to_pylist() for name in names]
    return [normal(row) for row in zip(*columns, strict=True)]


def _late(join: sj.Join) -> list[int]:
    rows = join.late()
    ids = [name for name in rows.schema.names if name.startswith("id")]
    return [value for name in ids for value in rows.column(name).to_pylist() if value is not None]
