"""What the driver sends to cells: queries with their places, as a whole now and then, and what changed since."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, Final

from streamjoin.adhoc.core.changes import LiveQuery
from streamjoin.adhoc.core.probe_plan import Choice
from streamjoin.adhoc.executors.distributed.cell import CellDelta, PlacedQuery
from streamjoin.adhoc.executors.distributed.outputs import OutputTarget
from streamjoin.adhoc.executors.distributed.placement import Placement, place
from streamjoin.adhoc.language.plan import Stream
from streamjoin.model.window import CountWindow

_DELTAS: Final = 16
"""Changes that are sent along before the whole state is sent anew."""


class Placements:
    """Gives each query a placement, and lets queries with the same routes share one; a query stays where it is."""

    def __init__(self) -> None:
        self.current: dict[int, Placement] = {}
        self._of: dict[int, int] = {}
        self._numbers = count()

    def update(self, queries: Mapping[str, LiveQuery]) -> dict[str, int]:
        """The placement of each query by its number."""
        present = {entry.serial for entry in queries.values()}
        self._of = {serial: number for serial, number in self._of.items() if serial in present}
        self.current = {number: found for number, found in self.current.items() if number in self._of.values()}
        for entry in sorted(queries.values(), key=lambda entry: entry.serial):
            if entry.serial not in self._of:
                self._of[entry.serial] = self._place(entry)
        return {name: self._of[entry.serial] for name, entry in queries.items()}

    def _place(self, entry: LiveQuery) -> int:
        counted = any(isinstance(pair.window, CountWindow) for pair in entry.query.pairs)
        wanted = place(entry.query, -1, counted)
        for number, placement in self.current.items():
            extended = placement.extended(wanted)
            if extended is not None:
                self.current = {**self.current, number: extended}
                return number
        number = next(self._numbers)
        # Another mapping each time: threads that read streams look at it.
        self.current = {**self.current, number: replace(wanted, number=number)}
        return number


class SentState:
    """What cells were sent; `publish` makes the whole state available to tasks, such as by a broadcast."""

    def __init__(self, publish: Callable[[bytes], Any]) -> None:
        self.run = uuid.uuid4().hex
        self.base = -1
        self.deltas: tuple[CellDelta, ...] = ()
        self.whole: Any = None
        self.placements = Placements()
        self._publish = publish
        self._streams: dict[str, Stream] = {}
        self._placed: dict[str, PlacedQuery] = {}

    def note(
        self,
        streams: Mapping[str, Stream],
        queries: Mapping[str, LiveQuery],
        choices: Mapping[str, Choice],
        targets: Mapping[str, OutputTarget],
    ) -> None:
        """Take over the state of a batch."""
        new = tuple(stream for name, stream in streams.items() if name not in self._streams)
        gone = tuple(name for name in self._placed if name not in queries)
        numbers = self.placements.update(queries)
        came = {}
        for name, entry in queries.items():
            before = self._placed.get(name)
            if (
                before is None
                or before.entry is not entry
                or before.choice != choices[name]
                or before.target != targets[name]
            ):
                came[name] = PlacedQuery(entry, choices[name], numbers[name], targets[name])
        first = self.whole is None
        if not (new or gone or came or first):
            return
        version = (self.deltas[-1].version if self.deltas else self.base) + 1
        self._streams |= {stream.name: stream for stream in new}
        self._placed = {name: came.get(name) or self._placed[name] for name in queries}
        placements = dict(self.placements.current)
        self.deltas = (*self.deltas, CellDelta(version, new, placements, came, gone))
        if first or len(self.deltas) > _DELTAS:
            whole = CellDelta(version, tuple(self._streams.values()), placements, dict(self._placed), ())
            self.whole = self._publish(pickle.dumps(whole))
            self.base, self.deltas = version, ()
