"""Hypothesis strategies for whole ad-hoc workloads: streams, batches with disorder, queries, creates and drops.

Each query has two forms: SQL text, and the oracle's `Meaning`, made of Python functions that do not use the parser.
Few templates and small domains make matches common, so that queries share joins and predicates; NULL, NaN, the
extremes of int64 and numbers of realistic size are mixed in.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from streamjoin.testing.oracle import equal, within
from tests.oracles.adhoc_oracle import Arrival, Condition, JointWindow, Life, Meaning, Row, Rows, gate_order
from tests.oracles.row_evaluator import plain

TIME: Final = "t"
_STREAMS: Final = ("a", "b", "c")
_STEP_NS: Final = 250_000_000
_EPOCH: Final = dt.datetime(2024, 1, 1)


@dataclass(frozen=True)
class AdhocQuery:
    """A query's text and meaning, and the batches during which it is active."""

    name: str
    text: str
    meaning: Meaning
    life: Life


@dataclass(frozen=True)
class AdhocCase:
    """A workload. A tuple is at most `disorder` steps (units, or 250 ms) behind its stream's newest."""

    schemas: dict[str, pa.Schema]
    batches: tuple[dict[str, list[dict[str, Any]]], ...]
    queries: tuple[AdhocQuery, ...]
    disorder: int
    integer_times: bool

    def tables(self, batch: int) -> dict[str, pa.Table]:
        """The rows of a batch, per stream."""
        arrivals = self.batches[batch]
        return {name: pa.Table.from_pylist(arrivals[name], schema) for name, schema in self.schemas.items()}

    @property
    def arrivals(self) -> list[Arrival]:
        """All tuples in gate order, as the oracle takes them."""
        return gate_order(
            [
                Arrival(stream, {name: plain(value) for name, value in row.items()}, self._ts(row), batch)
                for batch, streams in enumerate(self.batches)
                for stream, rows in streams.items()
                for row in rows
            ]
        )

    def _ts(self, row: Row) -> int:
        return int(row[TIME]) if self.integer_times else int((row[TIME] - _EPOCH) / dt.timedelta(microseconds=1)) * 1000


# Conditions: a text template with aliases, and the function that it denotes ------------------------------------


def _less(a: Any, b: Any) -> bool:
    return a is not None and b is not None and a < b


def _ascend(*values: Any) -> bool:
    return None not in values and all(a <= b for a, b in pairwise(values))


def _sum(*values: Any) -> Any:
    return None if None in values else sum(values)


class _Arguments(NamedTuple):
    """The arguments of a template's function: the rows, and the two numbers in the text."""

    one: Row
    two: Row
    d: int
    e: int


_Template = tuple[str, Callable[[_Arguments], bool]]
PAIR_TEMPLATES: Final[tuple[_Template, ...]] = (
    ("{l}.k = {r}.k", lambda v: equal(v.one["k"], v.two["k"])),
    ("{r}.k = {l}.k", lambda v: equal(v.one["k"], v.two["k"])),
    ("{l}.k = {r}.p", lambda v: equal(v.one["k"], v.two["p"])),
    ("{l}.s = {r}.s", lambda v: equal(v.one["s"], v.two["s"])),
    ("ABS({l}.p - {r}.p) <= {d}", lambda v: within(v.one["p"], v.two["p"], v.d, v.d)),
    ("ABS({r}.p - {l}.p) < {d} + 1", lambda v: within(v.one["p"], v.two["p"], v.d + 1, v.d + 1, True)),
    ("{l}.p BETWEEN {r}.p - {d} AND {r}.p + {e}", lambda v: within(v.one["p"], v.two["p"], v.e, v.d)),
    ("{r}.p >= {l}.p - {d} AND {r}.p <= {l}.p + {e}", lambda v: within(v.one["p"], v.two["p"], v.d, v.e)),
    ("{l}.p = {r}.p + {d}", lambda v: equal(v.one["p"], _sum(v.two["p"], v.d))),
    ("ABS({l}.f - {r}.f) <= 0.5", lambda v: within(v.one["f"], v.two["f"], 0.5, 0.5)),
    (
        "{l}.k = {r}.k AND ABS({l}.p - {r}.p) <= {d}",
        lambda v: equal(v.one["k"], v.two["k"]) and within(v.one["p"], v.two["p"], v.d, v.d),
    ),
    ("{l}.f - {r}.p BETWEEN -{d} AND {e}", lambda v: within(v.one["f"], v.two["p"], v.e, v.d)),
)
OTHER_TEMPLATES: Final[tuple[_Template, ...]] = (
    ("{l}.p < {r}.p", lambda v: _less(v.one["p"], v.two["p"])),
    ("NOT {l}.p >= {r}.p", lambda v: _less(v.one["p"], v.two["p"])),
    ("({l}.k = {r}.k OR {l}.s = {r}.s)", lambda v: equal(v.one["k"], v.two["k"]) or equal(v.one["s"], v.two["s"])),
    ("({l}.k + {r}.k) % 2 = 0", lambda v: None not in (v.one["k"], v.two["k"]) and (v.one["k"] + v.two["k"]) % 2 == 0),
    ("{l}.k IS NOT DISTINCT FROM {r}.k", lambda v: bool(v.one["k"] == v.two["k"])),
    ("{l}.k BETWEEN {r}.k AND {r}.p", lambda v: _ascend(v.two["k"], v.one["k"], v.two["p"])),
    ("{r}.p BETWEEN {l}.k AND {l}.p", lambda v: _ascend(v.one["k"], v.two["p"], v.one["p"])),
    (
        "{l}.k <= {r}.p AND {r}.k <= {l}.p",
        lambda v: _ascend(v.one["k"], v.two["p"]) and _ascend(v.two["k"], v.one["p"]),
    ),
    ("{l}.f > {r}.f AND {l}.f <= {r}.f", lambda _: False),
)
_SELECTIONS: Final[tuple[_Template, ...]] = (
    ("{a}.p > {d}", lambda v: _less(v.d, v.one["p"])),
    ("{d} < {a}.p", lambda v: _less(v.d, v.one["p"])),
    ("{a}.p BETWEEN {d} AND {d} + {e}", lambda v: v.one["p"] is not None and v.d <= v.one["p"] <= v.d + v.e),
    ("{a}.k IN ({d}, {e})", lambda v: v.one["k"] in (v.d, v.e)),
    ("{a}.k NOT IN ({d}, {e})", lambda v: v.one["k"] is not None and v.one["k"] not in (v.d, v.e)),
    ("{a}.s LIKE 'a%'", lambda v: v.one["s"] is not None and v.one["s"].startswith("a")),
    ("{a}.s IS NULL", lambda v: v.one["s"] is None),
    (
        "NOT ({a}.p > {d} OR {a}.k = {e})",
        lambda v: None not in (v.one["p"], v.one["k"]) and v.one["p"] <= v.d and v.one["k"] != v.e,
    ),
    ("({a}.p < {d} OR {a}.f IS NULL)", lambda v: v.one["f"] is None or _less(v.one["p"], v.d)),
    ("{a}.f <= 0.5", lambda v: v.one["f"] is not None and v.one["f"] <= 0.5),
)


@dataclass(frozen=True)
class QueryPiece:
    """A condition as text and as a function."""

    text: str
    condition: Condition


_AMOUNTS: Final = st.integers(0, 3)


@st.composite
def condition_piece(draw: st.DrawFn, templates: Sequence[_Template], left: str, right: str) -> QueryPiece:
    """A condition that relates two aliases."""
    text, test = draw(st.sampled_from(templates))
    d, e = draw(_AMOUNTS), draw(_AMOUNTS)
    condition = Condition(frozenset([left, right]), lambda rows: test(_Arguments(rows[left], rows[right], d, e)))
    return QueryPiece(text.format(l=left, r=right, d=d, e=e), condition)


@st.composite
def selection_piece(draw: st.DrawFn, alias: str) -> QueryPiece:
    """A condition on one alias."""
    text, test = draw(st.sampled_from(_SELECTIONS))
    d, e = draw(_AMOUNTS), draw(_AMOUNTS)
    return QueryPiece(
        text.format(a=alias, d=d, e=e),
        Condition(frozenset([alias]), lambda rows: test(_Arguments(rows[alias], rows[alias], d, e))),
    )


def _three(one: str, two: str, new: str) -> QueryPiece:
    def holds(rows: Rows) -> bool:
        return _less(rows[new]["p"], _sum(rows[one]["p"], rows[two]["p"]))

    return QueryPiece(f"{one}.p + {two}.p > {new}.p", Condition(frozenset([one, two, new]), holds))


# Queries ----------------------------------------------------------------------------------------------------------


@st.composite
def window_text(draw: st.DrawFn, integer_times: bool) -> tuple[str, str, int]:
    """The text after WITHIN, and the oracle's kind and size."""
    if draw(st.integers(0, 2)) == 0:
        count = draw(st.sampled_from([1, 2, 4, 8, 100]))
        return f"{count} ROWS", "rows", count
    steps = draw(st.sampled_from([1, 3, 6, 12, 40]))
    if integer_times:
        return f"{steps} UNITS", "time", steps
    return f"{steps * 250} MILLISECONDS", "time", steps * _STEP_NS


@st.composite
def queries(draw: st.DrawFn, streams: Sequence[str], integer_times: bool = True, most: int = 4) -> tuple[str, Meaning]:
    """A query of one to `most` sources, as text and as meaning."""
    count = draw(st.sampled_from([n for n in (1, 2, 2, 2, 3, 3, 4, 5) if n <= most]))
    sources = [(f"x{n}", draw(st.sampled_from(streams))) for n in range(count)]
    pieces: list[QueryPiece] = []
    windows: list[JointWindow] = []
    text = f"FROM {sources[0][1]} AS {sources[0][0]}"
    for number in range(1, count):
        new, stream = sources[number]
        step = draw(_steps([alias for alias, _ in sources[:number]], new))
        within_text, kind, size = draw(window_text(integer_times))
        related = sorted(
            {a for piece in step for a in piece.condition.aliases if new in piece.condition.aliases} - {new}
        )
        windows += [JointWindow(alias, new, kind, size) for alias in related]
        pieces += step
        text += f" JOIN {stream} {new} WITHIN {within_text} ON {' AND '.join(piece.text for piece in step)}"
    selections = [draw(selection_piece(alias)) for alias, _ in sources if draw(st.integers(0, 3)) == 0]
    if draw(st.integers(0, 3)) == 0:
        selections.append(draw(condition_piece(OTHER_TEMPLATES, sources[0][0], sources[-1][0])))
    if selections:
        text += f" WHERE {' AND '.join(piece.text for piece in draw(st.permutations(selections)))}"
    pieces += selections
    aliases = [alias for alias, _ in sources]
    names = ", ".join(f"{alias}.id AS i_{alias}" for alias in aliases)
    first, last = aliases[0], aliases[-1]

    def output(rows: Rows) -> tuple[Any, ...]:
        return (*(rows[alias]["id"] for alias in aliases), _sum(rows[first]["k"], rows[last]["k"]))

    meaning = Meaning(tuple(sources), tuple(windows), tuple(piece.condition for piece in pieces), output)
    return f"SELECT {names}, {first}.k + {last}.k AS total {text}", meaning


@st.composite
def _steps(draw: st.DrawFn, earlier: Sequence[str], new: str) -> list[QueryPiece]:
    terms = [draw(condition_piece(PAIR_TEMPLATES, draw(st.sampled_from(earlier)), new))]
    if draw(st.integers(0, 4)) == 0:
        terms = [draw(condition_piece(OTHER_TEMPLATES, draw(st.sampled_from(earlier)), new))]
    if draw(st.integers(0, 3)) == 0:
        terms.append(draw(condition_piece(PAIR_TEMPLATES + OTHER_TEMPLATES, draw(st.sampled_from(earlier)), new)))
    if len(earlier) > 1 and draw(st.integers(0, 4)) == 0:
        terms.append(_three(earlier[0], earlier[1], new))
    if draw(st.integers(0, 4)) == 0:
        terms.append(draw(selection_piece(draw(st.sampled_from([*earlier, new])))))
    return terms


# Streams ----------------------------------------------------------------------------------------------------------

_KEYS: Final = st.sampled_from([0, 0, 0, 1, 1, 1, 2, 2, None])
_NUMBERS: Final = st.sampled_from([*range(6), *range(6), *range(6), -1, None, 2**63 - 1, -(2**63)])
# The origins of numbers: identifiers, and today in microseconds.
_BASES: Final = st.sampled_from([0, 0, 10**12, 1_777_901_400_000_000])
_FLOATS: Final = st.sampled_from([0.0, 0.5, 1.0, 0.5, 1.5, 2.0, -0.0, 0.1, 0.6, None, float("nan"), float("inf")])


@st.composite
def _row(draw: st.DrawFn, number: int, step: int, integer_times: bool, base: int) -> dict[str, Any]:
    value = draw(_NUMBERS)
    return {
        "id": number,
        "k": draw(_KEYS),
        "p": base + value if value is not None and abs(value) < base else value,
        "f": draw(_FLOATS),
        "s": draw(st.sampled_from(["a", "a", "ab", "ab", "b", "", None])),
        TIME: step if integer_times else _EPOCH + step * dt.timedelta(milliseconds=250),
    }


def _schema(integer_times: bool, unit: str) -> pa.Schema:
    return pa.schema(
        {
            "id": pa.int64(),
            "k": pa.int64(),
            "p": pa.int64(),
            "f": pa.float64(),
            "s": pa.string(),
            TIME: pa.int64() if integer_times else pa.timestamp(unit),
        }
    )


@st.composite
def lives(draw: st.DrawFn, batches: int) -> Life:
    """The batches from a create to a drop; most queries see many of them."""
    created = draw(st.sampled_from([0, 0, 0, *range(batches)]))
    dropped = draw(st.sampled_from([None, None, *range(created + 1, batches + 2)]))
    return Life(created, dropped)


@st.composite
def cases(
    draw: st.DrawFn, most_queries: int = 4, most_batches: int = 5, most_rows: int = 5, most_sources: int = 4
) -> AdhocCase:
    """A whole workload, as an `AdhocCase`."""
    integer_times = draw(st.booleans())
    names = _STREAMS[: draw(st.integers(1, 3))]
    schemas = {name: _schema(integer_times, draw(st.sampled_from(["ms", "us", "ns"]))) for name in names}
    disorder, base = draw(st.sampled_from([0, 0, 2, 6])), draw(_BASES)
    batches: list[dict[str, list[dict[str, Any]]]] = []
    newest = dict.fromkeys(names, 0)
    number = 0
    for _ in range(draw(st.integers(2, most_batches))):
        batch: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for name in names:
            for _ in range(draw(st.sampled_from([0, *range(1, most_rows + 1), most_rows, most_rows]))):
                step = max(0, newest[name] + draw(st.integers(-disorder, 2)))
                newest[name] = max(newest[name], step)
                batch[name].append(draw(_row(number, step, integer_times, base)))
                number += 1
        batches.append(batch)
    adhoc_queries = tuple(
        AdhocQuery(f"q{n}", *draw(queries(names, integer_times, most_sources)), draw(lives(len(batches))))
        for n in range(draw(st.integers(1, most_queries)))
    )
    return AdhocCase(schemas, tuple(batches), adhoc_queries, disorder, integer_times)
