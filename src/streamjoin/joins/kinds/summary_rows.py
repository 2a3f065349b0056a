"""The rows of a join with summaries: what is stored of right tuples for them, and the values of windows.

Aggregates that follow a window as it slides come from `summary_state.py`, the others from listing the window's tuples
(`summary_pairs.py`). Invariant: a row depends on its left tuple and on the right tuples of its
window in gate order alone, so it is the same wherever these are brought together.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.joins.kinds.base import MISSING, gather_or_null
from streamjoin.joins.kinds.exact_columns import average_column, counts_of, float_averages, float_column, sum_column
from streamjoin.joins.kinds.key_numbers import KeyNumbers
from streamjoin.joins.kinds.summary_pairs import RIGHT_COLUMN, WindowMatches
from streamjoin.joins.kinds.summary_state import RightNeeds, RightSide, Windows
from streamjoin.joins.kinds.summary_values import computed, values_of_words
from streamjoin.model.binding import BoundSpec, BoundSummary
from streamjoin.model.expression.aggregates import Aggregate
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.expression.typing_rules import check
from streamjoin.model.summary import Summary
from streamjoin.windows.workers import Workers

_ORDERS = (("MIN", "MAX"), ("FIRST", "LAST"))


class SummaryRows:
    """The aggregates of one join, over the right tuples of windows."""

    def __init__(self, bound: BoundSpec, workers: Workers) -> None:
        if bound.summary is None:
            raise AssertionError("a join with summaries without any")
        self._plan: BoundSummary = bound.summary
        if not isinstance(bound.spec.match, Summary):
            raise AssertionError("summaries of another kind of match")
        self._prevailing = bound.spec.match.prevailing
        self._right_schema = bound.right_schema
        self._workers = workers
        self._results = [
            (column.name, self._plan.results[self._plan.schema.get_field_index(column.name)])
            for column in bound.columns
            if column.side == "summary"
        ]
        read = {c.name for _, expression in self._results for c in expression.columns}
        self._used = [number for number in range(len(self._plan.aggregates)) if str(number) in read]
        self._matches = WindowMatches(bound, [self._plan.aggregates[number] for number in self._listed()])
        self._arguments = self._arguments_of_windows()
        schemas = {"r": self._right_schema}
        self._types = {name: check(argument, schemas) for argument, name in self._arguments.items()}
        self.overflowed = 0
        """How many sums their type could not hold."""

    def new_side(self, low: int, high: int, *, hidden: bool) -> RightSide:
        """A right side without tuples, with what the aggregates need; `low` and `high` are the bounds in its ticks.

        `hidden` says whether left tuples are among the right ones, and do not count for themselves.
        """
        fields = [pa.field(RIGHT_COLUMN + name, self._right_schema.field(name).type) for name in self._matches.right]
        wanted = dict[str, dict[str, None]]()
        for number in self._used:
            aggregate = self._plan.aggregates[number]
            if not self._plan.enumerated[number] and aggregate.arguments:
                wanted.setdefault(self._arguments[aggregate.arguments[0]], {})[aggregate.function] = None
        sums, bests = dict[str, pa.DataType](), []
        for name, functions in wanted.items():
            if set(functions).difference(*_ORDERS):
                sums[name] = self._types[name]
            bests += [(name, own) for orders in _ORDERS if (own := tuple(o for o in orders if o in functions))]
            if functions.keys() & _ORDERS[1]:
                fields.append(pa.field(name, self._types[name]))
        return RightSide(
            RightNeeds(
                pa.schema(fields), self._matches.n_words, sums, bests, low, high,
                listed=bool(self._listed()) or not self._plan.by_equalities, prevailing=self._prevailing, hidden=hidden,
            ),
            self._workers,
        )  # fmt: skip

    def store(self, right: RightSide, table: pa.Table, ticks: Array, numbers: KeyNumbers) -> None:
        """Store right tuples, in their order."""
        words, keys = self._matches.words(table, numbers.number(1, table))
        right.append(self._taken(table), words, ticks, keys, numbers.count)

    def aggregates(self, right: RightSide, windows: Windows, rows: pa.Table) -> tuple[dict[Column, pa.Array], Array]:
        """The values of all aggregates, and the number of matches of each left tuple."""
        sizes = windows.sizes
        found: dict[Column, pa.Array] = {}
        listed = self._listed()
        if listed or not self._plan.by_equalities:
            arrays, sizes = self._matches.summarised(right, windows, rows)
            self.overflowed += self._matches.overflowed
            found = {Column("s", str(number)): array for number, array in zip(listed, arrays, strict=True)}
        floats: dict[str, tuple[Array, Array]] = {}
        for number in self._used:
            if not self._plan.enumerated[number]:
                aggregate, type_ = self._plan.aggregates[number], self._plan.types.field(number).type
                found[Column("s", str(number))] = self._of_windows(right, aggregate, type_, sizes, floats)
        return found, sizes

    def table(self, bound: BoundSpec, left: pa.Table, aggregates: dict[Column, pa.Array], n: int) -> pa.Table:
        """The rows of left tuples with these aggregates."""
        new = {
            name: computed(expression, bound.schema.field(name).type, aggregates, n)
            for name, expression in self._results
        }
        arrays = [left.column(c.source) if c.side == "left" else new[c.name] for c in bound.columns]
        return pa.Table.from_arrays(arrays, schema=bound.schema)

    def _listed(self) -> list[int]:
        """The aggregates for which windows are listed."""
        return [number for number in self._used if self._plan.enumerated[number]]

    def _arguments_of_windows(self) -> dict[Expression, str]:
        """The arguments of the other aggregates, computed when a right tuple comes, by the names of their columns."""
        found = dict.fromkeys(
            argument
            for number in self._used
            if not self._plan.enumerated[number]
            for argument in self._plan.aggregates[number].arguments
        )
        return {argument: str(place) for place, argument in enumerate(found)}

    def _taken(self, table: pa.Table) -> pa.Table:
        """What is stored of right tuples: the values of arguments, and the columns that matches take."""
        columns = {Column("r", name): table.column(name) for name in table.schema.names}
        taken = {
            name: computed(argument, self._types[name], columns, table.num_rows)
            for argument, name in self._arguments.items()
        }
        return pa.table({**taken, **{RIGHT_COLUMN + name: table.column(name) for name in self._matches.right}})

    def _of_windows(
        self,
        right: RightSide,
        aggregate: Aggregate,
        type_: pa.DataType,
        sizes: Array,
        floats: dict[str, tuple[Array, Array]],
    ) -> pa.Array:
        """An aggregate that slides with the windows; `floats` has the sums that others have used."""
        if not aggregate.arguments:
            return pa.array(sizes, type_)
        name, function = self._arguments[aggregate.arguments[0]], aggregate.function
        if function in _ORDERS[0]:
            words, counts = right.best(name, function)
            return values_of_words(words, type_, greatest=function == "MAX", missing=counts == 0)
        if function in _ORDERS[1]:
            words, counts = right.best(name, function)
            places = np.where(counts == 0, MISSING, ~words if function == "LAST" else words)
            return gather_or_null(right.store, [name], places, self._workers)[name]
        argument, sums = self._types[name], right.sums[name]
        if pa.types.is_floating(argument):
            if name not in floats:
                floats[name] = sums.floats()
            counts, totals = floats[name]
            if function == "COUNT":
                return pa.array(counts, type_)
            if function == "AVG":
                return float_averages(totals, counts)
            return float_column(totals, counts, type_)
        rows = sums.rows.copy()
        if function == "COUNT":
            return pa.array(counts_of(rows), type_)
        if function == "AVG":
            return average_column(rows, sums.form, argument)
        column, overflowed = sum_column(rows, sums.form, type_)
        self.overflowed += overflowed
        return column
