"""What processing threads compare of a source's tuples: the words of terms, and what the residual's program reads.

A source calls it in its own thread, before its tuples enter the gate (`inlets.py`); `kernels/rings.py` has the layout.
Terms are encoded by compiled steps where the join has them, and otherwise column by column, with the same words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.jit.machine import I64
from streamjoin.joins.engine.push_plan import PushInputs, PushPlan, fixed_widths, one_batch
from streamjoin.kernels.positions import TERMS, VALID
from streamjoin.model.binding import BoundSpec
from streamjoin.model.expression.evaluation import from_arrow
from streamjoin.scalejoin.kernels.rings import line_words
from streamjoin.windows.conditions import Condition
from streamjoin.windows.encoding import SideEncoder, flat
from streamjoin.windows.store import is_fixed


class EncodedTuples(NamedTuple):
    """One push on its way into the gate."""

    block: I64
    """The words of the terms, as in `kernels.encode`: of a self-join for left and then for right roles."""
    conditions: I64
    """By role and tuple, what the residual's program reads."""
    columns: Array
    """The table of the columns of both sides."""
    owner: object
    """What keeps the columns' memory alive."""


class LineEncoder:
    """The encoding of one join, for all sources."""

    def __init__(self, bound: BoundSpec, compiled: PushPlan | None, condition: Condition | None) -> None:
        self._compiled, self._condition = compiled, condition
        self.roles = 2 if bound.spec.self_join else 1
        self._schemas = bound.left_schema, bound.right_schema
        self._encoders = SideEncoder(bound, "left"), SideEncoder(bound, "right")
        self.terms = TERMS + 3 * np.arange(len(bound.terms))
        """The row of a block at which each term begins."""
        self.columns = 0 if condition is None else max(map(len, condition.parts))
        self.words = line_words(self.roles, self.terms.size, self.columns)
        """The words of a line."""
        self._widths = fixed_widths(bound.left_schema), fixed_widths(bound.right_schema)
        read = [set(self._encoders[side].columns) | self._conditions_of(side) for side in range(2)]
        if self.roles == 2:
            read = [read[0] | read[1]] * 2
        self._unread = [
            [i for i, field in enumerate(schema) if not is_fixed(field.type) and field.name not in names]
            for schema, names in zip(self._schemas, read, strict=True)
        ]

    def _conditions_of(self, side: int) -> set[str]:
        return set() if self._condition is None else {column.name for column in self._condition.columns(side)}

    def encode(self, side: int, rows: pa.Table) -> EncodedTuples:
        """Encode some tuples; from any thread."""
        for place in self._unread[side]:
            # Nobody looks at it here.
            rows = rows.set_column(place, rows.schema.field(place).name, pa.nulls(rows.num_rows))
        conditions = self._rows(side, rows)
        if self._compiled is not None:
            block, columns = self._compiled.encode_side(side, rows)
            return EncodedTuples(block.words, conditions, columns, block.owners)
        inputs = PushInputs(self._widths, max(map(len, self._schemas)))
        batch = one_batch(rows)
        inputs.read(None if side else batch, batch if side else None)
        return EncodedTuples(self._words(side, rows), conditions, inputs.columns, batch)

    def _rows(self, side: int, rows: pa.Table) -> I64:
        n, condition = rows.num_rows, self._condition
        found = np.zeros((self.roles, n, self.columns), np.int64)
        if condition is not None:
            for role in range(self.roles):
                values = {column: from_arrow(flat(rows[column.name])) for column in condition.columns(side + role)}
                own = condition.rows(side + role, values, n)
                found[role, :, : own.shape[1]] = own
        return found

    def _words(self, side: int, rows: pa.Table) -> I64:
        n = rows.num_rows
        words = np.empty((TERMS + 3 * self.terms.size, self.roles * n), np.int64)
        for role in range(self.roles):
            part = words[:, role * n : (role + 1) * n]
            encoded = self._encoders[side + role].encode(rows)
            part[VALID] = True if encoded.valid is None else encoded.valid
            for row, term in zip(self.terms.tolist(), encoded.terms, strict=True):
                part[row], part[row + 1], part[row + 2] = term.word, term.lo, term.hi
        return words
