"""What steps did in the last ten seconds: their counts as they were, noted about once a second.

Rates are from the end of one batch to the end of another, so that they do not depend on when somebody asks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from streamjoin.queries.core.probe_plan import PathKey
from streamjoin.queries.core.shared_join import StepCounts

RECENT_SECONDS: Final = 10.0
_NOTED_EVERY: Final = 0.9
"""Less than a second, so that batches of a second are all noted."""


class StepRates(NamedTuple):
    """What a step did per second, or in all; `load` are seconds of threads."""

    probes: float = 0.0
    candidates: float = 0.0
    pairs: float = 0.0
    load: float = 0.0


NOTHING: Final = StepRates()


def _totals(step: StepCounts) -> StepRates:
    return StepRates(step.probes, step.candidates, step.pairs, step.seconds)


class RecentCounts:
    """The totals of all steps at a few moments; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._notes: deque[tuple[float, dict[PathKey, StepRates]]] = deque()

    def note(self, counts: Mapping[PathKey, StepCounts]) -> None:
        """Note the totals as they are after a batch."""
        now = self._clock()
        if self._notes and now - self._notes[-1][0] < _NOTED_EVERY:
            return
        self._notes.append((now, {key: _totals(step) for key, step in counts.items()}))
        # One note before the ten seconds is where they begin.
        while len(self._notes) > 1 and self._notes[1][0] <= now - RECENT_SECONDS:
            self._notes.popleft()

    def rates(self, key: PathKey) -> StepRates:
        """What a step did per second; nothing where its first batch is too new to tell, or no batch came."""
        notes = list(self._notes)
        if len(notes) < 2 or notes[-1][0] < self._clock() - RECENT_SECONDS:
            return NOTHING
        begin = 0
        while begin < len(notes) - 2 and key not in notes[begin + 1][1]:
            begin += 1
        before, after = (notes[index][1].get(key, NOTHING) for index in (begin, -1))
        seconds = notes[-1][0] - notes[begin][0]
        # A step that left the plan and came back begins at 0 again.
        return StepRates(*(max(0.0, new - old) / seconds for old, new in zip(before, after, strict=True)))
