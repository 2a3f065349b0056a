"""`join`: two complete tables in, one table out, by the operators that streams use.

The tables are pushed once and closed. Frames of pandas and Polars keep their own columns: only what the condition and
the order need becomes Arrow, with the number of each row, and the result's columns are taken from the frames by these
numbers (`frames.py`). Invariant: rows and their order are those of `open`, one `push` of both tables sorted by time,
and `close`; rows without a time, which have no place in that order, match nothing and come last where `how` keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.joins.auto import AlgorithmRequest, choose
from streamjoin.joins.base import Overflow
from streamjoin.joins.engine.driver import Join
from streamjoin.joins.engine.frames import Frame, frames_of, given_back
from streamjoin.joins.engine.inputs import named_columns, untyped
from streamjoin.joins.engine.intake import SIDES
from streamjoin.joins.engine.settings import OpenSettings
from streamjoin.joins.kinds.base import MISSING
from streamjoin.joins.kinds.keyed_tables import rows_behind, rows_by_key
from streamjoin.joins.kinds.summary_values import of_nothing
from streamjoin.joins.registry import AS_OF, AUTO, AlgorithmName
from streamjoin.model.asof import AsOf, Direction
from streamjoin.model.binding import BoundSpec, bind, column_type
from streamjoin.model.common_types import either
from streamjoin.model.errors import SpecError, TooManyRowsError
from streamjoin.model.large_columns import take_or_null
from streamjoin.model.output import OutputColumn, check_wanted, output, output_schema, wanted
from streamjoin.model.plain_types import plain_schema, plain_table
from streamjoin.model.spec import Condition, How, JoinSpec, WindowLike
from streamjoin.model.summary import Summary
from streamjoin.model.window import LONGEST, MAX_COUNT, CountWindow
from streamjoin.windows.encoding import flat

Tables = tuple[pa.Table, pa.Table]
Frames = tuple[Frame, Frame]

_ALL: Final = CountWindow(MAX_COUNT)


def join(
    left: Any,
    right: Any,
    on: Condition | Sequence[Condition] | None = None,
    *,
    how: How = "inner",
    match: AsOf | Summary | Direction | None = None,
    time: str | tuple[str, str] | None = None,
    window: WindowLike | tuple[WindowLike, WindowLike] | None = None,
    suffixes: tuple[str, str] = ("_left", "_right"),
    both_keys: bool = False,
    result_time: str | None = None,
    columns: Sequence[str] | None = None,
    algorithm: AlgorithmName | str = "auto",
    workers: int = 1,
    max_rows: int | None = None,
) -> Any:
    """Join two complete tables; the result is what `left` is.

    >>> import polars as pl
    >>> import streamjoin as sj
    >>> trades = pl.DataFrame({"sym": ["A", "B", "A"], "t": [5, 6, 30], "qty": [100, 50, 7]})
    >>> quotes = pl.DataFrame({"sym": ["A", "A"], "t": [4, 29], "bid": [10.1, 10.3]})
    >>> sj.join(trades, quotes, on="sym", time="t", match="backward", how="left", columns=["sym", "bid"]).rows()
    [('A', 10.1, 5), ('B', None, 6), ('A', 10.3, 30)]
    >>> sj.join(trades, quotes, on=["sym", "abs(l.qty - r.bid) < 5"], columns=["qty", "bid"]).rows()
    [(7, 10.1), (7, 10.3)]

    Args:
        left: what `Join.push` takes, and a Polars `LazyFrame`, which is collected. Any row order. pandas, Polars,
            pyarrow Tables and RecordBatches, dicts of NumPy arrays or lists, structured arrays and lists of dicts
            come back as the same; everything else as a pyarrow Table. A pandas result has a new index.
        right: likewise; it may be of another library than `left`.
        on: the condition, as in `JoinSpec`: a column that both sides have, SQL, predicates, or a list of these.
        how: "inner", "left", "right", "full", "semi" or "anti", as in `JoinSpec`.
        match: for an as-of join `AsOf(...)`, or its direction: "backward", "forward" or "nearest". Without a tolerance
            the partner may be any distance away. `Summary(...)` for aggregates of the rows around each left one.
        time: the time column, or a pair of names, for as-of joins and time windows. With it rows come in the order of
            time, without it in that of `push`: those of a right row together, in the order of the left ones.
        window: how far apart the rows of a pair may be, as in `JoinSpec`. Without it any distance.
        suffixes: as in `JoinSpec`, like both_keys and result_time.
        both_keys: see suffixes.
        result_time: see suffixes.
        columns: the columns of the result; its time is always included. Default: all.
        algorithm: as in `open`, like workers.
        workers: see algorithm.
        max_rows: more result rows than this raise `TooManyRowsError`. None: no limit.

    A row whose key or time is NULL matches nothing. No row is late: an unmatched one without a time comes last.
    """
    if isinstance(match, str):
        match = AsOf(match)
    if match is not None and time is None:
        raise SpecError(
            "an as-of join or a summary of two tables needs a time column: add time='...' or time=('left', 'right')"
        )
    spec = JoinSpec(
        on=on,
        # How many tuples are all is known when there are tables, and so is the unit in which no distance is too far.
        window=_ALL if window is None and match is None else window,
        time=time,
        how=how,
        suffixes=suffixes,
        both_keys=both_keys,
        result_time=result_time,
        match=replace(match, tolerance=LONGEST) if isinstance(match, AsOf) and match.tolerance is None else match,
    ).in_order()
    names = check_wanted(columns)
    settings = OpenSettings(AlgorithmRequest(algorithm), workers, max_rows=max_rows, columns=names)
    named = named_columns(spec)
    frames = frames_of(left, right, named)
    tables = frames[0].table(named[0]), frames[1].table(named[1])
    for side, frame, its_named in zip(SIDES, frames, named, strict=True):
        for name in sorted(its_named):
            column_type(frame.schema, name, side)
    spec = _endless(spec, frames, tables)
    chosen = output(spec, frames[0].schema, frames[1].schema).columns
    if names is not None:
        chosen = wanted(chosen, names, spec.result_time_name)
    try:
        rows = _rows_at_once(spec, tables, settings)
        if rows is None:
            return given_back(_joined(spec, frames, tables, settings, chosen), left)
    except (Overflow, TooManyRowsError) as error:
        raise TooManyRowsError(
            f"the result has more than max_rows={settings.max_rows:,} rows: allow more, or join a part of the tables"
        ) from error
    return given_back(_built(spec, frames, rows, chosen, _shared_keys(spec, tables, rows, chosen)), left)


def _endless(spec: JoinSpec, frames: Frames, tables: Tables) -> JoinSpec:
    """The spec with windows of all tuples, and room for any distance in time, where it has no bounds."""
    if spec.window is _ALL:
        spec = replace(spec, window=(CountWindow(max(1, len(frames[0]))), CountWindow(max(1, len(frames[1])))))
    if spec.time_columns is None:
        return spec
    types = [table.schema.field(name).type for table, name in zip(tables, spec.time_columns, strict=True)]
    furthest = LONGEST if any(map(pa.types.is_integer, types)) else f"{LONGEST} d"
    match = spec.match
    if isinstance(match, AsOf) and match.tolerance == LONGEST:
        match = replace(match, tolerance=furthest)
    return replace(spec, lateness=furthest, match=match)


def _rows_at_once(spec: JoinSpec, tables: Tables, settings: OpenSettings) -> tuple[Array, Array] | None:
    """The rows of both tables that make a row of the result, where the tables are read only once; else None."""
    schemas = [plain_schema(table.schema) for table in tables]
    if isinstance(spec.match, Summary) or untyped(spec, *schemas):
        return None
    bound = bind(spec, *schemas)
    if spec.match is None:
        is_by_key = bound.keys and bound.by_equalities and settings.request.algorithm == AUTO and bound.time is None
        return rows_by_key(bound, tables, settings.max_rows) if is_by_key and _holds_all(bound, tables) else None
    time = bound.time
    if time is None or choose(bound, settings.request).name != AS_OF or schemas[0].field(time.left).type != time.type:
        return None
    if spec.match.direction != "backward" or (settings.max_rows or MAX_COUNT) < tables[0].num_rows:
        return None
    left, right = rows_behind(bound, tables)
    if spec.how == "left":
        return left, right
    kept = (right != MISSING) == (spec.how == "inner")
    return left[kept], right[kept]


def _joined(
    spec: JoinSpec, frames: Frames, tables: Tables, settings: OpenSettings, chosen: Sequence[OutputColumn]
) -> Any:
    """The result of a join that runs as one of streams does, over the numbers of rows."""
    # A key that has the value of either side, summaries and the result's time come from the join itself.
    made = [
        column.name for column in chosen if column.side == "summary" or (column.is_key and "right" in spec.preserved)
    ]
    numbers = [_free_name(f"{side} row", [frame.schema for frame in frames]) for side in SIDES]
    tables = (
        _numbered(tables[0], numbers[0], len(frames[0])),
        _numbered(tables[1], numbers[1], len(frames[1])),
    )
    found = _pushed(spec, tables, replace(settings, columns=[*(numbers[:1] if spec.left_only else numbers), *made]))
    if numbers[0] not in found.column_names:
        # Keys of NULLs alone, for which no types were found: nothing matches, and nothing is kept.
        empty = np.empty(0, np.int64)
        return _built(spec, frames, (empty, None if spec.left_only else empty), chosen)
    left = found.column(numbers[0]).fill_null(MISSING).to_numpy()
    right = None if spec.left_only else found.column(numbers[1]).fill_null(MISSING).to_numpy()
    time = spec.result_time_name
    return _built(spec, frames, (left, right), chosen, found.select(made if time is None else [*made, time]))


def _shared_keys(
    spec: JoinSpec, tables: Tables, rows: tuple[Array, Array], chosen: Sequence[OutputColumn]
) -> pa.Table | None:
    """The keys that have the value of the side that is present, where either may be missing."""
    made = [column for column in chosen if column.is_key and "right" in spec.preserved]
    if not made:
        return None
    left, right = plain_table(tables[0]), plain_table(tables[1])
    schema = output_schema(made, left.schema, right.schema, how=spec.how)
    arrays = []
    for column, field in zip(made, schema, strict=True):
        both = [take_or_null(t.column(column.source), own) for t, own in zip((left, right), rows, strict=True)]
        arrays.append(either(flat(both[0]), flat(both[1]), field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _built(
    spec: JoinSpec,
    frames: Frames,
    rows: tuple[Array, Array | None],
    chosen: Sequence[OutputColumn],
    made: pa.Table | None = None,
) -> Any:
    """The result: the rows of both frames with these numbers, beside what the join made.

    Where nothing was made, the result's time is that of the left side, which is never earlier.
    """
    time, names = spec.result_time_name, [column.name for column in chosen]
    schemas = [frame.schema for frame in frames]
    field = None
    if time is not None and spec.time_columns is not None:
        names.append(time)
        source = spec.time_columns[0]
        field = pa.field(time, schemas[0].field(source).type if made is None else made.schema.field(time).type)
    new = made.schema if made is not None and isinstance(spec.match, Summary) else None
    fields = output_schema(chosen, schemas[0], schemas[1], field, spec.how, spec.time_columns, new)
    for column in [] if made is None else made.schema:
        # A key of NULLs in both tables has no type there; the join found one.
        at = fields.get_field_index(column.name)
        fields = fields.set(at, fields.field(at).with_type(column.type))
    if field is not None and made is None:
        chosen = [*chosen, OutputColumn(field.name, "left", source)]
    columns = {} if made is None else frames[0].columns_of(made)
    for side, frame, own in zip(SIDES, frames, rows, strict=True):
        sources = {column.source: None for column in chosen if column.side == side and column.name not in columns}
        taken = frame.taken(sources, own) if own is not None else {}
        columns |= {c.name: taken[c.source] for c in chosen if c.side == side and c.name not in columns}
    return frames[0].built({name: columns[name] for name in names}, fields, rows[0].size)


def _holds_all(bound: BoundSpec, tables: Tables) -> bool:
    """Whether no row leaves its window before the end."""
    both = zip(bound.windows, tables, strict=True)
    return all(window.kind == "count" and window.size >= table.num_rows for window, table in both)


def _pushed(spec: JoinSpec, tables: Tables, settings: OpenSettings) -> pa.Table:
    """What a join gives for one push of both tables."""
    tables = plain_table(tables[0]), plain_table(tables[1])
    with Join(spec, settings) as running:
        parts = [running.push(*tables)]
        # Before the end, which may drop what was not read.
        untimed = [running.late()]
        parts.append(running.close())
        untimed.append(running.late())
    # A join that knew no columns until the end has a first part without any.
    rows = pa.concat_tables([part for part in parts if part.num_rows] or parts[-1:])
    for late in untimed:
        for side in (side for side in SIDES if side in spec.preserved and late.num_rows):
            rows = pa.concat_tables([rows, _unmatched(spec, tables, rows.schema, late, side)])
    return rows


def _unmatched(spec: JoinSpec, tables: Tables, schema: pa.Schema, late: pa.Table, side: str) -> pa.Table:
    """The rows of one side that have no time, as rows without a partner."""
    # The first three columns say why a row is there, under names that the table's own columns may have too.
    own = late.filter(pc.equal(late.column(0), side)).select(range(3, late.num_columns))
    names = output(spec, tables[0].schema, tables[1].schema)
    sources: dict[tuple[str, str], str] = {(c.side, c.source): c.name for c in names.late_columns}
    columns = {column.name: column for column in names.columns}
    arrays = []
    summary = bind(spec, tables[0].schema, tables[1].schema).summary if isinstance(spec.match, Summary) else None
    for field in schema:
        column = columns.get(field.name)
        if column is not None and column.side == "summary" and summary is not None:
            arrays.append(of_nothing(summary, field, own.num_rows))
            continue
        if column is None:
            arrays.append(pa.nulls(own.num_rows, field.type))
            continue
        values = own.column(sources[side if column.is_key else column.side, column.source])
        arrays.append(values if values.type.equals(field.type) else values.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _numbered(table: pa.Table, name: str, n: int) -> pa.Table:
    """The table with the numbers of its rows."""
    numbers = pa.array(np.arange(n))
    return pa.Table.from_arrays([*table.columns, numbers], schema=table.schema.append(pa.field(name, numbers.type)))


def _free_name(name: str, schemas: Sequence[pa.Schema]) -> str:
    """A name that no column has."""
    taken = {column.lower() for schema in schemas for column in schema.names}
    while name in taken:
        name = f"#{name}"
    return name
