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
from streamjoin.model.large_columns import CHUNK_BYTES
from streamjoin.scalejoin.kernels.rings import line_words
from streamjoin.windows.conditions import Condition
from streamjoin.windows.encoding import SideEncoder, flat
from streamjoin.windows.store import is_fixed

# Beyond these, terms are tested on the pairs that were found.
_MOST_FINDING = 2


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

    def __init__(
        self, bound: BoundSpec, compiled: PushPlan | None, condition: Condition | None, *, indexed: bool
    ) -> None:
        self._compiled, self._condition = compiled, condition
        self.roles = 2 if bound.spec.self_join else 1
        self._schemas = bound.left_schema, bound.right_schema
        self._encoders = SideEncoder(bound, "left"), SideEncoder(bound, "right")
        rows = [TERMS + 3 * term for term in range(len(bound.terms))]
        self._has_index_word = False
        # The words of an index find pairs, also without one: those of texts, for example, or of a text and a number.
        if bound.settled:
            rows.sort(key=lambda row: (row - TERMS) // 3 not in bound.settled)
        elif indexed or any(term not in bound.terms for term in bound.index):
            self._has_index_word = True
            rows.insert(0, TERMS + 3 * len(rows) if compiled is None else compiled.index_row)
        self.terms = np.array(rows, np.int64)
        """The row of a block at which each term begins; those that find pairs come first."""
        self.finding = min(1 if indexed else _MOST_FINDING, len(rows))
        """How many find pairs."""
        self.narrow = not (indexed or self._has_index_word) and all(
            bound.terms[(row - TERMS) // 3].narrow for row in rows[: self.finding]
        )
        """Whether these have words of 32 bits."""
        self.columns = 0 if condition is None else max(map(len, condition.parts))
        self.words = line_words(self.roles, self.terms.size, self.columns)
        """The words of a line."""
        self._widths = fixed_widths(bound.left_schema), fixed_widths(bound.right_schema)
        # What the rings have no room for, and of that what the compiled encoding does not read.
        self._carried = [[i for i, field in enumerate(schema) if not is_fixed(field.type)] for schema in self._schemas]
        encoded = {*self._encoders[0].columns, *self._encoders[1].columns} if self.roles == 2 else set()
        self._unread = [
            [i for i in places if schema.field(i).name not in (encoded or encoder.columns)]
            for places, schema, encoder in zip(self._carried, self._schemas, self._encoders, strict=True)
        ]

    def encode(self, side: int, rows: pa.Table) -> EncodedTuples:
        """Encode some tuples; from any thread."""
        conditions = self._rows(side, rows)
        read = _without(rows, self._unread[side])
        if self._compiled is not None and read.nbytes <= CHUNK_BYTES:
            block, columns = self._compiled.encode_side(side, read)
            return EncodedTuples(block.words, conditions, columns, block.owners)
        batch = one_batch(_without(rows, self._carried[side]))
        inputs = PushInputs(self._widths, max(map(len, self._schemas)))
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
        n, rows_of_terms = rows.num_rows, sorted(self.terms.tolist())
        # The compiled encoding may leave rows between those of the terms and that of the index.
        words = np.empty((max([*rows_of_terms, TERMS - 3]) + 3, self.roles * n), np.int64)
        for role in range(self.roles):
            part = words[:, role * n : (role + 1) * n]
            encoded = self._encoders[side + role].encode(rows)
            part[VALID] = True if encoded.valid is None else encoded.valid
            terms = [*encoded.terms, *([encoded.index] if self._has_index_word and encoded.index else [])]
            for row, term in zip(rows_of_terms, terms, strict=True):
                part[row], part[row + 1], part[row + 2] = term.word, term.lo, term.hi
        return words


def _without(rows: pa.Table, places: list[int]) -> pa.Table:
    """The rows with nothing but NULL in some columns."""
    for place in places:
        rows = rows.set_column(place, rows.schema.field(place).name, pa.nulls(rows.num_rows))
    return rows
