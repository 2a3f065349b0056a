"""How a query's rows are made of the columns that it reads (AJoin, section 3.4: late materialization)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from streamjoin.joins.kinds.summary_values import computed
from streamjoin.model.expression.arrow_results import to_arrow
from streamjoin.model.expression.evaluation import evaluate, from_arrow
from streamjoin.model.expression.nodes import Column
from streamjoin.queries.language.plan import Query

Read = tuple[int, str, str]
"""Which source of the query, its stream, and the column."""


def reference_schema(query: Query) -> pa.Schema:
    """The columns of a query's results as numbers of tuples, one for each source."""
    return pa.schema([(alias, pa.int64()) for alias in query.aliases])


class Gatherer:
    """How a query's rows are made of the columns that it reads; found once."""

    def __init__(self, query: Query) -> None:
        self.query = query
        columns = [column for output in query.outputs for column in output.expression.columns]
        places = {source.alias: (number, source.stream.name) for number, source in enumerate(query.sources)}
        self.reads: tuple[Read, ...] = tuple(
            dict.fromkeys((*places[column.qualifier], column.name) for column in columns)
        )
        by_read = {read: place for place, read in enumerate(self.reads)}
        self._place = {column: by_read[(*places[column.qualifier], column.name)] for column in columns}
        self._summarised = {step.right for step in query.kind_steps if step.summary is not None}
        self.schema = query.schema

    @cached_property
    def picks(self) -> tuple[int, ...] | None:
        """The place of each output among the columns read; None if one is computed."""
        outputs = [output.expression for output in self.query.outputs]
        if not all(isinstance(expression, Column) for expression in outputs):
            return None
        return tuple(self._place[expression] for expression in outputs if isinstance(expression, Column))

    def rows(self, taken: Sequence[pa.Array], count: int) -> pa.Table:
        """The outputs of `count` rows, from the columns read; of aggregates NaN stays NaN, as a NULL is something else.

        Raises:
            InputError: a computed number does not fit its column.
        """
        arrays = []
        for output in self.query.outputs:
            expression = output.expression
            if isinstance(expression, Column):
                arrays.append(taken[self._place[expression]])
            elif any(column.qualifier in self._summarised for column in expression.columns):
                values = {column: taken[self._place[column]] for column in expression.columns}
                arrays.append(computed(expression, output.type, values, count))
            else:
                columns = {column: from_arrow(taken[self._place[column]]) for column in expression.columns}
                arrays.append(to_arrow(evaluate(expression, columns), output.type, count))
        return pa.Table.from_arrays(arrays, schema=self.schema)
