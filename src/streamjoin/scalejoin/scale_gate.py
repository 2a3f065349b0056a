"""`ScaleGate` for programs of one's own: sources push rows, readers get them merged, all in the same order.

ScaleJoin's abstract data type (section IV-A: add a tuple, get the next ready one), over rows of Arrow tables. A row is
ready once no open source can send an earlier one. Ready rows come by (time, name of the source,
position in the source).

What locks and what blocks: merging takes no lock (`kernels/gate.py`). A push holds the lock of its source, a read that
of its reader, and both for a moment that of the rows that they hand over. A push waits while `capacity` rows of its
source have not been read by every reader, a read while nothing is ready; they wait under one condition, which others
touch only if somebody waits. Sources and readers that come and go take turns.
Invariant: a source's rows are kept until the slowest reader has them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.engine.inputs import as_schema, as_table, conform
from streamjoin.joins.engine.intake import one_tick
from streamjoin.kernels.positions import ascends
from streamjoin.model.binding import column_type, time_kind
from streamjoin.model.errors import InputError, SpecError, StateError
from streamjoin.scalejoin.gate import GateArena, SourceOrder
from streamjoin.scalejoin.kernels import gate as kernels
from streamjoin.scalejoin.kernels import members
from streamjoin.scalejoin.kernels.nodes import COUNT, LASTS, MOST_SLOTS, NIL, source_at
from streamjoin.windows.clock import to_ticks
from streamjoin.windows.interrupts import wait

_MOST_ROWS = 1 << 16
_LARGEST = 1_000_000


class ScaleGate:
    """Merges ordered streams into one, deterministically: any number of sources and readers, each in its own thread.

    >>> import streamjoin as sj
    >>> gate = sj.ScaleGate("t", sources=["north", "south"])
    >>> with gate.source("north") as north, gate.source("south") as south:
    ...     _ = north.push([{"t": 1, "from": "n"}, {"t": 4, "from": "n"}])
    ...     _ = south.push([{"t": 2, "from": "s"}, {"t": 3, "from": "s"}])
    >>> gate.close()
    >>> gate.reader().read().to_pylist()
    [{'t': 1, 'from': 'n'}, {'t': 2, 'from': 's'}, {'t': 3, 'from': 's'}, {'t': 4, 'from': 'n'}]
    """

    def __init__(
        self,
        time: str,
        *,
        sources: Iterable[str] = (),
        schema: object = None,
        capacity: int = 4000,
        most_sources: int = 64,
        most_readers: int = 16,
    ) -> None:
        """Open a gate.

        Args:
            time: the column by which every source is ordered: a timestamp, a date, a duration or an integer.
            sources: names of sources that nothing may overtake: no row is ready before each has sent one.
            schema: the columns of all sources; by default those of the first table that is pushed.
            capacity: how many rows of a source may wait for the slowest reader, at least; up to twice as many may.
            most_sources: how many sources may be open at a time, with those whose rows are not all read.
            most_readers: how many readers may be open at a time.
        """
        names = [sources] if isinstance(sources, str) else list(sources)
        if not isinstance(time, str) or not time:
            raise SpecError(f"time={time!r} must be the name of the column by which sources are ordered")
        for what, value, most in (
            ("capacity", capacity, _LARGEST),
            ("most_sources", most_sources, MOST_SLOTS - 1),
            ("most_readers", most_readers, MOST_SLOTS),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise SpecError(f"{what}={value!r} must be a whole number from 1 to {most:,}")
        if len(names) > most_sources:
            raise SpecError(f"{len(names)} sources are named, more than most_sources={most_sources}")
        self._time = time
        self._arena = GateArena(most_sources, 1, 1 << capacity.bit_length(), most_readers)
        self.mem = self._arena.mem
        self.mem[LASTS] = 1
        self._order = SourceOrder(self._arena)
        self._rows = [_Rows() for _ in range(most_sources)]
        # Held while sources and readers come and go, and while a first table decides the schema.
        self._members = threading.RLock()
        self._news = threading.Condition()
        self._waiting = 0
        self._sources: dict[str, ScaleGateSource] = {}
        self._ended: dict[str, int] = {}
        # By place. The gate has one always, since sources begin at a reader's: None if it is not in use.
        self._readers: dict[int, ScaleGateReader | None] = {0: None}
        self.is_closing = self._closed = False
        self._schema: pa.Schema | None = None
        if (given := as_schema(schema, "gate")) is not None:
            self._fix(given)
        for name in names:
            self.source(name)

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of all rows; None before the first push, if no schema was given."""
        return self._schema

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the open sources."""
        with self._members:
            return tuple(sorted(self._sources))

    def source(self, name: str) -> ScaleGateSource:
        """The open source of this name, or a new one, which may come at any time.

        A new source begins where readers are: it can't send rows before its `time`. One that comes again under a name
        goes on where that ended.

        Raises:
            StateError: the gate is closed, or as many sources are open as it has places.
        """
        if not isinstance(name, str) or not name:
            raise InputError(f"a source's name is a text, not {name!r}")
        with self._members:
            if name in self._sources:
                return self._sources[name]
            self.check_open()
            keys = {(0, other): None for other in self._sources}
            slot = self._order.add((0, name), keys, keys.__contains__)
            if slot == NIL:
                raise StateError(
                    f"all {len(self._rows)} places for sources are taken: finish some and read their rows, or open the "
                    "gate with most_sources="
                )
            kernels.advance(self.mem, slot, self._ended.pop(name, self._arena.clock(slot)))
            floor = self._arena.clock(slot)
            self._ended = {other: clock for other, clock in self._ended.items() if clock > floor}
            self._sources[name] = source = ScaleGateSource(self, name, slot, self._rows[slot])
            return source

    def reader(self) -> ScaleGateReader:
        """A new reader. The first one begins with the first row, each later one where one of the others is.

        Raises:
            StateError: as many readers are open as the gate has places.
        """
        with self._members:
            place = next((place for place, reader in self._readers.items() if reader is None), NIL)
            if place == NIL:
                # Rows are kept for it first: it begins where a reader is by then.
                for rows in self._rows:
                    rows.add_reader(NIL)
                try:
                    place = self._arena.add_reader()
                    for rows in self._rows:
                        rows.add_reader(place)
                finally:
                    for rows in self._rows:
                        rows.remove_reader(NIL)
            self._readers[place] = reader = ScaleGateReader(self, place, self._rows)
            return reader

    def close(self) -> None:
        """End the input: every source has finished, and readers get the rest and then the end. May be called twice."""
        # Pushes that wait for room give up, so that their sources can finish.
        self.is_closing = True
        self.tell()
        for name in self.sources:
            self.source(name).finish()
        with self._members:
            if self._closed:
                return
            if not any(rows.count for rows in self._rows):
                # A gate that never had a source has no end.
                members.finish(self.mem, self._arena.add_source(0))
            self._closed = True
            members.end(self.mem)
        self.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<ScaleGate by {self._time!r}: {len(self._sources)} sources, {len(self._readers)} readers{state}>"

    # -- what sources and readers use ----------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the input has ended."""
        return self._closed

    def clock(self, slot: int) -> int:
        """The tick before which a source can't send rows."""
        return self._arena.clock(slot)

    def check_open(self) -> None:
        """Raise an error if the input has ended."""
        if self.is_closing:
            raise StateError("the input of this gate has ended: close() was called; open a new gate")

    def table(self, data: object, name: str) -> pa.Table:
        """Rows of a source as a table, which `prepare` takes."""
        return as_table(data, f"the input of source {name!r}", (self._time,))

    def prepare(
        self, table: pa.Table, name: str, check: Callable[[Array, pa.DataType], None]
    ) -> tuple[pa.Table, Array]:
        """Rows as a table of the gate's schema, with their times in ticks, which `check` may refuse."""
        what = f"the input of source {name!r}"
        if self._schema is None:
            with self._members:
                # What is refused decides no schema.
                prepared = self._prepared(table, what, check)
                self._schema = self._schema or prepared[0].schema
                return prepared
        return self._prepared(table, what, check)

    def _prepared(
        self, table: pa.Table, what: str, check: Callable[[Array, pa.DataType], None]
    ) -> tuple[pa.Table, Array]:
        rows = conform(table, self._schema, what, "All sources of a gate have one schema: cast or select")
        time_kind(self._time, column_type(rows.schema, self._time, "gate's"))
        times = rows.column(self._time)
        ticks, bad = to_ticks(times, 1)
        if bad is not None and bad.any():
            at = int(np.argmax(bad))
            raise InputError(f"row {at} of {what} has no time, {self._time} is NULL: drop such rows before pushing")
        check(ticks, times.type)
        return rows, ticks

    def tick(self, value: object) -> int:
        """A value of the time column in ticks."""
        if self._schema is None:
            raise StateError("the type of times is not known yet: push a row first, or give schema= to ScaleGate")
        return one_tick(self._schema.field(self._time), value)

    def value(self, tick: int, type_: pa.DataType | None = None) -> object:
        """A tick as a value of the time column, of this type or its own; None for the first and the last of times."""
        limits = np.iinfo(np.int64)
        if type_ is None and self._schema is not None:
            type_ = self._schema.field(self._time).type
        if type_ is None or tick in (limits.min, limits.max):
            return None
        if type_ == pa.uint64():
            return int(np.int64(tick).view(np.uint64) ^ np.uint64(1 << 63))
        width = pa.int32() if type_.bit_width == 32 else pa.int64()
        return pa.scalar(tick, width).cast(type_).as_py() if pa.types.is_temporal(type_) else tick

    def release(self, source: ScaleGateSource, clock: int) -> None:
        """Forget a source that has finished."""
        with self._members:
            if self._sources.get(source.name) is source:
                del self._sources[source.name]
                self._ended[source.name] = clock

    def leave(self, reader: ScaleGateReader) -> None:
        """Let a reader go. The last one's place is kept: sources wait for it once their room is full."""
        with self._members:
            if self._readers.get(reader.place) is not reader:
                return
            if len(self._readers) == 1:
                self._readers[reader.place] = None
            else:
                self._arena.remove_reader(reader.place)
                del self._readers[reader.place]
                for rows in self._rows:
                    rows.remove_reader(reader.place)
        self.tell()

    def tell(self) -> None:
        """Wake those who wait, as something has changed that they may wait for."""
        if self._waiting:
            with self._news:
                self._news.notify_all()

    def wait_until(self, happened: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until something has happened; False if it had not within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + max(0.0, timeout)
        with self._news:
            # Whoever changes something afterwards sees that somebody waits; what changed before is seen here.
            self._waiting += 1
            try:
                while not happened():
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    wait(self._news, left)
                return True
            finally:
                self._waiting -= 1

    def _fix(self, schema: pa.Schema) -> None:
        time_kind(self._time, column_type(schema, self._time, "gate's"))
        self._schema = schema


class _Rows:
    """The rows of the sources that have one place of the gate, one after another, and how far each reader has come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: deque[tuple[int, pa.Table]] = deque()
        self._taken = {0: 0}
        self._dropped = 0
        self.count = 0
        """Rows ever; the next one has this number."""

    def append(self, table: pa.Table) -> None:
        """Add rows."""
        with self._lock:
            self._tables.append((self.count, table))
            self.count += table.num_rows

    def cut(self, end: int) -> None:
        """Take back the newest rows, from the one with number `end` on, if there are any."""
        with self._lock:
            while self._tables and self._tables[-1][0] + self._tables[-1][1].num_rows > end:
                first, table = self._tables.pop()
                if first < end:
                    self._tables.append((first, table.slice(0, end - first)))
            self.count = end

    def slices(self, begin: int, end: int) -> list[pa.Table]:
        """The rows with numbers from `begin` to before `end`."""
        with self._lock:
            tables = list(self._tables)
        return [
            table.slice(max(0, begin - first), min(end, first + table.num_rows) - max(begin, first))
            for first, table in tables
            if first < end and first + table.num_rows > begin
        ]

    def take(self, reader: int, end: int) -> None:
        """Record that a reader has the rows before `end`, and drop what all have."""
        with self._lock:
            self._taken[reader] = end
            self._drop()

    def add_reader(self, reader: int) -> None:
        """Keep rows for a new reader, which needs none that another has dropped."""
        with self._lock:
            self._taken[reader] = min(self._taken.values())

    def remove_reader(self, reader: int) -> None:
        """Keep rows no longer for a reader."""
        with self._lock:
            self._taken.pop(reader, None)
            self._drop()

    def _drop(self) -> None:
        end = min(self._taken.values())
        while self._tables and self._tables[0][0] + self._tables[0][1].num_rows <= end:
            self._tables.popleft()


class ScaleGateSource:
    """One source of a `ScaleGate`. Its times do not fall. As a context manager it finishes at the end of the block."""

    def __init__(self, gate: ScaleGate, name: str, slot: int, rows: _Rows) -> None:
        self._gate, self._name, self._slot, self._rows = gate, name, slot, rows
        self._lock = threading.Lock()
        self._finished = False
        self.tuples = 0
        """How many rows the gate has taken from this source."""

    @property
    def name(self) -> str:
        """The name it was opened with."""
        return self._name

    @property
    def time(self) -> object:
        """The time before which it can't send rows; None if it can send any."""
        return self._gate.value(self._gate.clock(self._slot))

    def push(self, data: object, *, timeout: float | None = None) -> int:
        """Add rows, in the order of their times; waits for room where `capacity` rows have not been read.

        Args:
            data: a table, as anything that `Join.push` takes.
            timeout: how many seconds to wait at the most; None for as long as it takes.

        Returns:
            How many rows the gate has taken: all of them without a `timeout`.

        Raises:
            InputError: a time is NULL, or before the one before it, or before `time`; nothing was taken.
            StateError: the source has finished; with the gate closed meanwhile, `tuples` says how many were taken.
        """
        table = self._gate.table(data, self._name)
        with self._lock:
            self._check_open()
            rows, ticks = self._gate.prepare(table, self._name, self._check_order)
            return self._add(rows, ticks, timeout) if rows.num_rows else 0

    def advance(self, time: object) -> None:
        """Declare that no row before `time`, a value of the time column, will come: readers need not wait for it."""
        tick = self._gate.tick(time)
        with self._lock:
            self._check_open()
            kernels.advance(self._gate.mem, self._slot, tick)
        self._gate.tell()

    def finish(self) -> None:
        """Declare that this source has ended; the gate stops waiting for it. May be called twice."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            self._gate.release(self, self._gate.clock(self._slot))
            members.finish(self._gate.mem, self._slot)
        self._gate.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def __repr__(self) -> str:
        return f"<source {self._name!r} of a ScaleGate: {self.tuples:,} rows{', finished' if self._finished else ''}>"

    def _add(self, rows: pa.Table, ticks: Array, timeout: float | None) -> int:
        gate, first, done = self._gate, self._rows.count, 0
        numbers = np.arange(first, first + ticks.size)
        made = gate.mem[source_at(gate.mem, self._slot) + COUNT :][:1]
        before = int(made[0])

        def takes() -> bool:
            begin = int(made[0]) - before
            return kernels.add(gate.mem, self._slot, ticks, numbers, begin, ticks.size) > begin or gate.is_closing

        try:
            self._rows.append(rows)
            takes()
            while int(made[0]) - before < ticks.size:
                gate.tell()
                if not gate.wait_until(takes, timeout) or gate.is_closing:
                    break
        finally:
            # Also after an interrupt, the rows that are kept are those in the gate.
            done = int(made[0]) - before
            self._rows.cut(first + done)
            self.tuples += done
            gate.tell()
        if done < ticks.size and gate.is_closing:
            raise StateError(
                f"the gate was closed while source {self._name!r} waited: {done} of {ticks.size} rows are in"
            )
        return done

    def _check_open(self) -> None:
        if self._finished:
            raise StateError(f"source {self._name!r} has finished and takes no more rows; open another one")

    def _check_order(self, ticks: Array, type_: pa.DataType) -> None:
        floor = self._gate.clock(self._slot)
        if ascends(ticks, floor):
            return
        at = int(np.argmax(ticks < np.concatenate([[floor], ticks[:-1]])))
        before = "the row before it" if at else "the time that its source has come to"
        own, last = (self._gate.value(int(tick), type_) for tick in (ticks[at], ticks[at - 1] if at else floor))
        raise InputError(
            f"row {at} of source {self._name!r} has the time {own}, earlier than {before}, {last}: a source's times do "
            "not fall; sort its rows"
        )


class ScaleGateReader(Iterator[pa.Table]):
    """One reader of a `ScaleGate`: gets every ready row, by `read` or by iteration until the gate is closed."""

    def __init__(self, gate: ScaleGate, place: int, rows: list[_Rows]) -> None:
        self._gate, self.place, self._rows = gate, place, rows
        self._lock = threading.Lock()
        self._closed = False
        # A table that was made and not handed out, as an interrupt came: where it ends in the gate and by source.
        self._made: tuple[pa.Table, int, list[tuple[int, int]]] | None = None

    def read(self, most: int = _MOST_ROWS, *, timeout: float | None = None) -> pa.Table | None:
        """The next ready rows, at least one and `most` at the most; None once the gate is closed and all was read.

        Args:
            most: how many rows to read at the most.
            timeout: how many seconds to wait for a row; 0 to look only, None for as long as it takes.

        Raises:
            TimeoutError: no row was ready for `timeout` seconds.
        """
        if most < 1:
            raise InputError(f"read takes at least one row, not most={most!r}")
        with self._lock:
            while True:
                if self._closed:
                    raise StateError("this reader is closed; open another one")
                # In this order: what is ready after the end is all there will be.
                ended = self._gate.is_closed
                table = self._take(most)
                if table is not None or ended:
                    return table
                if not self._gate.wait_until(self._has_news, timeout):
                    raise TimeoutError(f"no row of this gate was ready for {timeout:g} seconds")

    def close(self) -> None:
        """Read no more: sources do not wait for this reader from now on, unless it is the last. May be called twice."""
        self._closed = True
        self._gate.tell()
        with self._lock:
            self._gate.leave(self)

    def __next__(self) -> pa.Table:
        table = self.read()
        if table is None:
            raise StopIteration
        return table

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _has_news(self) -> bool:
        one = np.empty(1, np.int64)
        found, _ = kernels.peek(self._gate.mem, self.place, one, one, one, 0, 1)
        return bool(found) or self._gate.is_closed or self._closed

    def _take(self, most: int) -> pa.Table | None:
        """The rows that are ready, if there are any; their places are given back once they are a table."""
        self._made = self._made or self._merged(most)
        if self._made is None:
            return None
        table, head, taken = self._made
        kernels.release(self._gate.mem, self.place, head)
        for slot, end in taken:
            self._rows[slot].take(self.place, end)
        self._gate.tell()
        self._made = None
        return table

    def _merged(self, most: int) -> tuple[pa.Table, int, list[tuple[int, int]]] | None:
        slots, numbers, ticks = (np.empty(most, np.int64) for _ in range(3))
        n, head = kernels.peek(self._gate.mem, self.place, slots, numbers, ticks, 0, most)
        if not n:
            return None
        order = np.argsort(slots[:n], kind="stable")
        present, firsts = np.unique(slots[:n][order], return_index=True)
        pieces, taken = [], []
        for slot, first, end in zip(present.tolist(), firsts.tolist(), [*firsts[1:].tolist(), n], strict=True):
            # A reader gets the rows of a source one after another.
            begin = int(numbers[order[first]])
            pieces += self._rows[slot].slices(begin, begin + end - first)
            taken.append((slot, begin + end - first))
        table = pa.concat_tables(pieces)
        if len(taken) > 1:
            places = np.empty(n, np.int64)
            places[order] = np.arange(n)
            table = table.take(pa.array(places))
        return table, head, taken
