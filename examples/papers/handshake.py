"""The handshake joins' benchmark, small: the latency of the original handshake join and of the low-latency one.

Tuples have an int and a float, uniform from 1 to 1,000, and match when both differ by 10 at most. They come at a steady
rate, and what is measured is how long after the later of two tuples their row comes. Run it with
`python examples/papers/handshake.py`; figures 5 and 17 to 21 of the paper are in docs/reproduction.md.
"""

import threading
import time

import numpy as np
import pyarrow as pa

import streamjoin as sj

WINDOW, RATE, PUSH, SECONDS = 2_000, 4_000, 20, 1.5  # tuples of each side; a window takes half a second
SCHEMA = pa.schema({"x": pa.int32(), "y": pa.float32(), "sent": pa.float64()})
spec = sj.JoinSpec(on=sj.Band("x", "x", 10) & sj.Band("y", "y", 10.0), window=sj.CountWindow(WINDOW))


def run(algorithm: str) -> tuple[int, np.ndarray]:
    """The number of rows, and the latencies in milliseconds of those that were found with both windows full."""
    latencies: list[np.ndarray] = []
    random = np.random.default_rng(1)
    with sj.live(spec, algorithm, 2, ordered=False, left_schema=SCHEMA, right_schema=SCHEMA) as join:
        sources = join.source("left"), join.source("right")
        begin = time.perf_counter()

        def feed() -> None:
            for number in range(int(RATE * SECONDS / PUSH)):
                time.sleep(max(0.0, begin + number * PUSH / RATE - time.perf_counter()))  # the rate of the stream
                for source in sources:
                    columns = random.integers(1, 1_001, PUSH), random.uniform(1, 1_000, PUSH)
                    sent = np.full(PUSH, time.perf_counter())
                    arrays = [pa.array(c).cast(f.type) for c, f in zip((*columns, sent), SCHEMA, strict=True)]
                    source.push(pa.table(arrays, SCHEMA))
            join.close()

        threading.Thread(target=feed).start()
        for rows in join:
            later = np.maximum(rows["sent_left"].to_numpy(), rows["sent_right"].to_numpy())
            latencies.append(np.where(later > begin + WINDOW / RATE, time.perf_counter() - later, np.nan) * 1e3)
    found = np.concatenate(latencies)
    return found.size, found[~np.isnan(found)]


print("the paper: the original join's latency is up to half a window, the low-latency join's a few milliseconds")
print(f"a window takes {WINDOW / RATE * 1e3:.0f} ms")
for algorithm in ("handshake", "low_latency_handshake"):
    rows, latency = run(algorithm)
    print(f"{algorithm}: {np.median(latency):.1f} ms median, {latency.max():.1f} ms at most; {rows:,} rows")
