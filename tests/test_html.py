"""What notebooks show: every text escaped, figures readable, and no object that raises when it is shown."""

from __future__ import annotations

from html.parser import HTMLParser

import pyarrow as pa

import streamjoin as sj
from streamjoin._html import Figures, PlanText, column_table, fact_table

SPEC = sj.JoinSpec(on=sj.Theta("l.a < r.b"), window=sj.CountWindow(100))


class _Table(HTMLParser):
    """Reads the cells of tables by line."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.lines: list[list[str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.lines.append([])
        if tag in ("th", "td"):
            self.lines[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.lines and self.lines[-1]:
            self.lines[-1][-1] += data


def cells(shown: object) -> dict[str, str]:
    """Names and values of a shown object."""
    html = shown._repr_html_()  # type: ignore[attr-defined]
    return {line[0]: line[1] for line in _Table(html).lines if len(line) == 2}


def test_texts_are_escaped() -> None:
    hostile = "<script>alert('x')</script>"
    for html in (
        fact_table([(hostile, hostile)], hostile),
        column_table((hostile,), [(hostile,)], hostile),
        PlanText(f"join  {hostile}")._repr_html_(),
        Figures({hostile: {hostile: hostile}})._repr_html_(),
    ):
        assert "<script" not in html
        assert "&lt;script&gt;" in html


def test_a_plan_keeps_indented_lines_with_their_fact() -> None:
    plan = PlanText("join        inner\ncost model  ns\n          * btree  1\n            measured: 2")
    assert cells(plan) == {"join": "inner", "cost model": "ns\n          * btree  1\n            measured: 2"}


def test_a_join_shows_its_plan_and_its_metrics() -> None:
    with sj.open(SPEC) as join:
        assert "chosen when" in cells(join)["algorithm"]
        join.push(left=pa.table({"a": [1, 2]}), right=pa.table({"b": [2, 3]}))
        assert cells(join) == cells(join.explain())
        assert cells(join)["so far"].startswith("2 left and 2 right tuples")
        figures = join.metrics()
        assert figures == dict(figures)
        assert cells(figures)["results"] == "3"
        assert any(name.startswith("seconds.") for name in cells(figures))


def test_a_live_join_shows_its_plan_and_its_metrics() -> None:
    with sj.live(SPEC) as join:
        join.source("left").push(pa.table({"a": [1, 2]}))
        assert "sources" in cells(join)
        assert cells(join.metrics())["pushed_left"] == "2"


def test_a_broken_join_is_shown_with_its_reason() -> None:
    with sj.open(sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(2))) as join:
        join._broken = RuntimeError("a kernel failed")
        assert "error" in cells(join)
        join._broken = None


def test_an_engine_shows_queries_plan_and_metrics() -> None:
    with sj.adhoc.Engine() as engine:
        for name in ("a", "b"):
            engine.register(name, schema=pa.schema({"k": pa.int64(), "ts": pa.int64()}), time="ts")
        query = engine.create("SELECT a.k FROM a JOIN b WITHIN 10 UNITS ON a.k = b.k", name="q")
        engine.push_all({name: pa.table({"k": [1, 2], "ts": [1, 2]}) for name in ("a", "b")})
        assert cells(query)["name"] == "q"
        assert cells(engine.metrics())["queries"] == "1"
        plan = _Table(engine.explain()._repr_html_()).lines
        assert any(line[:1] == ["a"] for line in plan)
        assert any(line[0] in ("a ⋈ b", "b ⋈ a") for line in plan if line)
