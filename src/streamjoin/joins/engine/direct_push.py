"""The shortest way of a small push: two batches in, one table out, in a handful of compiled calls.

A push in arrival order over count windows, by an index whose pairs need no further test, has no decisions left to
make: this module has made them once. It uses the plan, the kernels and the memory of `engine/compiled_step.py` and
changes the same stores and the same index as the other ways, so any push may take any way. Invariant: a push that it
does not take has changed nothing, and one that fails is undone by `restore`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.joins import auto
from streamjoin.joins.base import Overflow
from streamjoin.joins.engine.compiled_step import CompiledStep, EncodedPush
from streamjoin.joins.engine.numpy_input import NumpyReader
from streamjoin.joins.engine.operator import Operator
from streamjoin.joins.indexed import Indexed

# A larger push is cut into chunks.
_MOST_TUPLES = 1 << 12


class DirectPush:
    """Pushes of one join, as long as its algorithm and its columns stay what they are."""

    def __init__(
        self, operator: Operator, compiled: CompiledStep, algorithm: Indexed, schemas: tuple[pa.Schema, pa.Schema]
    ) -> None:
        self._operator, self._compiled, self._algorithm = operator, compiled, algorithm
        self._schemas = schemas
        self._counts, self._adapting = operator.counts, operator.adapting
        self._stores = operator.stores
        self._sizes = [window.size for window in operator.bound.windows]
        self._most = _MOST_TUPLES
        index = operator.choice.index
        if operator.choice.adaptive and index is not None:
            # Beyond this many tuples the operator may want another algorithm.
            window = auto.expected_window(operator.bound)
            self._most = auto.most_for_index(window, index, _MOST_TUPLES, operator.workers, operator.adapting.found)
        self._numpy = NumpyReader(), NumpyReader()
        self._nothing = tuple(pa.RecordBatch.from_pylist([], schema=schema) for schema in schemas)
        self._make_room(1)
        for step in ("store", "pair", "gather", "expire"):
            self._counts.seconds.setdefault(step, 0.0)

    @classmethod
    def of(cls, operator: object, schemas: tuple[pa.Schema | None, pa.Schema | None]) -> DirectPush | None:
        """The direct way of a join, if it has one now."""
        if not isinstance(operator, Operator) or schemas[0] is None or schemas[1] is None:
            return None
        bound, algorithm, compiled = operator.bound, operator.algorithm, operator.compiled
        if compiled is None or not isinstance(algorithm, Indexed) or not compiled.is_ready:
            return None
        spec = bound.spec
        timed = spec.order != "arrival" or any(window.kind != "count" for window in bound.windows)
        if timed or spec.self_join or operator.tests_pairs:
            return None
        if (len(bound.left_schema), len(bound.right_schema)) != (len(schemas[0]), len(schemas[1])):
            # Some columns are not stored.
            return None
        return cls(operator, compiled, algorithm, (schemas[0], schemas[1]))

    def is_current(self) -> bool:
        """Whether the join is still the one that this way was made for."""
        operator = self._operator
        return operator.algorithm is self._algorithm and operator.compiled is self._compiled

    def save(self) -> None:
        """Record the state that `restore` returns to."""
        counts, stores = self._counts, self._stores
        self._operator.pairing = False
        self._saved = (
            stores[0].state(), stores[1].state(), counts.tuples_left, counts.tuples_right, counts.compared,
            counts.results, counts.expired,
        )  # fmt: skip

    def restore(self) -> None:
        """Return to the state of `save`."""
        counts, saved = self._counts, self._saved
        self._stores[0].restore(saved[0])
        self._stores[1].restore(saved[1])
        counts.tuples_left, counts.tuples_right, counts.compared, counts.results, counts.expired = saved[2:]
        if self._operator.pairing:
            self._operator.build_anew()

    def run(self, left: object, right: object, limit: int | None) -> pa.Table | None:
        """Join a push; None, with nothing changed, if it needs another way.

        Raises:
            Overflow: there are more than `limit` rows.
        """
        compiled, counts, algorithm = self._compiled, self._counts, self._algorithm
        begin = counts.now()
        left_batch, right_batch = self._batch(0, left), self._batch(1, right)
        if left_batch is None or right_batch is None or self._adapting.wasted:
            return None
        n_left, n_right = left_batch.num_rows, right_batch.num_rows
        n = n_left + n_right
        if n != self._n:
            if not 0 < n <= self._most:
                return None
            self._make_room(n)
        block = self._block
        if not compiled.take_in(block, left_batch, right_batch, algorithm.least):
            return None
        stored = counts.now()
        self._operator.pairing = True
        probes, seqs = algorithm.pair(self._columns)
        rows = probes.size
        if limit is not None and rows > limit:
            raise Overflow
        paired = counts.now()
        result = compiled.gather(block, probes, seqs)
        gathered = counts.now()
        counts.tuples_left += n_left
        counts.tuples_right += n_right
        counts.compared += rows
        counts.results += rows
        (left_store, right_store), sizes = self._stores, self._sizes
        left_min, right_min = left_store.count - sizes[0], right_store.count - sizes[1]
        counts.expired += left_store.forget(left_min) + right_store.forget(right_min)
        algorithm.forget(left_min, right_min)
        seconds = counts.seconds
        seconds["store"] += stored - begin
        seconds["pair"] += paired - stored
        seconds["gather"] += gathered - paired
        seconds["expire"] += counts.now() - gathered
        return result

    def _make_room(self, n: int) -> None:
        """Make the block of words of pushes of `n` tuples; one after another has the same size as a rule."""
        self._n = n
        self._block = EncodedPush(np.empty((self._compiled.rows, n), np.int64), 0, False, ())
        self._columns = self._block.task(self._compiled.index_row, True)

    def _batch(self, side: int, data: Any) -> Any:
        """The rows of one side as kernels read them; None if they need another way."""
        schema = self._schemas[side]
        if data is None:
            return self._nothing[side]
        if isinstance(data, pa.Table):
            if not data.schema.equals(schema):
                return None
            batches = data.to_batches()
            return batches[0] if len(batches) == 1 else None
        if isinstance(data, pa.RecordBatch):
            return data if data.schema.equals(schema) else None
        return self._numpy[side].read(data, schema) if isinstance(data, dict | np.ndarray) else None
