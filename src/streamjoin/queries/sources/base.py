"""What a source is: tuples from a position on, and the position after them.

A source is frozen data; `open` gives the reader for one run. Positions are JSON, and the engine's journal stores them
with the tuples. The invariant: reading from the same position gives the same tuples in the same order, or tuples that
were never handed out before; so a restart neither loses nor repeats one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from streamjoin.queries.engine.journal import Position
from streamjoin.storage.places import Place


@dataclass(frozen=True)
class SourceRows:
    """What one read gives: tuples, records that could not be decoded, and where the source goes on."""

    rows: pa.Table
    position: Position
    malformed: pa.Table | None = None


class SourceReader(Protocol):
    """Reads a source in one run of an engine.

    A reader that fetches ahead may also have `behind()`: whether there is something that `read` does not find yet. It
    is asked where somebody waits for all that is there. A reader may have `left(position)`: how much comes after a
    position, in whatever it counts; 0 where it does not know. Progress is told by it.
    """

    def read(self, position: Position | None) -> SourceRows | None:
        """What comes after `position`; from the beginning where it is None. None when there is nothing now.

        Raises:
            OSError, StreamJoinError: the source can't be read; the read is tried again later.
        """

    def close(self) -> None:
        """Release what is open."""


class TupleSource(Protocol):
    """Tuples that this process reads; `schema` are their columns.

    A source may also have `origin`, a text that says where it reads from. A position of the checkpoint is only ever
    used for the origin that it was of.
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    def open(self, notes: Place | None) -> SourceReader:
        """A reader; `notes` is a directory of the checkpoint that belongs to the stream, None without a checkpoint."""


def is_behind(reader: SourceReader) -> bool:
    """Whether there is something that the reader does not find yet."""
    behind = getattr(reader, "behind", None)
    return behind is not None and bool(behind())
