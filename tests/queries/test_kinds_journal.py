"""What waits of outer, semi, anti and as-of joins in the engine's log: kills, restarts, pauses, without Spark."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Engine, ParquetSink, Settings
from streamjoin.model.errors import SpecError, StreamJoinError
from tests.queries import journal_cases
from tests.queries.journal_cases import LEFT, RIGHT, Killed, killed_at, table
from tests.queries.looped import Looped, read_back

QUERIES = {
    "full": "SELECT x.p AS a, y.p AS b FROM l x FULL JOIN r y WITHIN 5 UNITS ON x.k = y.k",
    "anti": "SELECT x.p AS a FROM l x LEFT ANTI JOIN r y WITHIN 5 UNITS ON x.k = y.k",
    "asof": "SELECT x.p AS a, y.p AS b FROM l x ASOF LEFT JOIN r y MATCH_CONDITION (x.t >= y.t) ON x.k = y.k "
    "TOLERANCE 4 UNITS",
    "latest": "SELECT x.p AS a, y.p AS b FROM l x ASOF JOIN r y MATCH_CONDITION (x.t >= y.t) ON x.k = y.k",
    "inner": "SELECT x.p AS a, y.p AS b FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k",
    "around": "SELECT x.p AS a, sum(y.p) AS b FROM l x WINDOW JOIN r y ON x.k = y.k RANGE BETWEEN 1 UNIT PRECEDING AND "
    "12 UNITS FOLLOWING INCLUDE PREVAILING",
    "union": "SELECT x.p AS a, x.k AS b FROM l x ASOF ANTI JOIN r z MATCH_CONDITION (x.t >= z.t) ON x.k = z.k "
    "UNION ALL SELECT x.p, y.p FROM l x LEFT JOIN r y WITHIN 5 UNITS ON x.k = y.k WHERE y.p IS NULL UNION ALL "
    "SELECT p, t FROM r WHERE k > 4",
}
BATCHES: list[dict[str, pa.Table]] = [
    {"l": table((1, 1, 0), (2, 2, 1)), "r": table((1, 10, 0), (3, 30, 1))},
    {"r": table((2, 20, 6), (4, 40, 6))},
    {"l": table((3, 3, 6), (4, 4, 9), (5, 5, 9))},
    {"l": table((6, 6, 20)), "r": table((5, 50, 20), (5, 51, 21))},
    {"l": table((9, 9, 90)), "r": table((8, 80, 90))},
    {"l": table((9, 9, 190)), "r": table((8, 80, 190))},
]


class Workload:
    """Drives the batches through restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run: Looped | None = None

    def steps(self) -> None:
        run = self.run = self.run or Looped(self.directory / "checkpoint", Settings(future=None))
        run.begin(LEFT, RIGHT)
        for name, text in QUERIES.items():
            if name not in run.catalog.entries:
                run.create(name, text, ParquetSink(str(self.directory / name)))
        for number, batch in enumerate(BATCHES):
            run.go_on(number, batch)

    def rows(self) -> dict[str, Counter[tuple[Any, ...]]]:
        assert self.run is not None and self.run.failure is None
        self.run.stop()
        return {name: Counter(read_back(self.directory / name, "a" if name == "anti" else "ab")) for name in QUERIES}


def test_every_row_once_wherever_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calm = Workload(tmp_path / "calm")
    calm.steps()
    wanted = calm.rows()
    unmatched = {row for row in wanted["full"] if None in row}
    assert unmatched == {(5, None), (6, None), (9, None), (None, 50), (None, 51), (None, 80)}
    assert wanted["anti"] == Counter({(5,): 1, (6,): 1, (9,): 1})
    assert wanted["around"] == Counter(
        {(1, 10): 1, (2, 20): 1, (3, 30): 1, (4, 40): 1, (5, 101): 1, (6, None): 1, (9, None): 1}
    )
    assert wanted["union"] == Counter(
        {(2, 2): 1, (5, 5): 1, (6, 6): 1, (9, 9): 1, (5, None): 1, (6, None): 1, (9, None): 1}
        | {(50, 20): 1, (51, 21): 1, (80, 90): 1, (80, 190): 1}
    )
    assert wanted["latest"] == Counter({(1, 10): 1, (3, 30): 1, (4, 40): 1})
    for number, write in enumerate(range(8, 60, 4)):
        killed = Workload(tmp_path / f"killed at {write}")
        with killed_at(write, bool(number % 2), monkeypatch):
            with contextlib.suppress(Killed, StreamJoinError):
                killed.steps()
            if killed.run is not None:
                killed.run.abandon()
                killed.run = None
        killed.steps()
        assert killed.rows() == wanted, write


def opened(checkpoint: Path | None = None, **options: Any) -> Engine:
    return journal_cases.opened(checkpoint, settings=Settings(future=None, **options))


def test_a_restart_between_match_and_eviction_remembers_the_match(tmp_path: Path) -> None:
    """The partner is gone from the state by then: the left stream is far ahead, the right one behind."""
    with opened(tmp_path) as engine:
        engine.create(QUERIES["full"], "full")
        engine.push("l", [{"k": 1, "p": 1, "t": 100}, {"k": 2, "p": 2, "t": 100}])
        engine.push("r", [{"k": 1, "p": 10, "t": 95}])
        assert engine.rows("full").to_pylist() == [{"a": 1, "b": 10}]
        engine.push("l", [{"k": 3, "p": 3, "t": 500}])
    with opened(tmp_path) as engine:
        engine.push("r", [{"k": 9, "p": 90, "t": 106}])
        assert engine.rows("full").to_pylist() == [{"a": 2, "b": None}, {"a": None, "b": 90}]


def test_a_change_alone_gives_no_row(tmp_path: Path) -> None:
    """Rows come with batches that the log has: a create or a pause is none."""
    with opened(tmp_path) as engine:
        engine.create(QUERIES["anti"], "anti")
        engine.push("l", [{"k": 1, "p": 1, "t": 0}])
        engine.pause("anti")
        engine.resume("anti")
        engine.create(QUERIES["inner"], "inner")
        assert engine.rows("anti").num_rows == 0
        engine.push("r", [{"k": 9, "p": 0, "t": 6}])
        assert engine.rows("anti").to_pylist() == [{"a": 1}]


def test_an_advanced_clock_lets_unmatched_tuples_out() -> None:
    with opened() as engine:
        engine.create(QUERIES["anti"], "anti")
        engine.push("l", [{"k": 1, "p": 1, "t": 0}])
        engine.advance(5, "r")
        assert engine.rows("anti").num_rows == 0
        engine.advance(6, "r")
        assert engine.rows("anti").to_pylist() == [{"a": 1}]


@pytest.mark.parametrize("sharing", ["cost", "nothing"])
def test_silence_lets_unmatched_tuples_out_without_another_tuple(sharing: str) -> None:
    """Both streams are silent from then on: the clock of the right one follows that of the left one."""
    with opened(idle="50 milliseconds", sharing=sharing) as engine:
        engine.create(QUERIES["anti"], "anti")
        engine.push("r", [{"k": 9, "p": 0, "t": 0}])
        engine.push("l", [{"k": 1, "p": 1, "t": 0}, {"k": 2, "p": 2, "t": 20}])
        assert next(engine.iterate("anti", timeout=60)).to_pylist() == [{"a": 1}]


def test_preview_and_explain_show_the_query_under_its_own_name() -> None:
    text = f"{QUERIES['inner']} LEFT JOIN r z WITHIN 5 UNITS ON z.k = x.k"
    with opened() as engine:
        engine.create(QUERIES["inner"], "inner")
        preview = engine.preview(text)
        assert preview.shares_with == ("inner",)
        engine.create(text, "chain")
        explained = engine.explain()
        names = {name for root in explained.roots for name in root.step.queries}
        assert names == {"inner", "chain"} and explained.queries == 2
        assert "\x1f" not in str(explained)
        with pytest.raises(SpecError, match="there is no query"):
            engine.drop("chain\x1f1")
        engine.drop("chain")
        engine.create(text.replace("5 UNITS", "6 UNITS"), "chain")
