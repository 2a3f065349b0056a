"""Join two streams inside one Python process, without Spark: readings of two sensors that are near in value.

Run it with `python examples/embedded_band_join.py`.
"""

import numpy as np
import pyarrow as pa

import streamjoin as sj

# Each new reading is compared with the last 10,000 of the other sensor; a pair matches within 0.001 degrees.
spec = sj.JoinSpec(on=sj.Band("celsius", "celsius", 0.001), window=sj.CountWindow(10_000))

random = np.random.default_rng(1)


def readings(first: int, number: int) -> pa.Table:
    return pa.table({"reading": np.arange(first, first + number), "celsius": random.normal(20.0, 2.0, number)})


with sj.open(spec) as join:
    for first in range(0, 50_000, 5_000):
        # Arrow tables in, an Arrow table out: the pairs that this push completed.
        pairs = join.push(left=readings(first, 5_000), right=readings(first, 5_000))
    print("the last pairs:", *pairs.slice(pairs.num_rows - 3).to_pylist(), sep="\n  ")
    print(join.explain())
