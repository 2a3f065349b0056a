"""For the tests of the optimizer: three streams, queries that share much or nothing, and a core that has run them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from streamjoin.adhoc import Stream
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared

SCHEMA = pa.schema({"k": pa.int64(), "u": pa.int64(), "p": pa.int64(), "t": pa.int64()})
STREAMS = [Stream(name, SCHEMA, "t") for name in ("a", "b", "c")]
# Groups cost nothing here: a few hundred tuples would not be worth one.
NEVER_BY_ITSELF = Settings(replan_every=1_000_000, group_cost=0)
PAIR = "SELECT a.p AS x, b.p AS y FROM a JOIN b WITHIN 900 UNITS ON a.k = b.k WHERE"
# b has few values of k and many of u: from a, c leaves fewer partial results than b.
CHAIN = (
    "SELECT a.p AS x, b.p AS y, c.p AS z FROM a JOIN b WITHIN 900 UNITS ON a.k = b.k "
    "JOIN c WITHIN 900 UNITS ON a.u = c.u"
)
DISJOINT = [f"{PAIR} a.p BETWEEN {n}0 AND {n}9 AND b.p BETWEEN {n}0 AND {n}9" for n in range(10)]
SAME = [f"{PAIR} a.p < {90 + n} AND b.p >= {n}" for n in range(5)]


def tables(batch: int, rows: int = 600) -> dict[str, pa.Table]:
    random = np.random.default_rng(batch)
    return {
        stream.name: pa.table(
            {
                "k": random.integers(0, 5, rows),
                "u": random.integers(0, 300, rows),
                "p": random.integers(0, 100, rows),
                "t": np.full(rows, batch),
            },
            SCHEMA,
        )
        for stream in STREAMS
    }


def running(texts: Sequence[str], settings: Settings = NEVER_BY_ITSELF) -> Shared:
    core = Shared(STREAMS, settings)
    core.apply([Create(f"q{n}", text) for n, text in enumerate(texts)])
    for batch in range(2):
        core.process(batch, tables(batch))
    return core
