"""One definition of late: the embedded gate and Spark's decide alike about the same rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.gate.merge import LEFT, RIGHT, EventTimeGate
from streamjoin.spark.stages.gating import SourceProgress, Standing, UngatedRows, advanced, late_in, ordered, ready_in

SCHEMA = pa.schema([("number", pa.int64())])
NAMES = ("a", "b")
SOURCES = tuple((side, name) for side in (LEFT, RIGHT) for name in NAMES)
Batch = dict[tuple[int, str], list[int]]

batches = st.lists(
    st.fixed_dictionaries(dict.fromkeys(SOURCES, st.lists(st.integers(-5, 12), max_size=4))), min_size=1, max_size=8
)


@settings(deadline=None, max_examples=60)
@given(batches=batches, lateness=st.sampled_from([0, 3]), idle=st.sampled_from([None, 0, 1, 2]))
def test_both_gates_let_the_same_rows_out_and_find_the_same_ones_late(
    batches: list[Batch], lateness: int, idle: int | None
) -> None:
    """Also where sources are idle: a source sends or does not send once per batch, and time counts batches."""
    embedded = EventTimeGate((SCHEMA, SCHEMA), lateness)
    for source in SOURCES:
        embedded.add(*source)
    standing = Standing(dict.fromkeys(SOURCES, SourceProgress(None, None)))
    held: dict[int, list[tuple[int, int, int]]] = {LEFT: [], RIGHT: []}
    number = 0
    seen = dict.fromkeys(SOURCES, 0)
    for now, batch in enumerate(batches):
        late_embedded, late_spark = set(), set()
        out: dict[int, list[int]] = {LEFT: [], RIGHT: []}
        arrived: dict[int, list[tuple[int, int, int]]] = {LEFT: [], RIGHT: []}
        for (side, name), ticks in batch.items():
            numbers = range(number, number + len(ticks))
            number += len(ticks)
            table = pa.table({"number": pa.array(numbers, pa.int64())})
            late = embedded.push(side, name, table, np.array(ticks, np.int64))
            late_embedded |= {numbers[i] for i in np.flatnonzero(late)}
            arrived[side] += [(tick, NAMES.index(name), n) for tick, n in zip(ticks, numbers, strict=True)]
            if ticks:
                seen[side, name] = now
            elif idle is not None and now - seen[side, name] > idle:
                embedded.rest(side, name)
        released = embedded.release()
        for side in (LEFT, RIGHT):
            late = late_in(standing, side, rows(arrived[side]), lateness)
            late_spark |= {arrived[side][i][2] for i in np.flatnonzero(late)}
            held[side] += [row for i, row in enumerate(arrived[side]) if not late[i]]
        standing = advanced(standing, [(side, rows(arrived[side])) for side in arrived], lateness, now, idle)
        for side in (LEFT, RIGHT):
            waiting = rows(held[side])
            ready = ready_in(standing, side, waiting)
            out[side] = [held[side][i][2] for i in ordered(waiting, np.flatnonzero(ready))]
            held[side] = [row for i, row in enumerate(held[side]) if not ready[i]]
        assert late_embedded == late_spark
        assert [table.column("number").to_pylist() for table in released.tables] == [out[LEFT], out[RIGHT]]


def rows(given: list[tuple[int, int, int]]) -> UngatedRows:
    ticks, source = (np.array([row[i] for row in given], np.int64) for i in (0, 1))
    return UngatedRows(ticks, source, NAMES, frozenset(NAMES))
