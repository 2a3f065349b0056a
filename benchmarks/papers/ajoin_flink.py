"""AJoin's queries as Flink runs them: a statement each, all in one job, so that a stream is read once for all of them.

Flink's interval join has the same rows as a window by time. The timed run throws its rows away; another one writes a
column of each row, to count them by query.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from benchmarks.papers import ajoin_workload as ajoin
from benchmarks.papers.ajoin_spark import Ran, StreamFiles
from benchmarks.rivals.rival_runs import Programs, RivalTimeoutError, Stream

_COLUMNS = [f"a{n}" for n in range(ajoin.ATTRIBUTES)]
_ONE = pa.schema([("counted", pa.int64())])


def run_flink(
    programs: Programs,
    files: StreamFiles,
    queries: Sequence[ajoin.AJoinQuery],
    workers: int,
    rows: tuple[int, ...] | None = None,
) -> Ran:
    """All queries over all files; not whole where Flink takes too long. `rows` by query are counted where not known."""
    streams = [_stream(files, number) for number in range(len(files.streams))]
    timed = {"workers": workers, "queries": [_all_columns(query) for query in queries], "discard": True}
    counted = {"workers": workers, "queries": [_one_column(query) for query in queries]}
    try:
        ran = programs.run("flink", timed, streams, ())
        if rows is None:
            tables = programs.run("flink", counted, streams, [_ONE] * len(queries)).tables
            rows = tuple(table.num_rows for table in tables)
    except RivalTimeoutError as error:
        return Ran(files.tuples / programs.limit, (), whole=False, how=f"of {len(queries)} queries: {error}")
    how = f"Flink {ran.version}, a start takes {ran.start_up:.1f} s"
    return Ran(files.tuples / ran.seconds, rows, how=how, deploy_s=ran.start_up)


def statement(query: ajoin.AJoinQuery, columns: str) -> str:
    """A query of two streams in Flink's SQL."""
    left, right = query.streams
    span = f"INTERVAL '{query.window_seconds}' SECOND"
    tests = [
        f"{left}.a{query.links[0][0]} = {right}.a{query.links[0][1]}",
        f"{left}.ms_at BETWEEN {right}.ms_at - {span} AND {right}.ms_at + {span}",
        *(
            f"{stream}.a{chosen.attribute} {chosen.operator} {chosen.value}"
            for stream, chosen in zip(query.streams, query.selections, strict=True)
        ),
    ]
    return f"SELECT {columns} FROM {left}, {right} WHERE {' AND '.join(tests)}"


def _all_columns(query: ajoin.AJoinQuery) -> dict[str, object]:
    names = [f"{stream}.{name}" for stream in query.streams for name in (*_COLUMNS, "ms")]
    return {
        "sql": statement(query, ", ".join(names)),
        "columns": [(name.replace(".", "_"), "BIGINT") for name in names],
    }


def _one_column(query: ajoin.AJoinQuery) -> dict[str, object]:
    return {"sql": statement(query, f"{query.streams[0]}.a0"), "columns": [("counted", "BIGINT")]}


def _stream(files: StreamFiles, number: int) -> Stream:
    """A stream's tuples with their times in milliseconds."""
    batches = []
    for file in range(files.files):
        tuples = ajoin.tuples(number, files.batch, files.seed, rate=files.rate, first=file * files.batch)
        times = np.asarray(tuples[ajoin.TIME]).astype("datetime64[ms]").astype(np.int64)
        batches.append(tuples.drop_columns([ajoin.TIME]).append_column("ms", pa.array(times)))
    return Stream(files.streams[number], "ms", batches)
