"""References to rows: a query's outputs, gathered once (AJoin, section 3.4: late materialization)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.adhoc.buckets import StreamView
from streamjoin.adhoc.plan import Query
from streamjoin.model.arrow_results import to_arrow
from streamjoin.model.evaluation import evaluate, from_arrow
from streamjoin.model.expression import Column

Array = np.ndarray[Any, np.dtype[Any]]


class Gatherer:
    """Makes a query's rows; which columns it reads is found once."""

    def __init__(self, query: Query) -> None:
        self.query = query
        read = [column for output in query.outputs for column in output.expression.columns]
        self._read = [
            (
                source.alias,
                source.stream.name,
                tuple(dict.fromkeys(c.name for c in read if c.qualifier == source.alias)),
            )
            for source in query.sources
        ]
        columns = [Column(alias, name) for alias, _, names in self._read for name in names]
        self._place = {column: place for place, column in enumerate(columns)}
        self._empty = query.schema.empty_table()

    def rows(self, refs: Mapping[str, Array], views: Mapping[str, StreamView]) -> pa.Table:
        """The outputs for the tuples' numbers by alias.

        Raises:
            InputError: a computed number does not fit its column.
        """
        count = len(next(iter(refs.values())))
        taken: list[pa.Array] = []
        for alias, stream, names in self._read:
            if names:
                taken += views[stream].take(names, refs[alias]).columns
        arrays = []
        for output in self.query.outputs:
            expression = output.expression
            if isinstance(expression, Column):
                arrays.append(taken[self._place[expression]])
            else:
                columns = {column: from_arrow(taken[self._place[column]]) for column in expression.columns}
                arrays.append(to_arrow(evaluate(expression, columns), output.type, count))
        return pa.Table.from_arrays(arrays, schema=self._empty.schema)

    def empty(self) -> pa.Table:
        """No rows."""
        return self._empty
