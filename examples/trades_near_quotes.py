"""Trades with the quotes of the same symbol, near in price and in time.

Run it with `python examples/trades_near_quotes.py`; it makes up ten seconds of a market.
"""

import numpy as np
import pyarrow as pa

import streamjoin as sj

random = np.random.default_rng(1)
SYMBOLS = np.array(["AAA", "BBB", "CCC", "DDD"])


def feed(rows: int, price: str) -> pa.Table:
    """Rows of one feed by time, in microseconds; prices in cents walk up and down."""
    times = np.sort(random.integers(0, 10_000_000, rows))
    symbols, prices = random.integers(0, len(SYMBOLS), rows), 10_000 + np.cumsum(random.integers(-2, 3, rows))
    return pa.table({"ts": pa.array(times, pa.timestamp("us")), "sym": SYMBOLS[symbols], price: prices})


trades, quotes = feed(2_000, "px"), feed(6_000, "bid")

spec = sj.JoinSpec(
    on=sj.Equi("sym") & sj.Band("px", "bid", 2),  # the same symbol, |px - bid| <= 2 cents
    window=sj.TimeWindow("1 second"),  # ... and at most a second apart,
    time="ts",  # by the clock of the data, not of the machine
    order="event_time",
)

tables: list[pa.Table] = []
with sj.open(spec, on_close=tables.append) as join:
    # Ten batches per second, as they would come from a broker.
    batches = sj.data.replay({"trades": trades, "quotes": quotes}, "ts", every="100 ms")
    tables += [join.push(left=batch.get("trades"), right=batch.get("quotes")) for batch in batches]
matches = pa.concat_tables(tables)
print(f"{matches.num_rows:,} matches, the first: {matches.select(['sym', 'px', 'bid']).slice(0, 1).to_pylist()}")
