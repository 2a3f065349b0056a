"""How the pushes of a join go through kernels: decided once, when the schemas are known.

The plan holds, as arrays of numbers, where each key is in a pushed batch, how it becomes words, where stored columns go
and what the result takes. A push is then a dozen compiled calls: read the batches, encode, store, place, gather. It
changes the same stores as the general way of `engine/operator.py`, so any push may take either. Rows are written
behind the stored ones and become visible at once, at the end of `store`: a push that has to take the general way after
all has changed nothing until then. A condition that has no plan (decimals, mixed number types, booleans) takes the
general way, with the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.jit.flags import is_compiled
from streamjoin.jit.machine import I64
from streamjoin.joins.base import Chunk, SidePart
from streamjoin.joins.engine.numpy_input import NumpyReader
from streamjoin.joins.engine.ordered import Ordered
from streamjoin.joins.engine.refine import TimeReach, too_new
from streamjoin.joins.engine.result_rows import OutputSource, ResultForm, ResultMessage, later_time
from streamjoin.kernels import encode as kernels
from streamjoin.kernels.positions import (
    AT,
    END,
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
from streamjoin.kernels.rows import (
    INPUT_FIELDS,
    LATER,
    NO_COLUMN,
    STRUCT_WORDS,
    gather_pairs,
    read_batches,
    store_sides,
    take_rows,
)
from streamjoin.kernels.times import length_word
from streamjoin.model.binding import BoundSpec
from streamjoin.model.keys import Comparison, KeyColumn, KeyTerm, WordKind
from streamjoin.model.predicates import Equi
from streamjoin.windows.clock import NEVER, plus
from streamjoin.windows.encoding import (
    Encoded,
    SideName,
    composed_scale,
    composed_shift,
    flat,
    for_kernels,
    interval_limits,
    own_and_other,
)
from streamjoin.windows.store import SideStore, is_fixed
from streamjoin.windows.words import TermWords
from streamjoin.windows.workers import Workers

# How many pushes take the general way before the kernels are compiled: by then they have cost as much as compiling.
_GENERAL_PUSHES = 1 << 14
# Other kinds of joins do more in a step than compiled steps know of.
_KINDS: frozenset[str] = frozenset({"inner"})
_ALONE = Workers(1)
_NO_COLUMNS: dict[str, pa.Array] = {}
_NO_TICKS = np.empty(0, np.int64)
_NO_POSITIONS = (0, 0)
# No flags: all left tuples come before the right ones.
_LEFT_FIRST = np.empty(0, np.bool_)
_SEVERAL = object()
_RIGHT_FIRST, _RIGHT_LEAST, _RIGHT_END = SIDE_FIELDS + FIRST, SIDE_FIELDS + LEAST, SIDE_FIELDS + END
_SIGN = -(1 << 63)
_SIDES: tuple[SideName, SideName] = ("left", "right")
Encode = Callable[[Array, Array, int], int]
"""Fills the words of a push from its inputs; the number of left tuples; returns how many tuples can't match."""


@dataclass(frozen=True)
class PlanNumbers:
    """A bound join as numbers for kernels."""

    widths: tuple[Array, Array]
    """The bytes of a value of each pushed column, or of an offset of it; 0 for others."""
    encoders: tuple[Encode, ...]
    n_terms: int
    index_row: int
    rows: int
    """The number of rows of a push's block of words."""
    outputs: tuple[OutputSource, ...]
    max_columns: int
    kernels: tuple[Any, ...]

    @property
    def is_compiled(self) -> bool:
        """Whether running the plan most likely compiles nothing."""
        return all(map(is_compiled, self.kernels))


class PushInputs:
    """The tables of both sides' columns (see `kernels.rows`) of one push after another."""

    def __init__(self, widths: tuple[Array, Array], max_columns: int) -> None:
        """`widths` are those of `PlanNumbers`."""
        self.columns = np.zeros((2, max_columns, INPUT_FIELDS), np.int64)
        self._widths = widths
        # Arrow's C structures of a left and a right batch.
        self._structs = np.zeros((2, STRUCT_WORDS), np.int64)
        self._left = int(self._structs.ctypes.data)
        self._right = self._left + STRUCT_WORDS * 8

    def read(self, left: Any, right: Any) -> None:
        """Fill the tables from record batches or arrays; of a side that is None there is nothing to read."""
        left_is_arrow, right_is_arrow = isinstance(left, pa.RecordBatch), isinstance(right, pa.RecordBatch)
        if left_is_arrow:
            left._export_to_c(self._left)
        if right_is_arrow:
            right._export_to_c(self._right)
        if left_is_arrow or right_is_arrow:
            read_batches(self._left, self._right, *self._widths, self.columns)
        # Only now: a structure that an interrupt has left behind was read as well.
        if not left_is_arrow and left is not None:
            left.describe(self.columns[0])
        if not right_is_arrow and right is not None:
            right.describe(self.columns[1])


class EncodedPush:
    """The tuples of a push as words: see `kernels.encode`."""

    def __init__(self, words: Array, n_left: int = 0) -> None:
        self.words = words
        self.ops, self.own_seq = words[OPS], words[OWN_SEQ]
        self.counts = n_left, words.shape[1] - n_left
        self.all_valid = True
        self.owners: tuple[object, ...] = ()
        """What keeps the memory of the batches alive until the tuples are stored."""
        self.reach: TimeReach | None = None
        """Which times the tuples reach, once they are stored, where positions do not decide that."""

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


class PushPlan:
    """The compiled steps of one bound join."""

    def __init__(
        self, bound: BoundSpec, stores: tuple[SideStore, SideStore], plan: PlanNumbers, general_pushes: int | None
    ) -> None:
        self._numbers = plan
        self._stores = stores
        self._self_join = bound.spec.self_join
        self._schema = bound.schema
        self._schemas = bound.left_schema, bound.right_schema
        self._numpy = NumpyReader(), NumpyReader()
        self._payload = (stores[0], stores[0] if self._self_join else stores[1])
        self._timed = stores[0].timed
        self._is_plain = not self._timed and not self._self_join
        rows = [TERMS + 3 * term for term in range(plan.n_terms)]
        self._stored_rows = np.array([*rows, TICKS] if self._timed else rows, np.int64)
        self._inputs = PushInputs(plan.widths, plan.max_columns)
        self._sides = np.zeros((2, SIDE_FIELDS), np.int64)
        # The same numbers, which are set faster here.
        self._slots = memoryview(self._sides.reshape(-1))  # type: ignore[arg-type]
        gated = bound.spec.order == "event_time"
        self._sizes = tuple(window.size for window in bound.windows)
        for side, window in enumerate(bound.windows):
            self._sides[side, SIZE] = length_word(window.size)
            self._sides[side, IS_TIMED] = window.kind == "time"
            self._sides[side, GROWS] = gated or window.kind == "count"
        # In arrival order what came before a tuple may be too new for it.
        self._looks_ahead = self._timed and not (gated or self._self_join)
        self._shift = np.zeros(2, np.int64)
        self._time = bound.time
        self._form = ResultForm(plan.outputs, bound.schema, self._payload, bound.time)
        self._no_rows = bound.schema.empty_table()
        if general_pushes is None:
            general_pushes = 0 if plan.is_compiled else _GENERAL_PUSHES
        self._general_pushes = general_pushes

    @classmethod
    def of(
        cls, bound: BoundSpec, stores: tuple[SideStore, SideStore], general_pushes: int | None = None
    ) -> PushPlan | None:
        """The plan of a bound join, or None where it is not an inner join or kernels can't encode its condition."""
        if bound.spec.how not in _KINDS:
            return None
        payload = stores[0] if bound.spec.self_join else stores[1]
        plan = plan_numbers(bound, (stores[0].arrow_names, payload.arrow_names))
        return None if plan is None else cls(bound, stores, plan, general_pushes)

    @property
    def index_row(self) -> int:
        """The row of the index words in side order."""
        return self._numbers.index_row

    @property
    def is_ready(self) -> bool:
        """Whether pushes take compiled steps by now."""
        return not self._general_pushes

    def is_due(self) -> bool:
        """Whether the kernels are compiled, or enough pushes went without them for compiling to pay."""
        if not self._general_pushes:
            return True
        self._general_pushes -= 1
        return False

    def room_for(self, n: int) -> tuple[EncodedPush, tuple[Array, ...]]:
        """Memory for pushes of `n` tuples, left ones first, and the columns of their task in it."""
        block = EncodedPush(np.empty((self._numbers.rows, n), np.int64))
        return block, block.task(self._numbers.index_row, True)

    def exact_batch(self, side: int, data: Any) -> Any:
        """Pushed data of a side as one record batch or arrays, if it has the stored columns and types; else None."""
        schema = self._schemas[side]
        if isinstance(data, pa.Table):
            if not data.schema.equals(schema):
                return None
            batches = data.to_batches()
            return batches[0] if len(batches) == 1 else None
        if isinstance(data, pa.RecordBatch):
            return data if data.schema.equals(schema) else None
        return self._numpy[side].read(data, schema) if isinstance(data, dict | np.ndarray) else None

    def encode(self, batches: tuple[Any, Any]) -> EncodedPush | None:
        """The words of a push: each side's table or arrays, or None; a self-join's is the left one.

        None if kernels can't read a table.
        """
        left, right = batches[0], None if self._self_join else batches[1]
        if isinstance(left, pa.Table):
            left = one_batch(left)
        if isinstance(right, pa.Table):
            right = one_batch(right)
        if left is _SEVERAL or right is _SEVERAL:
            return None
        block = self.encode_batches(left, right)
        block.owners = left, right
        return block

    def encode_side(self, side: int, table: pa.Table) -> tuple[EncodedPush, Array]:
        """The words of one side's tuples of fixed width, and the table of their columns; from any thread."""
        inputs, batch = PushInputs(self._numbers.widths, self._numbers.max_columns), one_batch(table)
        if batch is _SEVERAL:
            raise AssertionError("a table of more than one batch")
        block = self.encode_batches(None if side else batch, batch if side else None, None, inputs)
        block.owners = (batch,)
        return block, inputs.columns

    def encode_batches(
        self, left: Any, right: Any, block: EncodedPush | None = None, inputs: PushInputs | None = None
    ) -> EncodedPush:
        """The words of a push of record batches or arrays; into `block`, if one of the right size is given."""
        inputs = inputs or self._inputs
        inputs.read(left, right)
        n_left = 0 if left is None else left.num_rows
        n_right = 0 if right is None else right.num_rows
        columns = inputs.columns
        if self._self_join:
            columns[1], n_right = columns[0], n_left
        if block is None:
            block = EncodedPush(np.empty((self._numbers.rows, n_left + n_right), np.int64))
        words, unmatched = block.words, 0
        for encode in self._numbers.encoders:
            unmatched += encode(columns, words, n_left)
        block.counts, block.all_valid = (n_left, n_right), unmatched == 0
        return block

    def store(self, block: EncodedPush, ordered: Ordered, least: tuple[int, int], shared: bool) -> bool:
        """`put` for tuples in gate order; False, with nothing changed, if they need the general way."""
        stores, sides, (n_left, _) = self._stores, self._sides, block.counts
        if self._timed and not self._take_ticks(block.words, ordered.ticks, n_left):
            return False
        is_right = _LEFT_FIRST if ordered.left_first else for_kernels(np.ascontiguousarray(ordered.is_right))
        self.put(block, ordered.tables, least, is_right, shared)
        block.owners = ()
        if self._looks_ahead:
            # The times of a side ascend, so that two of them tell for streams that keep pace.
            own = block.words[TICKS]
            if _ahead(stores[0].ticks, own[n_left:], sides[0]) or _ahead(stores[1].ticks, own[:n_left], sides[1]):
                block.reach = self._reach(block.words, n_left)
        return True

    def put(
        self,
        block: EncodedPush,
        batches: tuple[Any, Any],
        least: tuple[int, int],
        is_right: Array = _LEFT_FIRST,
        shared: bool = False,
    ) -> None:
        """Store the tuples of a block and find their positions and windows; `batches` are what was encoded.

        `least` are the smallest positions that the sides' indexes must keep, `is_right` the order of the tuples;
        `shared` says that a self-join has one index for both roles.
        """
        words, (n_left, n_right), sides, index_row = block.words, block.counts, self._sides, self._numbers.index_row
        left, right = self._stores
        if n_left:
            left.block.reserve(n_left)
        if n_right:
            right.block.reserve(n_right)
        slots = self._slots
        slots[FIRST], slots[_RIGHT_FIRST] = left.count, right.count
        slots[LEAST], slots[_RIGHT_LEAST] = least
        slots[END], slots[_RIGHT_END] = left.block.end, right.block.end
        columns, column = self._inputs.columns, 0
        is_placed = self._is_plain and is_right is _LEFT_FIRST
        while column != NO_COLUMN:
            places = left.layout(), right.layout()
            if is_placed:
                column = take_rows(columns, words, self._stored_rows, *places, sides, n_left, index_row)
            else:
                column = store_sides(columns, words, self._stored_rows, *places, sides, n_left)
            if column != NO_COLUMN:
                store = right if column & 1 else left
                store.mark_nulls([store.schema.names[column >> 1]])
        if not is_placed:
            ticks = (left.ticks_upto(n_left), right.ticks_upto(n_right)) if self._timed else (_NO_TICKS, _NO_TICKS)
            if self._self_join:
                place_roles(words, sides, index_row, ticks[0], shared)
            else:
                place_tuples(words, is_right, sides, n_left, index_row, *ticks)
        if n_left:
            left.include(_arrow_columns(left, batches[0]) if left.arrow_names else _NO_COLUMNS, n_left)
        if n_right:
            right.include(_arrow_columns(right, batches[1]) if right.arrow_names else _NO_COLUMNS, n_right)

    def take_push(
        self, side: int, rows: pa.Table | pa.RecordBatch, own: I64, arrived: I64, now: int
    ) -> EncodedPush | None:
        """Encode and store a push of one side, in arrival order and without times; None if kernels can't read it.

        `own` and `arrived` get, for each tuple, its position doubled plus its side, and the time `now`.
        """
        batches = (None, rows) if side else (rows, None)
        block = self.encode(batches)
        if block is not None:
            self.put(block, batches, _NO_POSITIONS)
            block.owners = ()
            np.left_shift(block.own_seq, 1, out=own)
            own += side
            arrived[:] = now
        return block

    def _reach(self, words: Array, n_left: int) -> TimeReach | None:
        """Which times stored tuples reach, if some came after others that are too new for them."""
        reach = None
        for side, part in enumerate((slice(0, n_left), slice(n_left, None))):
            if not self._sides[1 - side, IS_TIMED]:
                continue
            at, ticks, size = words[AT, part], words[TICKS, part], self._sizes[1 - side]
            ends = too_new(self._stores[1 - side], ticks, size, words[UPTO], at)
            if ends is not None:
                reach = reach or TimeReach(words[UPTO])
                reach.limit(at, ends, plus(ticks, size))
        return reach

    def begin(self) -> None:
        """Take the compiled steps from the first push on, even if that compiles them."""
        self._general_pushes = 0

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

    def chunk(self, block: EncodedPush, is_right: Array) -> Chunk:
        """The tuples as an algorithm takes them."""
        words, (n_left, n_right), plan = block.words, block.counts, self._numbers
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
        ends = None if block.reach is None else block.reach.ends
        return Chunk(is_right, words[OWN_SEQ], words[UPTO], words[MIN_SEQ], parts[0], parts[1], ends=ends)

    def gather(self, block: EncodedPush, probes: Array, seqs: Array, in_order: bool = False) -> pa.Table:
        """The result rows of pairs; a self-join's are put into the order of the result, in place, if they are not."""
        n, (left, right) = probes.size, self._payload
        if not n:
            return self._no_rows
        if self._self_join and not in_order:
            merge_roles(probes, seqs)
        form = self._form
        if form.nullable[0] is not left.nullable or form.nullable[1] is not right.nullable:
            form = self._form = ResultForm(self._numbers.outputs, self._schema, self._payload, self._time)
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
        self, form: ResultForm, result: ResultMessage, block: EncodedPush, probes: Array, seqs: Array
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
        return later_time(times, self._time.type)


def one_batch(table: pa.Table) -> Any:
    """The rows of a table as one record batch; None if there are none, `_SEVERAL` if one can't hold them."""
    if not table.num_rows:
        return None
    batches = table.to_batches()
    if len(batches) != 1:
        batches = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else _SEVERAL


def _arrow_columns(store: SideStore, batch: Any) -> dict[str, pa.Array]:
    """The columns of a batch that stay in Arrow arrays."""
    if batch is None:
        return {name: pa.nulls(0, store.schema.field(name).type) for name in store.arrow_names}
    columns = {}
    for name in store.arrow_names:
        column = batch.column(store.schema.get_field_index(name))
        columns[name] = flat(column) if isinstance(column, pa.ChunkedArray) else column
    return columns


def _ahead(ticks: Array | None, others: Array, side: Array) -> bool:
    """Whether a side's newest time is beyond what the oldest new tuple of the other side reaches."""
    if ticks is None or not (others.size and ticks.size and side[IS_TIMED]):
        return False
    return bool(ticks.item(-1) - others.item(0) > side.item(SIZE))


# -- the numbers of a plan ----------------------------------------------------------------------


def plan_numbers(bound: BoundSpec, in_arrow: tuple[Collection[str], Collection[str]]) -> PlanNumbers | None:
    """The plan of a bound join; None if there is none. `in_arrow` are the columns that are stored as Arrow arrays."""
    schemas = bound.left_schema, bound.right_schema
    terms = [*bound.terms, *(term for term in bound.index if term not in bound.terms)]
    if any(isinstance(term.term, Comparison) for term in terms):
        return None
    if not terms or any(len(set(schema.names)) < len(schema) for schema in schemas):
        return None
    encoders: list[Encode] = []
    used: list[Any] = [read_batches, store_sides, gather_pairs]
    used += [place_roles] if bound.spec.self_join else [place_tuples, take_rows]
    for number, term in enumerate(terms):
        encoder = _encoder(term, schemas, TERMS + 3 * number, first=number == 0)
        if encoder is None:
            return None
        encoders.append(encoder[0])
        used.append(encoder[1])
    rows = TERMS + 3 * len(terms)
    index_row = TERMS + 3 * terms.index(bound.index[0]) if bound.index else -1
    if len(bound.index) == 2:
        key, band = bound.index
        if band.kind is WordKind.FLOAT32:
            return None
        places = tuple(TERMS + 3 * terms.index(term) for term in (key, band))
        encoders.append(_composer(key, band, places[0], places[1], rows))
        used.append(kernels.compose_rows)
        index_row, rows = rows, rows + 3
    return PlanNumbers(
        widths=(_widths(schemas[0]), _widths(schemas[1])),
        encoders=tuple(encoders),
        n_terms=len(bound.terms),
        index_row=index_row,
        rows=rows,
        outputs=_outputs(bound, in_arrow),
        max_columns=max(map(len, schemas)),
        kernels=tuple(used),
    )


def _widths(schema: pa.Schema) -> Array:
    return np.array([_width(field.type) for field in schema], np.int64)


def fixed_widths(schema: pa.Schema) -> Array:
    """The bytes of a value of each column of fixed width; 0 for others."""
    return np.array([_stored_width(field.type) for field in schema], np.int64)


def _width(type_: pa.DataType) -> int:
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return 4
    if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_):
        return 8
    return _stored_width(type_)


def _stored_width(type_: pa.DataType) -> int:
    return type_.bit_width // 8 if is_fixed(type_) else 0


def _encoder(
    term: KeyTerm, schemas: tuple[pa.Schema, pa.Schema], row: int, *, first: bool
) -> tuple[Encode, Any] | None:
    """The function that encodes a term into three rows from `row` on, and the kernel that it calls."""
    numbers = [_numbers(term, side, schema) for side, schema in zip(_SIDES, schemas, strict=True)]
    if numbers[0] is None or numbers[1] is None:
        return None
    terms = np.array([column + [0] * (kernels.TERM_FIELDS - len(column)) for column in numbers if column], np.int64)
    if term.kind in (WordKind.FLOAT32, WordKind.FLOAT64):
        equality = isinstance(term.term, Equi)
        floats = kernels.encode_floats
        return lambda inputs, block, n_left: floats(inputs, terms, block, row, VALID, n_left, first, equality), floats
    encode = kernels.encode_bytes if term.kind is WordKind.BYTES else kernels.encode_integers
    return lambda inputs, block, n_left: encode(inputs, terms, block, row, VALID, n_left, first), encode


def _numbers(term: KeyTerm, side: SideName, schema: pa.Schema) -> list[int] | None:
    """One side's column of a term, in the order of `kernels.encode`; None if kernels can't read it."""
    own, other, down, up = own_and_other(term, side)
    place = schema.get_field_index(own.name)
    type_ = schema.field(place).type if place >= 0 else pa.null()
    if place < 0 or not type_.equals(own.type):
        # An extension type; its storage is not what is pushed.
        return None
    if term.kind is WordKind.BYTES:
        return [place, _width(type_)] if _width(type_) and not is_fixed(type_) else None
    if term.kind in (WordKind.FLOAT32, WordKind.FLOAT64):
        wanted = pa.float32() if term.kind is WordKind.FLOAT32 else pa.float64()
        distances = [int(np.float64(distance).view(np.int64)) for distance in (down, up)]
        return [place, _width(type_), 1, 0, 0, 1, 1, *distances, term.strict] if type_.equals(wanted) else None
    if term.kind is not WordKind.INTEGER or not is_fixed(type_) or pa.types.is_decimal(type_):
        return None
    if other.multiplier > 1 and (own.unsigned or own.multiplier > 1):
        return None
    signed = not pa.types.is_unsigned_integer(type_)
    flips = [_SIGN if column.unsigned else 0 for column in (own, other)]
    limits = [int(limit) for limit in interval_limits(own, other, down, up)]
    wrapped = [_wrap(int(number)) for number in (own.multiplier, other.multiplier, down, up)]
    return [place, _width(type_), signed, *flips, *wrapped, 0, *limits]


def _wrap(number: int) -> int:
    """`number` modulo 2**64 as an int64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _composer(key: KeyTerm, band: KeyTerm, key_row: int, band_row: int, row: int) -> Encode:
    """The function that makes one word of the rows of a key and of a band."""
    integers = band.kind is WordKind.INTEGER
    plans = []
    for side in _SIDES:
        column: KeyColumn = key.left if side == "left" else key.right
        canonical = [_SIGN if column.unsigned else 0, _wrap(column.multiplier)]
        if key.kind is not WordKind.INTEGER:
            canonical = [0, 1]
        own, other = own_and_other(band, side)[:2]
        shifts = [int(composed_shift(band, own)), own.unsigned, int(composed_shift(band, other)), other.unsigned]
        scale = 0 if integers else int(np.float64(composed_scale(band)).view(np.int64))
        plans.append([*canonical, *(shifts if integers else [0, 0, 0, 0]), scale])
    numbers = np.array(plans, np.int64)

    def compose(_: Array, block: Array, n_left: int) -> int:
        kernels.compose_rows(numbers, block, key_row, band_row, row, n_left, not integers)
        return 0

    return compose


def _outputs(bound: BoundSpec, in_arrow: tuple[Collection[str], Collection[str]]) -> tuple[OutputSource, ...]:
    """The columns of the result."""
    schemas = bound.left_schema, bound.left_schema if bound.spec.self_join else bound.right_schema
    outputs = []
    for column in bound.columns:
        side = int(column.side == "right")
        place = schemas[side].get_field_index(column.source)
        width = 0 if column.source in in_arrow[side] else _stored_width(schemas[side].field(place).type)
        outputs.append(OutputSource(column.source, side, width, (side, place, 0, width) if width else None))
    time = bound.time
    if time is not None:
        left, right = (s.get_field_index(name) for s, name in zip(schemas, (time.left, time.right), strict=True))
        same = time.left not in in_arrow[0] and time.right not in in_arrow[1]
        same &= schemas[0].field(left).type.equals(time.type) and schemas[1].field(right).type.equals(time.type)
        # The kernel compares times as signed numbers.
        same &= time.type != pa.uint64()
        width = _stored_width(time.type)
        outputs.append(OutputSource("", LATER, width, (LATER, left, right, width) if same else None))
    return tuple(outputs)
