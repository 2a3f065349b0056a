"""Plan nodes refuse illegal shapes; keys are equal for the same join and differ for others."""

from __future__ import annotations

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.adhoc import Stream
from streamjoin.model.expression.parsing import parse_condition
from streamjoin.queries.language.plan import JoinStep, Predicate, QuerySource
from tests.queries.catalog import QUOTES, TRADES, joined, plan

SAME = [
    (
        "trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym AND ABS(t.px - q.bid) <= 5",
        "quotes a JOIN trades b WITHIN 9 ROWS ON b.px BETWEEN a.bid - 5 AND a.bid + 5 AND a.sym = b.sym WHERE b.px < 9",
    ),
    (
        "trades x JOIN trades y WITHIN 3 SECONDS ON x.sym = y.sym AND x.px < y.px",
        "trades y JOIN trades x WITHIN 1 SECONDS ON y.px > x.px AND y.sym = x.sym",
    ),
    (
        "trades x JOIN trades y WITHIN 3 SECONDS ON x.px BETWEEN y.px AND y.px + 4",
        "trades x JOIN trades y WITHIN 3 SECONDS ON y.px BETWEEN x.px AND x.px + 4",
    ),
    (
        "trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym JOIN news n WITHIN 1 ROWS ON n.sym = q.sym",
        "news a JOIN quotes b WITHIN 3 SECONDS ON a.sym = b.sym JOIN trades c WITHIN 1 ROWS ON b.sym = c.sym",
    ),
    (
        "trades a JOIN trades b WITHIN 3 ROWS ON a.sym = b.sym JOIN trades c WITHIN 3 ROWS ON b.px = c.px",
        "trades a JOIN trades b WITHIN 3 ROWS ON a.px = b.px JOIN trades c WITHIN 3 ROWS ON b.sym = c.sym",
    ),
    (
        "trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym AND NOT (t.px > q.bid OR t.qty = q.ask)",
        "trades t JOIN quotes q WITHIN 3 SECONDS ON q.ask <> t.qty AND q.bid >= t.px AND t.sym = q.sym",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_join_has_one_key(one: str, other: str) -> None:
    queries = [plan(f"SELECT * FROM {text}") for text in (one, other)]
    first, second = (query.join_key() for query in queries)
    assert first.key == second.key
    assert hash(first.key) == hash(second.key)
    for keyed, query in zip((first, second), queries, strict=True):
        assert [query.source(alias).stream.name for alias in keyed.aliases] == list(keyed.key.streams)


DIFFERENT = [
    ("t.sym = q.sym", "t.px = q.bid"),
    ("t.sym = q.sym", "t.sym = q.sym AND t.px = q.bid"),
    ("ABS(t.px - q.bid) <= 5", "ABS(t.px - q.bid) < 5"),
    ("t.px BETWEEN q.bid - 2 AND q.bid + 3", "t.px BETWEEN q.bid - 3 AND q.bid + 2"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_another_join_has_another_key(one: str, other: str) -> None:
    assert joined(one).join_key().key != joined(other).join_key().key


def test_a_self_join_keeps_its_roles_apart() -> None:
    query = plan("SELECT x.px FROM trades x JOIN trades y WITHIN 3 ROWS ON x.px = y.qty")
    turned = plan("SELECT x.px FROM trades x JOIN trades y WITHIN 3 ROWS ON y.px = x.qty")
    assert query.join_key().key == turned.join_key().key
    assert query.join_key().aliases == ("x", "y")
    assert turned.join_key().aliases == ("y", "x")


def test_a_key_is_what_an_index_serves() -> None:
    query = plan(
        "SELECT t.px FROM trades t JOIN quotes q WITHIN 3 SECONDS ON t.sym = q.sym AND t.px < q.bid "
        "JOIN news n WITHIN 1 SECONDS ON n.sym = q.sym AND n.score + t.px > q.bid"
    )
    assert str(query.join_key().key) == "[news s0, quotes s1, trades s2: s0.sym = s1.sym AND s1.sym = s2.sym]"
    assert query.steps[1].related == ("q", "t")


def test_equal_selections_are_one_predicate() -> None:
    one = joined("t.sym = q.sym", "WHERE t.px BETWEEN 1 AND 2 + 3 AND t.qty IN (7)")
    other = plan(
        "SELECT a.px FROM quotes b JOIN trades a WITHIN 1 ROWS ON a.px = b.bid "
        "WHERE NOT (5 < a.px OR a.px < 1) AND 7 = a.qty"
    )
    assert set(one.selection("t")) == set(other.selection("a"))
    assert sorted(str(predicate.condition) for predicate in one.selection("t")) == [
        "row.px <= 5",
        "row.px >= 1",
        "row.qty = 7",
    ]
    assert not one.selection("q")


def test_streams_refuse_what_has_no_time() -> None:
    schema = pa.schema({"a": pa.int64(), "u": pa.uint64()})
    for time, message in (("b", "no time column 'b'; it has: a, u"), ("u", "a time column is")):
        with pytest.raises(sj.SchemaError, match=message):
            Stream("s", schema, time)
    with pytest.raises(sj.SchemaError, match="more than one column 'a'"):
        Stream("s", pa.schema([("a", pa.int64()), ("a", pa.int64())]), "a")


def test_nodes_refuse_illegal_shapes() -> None:
    query = joined("t.sym = q.sym")
    step = query.steps[0]
    with pytest.raises(sj.SpecError, match="a cross join"):
        JoinStep("q", step.window)
    with pytest.raises(sj.SpecError, match="the right column of a step's term"):
        JoinStep("t", step.window, step.equalities)
    with pytest.raises(sj.SpecError, match="relates 'q' to no other alias"):
        JoinStep("q", step.window, others=(parse_condition("q.bid > 1", ("q",)),))
    with pytest.raises(sj.SpecError, match=r"columns of a predicate are row\.\*"):
        Predicate("trades", parse_condition("t.px > 1", ("t",)))
    with pytest.raises(sj.SpecError, match="needs a Stream"):
        QuerySource("t", "trades")  # type: ignore[arg-type]
    changes = {
        "reads one stream, or joins up to 5, not 0": {"sources": ()},
        "aliases must differ": {"sources": (QuerySource("q", TRADES), QuerySource("q", QUOTES))},
        "the steps join": {"steps": (*query.steps, *query.steps)},
        "one selection for each source": {"selections": ()},
        "at least one output": {"outputs": ()},
        "output names must differ": {"outputs": query.outputs * 2},
    }
    fields = {name: getattr(query, name) for name in query.__dataclass_fields__}
    for message, change in changes.items():
        with pytest.raises(sj.SpecError, match=message):
            type(query)(**{**fields, **change})  # type: ignore[dict-item]
