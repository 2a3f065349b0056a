"""The steps of a small push as a few compiled calls: read the batches, encode, store, place, gather.

Per push this is a dozen calls instead of hundreds. It changes the same stores and the same algorithm as the general
way of `engine/operator.py`, so any push may take either. Rows are written behind the stored ones and become visible
at once, at the end of `take_in`: a push that has to take the general way after all has changed nothing until then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.base import Chunk, SidePart
from streamjoin.joins.engine.compiled_plan import CompiledPlan, OutputSource, compile_plan, inputs_for
from streamjoin.joins.engine.later import later
from streamjoin.joins.engine.ordered import Ordered
from streamjoin.joins.engine.result_message import ResultMessage
from streamjoin.kernels.machine import I64
from streamjoin.kernels.positions import (
    AT,
    FIRST,
    GROWS,
    IS_TIMED,
    LEAST,
    MIN_SEQ,
    OPS,
    OWN_MIN,
    OWN_SEQ,
    SIDE_FIELDS,
    SIZE,
    TERMS,
    TICKS,
    UPTO,
    VALID,
    WORD,
    ascends,
    merge_roles,
    place_roles,
    place_tuples,
)
from streamjoin.kernels.push import read_batches, take_rows
from streamjoin.kernels.rows import (
    LATER,
    LINE,
    NO_COLUMN,
    OUTPUT_FIELDS,
    STRUCT_WORDS,
    gather_pairs,
    read_batch,
    store_push,
    store_rows,
)
from streamjoin.model.binding import BoundSpec, TimePlan
from streamjoin.windows.clock import NEVER
from streamjoin.windows.encoding import Encoded, flat, for_kernels
from streamjoin.windows.store import SideStore
from streamjoin.windows.words import TermWords
from streamjoin.windows.workers import Workers

# How many pushes take the general way before the kernels are compiled: by then they have cost as much as compiling.
_PATIENCE = 1 << 14
# The same, whether the kernels are compiled or not.
_fixed_patience: int | None = None

# Other kinds of joins do more in a step than compiled steps know of.
_KINDS: frozenset[str] = frozenset({"inner"})
_ALONE = Workers(1)
_NO_COLUMNS: dict[str, pa.Array] = {}
_EMPTY = np.empty(0, np.int64)
_NO_FLAGS = np.empty(0, np.bool_)


@contextlib.contextmanager
def patience(pushes: int) -> Iterator[None]:
    """Joins that learn their schemas in the block take the general way so many times: for warm-ups and tests."""
    global _fixed_patience
    before, _fixed_patience = _fixed_patience, pushes
    try:
        yield
    finally:
        _fixed_patience = before


class ColumnArrays(Protocol):
    """A batch of NumPy columns that have the types of a side's schema."""

    def describe(self, columns: Array) -> None:
        """Fill the table of the columns (see `kernels.rows`)."""

    def arrow_column(self, place: int) -> pa.Array:
        """One column as an Arrow array."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""


class EncodedPush:
    """The tuples of a push as words: see `kernels.encode_rows`."""

    def __init__(self, words: Array, n_left: int, all_valid: bool, owners: tuple[object, ...]) -> None:
        self.words = words
        self.ops, self.own_seq = words[OPS], words[OWN_SEQ]
        self.counts = n_left, words.shape[1] - n_left
        self.all_valid = all_valid
        self.owners = owners
        """What keeps the memory of the batches alive."""

    @property
    def n(self) -> int:
        """The number of tuples; a self-join's count twice."""
        return int(self.words.shape[1])

    def task(self, index_row: int, in_order: bool) -> tuple[Array, ...]:
        """The columns of an index's task: see `indexes.base.push_task`."""
        words = self.words
        first = index_row if in_order else WORD
        return (
            self.ops, words[first], words[first + 1], words[first + 2], self.own_seq, words[MIN_SEQ], words[OWN_MIN]
        )  # fmt: skip


class CompiledStep:
    """The compiled steps of one bound join."""

    def __init__(self, bound: BoundSpec, stores: tuple[SideStore, SideStore], plan: CompiledPlan) -> None:
        self._plan = plan
        self._stores = stores
        self._self_join = bound.spec.self_join
        self._schema = bound.schema
        self._payload = (stores[0], stores[0] if self._self_join else stores[1])
        self._timed = stores[0].timed
        rows = [TERMS + 3 * term for term in range(plan.n_terms)]
        self._stored_rows = np.array([*rows, TICKS] if self._timed else rows, np.int64)
        self._inputs = inputs_for(plan)
        # Arrow's C structures of a left and a right batch.
        self._structs = np.zeros((2, STRUCT_WORDS), np.int64)
        self._left_struct = int(self._structs.ctypes.data)
        self._right_struct = self._left_struct + STRUCT_WORDS * 8
        self._sides = np.zeros((2, SIDE_FIELDS), np.int64)
        gated = bound.spec.order == "event_time"
        for side, window in enumerate(bound.windows):
            self._sides[side, SIZE] = window.size
            self._sides[side, IS_TIMED] = window.kind == "time"
            self._sides[side, GROWS] = gated or window.kind == "count"
        self._shift = np.zeros(2, np.int64)
        self._time = bound.time
        self._form = _Form(plan, bound.schema, self._payload, bound.time)
        self._no_rows = bound.schema.empty_table()
        self._patience = _fixed_patience if _fixed_patience is not None else 0 if plan.is_compiled else _PATIENCE

    @classmethod
    def of(cls, bound: BoundSpec, stores: tuple[SideStore, SideStore]) -> CompiledStep | None:
        """The steps of a bound join, or None where it is not an inner join or its condition has no compiled plan."""
        if bound.spec.how not in _KINDS:
            return None
        payload = stores[0] if bound.spec.self_join else stores[1]
        plan = compile_plan(bound, (stores[0].arrow_names, payload.arrow_names))
        return None if plan is None else cls(bound, stores, plan)

    @property
    def index_row(self) -> int:
        """The row of the index words in side order."""
        return self._plan.index_row

    @property
    def rows(self) -> int:
        """The number of rows of a push's block of words."""
        return self._plan.rows

    @property
    def is_ready(self) -> bool:
        """Whether pushes take compiled steps by now."""
        return not self._patience

    def is_due(self) -> bool:
        """Whether the kernels are compiled, or so many pushes went without them that compiling pays."""
        if not self._patience:
            return True
        self._patience -= 1
        return False

    def encode(self, batches: tuple[Any, Any]) -> EncodedPush | None:
        """The words of a push, one batch per side; None if kernels can't read a batch."""
        n_left, owner = self._read_own(0, batches[0])
        n_right, other = (n_left, None) if self._self_join else self._read_own(1, batches[1])
        if n_left < 0 or n_right < 0:
            return None
        if self._self_join:
            self._inputs[1] = self._inputs[0]
        words = np.empty((self._plan.rows, n_left + n_right), np.int64)
        unmatched = 0
        for encode in self._plan.encoders:
            unmatched += encode(self._inputs, words, n_left)
        return EncodedPush(words, n_left, unmatched == 0, (owner, other))

    def store(self, block: EncodedPush, ordered: Ordered, least: tuple[int, int], shared: bool) -> bool:
        """Store the tuples of a block and find their positions and windows.

        Returns False, with nothing changed, if they need the general way. `least` are the smallest positions that the
        sides' indexes must keep; `shared` says that a self-join has one index for both roles.
        """
        words, (n_left, n_right), stores, sides = block.words, block.counts, self._stores, self._sides
        if self._timed and not self._take_ticks(words, ordered.ticks, n_left):
            return False
        self._write(0, words, 0, n_left)
        self._write(1, words, n_left, n_right)
        left_ticks = right_ticks = _EMPTY
        if self._timed:
            left_ticks, right_ticks = stores[0].ticks_upto(n_left), stores[1].ticks_upto(n_right)
        sides[0, FIRST], sides[1, FIRST] = stores[0].count, stores[1].count
        sides[0, LEAST], sides[1, LEAST] = least
        if self._self_join:
            place_roles(words, sides, self._plan.index_row, left_ticks, shared)
        else:
            flags = _NO_FLAGS if ordered.left_first else for_kernels(np.ascontiguousarray(ordered.is_right))
            place_tuples(words, flags, sides, n_left, self._plan.index_row, left_ticks, right_ticks)
        left, right = ordered.tables
        stores[0].include(self._arrow_columns(0, left) if stores[0].arrow_names else _NO_COLUMNS, n_left)
        stores[1].include(self._arrow_columns(1, right) if stores[1].arrow_names else _NO_COLUMNS, n_right)
        return True

    def take_in(self, block: EncodedPush, left: Any, right: Any, least: tuple[int, int]) -> bool:
        """`encode` and `store` for tuples without times, the left ones first, given as record batches or arrays.

        Returns False, with nothing changed, if they need another way.
        """
        stores, plan, inputs, words = self._stores, self._plan, self._inputs, block.words
        left_is_arrow, right_is_arrow = isinstance(left, pa.RecordBatch), isinstance(right, pa.RecordBatch)
        if left_is_arrow:
            left._export_to_c(self._left_struct)
        if right_is_arrow:
            right._export_to_c(self._right_struct)
        if left_is_arrow or right_is_arrow:
            read_batches(self._left_struct, self._right_struct, plan.widths[0], plan.widths[1], inputs)
        # Only now: a structure that an interrupt has left behind was read as well.
        if not left_is_arrow:
            left.describe(inputs[0])
        if not right_is_arrow:
            right.describe(inputs[1])
        n_left, n_right = left.num_rows, right.num_rows
        for encode in plan.encoders:
            encode(inputs, words, n_left)
        stores[0].block.reserve(n_left)
        stores[1].block.reserve(n_right)
        column = take_rows(
            inputs, words, self._stored_rows, stores[0].layout(), stores[1].layout(), stores[0].block.end,
            stores[1].block.end, stores[0].count, stores[1].count, least[0], least[1], self._sides, n_left,
            plan.index_row, plan.widths[0].size, plan.widths[1].size,
        )  # fmt: skip
        if column != NO_COLUMN:
            return False
        stores[0].include(self._arrow_columns(0, left) if stores[0].arrow_names else _NO_COLUMNS, n_left)
        stores[1].include(self._arrow_columns(1, right) if stores[1].arrow_names else _NO_COLUMNS, n_right)
        return True

    def begin(self) -> None:
        """Take the compiled steps from the first push on, even if that compiles them."""
        self._patience = 0 if _fixed_patience is None else _fixed_patience

    def take_push(self, side: int, batch: Any, own: I64, arrived: I64, now: int) -> EncodedPush | None:
        """Encode and store a push of one side, in arrival order and without times; None if kernels can't read it.

        `own` and `arrived` get, for each tuple, its position doubled plus its side, and the time `now`.
        """
        n, owner = self._read_own(side, batch)
        if n < 0:
            return None
        stores, sides, n_left = self._stores, self._sides, 0 if side else n
        store = stores[side]
        words = np.empty((self._plan.rows, n), np.int64)
        unmatched = 0
        for encode in self._plan.encoders:
            unmatched += encode(self._inputs, words, n_left)
        store.block.reserve(n)
        sides[0, FIRST], sides[1, FIRST] = stores[0].count, stores[1].count
        sides[0, LEAST] = sides[1, LEAST] = 0
        while True:
            column = store_push(
                self._inputs[side], len(store.schema), words, self._stored_rows, store.layout(), store.block.end,
                sides, n_left, self._plan.index_row, own, arrived, now,
            )  # fmt: skip
            if column == NO_COLUMN:
                break
            store.mark_nulls([store.schema.names[column]])
        store.include(_NO_COLUMNS, n)
        return EncodedPush(words, n_left, unmatched == 0, (owner,))

    def encode_side(self, side: int, batch: Any) -> tuple[EncodedPush, Array]:
        """The words of one side's tuples of fixed width, and the table of their columns; from any thread."""
        inputs, struct = inputs_for(self._plan), np.zeros(STRUCT_WORDS, np.int64)
        n, owner = self._read(side, batch, int(struct.ctypes.data), inputs)
        if n < 0:
            raise AssertionError("a table of more than one batch")
        words = np.empty((self._plan.rows, n), np.int64)
        unmatched = 0
        for encode in self._plan.encoders:
            unmatched += encode(inputs, words, 0 if side else n)
        return EncodedPush(words, 0 if side else n, unmatched == 0, (owner,)), inputs

    def _read_own(self, side: int, batch: Any) -> tuple[int, object]:
        """`_read` into this object's own structures."""
        return self._read(side, batch, self._right_struct if side else self._left_struct, self._inputs)

    def _read(self, side: int, batch: Any, struct: int, inputs: Array) -> tuple[int, object]:
        """Describe a batch in `inputs`; returns its rows, and what keeps its memory alive. -1 if it has no form."""
        if isinstance(batch, pa.Table):
            if not batch.num_rows:
                return 0, None
            batches = batch.to_batches()
            if len(batches) != 1:
                batches = batch.combine_chunks().to_batches()
            if not batches:
                return 0, None
            if len(batches) > 1:
                return -1, None
            batch = batches[0]
        if not isinstance(batch, pa.RecordBatch):
            batch.describe(inputs[side])
            return batch.num_rows, batch
        batch._export_to_c(struct)
        return read_batch(struct, self._plan.widths[side], inputs[side]), batch

    def _take_ticks(self, words: Array, ticks: tuple[Array | None, Array | None], n_left: int) -> bool:
        """Fill the row of ticks; False if they do not ascend, so that windows are not ranges of positions."""
        for side, (begin, end) in enumerate(((0, n_left), (n_left, words.shape[1]))):
            own, stored = ticks[0 if self._self_join else side], self._stores[side].ticks
            if own is None or stored is None:
                raise AssertionError("a join by time without times")
            words[TICKS, begin:end] = own
            if not ascends(words[TICKS, begin:end], int(stored[-1]) if stored.size else NEVER):
                return False
        return True

    def _write(self, side: int, words: Array, begin: int, n: int) -> None:
        """Write a side's new rows, whose words begin at `begin`, behind its stored ones."""
        if not n:
            return
        store = self._stores[side]
        store.block.reserve(n)
        while True:
            column = store_rows(
                self._inputs[side], len(store.schema), words, begin, n, self._stored_rows, store.layout(),
                store.block.end,
            )  # fmt: skip
            if column == NO_COLUMN:
                break
            store.mark_nulls([store.schema.names[column]])

    def _arrow_columns(self, side: int, batch: Any) -> dict[str, pa.Array]:
        """The columns of a batch that stay in Arrow arrays."""
        store = self._stores[side]
        columns = {}
        for name in store.arrow_names:
            place = store.schema.get_field_index(name)
            if isinstance(batch, pa.Table):
                columns[name] = flat(batch.column(place))
            elif isinstance(batch, pa.RecordBatch):
                columns[name] = batch.column(place)
            else:
                columns[name] = batch.arrow_column(place)
        return columns

    def chunk(self, block: EncodedPush, is_right: Array) -> Chunk:
        """The tuples as an algorithm takes them."""
        words, (n_left, n_right), plan = block.words, block.counts, self._plan
        parts = []
        for side, begin, n in ((0, 0, n_left), (1, n_left, n_right)):
            own = words[:, begin : begin + n]
            terms = [TermWords(own[r], own[r + 1], own[r + 2]) for r in range(TERMS, TERMS + 3 * plan.n_terms, 3)]
            index = None
            if plan.index_row >= 0:
                term = (plan.index_row - TERMS) // 3
                row = plan.index_row
                index = terms[term] if term < len(terms) else TermWords(own[row], own[row + 1], own[row + 2])
            valid = None if block.all_valid else own[VALID].astype(np.bool_)
            parts.append(SidePart(Encoded(n, valid, tuple(terms), index), own[AT], int(self._sides[side, FIRST])))
        if self._self_join:
            is_right = np.tile(np.array([False, True]), n_left)
        return Chunk(is_right, words[OWN_SEQ], words[UPTO], words[MIN_SEQ], parts[0], parts[1])

    def gather(self, block: EncodedPush, probes: Array, seqs: Array) -> pa.Table:
        """The result rows of pairs; a self-join's are put into the order of the result, in place."""
        n, (left, right) = probes.size, self._payload
        if not n:
            return self._no_rows
        if self._self_join:
            merge_roles(probes, seqs)
        form = self._form
        if form.nullable[0] is not left.nullable or form.nullable[1] is not right.nullable:
            form = self._form = _Form(self._plan, self._schema, self._payload, self._time)
        batch = self._gather_fixed(form, form.message, block, probes, seqs) if form.message is not None else None
        if batch is not None and not form.others:
            return pa.Table.from_batches([batch])
        own, is_right = block.own_seq[probes], block.ops[probes] & 1 == 1
        places = np.where(is_right, seqs, own), np.where(is_right, own, seqs)
        arrays = [] if batch is None else batch.columns
        for place, output in form.others:
            arrays.insert(place, self._gather_by_arrow(output, places))
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _gather_fixed(
        self, form: _Form, result: ResultMessage, block: EncodedPush, probes: Array, seqs: Array
    ) -> pa.RecordBatch:
        left, right = self._payload
        self._shift[0] = left.block.begin - left.base
        self._shift[1] = right.block.begin - right.base
        message = pa.allocate_buffer(form.size(probes.size))
        gather_pairs(
            left.layout(), right.layout(), probes, seqs, block.ops, block.own_seq, self._shift,
            form.numbers, result.header, result.marks, message.address,
        )  # fmt: skip
        return result.read(message)

    def _gather_by_arrow(self, output: OutputSource, places: tuple[Array, Array]) -> pa.Array:
        if output.side != LATER:
            return self._payload[output.side].gather([output.name], places[output.side], _ALONE)[output.name]
        if self._time is None:
            raise AssertionError("a result's time without times")
        names = self._time.left, self._time.right
        times = [self._payload[side].gather([name], places[side], _ALONE)[name] for side, name in enumerate(names)]
        return later(times, self._time.type)


class _Form:
    """What the kernel gathers and what Arrow does; it changes when a column gets its first NULL."""

    def __init__(
        self,
        plan: CompiledPlan,
        schema: pa.Schema,
        stores: tuple[SideStore, SideStore],
        time: TimePlan | None,
    ) -> None:
        self.nullable = stores[0].nullable, stores[1].nullable
        # The kernel takes the later one of two times as numbers, which NULL is not.
        null_times = time is not None and (stores[0].has_nulls(time.left) or stores[1].has_nulls(time.right))
        gathered = []
        self.others: list[tuple[int, OutputSource]] = []
        for place, output in enumerate(plan.outputs):
            if output.numbers is None or (output.side == LATER and null_times):
                self.others.append((place, output))
            else:
                gathered.append((place, output))
        self.numbers = np.array([output.numbers for _, output in gathered], np.int64).reshape(-1, OUTPUT_FIELDS)
        self.message: ResultMessage | None = None
        if gathered:
            self.message = ResultMessage(pa.schema([schema.field(place) for place, _ in gathered], schema.metadata))
        self._bitmaps = sum(
            output.side != LATER and stores[output.side].has_nulls(output.name) for _, output in gathered
        )
        self._row_size = sum(output.width for _, output in gathered)
        header = 0 if self.message is None else 8 * self.message.header.size
        # Each column and each bitmap may end up to a line later, and a bitmap takes a byte for 8 rows.
        self._fixed_size = header + LINE * (len(gathered) + 2 * self._bitmaps)

    def size(self, n: int) -> int:
        """Bytes that hold the message of `n` rows."""
        return self._fixed_size + n * self._row_size + n * self._bitmaps // 8
