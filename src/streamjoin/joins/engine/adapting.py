"""Whether another algorithm takes over from the one that `auto` chose: as pushes change, and what they find.

A look costs as much as joining some dozens of tuples, so small pushes share one. A move is made once the pushes so far
have cost more than the cheapest algorithm, by as much as moving costs; where an algorithm turns out to be more
expensive than the one before, that one comes back: a join remembers by which factor each of its algorithms was slower
than the cost model says (`MeasuredCosts`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamjoin._arrays import Array
from streamjoin.joins import auto
from streamjoin.joins.cost import COMPARED, UNKNOWN, Found, algorithm_cost
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.intervals import Lookups

Sample = Callable[[], Sequence[tuple[Array, Array]]]
"""Begins and ends of some intervals of the left and of the right side."""

# A look comes after this many pushes or tuples.
_PUSHES, _TUPLES = 64, 1024
# The weight of the pushes since the last look in the pairs that they find.
_WEIGHT = 0.2
# The lengths of intervals are looked at again after this many looks; by how much a rival has to be cheaper.
_MOST_LOOKS = 16
_CHEAPER = 1.1
# A machine is slower or faster than the model says by at most this factor.
_MACHINE = 2.0
# Pushes before a factor counts, or fewer that took `_LONG` seconds: a join that falls behind gets few, large pushes.
_LEAST_PUSHES = 12
_FEW_PUSHES, _LONG = 2, 0.05
# The weight of a new factor in the mean; by how much an algorithm has to be cheaper.
_FACTOR_WEIGHT = 0.1
_CHEAPER_BY_FACTOR = 1.2
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
        self.mean += max(_FACTOR_WEIGHT, 1 / self.pushes) * (factor - self.mean)

    @property
    def value(self) -> float | None:
        """The factor, once it counts; the least one while there are few."""
        if self.pushes >= _LEAST_PUSHES:
            return self.mean
        return self.least if self.pushes >= _FEW_PUSHES and self.seconds >= _LONG else None


class MeasuredCosts:
    """By algorithm: the cost of a tuple, as a multiple of what the model says.

    The model behind `auto` knows windows, sizes of pushes and how many pairs they find. It does not know what testing
    one costs, nor what a core is worth at the moment. Invariant: only measurements at about the present size of the
    windows count.
    """

    def __init__(self, window: float, workers: int = 1) -> None:
        self._window, self._workers = window, workers
        self._factors: dict[str, _Factor] = {}
        self._held = 1.0

    def add(self, choice: AlgorithmChoice, tuples: int, held: int, seconds: float, found: Found = UNKNOWN) -> None:
        """Record a push of `tuples` tuples, joined with `held` stored ones, and the pairs that each found."""
        self.note(choice.name, 1e9 * seconds, tuples * self._model(choice, tuples, found), held)

    def note(self, name: str, nanoseconds: float, model: float, held: int) -> None:
        """Record what a push of an algorithm took and should have taken, with `held` stored tuples."""
        if not self._held / _OTHER_WINDOW <= held + 1 <= self._held * _OTHER_WINDOW:
            self._factors.clear()
            self._held = held + 1.0
        self._factors.setdefault(name, _Factor()).add(nanoseconds / max(1.0, model), nanoseconds / 1e9)

    def factor(self, name: str) -> float | None:
        """By how much an algorithm was slower than the model says, once that is known."""
        return self._factors.get(name, _Factor()).value

    def is_more_expensive(
        self, choice: AlgorithmChoice, other: AlgorithmChoice, tuples: int, found: Found = UNKNOWN
    ) -> bool:
        """Whether pushes of this size are known to cost more with one algorithm than with another."""
        own, others = self.factor(choice.name), self.factor(other.name)
        if own is None or others is None:
            return False
        own_model, others_model = (self._model(known, tuples, found) for known in (choice, other))
        return own * own_model > _CHEAPER_BY_FACTOR * others * others_model

    def _model(self, choice: AlgorithmChoice, tuples: int, found: Found) -> float:
        """The nanoseconds of a tuple by the model; those of an index for what the model does not know."""
        name = choice.name if choice.name in COMPARED else "indexed"
        index = choice.index or choice.rival or "pim_tree"
        return algorithm_cost(name, self._window, max(1, tuples), self._workers, index, found)


class Counted(NamedTuple):
    """What a join has done so far: tuples stored, pairs compared, results, and seconds of pairing."""

    stored: int
    compared: int
    results: int
    seconds: float


class Adapting:
    """What `auto` knows about one join."""

    def __init__(self, bound: BoundSpec, workers: int) -> None:
        self._bound, self._workers = bound, workers
        self._window = auto.expected_window(bound)
        self._measured = MeasuredCosts(self._window, workers)
        self.wasted = 0.0
        """Nanoseconds that pushes cost beyond another algorithm."""
        self.found = UNKNOWN
        """The pairs of a tuple of the last pushes."""
        # The algorithm that each one took over from.
        self._before: dict[str, AlgorithmChoice] = {}
        # Pushes and tuples since the last look, and what the join had done by then.
        self._pushes = self._tuples = 0
        self._counted: Counted | None = None

    def is_due(self, arriving: int) -> bool:
        """Whether to look before a push of `arriving` tuples is joined."""
        if self._pushes >= _PUSHES or self._tuples >= _TUPLES or arriving >= _TUPLES:
            return True
        self._pushes += 1
        self._tuples += arriving
        return False

    def look(
        self,
        choice: AlgorithmChoice,
        arriving: int,
        counted: Counted,
        held: int,
        sample: Sample,  # noqa: ARG002
    ) -> AlgorithmChoice | None:
        """The algorithm that takes over from `choice`, before a push, if any; `held` tuples are stored."""
        pushes = max(1, self._pushes)
        self._measure(choice, counted, held)
        self._pushes, self._tuples, self._counted = 1, arriving, counted
        other = self._returned(choice, arriving) or self._rival(choice, arriving, held, pushes)
        if other is not None:
            # The first push of an algorithm pays for what comes once.
            self._counted = None
        return other

    def _measure(self, choice: AlgorithmChoice, counted: Counted, held: int) -> None:
        last, tuples = self._counted, self._tuples
        # Not if others that did not come here were joined as well.
        if last is None or not tuples or counted.stored - last.stored != tuples:
            return
        found = Found((counted.compared - last.compared) / tuples, (counted.results - last.results) / tuples)
        self.found = Found(*(old + _WEIGHT * (new - old) for old, new in zip(self.found, found, strict=True)))
        seconds = (counted.seconds - last.seconds) / self._pushes
        self._measured.add(choice, max(1, tuples // self._pushes), held, seconds, found)

    def _returned(self, choice: AlgorithmChoice, arriving: int) -> AlgorithmChoice | None:
        """The algorithm before, if it was cheaper for such pushes."""
        before = self._before.get(choice.name)
        if before is None or not self._measured.is_more_expensive(choice, before, arriving, self.found):
            return None
        del self._before[choice.name]
        self.wasted = 0.0
        return before

    def _rival(self, choice: AlgorithmChoice, arriving: int, held: int, pushes: int) -> AlgorithmChoice | None:
        excess = auto.excess(self._window, choice, arriving, self._workers, self.found)
        self.wasted = max(0.0, self.wasted + pushes * excess)
        if not self.wasted:
            return None
        other = auto.rival(self._bound, choice, arriving, held, self.wasted, self._workers, self.found)
        if other is None:
            return None
        self.wasted = 0.0
        if self._measured.is_more_expensive(other, choice, arriving, self.found):
            return None
        self._before[other.name] = choice
        return other


class AdaptingIntervals(Adapting):
    """What `auto` knows about a join by two comparisons that face each other: the interval index, or a scan.

    `sample` gives some intervals of the tuples that are stored or arrive.
    """

    def __init__(self, bound: BoundSpec, workers: int) -> None:
        super().__init__(bound, workers)
        self._lookups: Lookups | None = None
        # Looks until the next sample: lengths are looked at often at first, and then now and then.
        self._rest = self._pause = 0

    def look(
        self, choice: AlgorithmChoice, arriving: int, counted: Counted, held: int, sample: Sample
    ) -> AlgorithmChoice | None:
        """The algorithm that takes over from `choice`, before a push, if any; `held` tuples are stored."""
        pushes = max(1, self._pushes)
        if self._rest <= 0:
            self._lookups = Lookups.of(sample()) or self._lookups
            self._rest = self._pause = min(_MOST_LOOKS, 2 * self._pause + 1)
        self._rest -= 1
        self._note(choice, counted, held)
        self._pushes, self._tuples, self._counted = 1, arriving, counted
        if self._lookups is None or not arriving:
            return None
        costs = self._costs(arriving, held, self._lookups)
        own = costs.pop(choice.name)
        (other,) = costs.values()
        self.wasted = max(0.0, self.wasted + pushes * arriving * (own - other))
        if not self.wasted or own < _CHEAPER * other:
            return None
        rival = auto.interval_rival(self._bound, choice, self._lookups, self.wasted, held)
        if rival is not None:
            # The first push of an algorithm pays for what comes once.
            self.wasted, self._counted = 0.0, None
        return rival

    def _note(self, choice: AlgorithmChoice, counted: Counted, held: int) -> None:
        last, tuples = self._counted, self._tuples
        if last is None or self._lookups is None or not tuples or counted.stored - last.stored != tuples:
            return
        found = Found(0.0, (counted.results - last.results) / tuples)
        self.found = Found(0.0, self.found.results + _WEIGHT * (found.results - self.found.results))
        each = max(1, tuples // self._pushes)
        model = auto.interval_costs(self._bound, each, held // 2, self._lookups, found)[choice.name]
        self._measured.note(choice.name, 1e9 * (counted.seconds - last.seconds) / self._pushes, each * model, held)

    def _costs(self, arriving: int, held: int, lookups: Lookups) -> dict[str, float]:
        """Nanoseconds per tuple: the model, corrected by what was measured."""
        costs = auto.interval_costs(self._bound, arriving, held // 2, lookups, self.found)
        factors = {name: self._measured.factor(name) for name in costs}
        known = [factor for factor in factors.values() if factor is not None]
        # One that did not run yet is as fast beside the model as the other one, as far as that is the machine's doing.
        others = min(max(known[0], 1 / _MACHINE), _MACHINE) if known else 1.0
        return {name: cost * (factors[name] or others) for name, cost in costs.items()}
