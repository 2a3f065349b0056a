"""Window joins in SQL: how the price has moved 1, 5 and 30 seconds after each trade (markouts), live.

Run it with `python examples/markouts.py`; the ticks are generated.
"""

import numpy as np
import pyarrow as pa

import streamjoin as sj

# The quote in force a number of seconds after the trade: the range is one moment, and PREVAILING the newest before it.
LATER = """
    WINDOW JOIN quotes AS {alias} ON t.sym = {alias}.sym
    RANGE BETWEEN {seconds} SECONDS FOLLOWING AND {seconds} SECONDS FOLLOWING INCLUDE PREVAILING
"""
HORIZONS = {"after_1": 1, "after_5": 5, "after_30": 30}
MARKOUTS = (
    "SELECT t.sym, t.side, "
    + ", ".join(f"t.side * (last({alias}.mid) - t.px) AS {alias}" for alias in HORIZONS)
    + " FROM trades AS t"
    + "".join(LATER.format(alias=alias, seconds=seconds) for alias, seconds in HORIZONS.items())
)


def ticks(seconds: int, seed: int = 7) -> tuple[pa.Table, pa.Table]:
    """Quotes that wander, ten a second, and trades that know a little of where they will be a second later."""
    rng = np.random.default_rng(seed)
    n = 10 * seconds
    times = np.arange(n) * 100_000
    mid = np.round(100 + np.cumsum(rng.normal(0, 0.01, n)), 3)
    traded = np.sort(rng.choice(n - 10, n // 5, replace=False))
    side = np.where(mid[traded + 10] + rng.normal(0, 0.05, traded.size) > mid[traded], 1, -1)
    stamp = pa.timestamp("us")
    quotes = pa.table({"sym": ["A"] * n, "mid": mid, "at": pa.array(times, stamp)})
    trades = pa.table(
        {"sym": ["A"] * traded.size, "side": side, "px": mid[traded], "ts": pa.array(times[traded] + 1, stamp)}
    )
    return trades, quotes


trades, quotes = ticks(3600)
with sj.adhoc.Engine(settings=sj.adhoc.Settings(future=None)) as engine:
    engine.register("trades", schema=trades.schema, time="ts")
    engine.register("quotes", schema=quotes.schema, time="at")
    query = engine.create(MARKOUTS, sink=sj.adhoc.MemorySink(10_000))
    for batch in sj.data.replay(
        {"trades": trades, "quotes": quotes}, {"trades": "ts", "quotes": "at"}, every="1 minute"
    ):
        engine.push_all(batch)
    rows = query.rows(10_000)

print(f"{trades.num_rows:,} trades, {rows.num_rows:,} of them with all markouts so far")
for alias, seconds in HORIZONS.items():
    moved = rows[alias].to_numpy()
    print(
        f"{seconds:2} s after: {100 * moved.mean():+.2f} cents on average, ahead {(moved > 0).mean():.0%} of the time"
    )
