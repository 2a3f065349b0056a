"""`open`: starts a join."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from streamjoin.joins.engine.driver import Join
from streamjoin.joins.engine.settings import MAX_ROWS
from streamjoin.model.spec import JoinSpec


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
        max_rows=max_rows,
        on_close=on_close,
        columns=columns,
    )
