"""What pushes have cost with each algorithm of one join: corrects a cost model that does not fit the data.

The model behind `auto` knows windows, sizes of pushes and how many pairs they find. It does not know what testing one
costs, nor what a core is worth at the moment. So a join remembers by which factor each of its algorithms was slower
than the model says, and neither moves to one that is more expensive by that nor stays with it. Invariant: only
measurements at about the present size of the windows count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from streamjoin.joins.batch.sweep import Sweep
from streamjoin.joins.cost import UNKNOWN, Found, algorithm_cost
from streamjoin.joins.parallel.pim_parallel import PimParallel
from streamjoin.joins.registry import AlgorithmChoice

# Pushes before a factor counts, or fewer that took so many seconds: a join that falls behind gets few, large pushes.
_LEAST_PUSHES = 12
_FEW_PUSHES, _LONG = 2, 0.05
# The weight of a new factor in the mean; by how much an algorithm has to be cheaper.
_WEIGHT = 0.1
_CHEAPER = 1.2
# The measurements are dropped when the windows have grown or shrunk by this factor.
_OTHER_WINDOW = 2.0


@dataclass
class _Factor:
    mean: float = 0.0
    least: float = math.inf
    pushes: int = 0
    seconds: float = 0.0

    def add(self, factor: float, seconds: float) -> None:
        self.pushes += 1
        self.seconds += seconds
        self.least = min(self.least, factor)
        # One push that had to wait for a core says nothing about the algorithm.
        factor = min(factor, 2 * self.mean) if self.pushes > _LEAST_PUSHES else factor
        self.mean += max(_WEIGHT, 1 / self.pushes) * (factor - self.mean)

    @property
    def value(self) -> float | None:
        """The factor, once it counts; the least one while there are few."""
        if self.pushes >= _LEAST_PUSHES:
            return self.mean
        return self.least if self.pushes >= _FEW_PUSHES and self.seconds >= _LONG else None


class MeasuredCosts:
    """By algorithm: the cost of a tuple, as a multiple of what the model says."""

    def __init__(self, window: float, workers: int = 1) -> None:
        self._window, self._workers = window, workers
        self._factors: dict[str, _Factor] = {}
        self._held = 1.0

    def add(self, choice: AlgorithmChoice, tuples: int, held: int, seconds: float, found: Found = UNKNOWN) -> None:
        """Record a push of so many tuples, joined with `held` stored ones, and the pairs that each found."""
        if not self._held / _OTHER_WINDOW <= held + 1 <= self._held * _OTHER_WINDOW:
            self._factors.clear()
            self._held = held + 1.0
        model = tuples * self._model(choice, tuples, found)
        self._factors.setdefault(choice.name, _Factor()).add(1e9 * seconds / max(1.0, model), seconds)

    def is_more_expensive(
        self, choice: AlgorithmChoice, other: AlgorithmChoice, tuples: int, found: Found = UNKNOWN
    ) -> bool:
        """Whether pushes of this size are known to cost more with one algorithm than with another."""
        own, others = (self._factors.get(known.name, _Factor()).value for known in (choice, other))
        if own is None or others is None:
            return False
        own_model, others_model = (self._model(known, tuples, found) for known in (choice, other))
        return own * own_model > _CHEAPER * others * others_model

    def _model(self, choice: AlgorithmChoice, tuples: int, found: Found) -> float:
        """The nanoseconds of a tuple by the model; those of an index for what the model does not know."""
        name = choice.name if choice.name in (Sweep.name, PimParallel.name) else "indexed"
        index = choice.index or choice.rival or "pim_tree"
        return algorithm_cost(name, self._window, max(1, tuples), self._workers, index, found)
