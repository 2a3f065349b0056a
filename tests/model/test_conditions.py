"""One reading of conditions: the same condition gives the same keys, bands and rest, however it is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.cli.join_files import FileJoin
from streamjoin.config.pipeline_file import read_pipeline
from streamjoin.model.binding import BoundSpec, bind, condition_text
from streamjoin.queries.language.plan import Stream
from streamjoin.queries.language.sql import parse

LEFT = pa.schema(
    [("k", pa.string()), ("x", pa.int64()), ("p", pa.float64()), ("t", pa.timestamp("us")), ("d", pa.decimal128(9, 2))]
)
RIGHT = pa.schema([("k", pa.string()), ("x", pa.int32()), ("p", pa.float64()), ("t", pa.timestamp("ms"))])


def bound(on: sj.Theta | sj.Band | str) -> BoundSpec:
    return bind(sj.JoinSpec(on=on, window=sj.CountWindow(5)), LEFT, RIGHT)


def plan(on: sj.Theta | sj.Band | str) -> tuple[object, object, str]:
    found = bound(on)
    return set(found.terms), set(found.index), str(found.residual)


PLANS = [
    ("l.k = r.k", sj.Equi("k")),
    ("r.k = l.k AND abs(l.p - r.p) <= 0.25", sj.Equi("k") & sj.Band("p", "p", 0.25)),
    ("abs(r.p - l.p) < 0.25", sj.Band("p", "p", 0.25, strict=True)),
    ("l.x BETWEEN r.x - 2 AND r.x + 3", sj.Band("x", "x", below=3, above=2)),
    ("l.x - r.x <= 3 AND r.x <= l.x + 2", sj.Band("x", "x", below=3, above=2)),
    ("l.x = r.x AND l.k <> r.k", sj.Equi("x") & sj.Theta("l.k <> r.k")),
    ("l.t >= r.t AND l.t <= r.t + INTERVAL '5' SECOND", sj.Band("t", "t", below="5 seconds", above="0 seconds")),
    ("NOT (l.x - r.x > 4 OR l.x - r.x < -4)", sj.Band("x", "x", 4)),
]
TEXTS = [text for text, _ in PLANS]


@pytest.mark.parametrize(("text", "predicate"), PLANS)
def test_text_and_predicates_give_one_plan(text: str, predicate: sj.Band) -> None:
    assert plan(text) == plan(sj.Theta(text)) == plan(predicate)
    assert bound(text).index


FILE = """\
checkpoint = "state"
[source.left]
format = "parquet"
path = "left"
schema = "x BIGINT"
[source.right]
format = "parquet"
path = "right"
schema = "x BIGINT"
[join]
on = "TEXT"
window = { count = 5 }
time = "t"
[sink]
format = "parquet"
path = "out"
"""


@pytest.mark.parametrize("text", TEXTS)
def test_every_door_finds_the_same_terms(text: str, tmp_path: Path) -> None:
    """In a `JoinSpec`, a `Theta`, a pipeline file, on the command line and in a query of the ad-hoc engine."""
    terms = index_terms(bound(text))
    file = tmp_path / "join.toml"
    file.write_text(FILE.replace("TEXT", text))
    from_file = bind(read_pipeline(file).spec, LEFT, RIGHT)
    from_flags = bind(FileJoin(tmp_path, tmp_path, text, "5 rows").spec(), LEFT, RIGHT)
    assert terms == index_terms(bound(sj.Theta(text))) == index_terms(from_file) == index_terms(from_flags)
    assert condition_text(bound(text)) == condition_text(from_file) == condition_text(from_flags)
    streams = [Stream("one", LEFT, "t"), Stream("two", RIGHT, "t")]
    query = parse(f"SELECT l.x AS a FROM one l JOIN two r WITHIN 5 ROWS ON {text}", streams)
    assert terms == {term.term for term in query.steps[0].terms}


def index_terms(found: BoundSpec) -> set[object]:
    return {key_term.term for key_term in (*found.terms, *found.index)}


def test_a_checkpoint_tells_an_indexed_condition_from_one_that_is_only_tested() -> None:
    """Rows are stored by the words of the index, so the text must show what the index is."""
    assert condition_text(bound("l.k = r.k AND l.x < 3")) == condition_text(bound(sj.Equi("k") & sj.Theta("l.x < 3")))
    assert condition_text(bound("l.k = r.k OR l.x < 3")) == "(l.k = r.k OR l.x < 3)"


def test_what_no_index_serves_stays_a_condition() -> None:
    found = bound("l.x < r.x AND (l.k = r.k OR l.x = 3)")
    assert found.terms == found.index == ()
    assert found.residual is not None


def test_a_range_that_leaves_out_zero_finds_candidates_and_is_tested() -> None:
    left = pa.table({"x": [10, 20, 30]})
    with sj.open(sj.JoinSpec(on="l.x - r.x BETWEEN 5 AND 10", window=sj.CountWindow(9)), "sweep") as join:
        rows = join.push(left, left)
    assert sorted(zip(*(rows[name].to_pylist() for name in ("x_left", "x_right")), strict=True)) == [(20, 10), (30, 20)]


def test_an_equality_of_a_float_sum_is_no_band() -> None:
    """The sum is rounded as written: 0.1 + 0.2 is 0.30000000000000004, whose distance from 0.1 is not 0.2."""
    for text in ("l.p + 0.2 = r.p", "l.p = r.p - 0.2", "r.p - (l.p + 0.2) = 0", "l.p + 1 = r.x", "l.p + 0 = r.p"):
        assert not bound(text).index, text
        assert not plan(text)[0], text
    for text in ("r.p - l.p = 0.5", "l.x + 2 = r.x", "l.x + 0.5 = r.x", "l.t + INTERVAL '1' SECOND = r.t"):
        assert bound(text).index, text
    left, right = pa.table({"p": [0.1]}), pa.table({"p": [0.1 + 0.2]})
    with sj.open(sj.JoinSpec(on="l.p + 0.2 = r.p", window=sj.CountWindow(5))) as join:
        assert join.push(left=left, right=right).num_rows == 1


def test_a_condition_that_is_no_text_or_predicate_is_refused() -> None:
    with pytest.raises(sj.SpecError, match="on= takes"):
        sj.JoinSpec(on=3, window=sj.CountWindow(1))  # type: ignore[arg-type]
    with pytest.raises(sj.SchemaError, match=r"did you mean l\.x"):
        bound("l.xx = r.x")
