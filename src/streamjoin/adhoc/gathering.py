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
        self._columns = {
            alias: tuple(dict.fromkeys(column.name for column in read if column.qualifier == alias))
            for alias in query.aliases
        }
        self._schema = query.schema

    def rows(self, refs: Mapping[str, Array], views: Mapping[str, StreamView]) -> pa.Table:
        """The outputs for the tuples' numbers by alias.

        Raises:
            InputError: a computed number does not fit its column.
        """
        count = len(next(iter(refs.values())))
        taken: dict[Column, pa.Array] = {}
        for source in self.query.sources:
            names = self._columns[source.alias]
            if names:
                batch = views[source.stream.name].take(names, refs[source.alias])
                taken.update({Column(source.alias, name): batch.column(i) for i, name in enumerate(names)})
        arrays = []
        for output in self.query.outputs:
            if isinstance(output.expression, Column):
                arrays.append(taken[output.expression])
            else:
                columns = {column: from_arrow(taken[column]) for column in output.expression.columns}
                arrays.append(to_arrow(evaluate(output.expression, columns), output.type, count))
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def empty(self) -> pa.Table:
        """No rows."""
        return self._schema.empty_table()
