"""`auto` looks at the lengths of intervals: two comparisons that face each other may be about no interval."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins import auto
from streamjoin.joins.cost import UNKNOWN
from streamjoin.joins.engine import adapting
from streamjoin.joins.engine.adapting import AdaptingIntervals, MeasuredCosts
from streamjoin.model.binding import bind
from streamjoin.model.comparisons import with_comparisons
from streamjoin.windows.intervals import Lookups, ends, length_classes, low_ends
from streamjoin.windows.words import TermWords

DOMAIN = 1 << 40
WINDOW = 20_000
FACING = sj.JoinSpec(on="l.x < r.a AND l.y > r.b", window=sj.CountWindow(WINDOW))
WITHIN = sj.JoinSpec(on=sj.Within("x", "a", "b"), window=sj.CountWindow(WINDOW))


def batch(seed: int, n: int, length: int | None) -> pa.Table:
    """Rows whose columns a and b are an interval of this length, or have nothing to do with each other."""
    rng = np.random.default_rng(seed)
    x, y, a = (rng.integers(0, DOMAIN, n) for _ in range(3))
    b = rng.integers(0, DOMAIN, n) + DOMAIN // 2 if length is None else a + length
    return pa.table({"x": x, "y": y, "a": a - (DOMAIN // 2 if length is None else 0), "b": b, "id": np.arange(n)})


def chosen(join: sj.Join) -> str:
    return join.explain().partition("algorithm")[2].split()[0].rstrip(":")


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "is_compiled", lambda _: True)


@pytest.fixture
def by_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pushes took would depend on the machine's load."""
    monkeypatch.setattr(MeasuredCosts, "note", lambda *_: None)


@pytest.mark.usefixtures("by_the_model_alone")
@pytest.mark.parametrize("pushes", [[2_000] * 4, [20] * 100])
def test_columns_that_are_no_intervals_are_scanned(pushes: Sequence[int]) -> None:
    with sj.open(FACING, max_rows=None) as join:
        for seed, n in enumerate(pushes):
            join.push(batch(seed, n, None), batch(1000 + seed, n, None))
            assert chosen(join) == "nested_loop"
        assert "scanning is cheaper so far; interval once the intervals are short enough" in join.explain()


@pytest.mark.usefixtures("by_the_model_alone")
def test_intervals_are_looked_up() -> None:
    with sj.open(WITHIN) as join:
        for seed in range(4):
            join.push(batch(seed, 5_000, DOMAIN // WINDOW), batch(1000 + seed, 5_000, DOMAIN // WINDOW))
        assert chosen(join) == "interval"


def test_it_changes_with_the_lengths() -> None:
    """Lengths change for good: the index is given up, and comes back; what pushes cost is what the model says."""
    schema = batch(0, 1, None).schema
    bound = with_comparisons(bind(FACING, schema, schema))
    watch, choice = AdaptingIntervals(bound, 1), auto.begin(bound, auto.AlgorithmRequest(), 0)
    begin, names, stored, seconds = np.linspace(0, DOMAIN, 90).astype(np.int64), [], 0, 0.0
    for length in (DOMAIN // WINDOW, DOMAIN // 2, DOMAIN // WINDOW):
        lookups = Lookups.of([(begin, begin + length)] * 2)
        assert lookups is not None
        sample = [(begin, begin + length)] * 2
        for _ in range(100):
            counted = adapting.Counted(stored, 0, 0, seconds)
            other = watch.look(choice, 4_000, counted, 2 * WINDOW, partial(list, sample))
            choice = choice if other is None else other
            stored += 4_000
            seconds += 4e-6 * auto.interval_costs(bound, 4_000, WINDOW, lookups, UNKNOWN)[choice.name]
        names.append(choice.name)
    assert names == ["interval", "nested_loop", "interval"]


def test_what_it_costs_counts_more_than_the_model() -> None:
    """An index that is ten times as slow as the model says gives way, and the scan stays."""
    schema = batch(0, 1, None).schema
    bound = with_comparisons(bind(FACING, schema, schema))
    watch, choice = AdaptingIntervals(bound, 1), auto.begin(bound, auto.AlgorithmRequest(), 0)
    begin, stored, seconds, names = np.linspace(0, DOMAIN, 90).astype(np.int64), 0, 0.0, []
    lookups = Lookups.of([(begin, begin + DOMAIN // 200)] * 2)
    assert lookups is not None
    for _ in range(200):
        counted = adapting.Counted(stored, 0, 0, seconds)
        other = watch.look(choice, 4_000, counted, 2 * WINDOW, lambda: [(begin, begin + DOMAIN // 200)] * 2)
        choice = choice if other is None else other
        names.append(choice.name)
        stored += 4_000
        costs = auto.interval_costs(bound, 4_000, WINDOW, lookups, UNKNOWN)
        assert costs["interval"] < costs["nested_loop"]
        seconds += 4e-6 * costs[choice.name] * (10 if choice.name == "interval" else 1)
    assert "interval" in names
    assert set(names[-100:]) == {"nested_loop"}


def test_a_move_changes_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often one takes over from the other, in every kind of join."""
    moves: list[str] = []

    def look(self: AdaptingIntervals, choice: Any, *_: Any) -> Any:
        bound = self._bound
        other = auto.interval_rival(bound, choice, Lookups(3, 0.5), 1e18, 0)
        moves.append("" if other is None else other.name)
        return other

    for how in ("inner", "left", "full", "semi", "anti"):
        for on in ("l.x < r.a AND l.y > r.b", sj.Overlaps(("x", "y"), ("a", "b"))):
            spec = sj.JoinSpec(on=on, window=sj.CountWindow(150), how=how)
            with monkeypatch.context() as patch:
                patch.setattr(AdaptingIntervals, "look", look)
                patch.setattr(adapting, "_TUPLES", 1)
                moving = joined(spec, "auto")
            assert moving.equals(joined(spec, "nested_loop"))
    assert {"interval", "nested_loop"} <= set(moves)


def joined(spec: sj.JoinSpec, algorithm: str) -> pa.Table:
    with sj.open(spec, algorithm) as join:
        rows = [join.push(batch(seed, 40, None), batch(seed + 50, 30, None)) for seed in range(8)]
        return pa.concat_tables([*rows, join.close()])


@pytest.mark.parametrize("length", [1, 1000, 10**9])
def test_the_estimate_is_what_the_index_finds(length: int) -> None:
    """Against every pair of the index's own lookups."""
    rng = np.random.default_rng(length)
    sides = []
    for n in (70, 90):
        begin = rng.integers(0, 10**6, n)
        sides.append((begin, begin + rng.integers(0, length, n)))
    candidates, classes = 0, 0
    for (begin, end), (other, other_end) in (sides, sides[::-1]):
        kinds = length_classes(other, other_end)
        classes += len(set(kinds.tolist()))
        for place, kind in enumerate(kinds.tolist()):
            low = low_ends(begin, kind)
            candidates += int(((low <= other[place]) & (other[place] <= end)).sum())
    estimate = Lookups.of(sides)
    assert estimate is not None
    assert estimate.classes == classes
    assert estimate.share == pytest.approx(candidates / (2 * 70 * 90))


def test_costs_follow_the_share_and_the_classes() -> None:
    schema = batch(0, 1, None).schema
    bound = with_comparisons(bind(FACING, schema, schema))
    few, many = (auto.interval_costs(bound, 4_000, 10_000, Lookups(4, s), UNKNOWN) for s in (0.0005, 0.5))
    assert few["interval"] < few["nested_loop"]
    assert many["interval"] > many["nested_loop"]
    crowded = auto.interval_costs(bound, 8, 1_000, Lookups(40, 0.0005), UNKNOWN)
    assert crowded["interval"] > crowded["nested_loop"]


def test_a_side_without_tuples_says_nothing() -> None:
    none = np.empty(0, np.int64)
    assert Lookups.of([(none, none), (np.zeros(1, np.int64), np.zeros(1, np.int64))]) is None
    with sj.open(FACING) as join:
        join.push(batch(0, 5_000, None))
        join.push(right=batch(0, 5_000, None).slice(0, 0))
        assert chosen(join) == "nested_loop"
    terms = [TermWords(np.array([5]), none, none), TermWords(np.array([3]), none, none)]
    plan = with_comparisons(bind(FACING, batch(0, 1, None).schema, batch(0, 1, None).schema)).intervals
    assert plan is not None
    assert [array.tolist() for array in ends(terms, plan)] == [[3], [5]]
