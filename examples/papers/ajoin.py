"""AJoin's benchmark, small: many queries over two streams, with and without sharing, while some come and go.

Streams have six integers, uniform from 0 to 499. A query joins both streams on one attribute of each and selects by two
others, within 1 to 3 seconds. Run it with `python examples/papers/ajoin.py`; figures 15 to 22 of the paper are in
docs/reproduction.md.
"""

import time
from typing import Literal

import numpy as np
import pyarrow as pa

import streamjoin as sj
from streamjoin.adhoc import Settings

QUERIES, RATE, SECONDS, EVERY = 40, 2_000, 4, 4  # tuples of each stream a second; batches of a quarter second
SCHEMA = pa.schema({**{f"a{n}": pa.int64() for n in range(6)}, "ts": pa.timestamp("us")})


def query(random: np.random.Generator) -> str:
    """Half of the queries have the join that most have, as in the paper's queries of 50 % similarity."""
    left, right = (4, 3) if random.random() < 0.5 else random.integers(0, 6, 2)
    one, two, low, high, seconds = (int(random.integers(*ends)) for ends in ((6,), (6,), (400,), (100, 500), (1, 4)))
    return (
        f"SELECT S1.a0 AS x, S2.a0 AS y, S1.ts AS ts FROM S1 JOIN S2 WITHIN {seconds} SECONDS "
        f"ON S1.a{left} = S2.a{right} WHERE S1.a{one} >= {low} AND S2.a{two} < {high}"
    )


def tuples(stream: int, first: int, count: int) -> pa.Table:
    random = np.random.default_rng([stream, first])
    times = np.arange(first, first + count) * 1_000_000 // RATE
    return pa.table(
        [*(random.integers(0, 500, count) for _ in range(6)), pa.array(times).cast(SCHEMA[-1].type)], SCHEMA
    )


def run(sharing: Literal["cost", "nothing"]) -> tuple[float, int]:
    """Tuples a second that the engine keeps up with, and all result rows."""
    random, rows = np.random.default_rng(7), 0
    engine = sj.adhoc.Engine(settings=Settings(sharing=sharing))
    for name in ("S1", "S2"):
        engine.register(name, schema=SCHEMA, time="ts")
    with engine:
        for number in range(QUERIES):
            engine.create(query(random), name=f"q{number}")
        count, began = RATE // EVERY, time.perf_counter()
        for batch in range(SECONDS * EVERY):
            if batch and batch % EVERY == 0:  # every second one query goes and another comes
                gone = batch // EVERY - 1
                rows += engine.query(f"q{gone}").rows
                engine.drop(f"q{gone}")
                engine.create(query(random), name=f"q{QUERIES + gone}")
            engine.push_all({f"S{stream}": tuples(stream, batch * count, count) for stream in (1, 2)})
        engine.process_all_available()
        seconds = time.perf_counter() - began
        rows += sum(each.rows for each in engine.queries())
    return 2 * RATE * SECONDS / seconds, rows


print("the paper: many queries that share are far faster than each on its own, and the more so the more there are")
measured = {sharing: run(sharing) for sharing in ("cost", "nothing")}
for sharing, (speed, rows) in measured.items():
    how = {"cost": "shared", "nothing": "each on its own"}[sharing]
    print(f"{QUERIES} queries {how}: {speed:,.0f} tuples/s, {rows:,} rows")
print(f"sharing: {measured['cost'][0] / measured['nothing'][0]:.1f} times")
