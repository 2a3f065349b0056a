"""Aggregates by listing matches in blocks: conditions beyond equalities, medians, values of both sides.

The right tuples of a window are listed by key and time, tested, and summarised at once; a block holds whole windows.
Invariant: within a left tuple's group pairs are in gate order, so that `first`, `last` and ties depend on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.exact_columns import Numbers, average_column, numbers_of, sum_column
from streamjoin.joins.kinds.key_numbers import ExactTerms
from streamjoin.joins.kinds.summary_state import RightSide, Windows
from streamjoin.joins.kinds.summary_values import computed, numbered, order_words
from streamjoin.kernels.kinds.summary import NONE, list_windows
from streamjoin.model.binding import BoundSpec
from streamjoin.model.expression.aggregates import Aggregate, aggregate_type
from streamjoin.model.expression.calculation import to_float
from streamjoin.model.expression.evaluation import from_arrow, holds
from streamjoin.model.expression.nodes import Column
from streamjoin.model.expression.typing_rules import check
from streamjoin.model.predicates import Equi
from streamjoin.windows.encoding import SideEncoder, flat
from streamjoin.windows.workers import Workers

RIGHT_COLUMN = "r."
_BLOCK = 1 << 18
_ALONE = Workers(1)


class WindowMatches:
    """Lists and summarises the matches of left tuples for some aggregates of one join."""

    def __init__(self, bound: BoundSpec, aggregates: Sequence[Aggregate]) -> None:
        summary = bound.summary
        if summary is None:
            raise AssertionError("matches without summaries")
        self._aggregates = list(aggregates)
        self._schemas = {"l": bound.left_schema, "r": bound.right_schema}
        tested = () if summary.by_equalities else tuple(t for t in bound.terms if not isinstance(t.term, Equi))
        terms = ExactTerms(tested)
        self._encoders = (SideEncoder(terms, "left"), SideEncoder(terms, "right")) if tested else None
        self._residual = None if summary.by_equalities else bound.residual
        columns = [column for aggregate in self._aggregates for column in aggregate.columns]
        columns += [] if self._residual is None else self._residual.columns
        self.right = tuple(dict.fromkeys(column.name for column in columns if column.qualifier == "r"))
        """The columns of the right side that are read."""
        self._left = tuple(dict.fromkeys(column.name for column in columns if column.qualifier == "l"))
        self.n_words = len(tested)
        """How many words of a right tuple are tested."""
        self.overflowed = 0
        """How many sums of the newest call their type could not hold."""

    def words(self, table: pa.Table, keys: Array) -> tuple[list[Array], Array]:
        """The words of right tuples that are tested, and their keys: none for those that can't match."""
        if self._encoders is None:
            return [], keys
        encoded = self._encoders[1].encode(table)
        if encoded.valid is not None:
            keys = np.where(encoded.valid, keys, -1)
        return [term.word for term in encoded.terms], keys

    def summarised(self, right: RightSide, windows: Windows, rows: pa.Table) -> tuple[list[pa.Array], Array]:
        """Each aggregate's value for every left tuple of `rows`, and how many right tuples match it."""
        self.overflowed = 0
        parts: list[list[pa.Array]] = [[] for _ in self._aggregates]
        n, counts = windows.n, np.zeros(windows.n, np.int64)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(windows.sizes)])
        in_window = windows.sizes - (windows.in_force != NONE)
        begin = 0
        while begin < n or not n:
            end = max(begin + 1, int(np.searchsorted(ends, ends[begin] + _BLOCK, side="right")) - 1)
            end = min(end, n)
            left, places = (np.empty(int(ends[end] - ends[begin]), np.int64) for _ in range(2))
            list_windows(
                right.previous, right.store.base, windows.newest, in_window, windows.hole, windows.in_force, begin, end,
                left, places,
            )  # fmt: skip
            left, places = self._matching(right, rows, left, places)
            groups = left - begin
            counts[begin:end] = np.bincount(groups, minlength=end - begin)
            columns = self._columns(right, rows, left, places)
            for own, aggregate in zip(parts, self._aggregates, strict=True):
                own.append(self._summary(aggregate, columns, groups, end - begin))
            begin = end
            if not n:
                break
        return [pa.concat_arrays(own) for own in parts], counts

    def _matching(self, right: RightSide, rows: pa.Table, left: Array, places: Array) -> tuple[Array, Array]:
        """The pairs that satisfy the condition."""
        if self._encoders is not None and left.size:
            encoded = self._encoders[0].encode(rows)
            keep = np.ones(left.size, np.bool_) if encoded.valid is None else encoded.valid[left]
            for term, words in zip(encoded.terms, right.store.words, strict=True):
                word = words[places - right.store.base]
                keep = keep & (term.lo[left] <= word) & (word <= term.hi[left])
            left, places = left[keep], places[keep]
        if self._residual is not None and left.size:
            columns = self._columns(right, rows, left, places)
            values = {column: from_arrow(columns[column]) for column in self._residual.columns}
            keep = holds(self._residual, values.__getitem__, left.size)
            left, places = left[keep], places[keep]
        return left, places

    def _columns(self, right: RightSide, rows: pa.Table, left: Array, places: Array) -> dict[Column, pa.Array]:
        """The columns of pairs that are read."""
        gathered = right.store.gather([RIGHT_COLUMN + name for name in self.right], places, _ALONE)
        columns = {Column("r", name): gathered[RIGHT_COLUMN + name] for name in self.right}
        index = pa.array(left)
        return columns | {Column("l", name): flat(rows.column(name).take(index)) for name in self._left}

    def _summary(self, aggregate: Aggregate, columns: dict[Column, pa.Array], groups: Array, n: int) -> pa.Array:
        """The value of an aggregate for each of `n` groups of pairs."""
        if not aggregate.arguments:
            return pa.array(np.bincount(groups, minlength=n), pa.int64())
        arguments = [
            computed(argument, check(argument, self._schemas), columns, groups.size) for argument in aggregate.values
        ]
        type_ = aggregate_type(aggregate, self._schemas)
        if aggregate.function == "SUM":
            rows, layout = numbers_of(arguments[0]).by_group(groups, n)
            column, overflowed = sum_column(rows, layout, type_)
            self.overflowed += overflowed
            return column
        if aggregate.function == "AVG":
            rows, layout = numbers_of(arguments[0]).by_group(groups, n)
            return average_column(rows, layout, arguments[0].type)
        return FUNCTIONS[aggregate.function](aggregate, arguments, groups, n)


def _count(aggregate: Aggregate, arguments: list[pa.Array], groups: Array, n: int) -> pa.Array:
    present = _present(arguments[0])
    if aggregate.distinct:
        codes = _codes(arguments[0])[present]
        groups = np.unique(np.stack([groups[present], codes], axis=1), axis=0)[:, 0]
        return pa.array(np.bincount(groups, minlength=n), pa.int64())
    return pa.array(np.bincount(groups[present], minlength=n), pa.int64())


def _chosen(aggregate: Aggregate, arguments: list[pa.Array], groups: Array, n: int) -> pa.Array:
    """MIN, MAX, FIRST, LAST, ARG_MIN, ARG_MAX: the value of one pair of each group."""
    value, by = arguments[0], arguments[-1]
    present = _present(value) & _present(by)
    if aggregate.function.startswith("ARG") and pa.types.is_floating(by.type):
        # NaN is neither the least nor the greatest, and the zero with a sign is the other zero.
        numbers = by.fill_null(0.0).to_numpy(zero_copy_only=False)
        present &= ~np.isnan(numbers)
        by = pa.array(numbers + 0.0, by.type)
    places = np.flatnonzero(present)
    if aggregate.function == "LAST":
        places = places[::-1]
    elif aggregate.function != "FIRST":
        ranks = ranks_of(by, greatest=aggregate.function in ("MAX", "ARG_MAX"))[places]
        places = places[np.argsort(ranks, kind="stable")]
    of, first = np.unique(groups[places], return_index=True)
    taken = np.full(n, -1, np.int64)
    taken[of] = places[first]
    return value.take(pa.array(taken, mask=taken < 0))


def _spread(aggregate: Aggregate, arguments: list[pa.Array], groups: Array, n: int) -> pa.Array:
    """VAR and STDDEV: the exact sum of squared distances to the mean, over n or n - 1."""
    values, present = _floats(arguments[0])
    rows, layout = Numbers(values, present).by_group(groups, n)
    means = average_column(rows.copy(), layout, pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        distances = values - means[groups]
        squares, square_layout = Numbers(distances * distances, present).by_group(groups, n)
        total = sum_column(squares, square_layout, pa.float64())[0].fill_null(0.0).to_numpy(zero_copy_only=False)
        counts = np.bincount(groups[present], minlength=n) - aggregate.function.endswith("SAMP")
        result = total / counts
        result = np.sqrt(result) if aggregate.function.startswith("STDDEV") else result
    return pa.array(result, mask=counts <= 0)


def _quantile(aggregate: Aggregate, arguments: list[pa.Array], groups: Array, n: int) -> pa.Array:
    """MEDIAN and QUANTILE: between two values in proportion."""
    values, present = _floats(arguments[0])
    values, groups = values[present], groups[present]
    order = np.lexsort((values, groups))
    values, counts = values[order], np.bincount(groups, minlength=n)
    begins = np.cumsum(counts) - counts
    at = np.maximum(counts - 1, 0) * aggregate.fraction
    below = np.floor(at).astype(np.int64)
    rest = at - below
    padded = np.append(values, 0.0)
    low = padded[np.minimum(begins + below, values.size)]
    high = padded[np.minimum(begins + below + (rest > 0), values.size)]
    with np.errstate(all="ignore"):
        span = high - low
        # Two values may lie further apart than the greatest float, or one may be infinite.
        between = np.where(np.isfinite(span), low + span * rest, low * (1 - rest) + high * rest)
        result = np.where(low == high, low, between)
    # NaN is sorted last.
    newest = padded[np.minimum(begins + np.maximum(counts - 1, 0), values.size)]
    return pa.array(np.where(np.isnan(newest), np.nan, result), mask=counts == 0)


def _present(array: pa.Array) -> Array:
    mask: Array = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _floats(array: pa.Array) -> tuple[Array, Array]:
    """A column of numbers as float64, NaN included, and which values are not NULL."""
    present = _present(array)
    if pa.types.is_floating(array.type):
        return np.array(array.fill_null(0.0).to_numpy(zero_copy_only=False), np.float64), present
    return np.array(to_float(from_arrow(array)).data, np.float64), present


def _codes(array: pa.Array) -> Array:
    """Numbers for the values of a column: equal ones have one number."""
    if pa.types.is_floating(array.type):
        # The zero with a sign is the other zero.
        array = pa.array(array.to_numpy(zero_copy_only=False) + 0.0, array.type, mask=~_present(array))
    codes: Array = numbered(array).dictionary_encode().indices.fill_null(0).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64)


def ranks_of(array: pa.Array, *, greatest: bool) -> Array:
    """Numbers in the order of values, in reverse order for the `greatest` first; NaN comes first."""
    array = numbered(array)
    type_ = array.type
    wide = pa.types.is_decimal(type_) and type_.precision > 18
    if not wide and (pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_boolean(type_)):
        return order_words(array, greatest=greatest)
    encoded = array.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    ranks = np.empty(len(values) + 1, np.int64)
    ranks[sorted(range(len(values)), key=values.__getitem__)] = np.arange(len(values))
    own: Array = ranks[encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
    return -own if greatest else own


FUNCTIONS: dict[str, Callable[[Aggregate, list[pa.Array], Array, int], pa.Array]] = {
    "COUNT": _count,
    **dict.fromkeys(("MIN", "MAX", "FIRST", "LAST", "ARG_MIN", "ARG_MAX"), _chosen),
    **dict.fromkeys(("VAR_SAMP", "VAR_POP", "STDDEV_SAMP", "STDDEV_POP"), _spread),
    **dict.fromkeys(("MEDIAN", "QUANTILE"), _quantile),
}
