"""Whether another algorithm takes over from the one that `auto` chose: as pushes change, and what they find.

A look costs as much as joining some dozens of tuples, so small pushes share one. A move is made once the pushes so far
have cost more than the cheapest algorithm, by as much as moving costs; where an algorithm turns out to be more
expensive than the one before, that one comes back.
"""

from __future__ import annotations

from typing import NamedTuple

from streamjoin.joins import auto
from streamjoin.joins.cost import UNKNOWN, Found
from streamjoin.joins.engine.measured_costs import MeasuredCosts
from streamjoin.joins.registry import AlgorithmChoice
from streamjoin.model.binding import BoundSpec

# A look comes after so many pushes or tuples.
_PUSHES, _TUPLES = 64, 1024
# The weight of the pushes since the last look in the pairs that they find.
_WEIGHT = 0.2


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
        """Whether to look before a push of so many tuples is joined."""
        if self._pushes >= _PUSHES or self._tuples >= _TUPLES or arriving >= _TUPLES:
            return True
        self._pushes += 1
        self._tuples += arriving
        return False

    def look(self, choice: AlgorithmChoice, arriving: int, counted: Counted, held: int) -> AlgorithmChoice | None:
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
