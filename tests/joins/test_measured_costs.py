"""What `auto` learns from the time that pushes took."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins import auto
from streamjoin.joins.cost import algorithm_cost
from streamjoin.joins.engine import adapting
from streamjoin.joins.engine.adapting import MeasuredCosts
from streamjoin.joins.engine.operator import Operator
from streamjoin.joins.registry import AlgorithmChoice

WINDOW = 1 << 16
SWEEP = AlgorithmChoice("sweep", "", rival="pim_tree")
INDEXED = AlgorithmChoice("indexed", "", "pim_tree")


def nanoseconds(choice: AlgorithmChoice, tuples: int) -> float:
    return tuples * algorithm_cost(choice.name, WINDOW, tuples, 1, "pim_tree")


def test_costs_are_the_models_times_what_was_measured() -> None:
    """The index takes ten times what the model says, at any size; the sweep what it says."""
    costs = MeasuredCosts(WINDOW)
    for _ in range(20):
        costs.add(SWEEP, 400, 5_000, 1e-9 * nanoseconds(SWEEP, 400))
        costs.add(INDEXED, 50, 5_000, 10e-9 * nanoseconds(INDEXED, 50))
    for tuples in (1, 50, 400, 5_000):
        expected = 10 * nanoseconds(INDEXED, tuples) > 1.2 * nanoseconds(SWEEP, tuples)
        assert costs.is_more_expensive(INDEXED, SWEEP, tuples) == expected
    assert costs.is_more_expensive(INDEXED, SWEEP, 400)
    assert costs.is_more_expensive(SWEEP, INDEXED, 1)
    # Windows of another size, and no measurements.
    costs.add(SWEEP, 400, 50_000, 1e-3)
    assert not costs.is_more_expensive(INDEXED, SWEEP, 400)
    assert not MeasuredCosts(WINDOW).is_more_expensive(INDEXED, SWEEP, 400)


def test_one_slow_push_does_not_decide() -> None:
    costs = MeasuredCosts(WINDOW)
    for _ in range(20):
        for choice in (SWEEP, INDEXED):
            costs.add(choice, 100, 5_000, 1e-9 * nanoseconds(choice, 100))
    costs.add(INDEXED, 100, 5_000, 5.0)
    assert costs._factors["indexed"].mean == pytest.approx(1.1)


def test_few_long_pushes_decide_by_the_fastest() -> None:
    """A join that has fallen behind gets a few large pushes only; one of them may have waited for a core."""
    costs = MeasuredCosts(WINDOW)
    for _ in range(20):
        costs.add(SWEEP, 400, 5_000, 1e-9 * nanoseconds(SWEEP, 400))
    tuples = 200_000
    costs.add(INDEXED, tuples, 5_000, 50e-9 * nanoseconds(INDEXED, tuples))
    assert not costs.is_more_expensive(INDEXED, SWEEP, 400), "one push does not decide"
    costs.add(INDEXED, tuples, 5_000, 10e-9 * nanoseconds(INDEXED, tuples))
    assert costs._factors["indexed"].value == pytest.approx(10)
    assert costs.is_more_expensive(INDEXED, SWEEP, 400)


def test_a_move_that_does_not_pay_is_undone_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model wants an index for these pushes; measured, it is ten times as expensive. Rows stay the same."""
    moves: list[str] = []
    move = Operator._move

    def counted(self: Operator, choice: AlgorithmChoice) -> None:
        moves.append(choice.name)
        move(self, choice)

    add = MeasuredCosts.add

    def measured(self: MeasuredCosts, choice: AlgorithmChoice, tuples: int, *_: float) -> None:
        add(self, choice, tuples, 1_000, 1e-3 if choice.name == "indexed" else 1e-6)

    monkeypatch.setattr(Operator, "_move", counted)
    monkeypatch.setattr(MeasuredCosts, "add", measured)
    # Small pushes are worth a move after some thirty of them.
    monkeypatch.setattr(auto, "excess", lambda _, choice, *__: 1e5 if choice.name == "sweep" else 0.0)
    monkeypatch.setattr(auto, "_MOVING_NS", 45.0)
    # Every push is looked at.
    monkeypatch.setattr(adapting, "_TUPLES", 1)
    monkeypatch.setattr(Operator, "at_once", lambda *_: None)
    monkeypatch.setattr(auto, "is_compiled", lambda _: True)
    spec = sj.JoinSpec(on=sj.Band("x", "x", 3), window=sj.CountWindow(1 << 16))
    rng = np.random.default_rng(0)
    tables = [pa.table({"id": np.arange(k, k + 8), "x": rng.integers(0, 500, 8)}) for k in range(0, 4_000, 8)]
    with sj.open(spec) as join, sj.open(spec, "sweep") as other:
        for number, table in enumerate(tables):
            if number == 4:
                # A large push, so that the sweep takes over.
                large = pa.table({"id": np.arange(1 << 15), "x": rng.integers(0, 1 << 28, 1 << 15)})
                assert join.push(large, large).equals(other.push(large, large))
            assert join.push(table, table).equals(other.push(table, table))
    assert "indexed" in moves
    # There and back, and not there again.
    assert moves[moves.index("indexed") + 1 :] in ([], ["sweep"]), moves
    assert moves[-1] == "sweep", moves
