"""A ScaleGate as an object: the arena, and its kernels with their arguments checked.

Any number of threads may use it at the same time: each source and each reader is used by one thread at a time.
"""

from __future__ import annotations

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

_LINE = 8


def gate_arena(sources: int, readers: int, ring: int) -> I64:
    """The arena of an empty gate, aligned to cache lines."""
    words = arena_words(sources, readers, ring)
    raw = np.zeros(words + _LINE, np.int64)
    skip = (-raw.ctypes.data // raw.itemsize) % _LINE
    mem = raw[skip : skip + words]
    lay_out(mem, sources, readers, ring)
    return mem


class ScaleGate:
    """Merges ordered sources into one ordered stream of ready tuples for every reader."""

    def __init__(self, sources: int, readers: int = 1, ring: int = 1024) -> None:
        self.mem = gate_arena(sources, readers, ring)
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
