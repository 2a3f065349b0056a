"""Window joins in SQL made of the cases of summaries: the query, its batches, and what must come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import streamjoin as sj
from streamjoin.adhoc import Stream
from tests.joins.summary_runs import SCHEMA, Case, normal, summary_cases, table_of
from tests.oracles.summary_oracle import Event, Row, summarised

CONDITIONS = {
    "key": "l.sym = r.sym",
    "none": "",
    "two keys": "l.sym = r.sym AND l.w = r.w",
    "band": "ABS(l.w - r.w) <= 1",
    "key and condition": "l.sym = r.sym AND l.w < r.w",
}
LATENESS = 12
"""The times of a case are from 0 to 12, and those of a batch begin where those of the one before did, or later."""
END = 10**6


@dataclass(frozen=True)
class SqlCase:
    """A case of summaries as a query; a batch has the rows of one stream."""

    case: Case
    condition: str
    batches: tuple[tuple[str, tuple[Row, ...]], ...]

    @property
    def streams(self) -> list[Stream]:
        """Those of the query."""
        return [Stream(name, SCHEMA, "t") for name in "lr"]

    @property
    def text(self) -> str:
        """The query."""
        rule = self.case.rule
        bounds = [f"{abs(value)} UNITS {'PRECEDING' if value < 0 else 'FOLLOWING'}" for value in (rule.low, rule.high)]
        outputs = [f"{text} AS s{number}" for number, text in enumerate(self.case.texts)]
        on = f" ON {self.condition}" if self.condition else ""
        return (
            f"SELECT l.id, {', '.join(outputs)} FROM l {'INNER ' * (rule.how == 'inner')}WINDOW JOIN "
            f"{'l' if rule.self_join else 'r'} AS r{on} RANGE BETWEEN {bounds[0]} AND {bounds[1]} "
            f"{'INCLUDE' if rule.prevailing else 'EXCLUDE'} PREVAILING"
        )

    def tables(self, batch: int) -> dict[str, pa.Table]:
        """The tuples of a batch; of the last one those that end all windows."""
        if batch == len(self.batches):
            row = {"id": -1, "sym": None, "t": END, "px": None, "qty": None, "u": None}
            return {name: table_of([row | {"amount": None, "name": None, "w": None}]) for name in "lr"}
        name, rows = self.batches[batch]
        return {name: table_of(rows)}

    @property
    def expected(self) -> list[list[Any]]:
        """The oracle's rows, in the order of left tuples."""
        rows = [(name == "r", row) for name, batch in self.batches for row in batch]
        events = [Event(right, row, row["t"]) for right, row in rows]
        events.sort(key=lambda event: (event.ts, event.right))
        return [normal(row) for row in summarised(events, self.case.rule, self.case.texts)]

    def of_open(self) -> list[list[Any]]:
        """The rows of `sj.open` with the same Summary."""
        spec = replace(self.case.spec, lateness=10**5)
        schemas = {f"{side}_schema": SCHEMA for side in ("left", "right")[: 2 - spec.self_join]}
        with sj.open(spec, on_close=(parts := []).append, **schemas) as join:
            for name, rows in self.batches:
                parts.append(join.push(**{"left" if name == "l" else "right": table_of(rows)}))
        return self.rows_in(pa.concat_tables(parts))

    def rows_in(self, table: pa.Table) -> list[list[Any]]:
        """The number and the summaries of each row."""
        names = ["id", *(f"s{number}" for number in range(len(self.case.texts)))]
        columns = [table.column(name).to_pylist() for name in names]
        return [normal(row) for row in zip(*columns, strict=True)]


@st.composite
def sql_cases(draw: st.DrawFn) -> SqlCase:
    """Any case that SQL can say: there a tuple never counts for itself."""
    case = draw(summary_cases(lateness=10**5))
    case = replace(case, rule=replace(case.rule, itself=False))
    match = case.spec.match
    assert isinstance(match, sj.Summary)
    plain = sj.Summary(dict(match.summaries), match.between, prevailing=match.prevailing)
    case = replace(case, spec=replace(case.spec, match=plain))
    condition = CONDITIONS[_name_of(case)]
    offset, batches = 0, list[tuple[str, tuple[Row, ...]]]()
    for right, _, rows in case.pushes:
        offset += draw(st.sampled_from([0, 6, 30]))
        batches.append(("r" if right else "l", tuple({**row, "t": row["t"] + offset} for row in rows)))
    return SqlCase(case, condition, tuple(batches))


def _name_of(case: Case) -> str:
    from tests.joins.summary_runs import CONDITIONS as written

    return next(name for name, (_, match) in written.items() if match is case.rule.match)


def rows_of_all(case: SqlCase, tables: Sequence[pa.Table]) -> list[list[Any]]:
    """The rows of all batches."""
    return [row for table in tables for row in case.rows_in(table)]
