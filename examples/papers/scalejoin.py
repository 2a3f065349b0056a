"""ScaleJoin's benchmark, small: two bands at once, several sources a side, any number of threads, one result.

Tuples have an int and a float, uniform from 1 to 10,000, and match when both differ by 10 at most; nothing is indexed,
so every tuple is compared with the whole window. Run it with `python examples/papers/scalejoin.py`; figures 5 to 8 of
the paper with sixteen cores are in docs/reproduction.md.
"""

import hashlib
import threading
import time

import numpy as np
import pyarrow as pa

import streamjoin as sj

WINDOW, TUPLES, PUSH = 4_000, 12_000, 250
spec = sj.JoinSpec(
    on=sj.Band("x", "a", 10) & sj.Band("y", "b", 10.0), window=sj.TimeWindow(WINDOW), time="t", order="event_time"
)
SCHEMAS = [pa.schema({"t": pa.int64(), x: pa.int32(), y: pa.float32()}) for x, y in (("x", "y"), ("a", "b"))]


def tuples(side: int) -> pa.Table:
    """A side's tuples, one a tick."""
    random = np.random.default_rng(side)
    columns = np.arange(TUPLES), random.integers(1, 10_001, TUPLES), random.uniform(1, 10_000, TUPLES)
    return pa.table([pa.array(c).cast(f.type) for c, f in zip(columns, SCHEMAS[side], strict=True)], SCHEMAS[side])


def run(sources: int, threads: int) -> tuple[float, int, str]:
    """Seconds, rows and a digest of them, with a number of sources of each side that push from threads of their own."""
    with sj.live(spec, "scalejoin", threads, left_schema=SCHEMAS[0], right_schema=SCHEMAS[1]) as join:
        opened = [
            (join.source(side, f"{side} {k}"), tables[number].take(np.arange(k, TUPLES, sources)))
            for number, side in enumerate(("left", "right"))
            for k in range(sources)
        ]
        begin = time.perf_counter()

        def feed(source: sj.LiveSource, own: pa.Table) -> None:
            with source:
                for first in range(0, own.num_rows, PUSH):
                    source.push(own.slice(first, PUSH))

        feeding = [threading.Thread(target=feed, args=each) for each in opened]
        for thread in feeding:
            thread.start()

        def close() -> None:
            for thread in feeding:
                thread.join()
            join.close()

        threading.Thread(target=close).start()
        rows = [row for batch in join for row in batch.to_pylist()]
    return time.perf_counter() - begin, len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()[:8]


tables = [tuples(side) for side in range(2)]
compared = 2 * TUPLES * WINDOW - WINDOW * WINDOW  # each tuple with the other side's last WINDOW
print("the paper: comparisons/s grow linearly with threads (figure 5), and rows and their order do not depend on them")
run(1, 2)  # what is compiled or loaded once
for sources, threads in ((1, 1), (1, 2), (4, 2)):
    seconds, rows, digest = run(sources, threads)
    what = f"{sources} source{'s' * (sources > 1)} a side, {threads} thread{'s' * (threads > 1)}"
    print(f"{what}: {compared / seconds / 1e6:.0f} million comparisons/s; {rows} rows, digest {digest}")
