"""The arena of a ScaleGate as an object, its kernels with their arguments checked, and the order of its sources.

Any number of threads may use it at the same time: each source and each reader is used by one thread at a time.
`scale_gate.py` puts rows and blocking calls around it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import numpy as np

from streamjoin._arrays import Array
from streamjoin.jit.machine import I64
from streamjoin.model.errors import InputError, StateError
from streamjoin.scalejoin.kernels import gate as kernels
from streamjoin.scalejoin.kernels import members
from streamjoin.scalejoin.kernels.nodes import (
    CLOCK,
    MOST_SOURCES,
    NIL,
    arena_words,
    lay_out,
    source_at,
)

if TYPE_CHECKING:
    from streamjoin.gate.decisions import Key

_LINE = 8
_RANK_SIDE, _RANK_PART = 1 << 61, 1 << 20


def gate_arena(sources: int, readers: int, ring: int) -> I64:
    """The arena of an empty gate, aligned to cache lines."""
    words = arena_words(sources, readers, ring)
    raw = np.zeros(words + _LINE, np.int64)
    skip = (-raw.ctypes.data // raw.itemsize) % _LINE
    mem = raw[skip : skip + words]
    lay_out(mem, sources, readers, ring)
    return mem


class GateArena:
    """Merges ordered sources into one ordered stream of ready tuples for every reader."""

    def __init__(self, sources: int, readers: int = 1, ring: int = 1024, most_readers: int = 0) -> None:
        """Make a gate with these readers; it has room for `most_readers` if that is more."""
        self.mem = gate_arena(sources, max(readers, most_readers), ring)
        for _ in range(readers):
            members.add_reader(self.mem)

    def add_source(self, rank: int) -> int:
        """Add a source; returns its number. Among equal times the lower rank comes first."""
        slot = members.add_source(self.mem, rank)
        if slot == NIL:
            raise StateError("all sources of this gate are in use; create it with more")
        return slot

    def add(self, slot: int, times: Array, payload: Array, begin: int = 0) -> int:
        """Add a source's next tuples from `begin` on; returns the first for which there was no room yet."""
        if times.size > begin and (
            times[begin] < self.clock(slot) or bool(np.any(times[begin + 1 :] < times[begin:-1]))
        ):
            raise InputError("a source's times must not decrease or fall behind its clock")
        return kernels.add(self.mem, slot, times, payload, begin, times.size)

    def clock(self, slot: int) -> int:
        """The time before which a source sends no more tuples."""
        return int(self.mem[source_at(self.mem, slot) + CLOCK])

    def advance(self, slot: int, time: int) -> None:
        """Declare that a source has no tuples before `time`."""
        kernels.advance(self.mem, slot, time)

    def finish(self, slot: int) -> None:
        """Declare that a source has ended."""
        members.finish(self.mem, slot)

    def add_reader(self) -> int:
        """Add a reader, which starts at the position of the first of the others; returns its number."""
        reader = members.add_reader(self.mem)
        if reader == NIL:
            raise StateError("all readers of this gate are in use; create it with more")
        return reader

    def remove_reader(self, reader: int) -> None:
        """Remove a reader."""
        if not members.remove_reader(self.mem, reader):
            raise StateError("the last reader of a gate can't leave")

    def read(self, reader: int, most: int) -> tuple[Array, Array, Array]:
        """Read at most `most` of the next ready tuples: source, payload, time."""
        slots, payload, times = (np.empty(most, np.int64) for _ in range(3))
        n = kernels.read(self.mem, reader, slots, payload, times)
        return slots[:n], payload[:n], times[:n]

    @property
    def let_out(self) -> tuple[int, int]:
        """The (time, rank) up to which some reader may have read all tuples."""
        return members.floor_of(self.mem)

    @property
    def sources(self) -> int:
        """The maximum number of concurrent sources."""
        return int(self.mem[MOST_SOURCES])


class SourceOrder:
    """The ranks of a gate's sources: equal times are ordered by side, then by name, whenever a source comes.

    One thread uses it at a time.
    """

    def __init__(self, gate: GateArena) -> None:
        self._gate = gate
        self._owners: dict[int, Key] = {}
        self._ranks: dict[Key, int] = {}
        self._passed = np.zeros(gate.sources, np.int64)

    def add(self, key: Key, known: Collection[Key], is_open: Callable[[Key], bool]) -> int:
        """Add a source to the gate; returns its number, or NIL while sources that are gone take its place.

        `known` are the sources that may send more; `is_open` says of one of them whether it stays for now.
        """
        rank = self._rank(key, known, is_open)
        slot = NIL if rank is None else members.add_source(self._gate.mem, rank)
        if slot != NIL:
            self._owners[slot] = key
        return slot

    def _rank(self, key: Key, known: Collection[Key], is_open: Callable[[Key], bool]) -> int | None:
        """A source's rank; None if no number is left between its neighbours' and some of them will soon be gone."""
        if key not in self._ranks:
            self._forget(known)
            ranks = self._ranks
            own = sorted([*(other for other in ranks if other[0] == key[0]), key])
            at = own.index(key)
            below, above = own[:at][-1:], own[at + 1 :][:1]
            low = ranks[below[0]] if below else key[0] * _RANK_SIDE
            high = ranks[above[0]] if above else (key[0] + 1) * _RANK_SIDE
            # Names often rise, or fall, for ever: each takes little of the room that is left there.
            step = (high - low) // (2 if bool(below) == bool(above) else _RANK_PART)
            rank = low + max(1, step) if below or not above else high - max(1, step)
            if not low < rank < high:
                if all(other in known and is_open(other) for other in (*below, *above)):
                    raise StateError(f"source {key[1]!r} finds no place between the names of others: finish some first")
                return None
            ranks[key] = rank
        return self._ranks[key]

    def _forget(self, known: Collection[Key]) -> None:
        """Forget the ranks of sources that are gone, once the gate has none of their tuples and its bound another."""
        members.mark_passed(self._gate.mem, self._passed)
        self._owners = {slot: owner for slot, owner in self._owners.items() if not self._passed[slot]}
        used, named = {*self._owners.values(), *known}, self._gate.let_out[1]
        self._ranks = {key: rank for key, rank in self._ranks.items() if key in used or rank == named}
