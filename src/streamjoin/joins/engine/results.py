"""The rows of one call as a stream of tables, for results that do not fit in memory at once.

The tuples of the call are joined as the tables are read, in steps that keep each table small. A step that has too many
rows is undone and cut into smaller ones. Invariant: the joined tuples and the returned tables are consistent, so a
table that failed can be requested again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from streamjoin.joins.base import Overflow
from streamjoin.joins.engine.ordered import Work
from streamjoin.windows.buffer import Restore

BATCH_ROWS = 1_000_000

# A step with too many rows is cut into this many steps.
_CUT = 8


Step = Callable[[Work, int | None, int], None]
"""Has some work's next tuples joined and the rows kept, or leaves all as it was: so many rows, and tuples, at most."""


class Results(Iterator[pa.Table]):
    """Tables of at most `batch_rows` rows, in result order. The join accepts no other call until the last is read."""

    def __init__(
        self,
        schema: pa.Schema | None,
        work: Work | None,
        batch_rows: int,
        following: Callable[[Results], pa.Table | None],
    ) -> None:
        self.schema = schema
        """The schema of the tables; None while a side's schema is not known, where there are no rows either."""
        self._work = work
        self._batch_rows = batch_rows
        self._following = following
        self._tuples = self.waiting
        self._ready: deque[pa.Table] = deque()

    def __next__(self) -> pa.Table:
        table = self._following(self)
        if table is None:
            raise StopIteration
        return table

    def to_reader(self) -> pa.RecordBatchReader:
        """The same rows as an Arrow reader, for example for DuckDB, Polars or a file writer."""
        schema = self.schema or pa.schema([])
        return pa.RecordBatchReader.from_batches(schema, (batch for table in self for batch in table.to_batches()))

    @property
    def waiting(self) -> int:
        """How many tuples are not joined yet."""
        return 0 if self._work is None else self._work.waiting

    def has_more(self) -> bool:
        """Whether there may be more rows."""
        return self.waiting > 0 or bool(self._ready)

    def saved(self) -> Restore:
        """Return a function that returns the tuples joined from now on to the waiting ones."""
        work = None if self._work is None else self._work.saved()

        def restore() -> None:
            self._ready.clear()
            if work is not None:
                work()

        return restore

    def fill(self, step: Step) -> None:
        """Join tuples until a table is ready, or none is left."""
        while not self._ready and self._work is not None and self._work.waiting:
            tuples = self._tuples
            try:
                # A single tuple has at most one row per tuple of the other window.
                step(self._work, self._batch_rows if tuples > 1 else None, tuples)
            except Overflow:
                self._tuples = max(1, self._work.tried // _CUT)

    def at_last(self) -> bool:
        """Whether at most one table is left."""
        return self.waiting == 0 and len(self._ready) < 2

    def pop(self) -> pa.Table | None:
        """The table that is ready, if there is one."""
        return self._ready.popleft() if self._ready else None

    def keep(self, work: Work, rows: pa.Table) -> None:
        """Cut the rows into tables and adapt the size of the next step to their number."""
        self._ready.extend(rows.slice(at, self._batch_rows) for at in range(0, rows.num_rows, self._batch_rows))
        if not work.tried:
            # A step without tuples says nothing about the next one's rows.
            return
        self._tuples = work.tried * sum(share * rows.num_rows <= self._batch_rows for share in (0, 2, 4, 4))
