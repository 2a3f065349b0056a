"""What a join's steps are when they are compiled: decided once, from the schemas and the condition.

The plan holds, as arrays of numbers, where each key is in a pushed batch, how it becomes words, where stored columns
go and what the result takes. `engine/compiled_step.py` runs it. A condition that has no plan (decimals, mixed number
types, booleans) takes the general way, with the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels import encode_rows as kernels
from streamjoin.kernels.flags import is_compiled
from streamjoin.kernels.positions import TERMS, VALID, place_roles, place_tuples
from streamjoin.kernels.push import read_batches, take_rows
from streamjoin.kernels.rows import (
    INPUT_FIELDS,
    LATER,
    gather_pairs,
    read_batch,
    store_rows,
)
from streamjoin.model.binding import BoundSpec
from streamjoin.model.keys import Comparison, KeyColumn, KeyTerm, WordKind
from streamjoin.model.predicates import Equi
from streamjoin.windows.encoding import SideName, composed_scale, composed_shift, interval_limits, own_and_other
from streamjoin.windows.store import is_fixed

_SIGN = -(1 << 63)
_SIDES: tuple[SideName, SideName] = ("left", "right")
Encode = Callable[[Array, Array, int], int]
"""Fills the words of a push from its inputs; the number of left tuples; returns how many tuples can't match."""


@dataclass(frozen=True)
class OutputSource:
    """A column of the result: gathered by the kernel where it has numbers, by Arrow otherwise."""

    name: str
    side: int
    width: int
    numbers: tuple[int, int, int, int] | None
    """As `kernels.rows` reads them."""


@dataclass(frozen=True)
class CompiledPlan:
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


def compile_plan(bound: BoundSpec, in_arrow: tuple[Collection[str], Collection[str]]) -> CompiledPlan | None:
    """The plan of a bound join; None if there is none. `in_arrow` are the columns that are stored as Arrow arrays."""
    schemas = bound.left_schema, bound.right_schema
    terms = [*bound.terms, *(term for term in bound.index if term not in bound.terms)]
    if any(isinstance(term.term, Comparison) for term in terms):
        return None
    if not terms or any(len(set(schema.names)) < len(schema) for schema in schemas):
        return None
    encoders: list[Encode] = []
    used: list[Any] = [read_batch, store_rows, gather_pairs]
    used += [place_roles] if bound.spec.self_join else [place_tuples, read_batches, take_rows]
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
    return CompiledPlan(
        widths=(_widths(schemas[0]), _widths(schemas[1])),
        encoders=tuple(encoders),
        n_terms=len(bound.terms),
        index_row=index_row,
        rows=rows,
        outputs=_outputs(bound, in_arrow),
        max_columns=max(map(len, schemas)),
        kernels=tuple(used),
    )


def inputs_for(plan: CompiledPlan) -> Array:
    """Room for the tables of both sides' columns (see `kernels.rows`)."""
    return np.zeros((2, plan.max_columns, INPUT_FIELDS), np.int64)


def _widths(schema: pa.Schema) -> Array:
    return np.array([_width(field.type) for field in schema], np.int64)


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
    """One side's column of a term, in the order of `kernels.encode_rows`; None if kernels can't read it."""
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
        width = _stored_width(time.type)
        outputs.append(OutputSource("", LATER, width, (LATER, left, right, width) if same else None))
    return tuple(outputs)
