"""One reading of conditions: the same condition gives the same keys, bands and rest, however it is written."""

from __future__ import annotations

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.model.binding import BoundSpec, bind

LEFT = pa.schema(
    [("k", pa.string()), ("x", pa.int64()), ("p", pa.float64()), ("t", pa.timestamp("us")), ("d", pa.decimal128(9, 2))]
)
RIGHT = pa.schema([("k", pa.string()), ("x", pa.int32()), ("p", pa.float64()), ("t", pa.timestamp("ms"))])


def bound(on: sj.Theta | sj.Band | str) -> BoundSpec:
    return bind(sj.JoinSpec(on=on, window=sj.CountWindow(5)), LEFT, RIGHT)


def plan(on: sj.Theta | sj.Band | str) -> tuple[object, object, str]:
    found = bound(on)
    return set(found.terms), set(found.index), str(found.residual)


@pytest.mark.parametrize(
    ("text", "predicate"),
    [
        ("l.k = r.k", sj.Equi("k")),
        ("r.k = l.k AND abs(l.p - r.p) <= 0.25", sj.Equi("k") & sj.Band("p", "p", 0.25)),
        ("abs(r.p - l.p) < 0.25", sj.Band("p", "p", 0.25, strict=True)),
        ("l.x BETWEEN r.x - 2 AND r.x + 3", sj.Band("x", "x", below=3, above=2)),
        ("l.x - r.x <= 3 AND r.x <= l.x + 2", sj.Band("x", "x", below=3, above=2)),
        ("l.x = r.x AND l.k <> r.k", sj.Equi("x") & sj.Theta("l.k <> r.k")),
        ("l.t >= r.t AND l.t <= r.t + INTERVAL '5' SECOND", sj.Band("t", "t", below="5 seconds", above="0 seconds")),
        ("NOT (l.x - r.x > 4 OR l.x - r.x < -4)", sj.Band("x", "x", 4)),
    ],
)
def test_text_and_predicates_give_one_plan(text: str, predicate: sj.Band) -> None:
    assert plan(text) == plan(sj.Theta(text)) == plan(predicate)
    assert bound(text).index


def test_what_no_index_serves_stays_a_condition() -> None:
    found = bound("l.x < r.x AND (l.k = r.k OR l.x = 3)")
    assert found.terms == found.index == ()
    assert found.residual is not None


def test_a_range_that_leaves_out_zero_finds_candidates_and_is_tested() -> None:
    left = pa.table({"x": [10, 20, 30]})
    with sj.open(sj.JoinSpec(on="l.x - r.x BETWEEN 5 AND 10", window=sj.CountWindow(9)), "sweep") as join:
        rows = join.push(left, left)
    assert sorted(zip(*(rows[name].to_pylist() for name in ("x_left", "x_right")), strict=True)) == [(20, 10), (30, 20)]


def test_a_condition_that_is_no_text_or_predicate_is_refused() -> None:
    with pytest.raises(sj.SpecError, match="on= takes"):
        sj.JoinSpec(on=3, window=sj.CountWindow(1))  # type: ignore[arg-type]
    with pytest.raises(sj.SchemaError, match=r"did you mean l\.x"):
        bound("l.xx = r.x")
