"""Two streams of the size of a first trial: an hour of 5,000 sorted rows each, with their pairs of 5 seconds."""

from __future__ import annotations

import random
from functools import cache

import pyarrow as pa

ROWS = 5_000
_HOUR, _REACH = 3_600_000_000, 5_000_000


@cache
def market_frames(seed: int = 1) -> tuple[pa.Table, pa.Table, list[list[int]]]:
    """A left and a right table with `sym`, `ts` and `id`, and the ids of the pairs in the order of event time."""
    rng = random.Random(seed)
    sides = [
        [(ts, rng.choice("ABCDEFGHIJKLMNOPQRST"), number) for number, ts in enumerate(sorted(times))]
        for times in ([rng.randrange(_HOUR) for _ in range(ROWS)] for _ in range(2))
    ]
    pairs = []
    for ts, sym, left in sides[0]:
        for other_ts, other, right in sides[1]:
            if other == sym and abs(ts - other_ts) <= _REACH:
                # A left row comes before a right one of the same time.
                later = max((ts, 0, left), (other_ts, 1, right))
                pairs.append((later, right if later[1] == 0 else left, [left, right]))
    tables = [
        pa.table(
            {
                "sym": [sym for _, sym, _ in side],
                "ts": pa.array([ts for ts, _, _ in side], pa.timestamp("us")),
                "id": [number for _, _, number in side],
            }
        )
        for side in sides
    ]
    return tables[0], tables[1], [pair for _, _, pair in sorted(pairs)]
