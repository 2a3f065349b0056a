"""The input half of the driver: turns pushed tables into work in gate order for the operator.

In arrival order the tuples are passed on directly, except late ones; in event-time order they wait in the gate until
they are ready. Rows that can't be joined, late or without a usable time, are set aside and counted.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.gate.merge import LEFT, RIGHT, EventTimeGate
from streamjoin.joins.engine.late import LateRows
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.operator import Operator
from streamjoin.joins.engine.ordered import Ordered, Work
from streamjoin.joins.kinds.base import Tail
from streamjoin.joins.kinds.left_operator import LeftOperator
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import InputError
from streamjoin.windows.buffer import Restore
from streamjoin.windows.clock import NEVER, Horizon, to_ticks

Sources = tuple[tuple[str, ...], tuple[str, ...]]

SIDES = ("left", "right")
_NO_TICKS = (None, None)
_NO_BOUNDS = (NEVER, NEVER)


class Intake:
    """Orders the input of one bound join."""

    def __init__(
        self,
        bound: BoundSpec,
        operator: Operator | LeftOperator,
        sources: Sources,
        counts: Counts,
        late: LateRows,
    ) -> None:
        self._bound = bound
        self._empty = _no_tuples(bound)
        self._operator = operator
        self._counts = counts
        self._late = late
        self._self_join = bound.spec.self_join
        self.sides = (LEFT,) if self._self_join else (LEFT, RIGHT)
        self._gate: EventTimeGate | None = None
        self._horizons: list[Horizon | None] = [None, None]
        if bound.spec.order == "event_time":
            self._gate = EventTimeGate((bound.left_schema, bound.right_schema), bound.lateness or 0, sides=self.sides)
            for side, names in enumerate(sources):
                for name in names:
                    self._gate.add(side, name)
        else:
            # A tuple probes the other side's window, which a late tuple would still need.
            for side in self.sides:
                probed = bound.windows if self._self_join else (bound.windows[1 - side],)
                lengths = [window.size for window in probed if window.kind == "time"]
                if lengths:
                    self._horizons[side] = Horizon(bound.lateness, max(lengths))
        self._has_horizons = self._horizons != [None, None]
        counts.seconds.setdefault("order", 0.0)
        # Whether tuples are joined as they come, whatever their times are.
        self._is_plain = self._gate is None and not operator.stores[LEFT].timed

    def feed(
        self,
        inputs: list[pa.Table | None],
        is_right: Array,
        source: str,
        arrived: Array | None = None,
        *,
        left_first: bool = False,
    ) -> Work:
        """Take one push; returns the tuples that can be joined now.

        `is_right` says which side each tuple belongs to, in arrival order; `left_first` that the left ones come first.
        """
        tables = [self._fitted(side, inputs[side]) for side in (LEFT, RIGHT)]
        if self._is_plain and not self._self_join:
            self._counts.tuples_left += tables[LEFT].num_rows
            self._counts.tuples_right += tables[RIGHT].num_rows
            ordered = Ordered((tables[LEFT], tables[RIGHT]), _NO_TICKS, is_right, left_first, arrived)
            return self._operator.begin(ordered, _NO_BOUNDS)
        if self._gate is not None:
            self._gate.check([(side, source) for side in self.sides if inputs[side] is not None])
        self._counts.tuples_left += tables[LEFT].num_rows
        self._counts.tuples_right += tables[RIGHT].num_rows
        with self._counts.step("order"):
            ticks, is_right = self._timed(tables, is_right, source)
            if self._gate is None:
                is_right = self._set_late_aside(tables, ticks, is_right, source)
            else:
                for side in self.sides:
                    if inputs[side] is not None:
                        self._push_gate(self._gate, side, source, tables[side], ticks[side])
        if self._gate is not None:
            return self._released(self._gate)
        if self._self_join:
            tables[RIGHT], ticks[RIGHT] = tables[LEFT], ticks[LEFT]
        if arrived is not None and arrived.size != is_right.size:
            # Some tuples were set aside; the others get the time of the first.
            arrived = np.full(is_right.size, arrived.min())
        ordered = Ordered((tables[LEFT], tables[RIGHT]), (ticks[LEFT], ticks[RIGHT]), is_right, left_first, arrived)
        return self._operator.begin(ordered, self._bounds())

    def release(self, everything: bool = False) -> Work | None:
        """The ready tuples of the gate; with `everything`, all waiting tuples, as at the end of the input."""
        if self._gate is not None:
            return self._released(self._gate, everything)
        if not everything:
            return None
        tables = (self._fitted(LEFT, None), self._fitted(RIGHT, None))
        none = np.empty(0, np.int64) if self._operator.has_times else None
        ordered = Ordered(tables, (none, none), np.empty(0, np.bool_))
        return self._operator.begin(ordered, self._bounds(), Tail(NEVER, last=True))

    def _released(self, gate: EventTimeGate, everything: bool = False) -> Work:
        with self._counts.step("order"):
            ready = gate.release(everything)
        tables, ticks = ready.tables, ready.ticks
        if self._self_join:
            tables, ticks = (tables[LEFT], tables[LEFT]), (ticks[LEFT], ticks[LEFT])
        ordered = Ordered(tables, ticks, ready.is_right, arrived=ready.stamps)
        return self._operator.begin(ordered, None, Tail(gate.tick, last=everything))

    def collect(self, side: int, source: str, table: pa.Table, arrived: Array) -> None:
        """Take tuples of one source into the gate and release none."""
        if self._gate is None:
            raise AssertionError("event-time order without a gate")
        self._gate.check([(side, source)])
        tables = [self._fitted(each, table if each == side else None) for each in (LEFT, RIGHT)]
        if side == LEFT:
            self._counts.tuples_left += table.num_rows
        else:
            self._counts.tuples_right += table.num_rows
        with self._counts.step("order"):
            ticks, _ = self._timed(tables, np.full(table.num_rows, side == RIGHT), source)
            if tables[side].num_rows != arrived.size:
                arrived = np.full(tables[side].num_rows, arrived.min())
            self._push_gate(self._gate, side, source, tables[side], ticks[side], arrived)

    @property
    def gate(self) -> EventTimeGate | None:
        """The gate, in event-time order."""
        return self._gate

    def saved(self) -> Restore:
        """Return a function that restores the order of the input and the operator."""
        bound, empty = self._bound, self._empty
        parts = [self._operator.saved()]
        if self._gate is not None:
            parts.append(self._gate.saved())
        if self._has_horizons:
            parts += [horizon.saved() for horizon in self._horizons if horizon is not None]

        def restore() -> None:
            self._bound, self._empty = bound, empty
            for part in parts:
                part()

        return restore

    def advance(self, side: int, source: str, time: object) -> None:
        """Move a source's clock to `time`, a value of its time column."""
        if self._gate is None:
            raise AssertionError("event-time order without a gate")
        self._gate.advance(side, source, tick_of(self._bound, side, time))

    def retype(self, bound: BoundSpec) -> None:
        """Switch to a spec bound to schemas that give types to columns that were all NULL so far."""
        if self._gate is not None:
            self._gate.retype((bound.left_schema, bound.right_schema))
        self._bound, self._empty = bound, _no_tuples(bound)

    def finish(self, side: int, source: str) -> None:
        """Stop waiting for a source."""
        if self._gate is None:
            raise AssertionError("event-time order without a gate")
        self._gate.finish(side, source)

    @property
    def waiting(self) -> int:
        """The number of tuples that are not ready."""
        return 0 if self._gate is None else self._gate.waiting

    @property
    def nbytes(self) -> int:
        """Bytes held by waiting tuples."""
        return 0 if self._gate is None else self._gate.nbytes

    def _fitted(self, side: int, table: pa.Table | None) -> pa.Table:
        """A push with the stored columns: all, unless the result has only some of them."""
        empty = self._empty[side]
        if table is None:
            return empty
        return table if table.num_columns == empty.num_columns else table.select(empty.schema.names)

    def _timed(self, tables: list[pa.Table], is_right: Array, source: str) -> tuple[list[Array | None], Array]:
        """Each side's ticks where they are needed; rows without a usable time are set aside."""
        plan = self._bound.time
        if not self._operator.has_times or plan is None:
            return [None, None], is_right
        ticks: list[Array | None] = []
        for side, name in enumerate((plan.left, plan.right)):
            values, bad = to_ticks(tables[side].column(name), plan.multipliers[side])
            if bad is not None and bad.any():
                self._counts.rejected += int(bad.sum())
                reason = "no usable time"
                tables[side], values, is_right = self._set_aside(
                    side, source, reason, tables[side], values, is_right, bad
                )
            ticks.append(values)
        return ticks, is_right

    def _set_aside(
        self, side: int, source: str, reason: str, table: pa.Table, ticks: Array, is_right: Array, bad: Array
    ) -> tuple[pa.Table, Array, Array]:
        """Move the rows of `bad` to the late output and take them out of the order."""
        self._late.add(SIDES[side], source, reason, table.filter(pa.array(bad)))
        keep = np.ones(is_right.size, np.bool_)
        own = np.flatnonzero(is_right == (side == RIGHT))
        keep[own[bad]] = False
        return table.filter(pa.array(~bad)), ticks[~bad], is_right[keep]

    def _push_gate(
        self,
        gate: EventTimeGate,
        side: int,
        source: str,
        table: pa.Table,
        ticks: Array | None,
        arrived: Array | None = None,
    ) -> None:
        if ticks is None:
            raise AssertionError("event-time order without ticks")
        late = gate.push(side, source, table, ticks, arrived)
        if late.any():
            self._counts.late += int(late.sum())
            self._late.add(SIDES[side], source, "late", table.filter(pa.array(late)))

    def _set_late_aside(self, tables: list[pa.Table], ticks: list[Array | None], is_right: Array, source: str) -> Array:
        for side in self.sides:
            horizon, side_ticks = self._horizons[side], ticks[side]
            if horizon is None or side_ticks is None or horizon.passes(side_ticks):
                continue
            late = horizon.late(side_ticks)
            if late.any():
                self._counts.late += int(late.sum())
                tables[side], ticks[side], is_right = self._set_aside(
                    side, source, "late", tables[side], side_ticks, is_right, late
                )
        return is_right

    def _bounds(self) -> tuple[int, int]:
        """The times before which tuples of the left and the right side are rejected."""
        if not self._has_horizons:
            return NEVER, NEVER
        left, right = (NEVER if horizon is None else horizon.bound for horizon in self._horizons)
        return (left, left) if self._self_join else (left, right)


def tick_of(bound: BoundSpec, side: int, time: object) -> int:
    """`time`, a value of a side's time column, in ticks."""
    plan = bound.time
    if plan is None:
        raise AssertionError("a time without a time column")
    schema, name = ((bound.left_schema, plan.left), (bound.right_schema, plan.right))[side]
    return one_tick(schema.field(name), time, plan.multipliers[side])


def one_tick(field: pa.Field, time: object, multiplier: int = 1) -> int:
    """`time`, a value of a time column, in ticks."""
    try:
        column = _one_time(time, field.type)
    except (pa.ArrowException, OverflowError) as error:
        raise InputError(f"advance({time!r}): {field.name!r} is {field.type}; give a time of that type") from error
    ticks, bad = to_ticks(column, multiplier)
    if bad is not None and bad.any():
        raise InputError(f"advance({time!r}): this time is out of range")
    return int(ticks[0])


def _one_time(time: object, type_: pa.DataType) -> pa.Array:
    if isinstance(time, np.datetime64 | np.timedelta64):
        # Arrow accepts a NumPy scalar only in its own unit, but an array in any.
        return pa.array(np.array([time])).cast(type_)
    return pa.array([time], type_)


def _no_tuples(bound: BoundSpec) -> tuple[pa.Table, pa.Table]:
    return bound.left_schema.empty_table(), bound.right_schema.empty_table()
