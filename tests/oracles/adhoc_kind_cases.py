"""Hypothesis strategies for ad-hoc workloads with outer, semi, anti and as-of joins; see `adhoc_cases`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tests.oracles.adhoc_cases import (
    OTHER_TEMPLATES,
    PAIR_TEMPLATES,
    AdhocCase,
    QueryPiece,
    cases,
    condition_piece,
    lives,
    selection_piece,
    window_text,
)
from tests.oracles.adhoc_kinds_oracle import KindMeaning, KindStep, NearestPartner
from tests.oracles.adhoc_oracle import Condition, JointWindow, Life, Meaning, Rows

_MATCHES = {
    "{} >= {}": ("backward", True),
    "{} > {}": ("backward", False),
    "{} <= {}": ("forward", True),
    "{} < {}": ("forward", False),
    "NEAREST({}, {})": ("nearest", True),
    "NEAREST({0}, {1}) AND {0} <> {1}": ("nearest", False),
}
"""What MATCH_CONDITION says about the left and the right time: where partners are, and whether equal times count."""
_EQUALITIES = 4
"""So many of the first templates are equalities of columns."""
_ALL_TIME = 1 << 61
"""Longer than any generated input."""


@dataclass(frozen=True)
class KindQuery:
    """A query's text and meaning, and the batches during which it is active."""

    name: str
    text: str
    meaning: KindMeaning
    life: Life


@dataclass(frozen=True)
class KindCase:
    """A workload of inner queries, and of queries with other joins over the same streams."""

    inner: AdhocCase
    queries: tuple[KindQuery, ...]


@st.composite
def kind_queries(draw: st.DrawFn, streams: Sequence[str], integer_times: bool) -> tuple[str, KindMeaning]:
    """A query with one or two joins after the inner ones, as text and as meaning."""
    count = draw(st.sampled_from([1, 1, 1, 2]))
    sources = [(f"x{n}", draw(st.sampled_from(streams))) for n in range(count)]
    aliases = [alias for alias, _ in sources]
    text, windows, conditions = f"FROM {sources[0][1]} x0", list[JointWindow](), list[Condition]()
    for number in range(1, count):
        written, kind, size = draw(window_text(integer_times))
        piece = draw(condition_piece(PAIR_TEMPLATES, aliases[number - 1], aliases[number]))
        windows.append(JointWindow(aliases[number - 1], aliases[number], kind, size))
        conditions.append(piece.condition)
        text += f" JOIN {sources[number][1]} {aliases[number]} WITHIN {written} ON {piece.text}"
    outer = draw(st.booleans())
    counted = any(window.kind == "rows" for window in windows)
    outer_kinds = ["left", "left", "full", "right"] if not counted else ["left"]
    kinds = [draw(st.sampled_from(outer_kinds))] if outer else draw(_lookup_kinds())
    if counted:
        # A join WITHIN ROWS says nothing of how old its tuples are.
        kinds = [kind.replace("latest", "asof") for kind in kinds]
    steps = []
    for number, kind in enumerate(kinds):
        timed = count > 1 and kind in ("right", "full")
        written, step = draw(
            _kind_step(kind, aliases, (f"y{number}", draw(st.sampled_from(streams))), integer_times, timed)
        )
        text += written
        steps.append(step)
    visible = [*aliases, *(step.source[0] for step in steps if step.kind not in ("semi", "anti"))]
    where = [draw(selection_piece(alias)) for alias in visible if draw(st.integers(0, 3)) == 0]
    if len(visible) > 1 and draw(st.integers(0, 4)) == 0:
        where.append(draw(condition_piece(OTHER_TEMPLATES, visible[0], visible[-1])))
    if where:
        text += f" WHERE {' AND '.join(piece.text for piece in where)}"
    names = ", ".join(f"{alias}.id AS i_{alias}" for alias in visible)

    def output(rows: Rows) -> tuple[Any, ...]:
        return tuple(rows[alias]["id"] for alias in visible)

    core = Meaning(tuple(sources), tuple(windows), tuple(conditions), output)
    meaning = KindMeaning(core, tuple(steps), tuple(piece.condition for piece in where), output)
    return f"SELECT {names} {text}", meaning


@st.composite
def _lookup_kinds(draw: st.DrawFn) -> list[str]:
    kinds = ["semi", "anti", "asof", "asof left", "asof anti", "latest", "latest left"]
    return [draw(st.sampled_from(kinds)) for _ in range(draw(st.sampled_from([1, 1, 2])))]


@st.composite
def _kind_step(
    draw: st.DrawFn, kind: str, aliases: Sequence[str], source: tuple[str, str], integer_times: bool, timed: bool
) -> tuple[str, KindStep]:
    new, stream = source
    if kind.startswith("latest"):
        return draw(_latest_step(kind, aliases, source))
    pieces: list[QueryPiece] = [draw(condition_piece(PAIR_TEMPLATES, draw(st.sampled_from(aliases)), new))]
    if draw(st.integers(0, 3)) == 0:
        pieces.append(draw(condition_piece(PAIR_TEMPLATES + OTHER_TEMPLATES, draw(st.sampled_from(aliases)), new)))
    if draw(st.integers(0, 3)) == 0:
        pieces.append(draw(selection_piece(draw(st.sampled_from([*aliases, new])))))
    on = " AND ".join(piece.text for piece in pieces)
    conditions = tuple(piece.condition for piece in pieces)
    written, unit, size = draw(window_text(integer_times))
    if unit == "rows" and (timed or kind.startswith("asof")):
        written, unit, size = ("3 UNITS", "time", 3) if integer_times else ("750 MILLISECONDS", "time", 750_000_000)
    if kind.startswith("asof"):
        anchor = draw(st.sampled_from(aliases))
        match = draw(st.sampled_from(list(_MATCHES)))
        text = (
            f" {kind.upper()} JOIN {stream} {new} "
            f"MATCH_CONDITION ({match.format(f'{anchor}.t', f'{new}.t')}) ON {on} TOLERANCE {written}"
        )
        window = (JointWindow(anchor, new, unit, size),)
        how = kind.removeprefix("asof").strip() or "inner"
        return text, KindStep(how, source, window, conditions, NearestPartner(anchor, *_MATCHES[match]))
    related = sorted({a for piece in pieces for a in piece.condition.aliases if new in piece.condition.aliases} - {new})
    windows = tuple(JointWindow(alias, new, unit, size) for alias in related)
    word = {"semi": "LEFT SEMI", "anti": "LEFT ANTI", "full": "FULL OUTER"}.get(kind, kind.upper())
    return f" {word} JOIN {stream} {new} WITHIN {written} ON {on}", KindStep(kind, source, windows, conditions)


@st.composite
def _latest_step(draw: st.DrawFn, kind: str, aliases: Sequence[str], source: tuple[str, str]) -> tuple[str, KindStep]:
    """An as-of join without a tolerance, which looks back by equalities."""
    new, stream = source
    pieces = [draw(condition_piece(PAIR_TEMPLATES[:_EQUALITIES], draw(st.sampled_from(aliases)), new))]
    if draw(st.integers(0, 3)) == 0:
        pieces.append(draw(selection_piece(draw(st.sampled_from([*aliases, new])))))
    anchor, match = draw(st.sampled_from(aliases)), draw(st.sampled_from(list(_MATCHES)[:2]))
    word = "ASOF LEFT" if kind == "latest left" else "ASOF"
    text = (
        f" {word} JOIN {stream} {new} MATCH_CONDITION ({match.format(f'{anchor}.t', f'{new}.t')}) "
        f"ON {' AND '.join(piece.text for piece in pieces)}"
    )
    conditions = tuple(piece.condition for piece in pieces)
    window = (JointWindow(anchor, new, "time", _ALL_TIME),)
    how = "left" if kind == "latest left" else "inner"
    return text, KindStep(how, source, window, conditions, NearestPartner(anchor, *_MATCHES[match]))


@st.composite
def kind_cases(draw: st.DrawFn, most_queries: int = 3) -> KindCase:
    """A whole workload."""
    inner = draw(cases(most_queries=2, most_sources=3))
    inner = replace(inner, queries=tuple(replace(query, name=f"inner {query.name}") for query in inner.queries))
    queries = tuple(
        KindQuery(
            f"q{n}", *draw(kind_queries(tuple(inner.schemas), inner.integer_times)), draw(lives(len(inner.batches)))
        )
        for n in range(draw(st.integers(1, most_queries)))
    )
    return KindCase(inner, queries)
