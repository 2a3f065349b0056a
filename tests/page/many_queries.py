"""Queries as hundreds of people would write them: a few kinds of joins, each with many conditions and windows."""

from __future__ import annotations

from tests.page.light_service import LightService

JOINS = (
    "SELECT t.sym, t.px, q.ask FROM trades AS t JOIN quotes AS q WITHIN {w} SECONDS ON t.sym = q.sym AND t.px = q.bid",
    (
        "SELECT t.sym, t.px FROM trades AS t JOIN quotes AS q WITHIN {w} SECONDS "
        "ON t.sym = q.sym AND abs(t.px - q.bid) <= {w}"
    ),
    "SELECT t.sym, q.bid FROM trades AS t JOIN quotes AS q WITHIN {w} SECONDS ON t.px = q.ask",
    "SELECT a.user, b.page FROM clicks AS a JOIN clicks AS b WITHIN {w} SECONDS ON a.user = b.user",
    (
        "SELECT t.sym, r.ask FROM trades AS t JOIN quotes AS q WITHIN {w} SECONDS ON t.sym = q.sym AND t.px = q.bid "
        "JOIN quotes AS r WITHIN 1 SECOND ON r.sym = t.sym AND r.ask = t.px"
    ),
)
SELECTIONS = ("t.qty > {n}", "t.px > 100 + {n}", "t.qty > {n}", "a.user > {n}", "t.qty > {n}")


def sql(number: int) -> str:
    """The text of one of them."""
    kind = number % len(JOINS)
    return f"{JOINS[kind].format(w=1 + number // 5 % 6)}\nWHERE {SELECTIONS[kind].format(n=number % 9)}"


def grow(service: LightService, wanted: int) -> None:
    """Create queries until there are so many, together in a few batches."""
    handles = [
        service.engine.create(sql(number), f"query_{number:03}", wait=False)
        for number in range(len(service.engine.queries()), wanted)
    ]
    for handle in handles:
        handle.wait(60)
