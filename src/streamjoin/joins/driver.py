"""`open` and `Join`: the embedded engine as users hold it.

The driver owns order: it takes pushes, learns the schemas, lets tuples through the gate or the lateness filter,
and feeds the operator. A call that fails leaves the join as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from streamjoin.joins import auto
from streamjoin.joins.base import Elastic
from streamjoin.joins.explain import explain
from streamjoin.joins.inputs import as_schema, as_table, conform, interleaving, named_columns, untyped
from streamjoin.joins.intake import SIDES, Intake, Sources
from streamjoin.joins.late import LateRows
from streamjoin.joins.metrics import Counts
from streamjoin.joins.operator import Operator
from streamjoin.kernels.compiling import WATCH
from streamjoin.model.binding import BoundSpec, bind
from streamjoin.model.errors import InputError, NotSupportedError, SpecError, StateError
from streamjoin.model.plain_types import retyped
from streamjoin.model.spec import JoinSpec
from streamjoin.windows.crew import MOST
from streamjoin.windows.workers import Workers

Array = np.ndarray[Any, np.dtype[Any]]

_DEFAULT_SOURCE = ""


def open(
    spec: JoinSpec,
    algorithm: str = "auto",
    workers: int = 1,
    *,
    index: str | None = None,
    index_options: Mapping[str, float] | None = None,
    options: Mapping[str, object] | None = None,
    left_schema: pa.Schema | None = None,
    right_schema: pa.Schema | None = None,
    sources: Mapping[str, Sequence[str]] | None = None,
) -> Join:
    """Start a join.

    Args:
        spec: what to join.
        algorithm: "auto", or one by name; all give the same rows.
        workers: threads that share the work.
        index: the index by name, for the algorithms that run over one; without it, the one that suits the condition.
        index_options: settings of that index, such as {"merge_ratio": 0.125}.
        options: settings of the algorithm, by name.
        left_schema: the left side's schema, if it should be checked, or its types fixed, before the first push.
        right_schema: likewise for the right side.
        sources: for event-time order, the physical sources of each side by name
            ({"left": ["a", "b"], "right": ["c"]}): the gate then waits for all of them. Others may join later.
    """
    return Join(
        spec,
        algorithm,
        workers,
        index=index,
        index_options=index_options,
        options=options,
        left_schema=left_schema,
        right_schema=right_schema,
        sources=sources,
    )


class Join:
    """A running join: push tables in, get the joined rows back. Threads may share it; calls take turns."""

    def __init__(
        self,
        spec: JoinSpec,
        algorithm: str = "auto",
        workers: int = 1,
        *,
        index: str | None = None,
        index_options: Mapping[str, float] | None = None,
        options: Mapping[str, object] | None = None,
        left_schema: pa.Schema | None = None,
        right_schema: pa.Schema | None = None,
        sources: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        if not isinstance(spec, JoinSpec):
            raise SpecError(f"open takes a JoinSpec, not {type(spec).__name__}")
        self._request = auto.Request(algorithm, index, index_options or {}, options or {})
        _check_workers(workers)
        self.spec = spec
        self._named = named_columns(spec)
        self._sources = _check_sources(spec, sources)
        self._schemas: list[pa.Schema | None] = [
            as_schema(schema, side) for schema, side in zip((left_schema, right_schema), SIDES, strict=True)
        ]
        self._waiting: list[tuple[list[pa.Table | None], Array, str]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._late = LateRows()
        self._counts = Counts()
        self._bound: BoundSpec | None = None
        self._workers = Workers(workers)
        self._bind_if_known()

    # -- input ---------------------------------------------------------------------------------------------

    def push(
        self,
        left: object = None,
        right: object = None,
        *,
        interleave: object = None,
        source: str | None = None,
    ) -> pa.Table:
        """Push tuples of one or both sides and get the rows that they complete, in result order.

        Args:
            left: a pyarrow Table or RecordBatch, a pandas, Polars or DuckDB frame or anything else that speaks the
                Arrow C interface, or rows as an iterable of dicts. A pandas index is not a column. Later pushes are
                cast to the types of the first where no value changes.
            right: likewise; for a self-join only `left` is given.
            interleave: one boolean for each tuple in arrival order, True where it is the right side's. Without
                it the left tuples come before the right ones.
            source: the physical source these tuples come from, in event-time order.
        """
        with self._lock:
            self._check_open()
            tables = self._check_tables(left, right)
            sides = self._check_interleave(interleave, tables)
            name = self._check_source(source)
            self._learn_schemas(tables)
            if self._bound is None:
                self._waiting.append((tables, sides, name))
                return pa.table({})
            return self._joined(self._intake.feed(tables, sides, name))

    def advance(self, time: object, *, side: str | None = None, source: str | None = None) -> pa.Table:
        """Say that a source has nothing before `time`, so that an idle one does not hold back the others.

        Args:
            time: a value of the time column's type.
            side: "left" or "right"; without it, both.
            source: the source by name; without it, the side's unnamed one.
        """
        with self._lock:
            intake = self._gated("advance")
            for index in self._side_indexes(side):
                intake.advance(index, _DEFAULT_SOURCE if source is None else source, time)
            return self._joined(intake.release())

    def finish(self, source: str | None = None, *, side: str | None = None) -> pa.Table:
        """Say that a source sends no more: the gate stops waiting for it."""
        with self._lock:
            intake = self._gated("finish")
            for index in self._side_indexes(side):
                intake.finish(index, _DEFAULT_SOURCE if source is None else source)
            return self._joined(intake.release())

    def close(self) -> pa.Table:
        """End the input: what was waiting comes out. Closing again gives an empty table."""
        with self._lock:
            if self._closed:
                return self._joined([])
            self._closed = True
            try:
                return self._joined(self._intake.release(everything=True) if self._bound else [])
            finally:
                if self._bound is not None:
                    self._operator.algorithm.close()
                self._workers.close()

    def set_workers(self, n: int) -> None:
        """Have `n` threads from now on, also in the middle of a push: for pim_parallel and scalejoin."""
        _check_workers(n)
        self._check_open()
        if self._bound is None:
            raise StateError("set_workers() needs the schemas of both sides: push both sides first")
        algorithm = self._operator.algorithm
        if not isinstance(algorithm, Elastic):
            raise NotSupportedError(
                f"the number of threads of {algorithm.name!r} is fixed when it is opened; open it with workers={n}, "
                "or use algorithm='pim_parallel' or 'scalejoin'"
            )
        # Not under the lock: a push that holds it is what should gain or lose threads.
        algorithm.set_workers(n)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what can be asked ---------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of the result, once both sides' schemas are known."""
        return self._bound.schema if self._bound else None

    def late(self) -> pa.Table:
        """Rows that came too late, or without a time, since the last call: side, source, reason and the columns."""
        with self._lock:
            return self._late.take(self._bound) if self._bound else pa.table({})

    def metrics(self) -> dict[str, Any]:
        """Counters, bytes held and seconds by step, as plain numbers."""
        with self._lock:
            counts = self._counts
            figures: dict[str, Any] = {name: value for name, value in vars(counts).items() if name != "seconds"}
            figures["waiting"] = sum(s.size for _, s, _ in self._waiting)
            figures["bytes"] = 0
            if self._bound is not None:
                stores = self._operator.stores
                figures["window_left"] = stores[0].count - stores[0].base
                figures["window_right"] = stores[1].count - stores[1].base
                figures["bytes"] = self._operator.nbytes
                figures.update(self._operator.algorithm.counters())
                figures["waiting"] += self._intake.waiting
                figures["bytes"] += self._intake.nbytes
            figures["seconds"] = dict(counts.seconds)
            figures["compile_seconds"] = WATCH.seconds
            return figures

    def explain(self) -> str:
        """The plan in words: condition, windows, order, and why this algorithm."""
        figures = self.metrics()
        with self._lock:
            choice = self._operator.choice if self._bound else None
            return explain(self.spec, self._bound, choice, self._workers.n, figures)

    # -- inside --------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise StateError("this join is closed; open a new one")

    def _check_tables(self, left: object, right: object) -> list[pa.Table | None]:
        if left is None and right is None:
            raise InputError("push needs left=, right= or both")
        if self.spec.self_join and right is not None:
            raise InputError("a self-join has one stream: push it as left=")
        given = zip((left, right), self._schemas, SIDES, self._named, strict=True)
        return [
            None if data is None else conform(as_table(data, side, named), schema, side)
            for data, schema, side, named in given
        ]

    def _check_interleave(self, interleave: object, tables: list[pa.Table | None]) -> Array:
        if interleave is not None and (self.spec.order == "event_time" or self.spec.self_join):
            raise InputError("interleave= is for the two sides of a join in arrival order")
        n_left, n_right = (0 if table is None else table.num_rows for table in tables)
        return interleaving(interleave, n_left, n_right)

    def _check_source(self, source: str | None) -> str:
        if source is None:
            return _DEFAULT_SOURCE
        if not isinstance(source, str):
            raise InputError(f"source= takes a name, not {source!r}")
        if self.spec.order != "event_time":
            raise InputError("source= is for order='event_time'; in arrival order the order of push is all there is")
        return source

    def _learn_schemas(self, tables: list[pa.Table | None]) -> None:
        before = list(self._schemas)
        # Not only the first time: a column of which all values were NULL may have got its type.
        self._schemas = [known if table is None else table.schema for known, table in zip(before, tables, strict=True)]
        if self._bound is not None and self._schemas == before:
            return
        try:
            self._bind_if_known(sum(table.num_rows for table in tables if table is not None))
        except Exception:
            self._schemas = before
            raise

    def _bind_if_known(self, batch: int | None = None) -> None:
        left, right = self._schemas
        if left is None or (right is None and not self.spec.self_join) or untyped(self.spec, left, right):
            return
        if self._bound is not None:
            self._retype(left, right)
            return
        bound = bind(self.spec, left, right)
        choice = auto.begin(bound, self._request, batch)
        self._operator = Operator(bound, choice, self._workers, self._counts)
        self._intake = Intake(bound, self._operator, self._sources, self._counts, self._late)
        self._bound = bound
        waiting, self._waiting = self._waiting, []
        # Nothing can have matched while one side was unknown: these pushes give no rows.
        for tables, is_right, name in waiting:
            fitting = [
                table if table is None or schema is None else retyped(table, schema)
                for table, schema in zip(tables, self._schemas, strict=True)
            ]
            self._intake.feed(fitting, is_right, name)

    def _retype(self, left: pa.Schema, right: pa.Schema | None) -> None:
        """Take over the types of columns that had been all NULL; keys and times are not among them."""
        bound = self._bound
        if bound is None or (bound.left_schema.equals(left) and (right is None or bound.right_schema.equals(right))):
            return
        fresh = bind(self.spec, left, right)
        # What is indexed stays: a condition that could not be read as a key before is tested on rows, as it was.
        bound = replace(
            bound,
            left_schema=fresh.left_schema,
            right_schema=fresh.right_schema,
            columns=fresh.columns,
            schema=fresh.schema,
        )
        self._operator.retype(bound)
        self._intake.retype(bound)
        self._bound = bound

    def _gated(self, call: str) -> Intake:
        self._check_open()
        if self.spec.order != "event_time":
            raise StateError(f"{call}() is for order='event_time'")
        if self._bound is None:
            raise StateError(
                f"{call}() needs the schemas of both sides: push both sides first, or give left_schema= and "
                "right_schema= to open"
            )
        return self._intake

    def _side_indexes(self, side: str | None) -> list[int]:
        if side is None:
            return list(self._intake.sides)
        if side not in SIDES:
            raise InputError(f"side={side!r}: it is 'left' or 'right'")
        return [SIDES.index(side)]

    def _joined(self, results: list[pa.Table]) -> pa.Table:
        if self._bound is None:
            return pa.table({})
        filled = [table for table in results if table.num_rows]
        if len(filled) == 1:
            return filled[0]
        return pa.concat_tables(filled) if filled else self._bound.schema.empty_table()


def _check_workers(n: object) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST:
        raise SpecError(f"workers={n!r}: give a number of threads from 1 to {MOST}")


def _check_sources(spec: JoinSpec, sources: Mapping[str, Sequence[str]] | None) -> Sources:
    if sources is None:
        return (), ()
    if spec.order != "event_time":
        raise SpecError("sources= is for order='event_time'")
    unknown = set(sources) - set(SIDES)
    if unknown:
        raise SpecError(f"sources= takes 'left' and 'right', not {', '.join(sorted(unknown))}")
    return tuple(sources.get("left", ())), tuple(sources.get("right", ()))
