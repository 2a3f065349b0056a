"""`open` and `Join`: the embedded engine as users see it.

The driver owns order: it takes pushes, learns the schemas, passes tuples through the gate or the lateness filter,
and feeds the operator. Invariant: a call that fails, for any reason, leaves the join unchanged; where that is
impossible the join is broken, and every later call raises an error with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin._html import Figures, PlanText, plan_or_error
from streamjoin.indexes.registry import IndexName
from streamjoin.jit.compiling import WATCH
from streamjoin.joins import auto
from streamjoin.joins.base import Elastic, Overflow
from streamjoin.joins.engine.calls import BATCH_ROWS, Begin, Calls, Results
from streamjoin.joins.engine.explain import explain, in_short
from streamjoin.joins.engine.inputs import (
    as_arrow,
    as_schema,
    as_table,
    conform,
    exact_input,
    interleaving,
    named_columns,
    settled,
    untyped,
)
from streamjoin.joins.engine.intake import SIDES, Intake
from streamjoin.joins.engine.late import LateRows
from streamjoin.joins.engine.metrics import Counts
from streamjoin.joins.engine.numpy_input import NumpyReader
from streamjoin.joins.engine.operator import Operator
from streamjoin.joins.engine.ordered import Work
from streamjoin.joins.engine.settings import MAX_ROWS, OpenSettings, check_sources, check_workers
from streamjoin.joins.kinds.asof_operator import AsOfOperator
from streamjoin.joins.kinds.left_operator import LeftOperator
from streamjoin.joins.kinds.summary_operator import SummaryOperator
from streamjoin.joins.registry import AS_OF, KINDS, SUMMARY, AlgorithmName
from streamjoin.model.binding import BoundSpec, bind, narrowed
from streamjoin.model.comparisons import with_comparisons
from streamjoin.model.errors import InputError, NotSupportedError, SpecError, StateError
from streamjoin.model.output import check_wanted
from streamjoin.model.plain_types import retyped
from streamjoin.model.spec import JoinSpec
from streamjoin.windows.buffer import Restore
from streamjoin.windows.workers import Workers

_DEFAULT_SOURCE = ""
# Joins that decide left tuples, by the name in place of an algorithm.
_DECIDING: dict[str, type[LeftOperator]] = {AS_OF: AsOfOperator, SUMMARY: SummaryOperator}


def open(
    spec: JoinSpec,
    algorithm: AlgorithmName | str = "auto",
    workers: int = 1,
    *,
    index: IndexName | str | None = None,
    index_options: Mapping[str, float] | None = None,
    options: Mapping[str, object] | None = None,
    left_schema: pa.Schema | None = None,
    right_schema: pa.Schema | None = None,
    sources: Mapping[str, Sequence[str]] | None = None,
    max_rows: int | None = MAX_ROWS,
    on_close: Callable[[pa.Table], object] | None = None,
    columns: Sequence[str] | None = None,
) -> Join:
    """Start a join.

    Args:
        spec: what to join.
        algorithm: "auto", or one by name; all give the same rows.
        workers: threads that share the work.
        index: the index by name, for algorithms that use one; by default the one that suits the condition.
        index_options: settings of that index, such as {"merge_ratio": 0.125}.
        options: settings of the algorithm, by name.
        left_schema: the left side's schema, if it should be checked, or its types fixed, before the first push.
        right_schema: likewise for the right side.
        sources: for event-time order, the physical sources of each side by name
            ({"left": ["a", "b"], "right": ["c"]}): the gate then waits for all of them. Others may join later.
        max_rows: a call with more result rows raises `TooManyRowsError` and changes nothing; `push_iter`
            returns them in tables of bounded size. None: no limit.
        on_close: called with the remaining rows, table by table, when a `with` block ends in event-time order. Without
            it the end of the block raises `StateError` if there are such rows, unless `close()` was called inside.
        columns: the columns of the result; others are not stored. The result's time is always included. Default: all.
    """
    if isinstance(spec, JoinSpec):
        spec.warn_of_order(stacklevel=2)
    settings = OpenSettings(
        auto.AlgorithmRequest(algorithm, index, index_options or {}, options or {}),
        workers,
        (left_schema, right_schema),
        sources,
        max_rows,
        on_close,
        columns,
    )
    return Join(spec, settings)


class Join(Calls):
    """A running join: push tables in, get the joined rows back. Threads may share it; calls take turns."""

    def __init__(self, spec: JoinSpec, settings: OpenSettings) -> None:
        if not isinstance(spec, JoinSpec):
            raise SpecError(f"open takes a JoinSpec, not {type(spec).__name__}")
        self.spec = spec = spec.in_order()
        self._settings = settings
        self._columns = check_wanted(settings.columns)
        self._named = named_columns(spec)
        self._sources = check_sources(spec, settings.sources)
        self._schemas: list[pa.Schema | None] = [
            as_schema(schema, side) for schema, side in zip(settings.schemas, SIDES, strict=True)
        ]
        self._numpy = NumpyReader(), NumpyReader()
        self._waiting: list[tuple[list[pa.Table | None], Array, str]] = []
        self._late = LateRows()
        self._counts = Counts()
        self._bound: BoundSpec | None = None
        self._workers = Workers(settings.workers, reuses=True)
        # The operator, once it joins small pushes at once.
        self._at_once: Operator | None = None
        self._bind_if_known()
        super().__init__(settings.max_rows, settings.on_close)

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

        The table has the result's columns once those of both sides are known: from the first call on where `open` was
        given `left_schema=` and `right_schema=`. Before that it has none, and the metadata of its schema says why.

        Args:
            left: a pyarrow Table or RecordBatch, a pandas, Polars or DuckDB frame or anything else with the
                Arrow C interface, a dict of NumPy arrays or lists, a structured NumPy array, or an iterable of dicts.
                A pandas index is not a column. Later pushes are cast to the types of the first where no value changes.
            right: likewise; for a self-join only `left` is given.
            interleave: one boolean for each tuple in arrival order, True where it is the right side's. Without
                it the left tuples come before the right ones.
            source: the physical source these tuples come from, in event-time order.

        Raises:
            TooManyRowsError: there are more rows than `max_rows`; the join is unchanged.
        """
        rows = None
        if self._at_once is not None and interleave is None and source is None:
            rows = self._push_at_once(self._at_once, left, right)
        return self._whole(lambda: self._feeding(left, right, interleave, source)) if rows is None else rows

    def push_iter(
        self,
        left: object = None,
        right: object = None,
        *,
        interleave: object = None,
        source: str | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> Results:
        """`push` for any number of rows: returns tables of at most `batch_rows` rows, in the same order.

        The tuples are joined while the tables are read, so memory stays bounded. Read the iterator to its end: until
        then the join accepts no other call, and if the iterator is dropped earlier, the join is unusable. A table that
        fails, for example by an interrupt, can be requested again.
        """
        return self._streamed(lambda: self._feeding(left, right, interleave, source, kept=True), batch_rows)

    def advance(self, time: object, *, side: str | None = None, source: str | None = None) -> pa.Table:
        """Declare that a source has no tuples before `time`, so that an idle source does not block the others.

        Args:
            time: a value of the time column's type.
            side: "left" or "right"; without it, both.
            source: the source by name; without it, the side's unnamed one.
        """
        return self._whole(lambda: self._advancing(time, side, source))

    def advance_iter(
        self, time: object, *, side: str | None = None, source: str | None = None, batch_rows: int = BATCH_ROWS
    ) -> Results:
        """`advance` for any number of rows, read as those of `push_iter`."""
        return self._streamed(lambda: self._advancing(time, side, source), batch_rows)

    def finish(self, source: str | None = None, *, side: str | None = None) -> pa.Table:
        """Declare that a source has ended: the gate stops waiting for it."""
        return self._whole(lambda: self._finishing(source, side))

    def finish_iter(
        self, source: str | None = None, *, side: str | None = None, batch_rows: int = BATCH_ROWS
    ) -> Results:
        """`finish` for any number of rows, read as those of `push_iter`."""
        return self._streamed(lambda: self._finishing(source, side), batch_rows)

    def set_workers(self, n: int) -> None:
        """Change the number of threads to `n`, also during a push; for pim_parallel and scalejoin."""
        check_workers(n)
        self._check_alive()
        if self._bound is None:
            raise StateError("set_workers() needs the schemas of both sides: push both sides first")
        algorithm = self._operator.algorithm
        if not isinstance(algorithm, Elastic):
            raise NotSupportedError(
                f"the number of threads of {algorithm.name!r} is fixed when it is opened; open it with workers={n}, "
                "or use algorithm='pim_parallel' or 'scalejoin'"
            )
        # Not under the lock: it is held by the push whose threads should change.
        algorithm.set_workers(n)

    # -- state ---------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of the result, once both sides' schemas are known."""
        return self._bound.schema if self._bound else None

    def late(self) -> pa.Table:
        """Rows that were late or without a time since the last call: side, source, reason and the columns."""
        with self._lock:
            self._check_whole()
            return self._late.take(self._bound) if self._bound else pa.table({})

    def metrics(self) -> Figures:
        """Counters, bytes held and seconds by step, as plain numbers.

        `window_bytes` are the rows of both windows, `index_bytes` what the algorithm keeps to find them; both are given
        per tuple in the windows as well.
        """
        with self._lock:
            self._check_whole()
            counts = self._counts
            figures = Figures({name: value for name, value in vars(counts).items() if name != "seconds"})
            figures["late_bytes"], figures["late_dropped"] = self._late.nbytes, self._late.dropped
            figures["waiting"] = sum(s.size for _, s, _ in self._waiting)
            figures["bytes"] = 0
            if self._bound is not None:
                stores = self._operator.stores
                figures["window_left"] = stores[0].count - stores[0].base
                figures["window_right"] = stores[1].count - stores[1].base
                tuples = max(1, figures["window_left"] + figures["window_right"])
                for part, held in zip(("window", "index"), self._operator.nbytes, strict=True):
                    figures["bytes"] += held
                    figures[f"{part}_bytes"] = held
                    figures[f"{part}_bytes_per_tuple"] = held / tuples
                figures.update(self._operator.counters())
                figures["waiting"] += self._intake.waiting
                figures["waiting"] += self._unread_tuples
                figures["bytes"] += self._intake.nbytes
            figures["seconds"] = dict(counts.seconds)
            figures["compile_seconds"] = WATCH.seconds
            return figures

    def explain(self) -> PlanText:
        """The plan in words: condition, windows, order, and why this algorithm."""
        figures = self.metrics()
        with self._lock:
            choice = self._operator.choice if self._bound else None
            return explain(self.spec, self._bound, choice, self._workers.n, figures)

    def __repr__(self) -> str:
        return self._in_short("Join")

    def _in_short(self, name: str, *state: str) -> str:
        # Without the lock: whoever looks at a join does not wait for a push.
        if not state:
            state = ("closed",) if self._closed else ("broken",) if isinstance(self._broken, Exception) else ()
        stores = () if self._bound is None else self._operator.stores
        left, right = (store.count - store.base for store in stores) if stores else (0, 0)
        held = f"{left:,} left and {right:,} right rows in the windows"
        return in_short(name, self.spec, self._operator.choice.name if stores else None, held, *state)

    def _repr_html_(self) -> str:
        return plan_or_error(self.explain)

    # -- internals -----------------------------------------------------------------------------------------

    def _push_at_once(self, operator: Operator, left: object, right: object) -> pa.Table | None:
        """Join a push without work in steps; None, with nothing changed, if it needs that."""
        with self._lock:
            if self._closed or self._broken is not None or self._results is not None or self._forked:
                return None
            operator.save_push()
            try:
                return self._guard(lambda: operator.join_at_once(left, right, self._max_rows), operator.undo_push)
            except Overflow:
                return None

    def _saved(self) -> Restore:
        self._late.trim()
        bound, schemas, waiting, n = self._bound, list(self._schemas), self._waiting, len(self._waiting)
        parts = [self._counts.saved(), self._late.saved()]
        if bound is not None:
            parts.append(self._intake.saved())

        def restore() -> None:
            # No thread may work on the state while it is restored.
            self._workers.settle()
            if bound is None and self._bound is not None:
                self._operator.algorithm.close()
            self._bound, self._schemas, self._waiting = bound, list(schemas), waiting
            del waiting[n:]
            for part in parts:
                part()

        return restore

    def _step(self, work: Work, limit: int | None, most: int | None) -> pa.Table:
        return self._operator.step(work, limit, most)

    def _end_threads(self) -> None:
        if self._bound is not None:
            self._operator.algorithm.close()
        self._workers.close()

    @property
    def _threaded(self) -> bool:
        kind = None if self._bound is None else KINDS.get(self._operator.choice.name)
        return self._workers.n > 1 or (kind is not None and kind.own_threads)

    # Checks before any change of state, then the call itself.

    def _feeding(
        self, left: object, right: object, interleave: object, source: str | None, *, kept: bool = False
    ) -> Begin:
        tables, known = self._check_tables(left, right)
        if kept or self._bound is None or self.spec.order == "event_time":
            tables = [as_arrow(table) for table in tables]
        sides = self._check_interleave(interleave, tables)
        name = self._check_source(source)

        def begin() -> Work | None:
            ready = [] if known else self._learn_schemas(tables)
            if self._bound is None:
                self._waiting.append((tables, sides, name))
                return None
            work = self._intake.feed(tables, sides, name, left_first=interleave is None)
            if ready:
                work.ready += ready
            self._at_once = self._operator.at_once(self._schemas)
            return work

        return begin

    def _advancing(self, time: object, side: str | None, source: str | None) -> Begin:
        intake, sides = self._gated("advance"), self._side_indexes(side)

        def begin() -> Work | None:
            for index in sides:
                intake.advance(index, _DEFAULT_SOURCE if source is None else source, time)
            return intake.release()

        return begin

    def _finishing(self, source: str | None, side: str | None) -> Begin:
        intake, sides = self._gated("finish"), self._side_indexes(side)

        def begin() -> Work | None:
            for index in sides:
                intake.finish(index, _DEFAULT_SOURCE if source is None else source)
            return intake.release()

        return begin

    def _closing(self) -> Begin:
        def begin() -> Work | None:
            ready: list[pa.Table] = []
            (left, right), waiting = self._schemas, bool(self._waiting)
            if self._bound is None and waiting and left is not None and (right is not None or self.spec.self_join):
                # No value will come any more that says which type the columns without values have.
                self._schemas = list(settled(self.spec, left, right))
                ready = self._bind_if_known()
            if self._bound is None:
                if self.spec.preserved and waiting:
                    raise StateError(
                        f"close() can't give the unmatched tuples of how={self.spec.how!r}: {self._unknown()}"
                    )
                return None
            work = self._intake.release(everything=True)
            if ready and work is not None:
                work.ready += ready
            return work

        return begin

    def _check_tables(self, left: object, right: object) -> tuple[list[pa.Table | None], bool]:
        """Both sides in the columns and types of their schemas, and whether nothing can be learned from them."""
        if left is None and right is None:
            raise InputError("push needs left=, right= or both")
        if self.spec.self_join and right is not None:
            raise InputError("a self-join has one stream: push it as left=")
        tables, known = [], self._bound is not None
        for place, data in enumerate((left, right)):
            table = None
            if data is not None:
                schema, side = self._schemas[place], SIDES[place]
                table = None if schema is None else exact_input(data, schema, self._numpy[place])
                if table is None:
                    known = False
                    table = conform(as_table(data, side, self._named[place]), schema, side)
            tables.append(table)
        return tables, known

    def _check_interleave(self, interleave: object, tables: list[pa.Table | None]) -> Array:
        if interleave is not None and (self.spec.order == "event_time" or self.spec.self_join):
            raise InputError("interleave= is for the two sides of a join in arrival order")
        left, right = tables
        return interleaving(interleave, 0 if left is None else left.num_rows, 0 if right is None else right.num_rows)

    def _check_source(self, source: str | None) -> str:
        if source is None:
            return _DEFAULT_SOURCE
        if not isinstance(source, str):
            raise InputError(f"source= takes a name, not {source!r}")
        if self.spec.order != "event_time":
            raise InputError("source= is for order='event_time'; in arrival order the order of push is all there is")
        return source

    def _learn_schemas(self, tables: list[pa.Table | None]) -> list[pa.Table]:
        """Bind the spec once the schemas are known; returns the rows of tuples that waited for that."""
        (left, right), before = tables, self._schemas
        # Not only the first time: a column that was all NULL may have a type now.
        self._schemas = [_learned(schema, table) for schema, table in zip(before, (left, right), strict=True)]
        if self._bound is None or self._schemas != before:
            return self._bind_if_known(sum(table.num_rows for table in tables if table is not None))
        return []

    def _bind_if_known(self, batch: int | None = None) -> list[pa.Table]:
        left, right = self._schemas
        if left is None or (right is None and not self.spec.self_join) or untyped(self.spec, left, right):
            return []
        if self._bound is not None:
            self._retype(left, right)
            return []
        bound = with_comparisons(narrowed(bind(self.spec, left, right), self._columns))
        choice = auto.begin(bound, self._settings.request, batch, self._workers.n)
        self._operator: Operator | LeftOperator
        if choice.name in _DECIDING:
            self._operator = _DECIDING[choice.name](bound, choice, self._workers, self._counts)
        else:
            self._operator = Operator(bound, choice, self._workers, self._counts, self._settings.general_pushes)
        self._intake = Intake(bound, self._operator, self._sources, self._counts, self._late)
        self._bound = bound
        waiting, self._waiting = self._waiting, []
        # Nothing can match while one side is unknown, but tuples may leave their windows unmatched.
        rows = []
        for tables, is_right, name in waiting:
            fitting = [
                table if table is None or schema is None else retyped(table, schema)
                for table, schema in zip(tables, self._schemas, strict=True)
            ]
            work = self._intake.feed(fitting, is_right, name)
            while work.waiting:
                rows.append(self._operator.step(work, None))
        return [table for table in rows if table.num_rows]

    def _retype(self, left: pa.Schema, right: pa.Schema | None) -> None:
        """Adopt the types of columns that had been all NULL; keys and times are not among them."""
        bound, fresh = self._bound, narrowed(bind(self.spec, left, right), self._columns)
        if bound is None or (bound.left_schema, bound.right_schema) == (fresh.left_schema, fresh.right_schema):
            return
        # The index does not change: a condition that was not usable as a key is still tested on rows.
        bound = replace(
            bound,
            left_schema=fresh.left_schema,
            right_schema=fresh.right_schema,
            columns=fresh.columns,
            late_columns=fresh.late_columns,
            schema=fresh.schema,
        )
        self._operator.retype(bound)
        self._intake.retype(bound)
        self._bound = bound

    def _unknown(self) -> str:
        """Why the result has no columns yet."""
        sides = [side for side, schema in zip(SIDES, self._schemas, strict=True) if schema is None]
        if not sides or self.spec.self_join:
            return (
                "no columns yet: a key or a time has had only NULLs and no type; push a value, or give left_schema= "
                "and right_schema= to open"
            )
        return (
            f"no columns yet: the columns of the {' and the '.join(sides)} side are not known; push it, if only an "
            f"empty table, or give {' and '.join(f'{side}_schema=' for side in sides)} to open"
        )

    def _gated(self, call: str) -> Intake:
        if self.spec.order != "event_time":
            raise StateError(f"{call}() is for order='event_time'")
        if self._bound is None:
            raise StateError(f"{call}() needs the schemas of both sides; the result has {self._unknown()}")
        return self._intake

    def _side_indexes(self, side: str | None) -> list[int]:
        if side is None:
            return list(self._intake.sides)
        if side not in SIDES:
            raise InputError(f"side={side!r}: it is 'left' or 'right'")
        return [SIDES.index(side)]

    def _joined(self, results: list[pa.Table]) -> pa.Table:
        if self._bound is None:
            return pa.schema([], {"streamjoin": self._unknown()}).empty_table()
        if len(results) == 1:
            return results[0]
        tables = [table for table in results if table.num_rows]
        if len(tables) == 1:
            return tables[0]
        return pa.concat_tables(tables) if tables else self._operator.no_rows


def _learned(known: pa.Schema | None, table: pa.Table | None) -> pa.Schema | None:
    """A side's schema after a push: the first one's, with its metadata, as long as the types are the same."""
    if table is None or (known is not None and known.equals(table.schema)):
        return known
    return table.schema
