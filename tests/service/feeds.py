"""Small streams for the service's tests, the same for every run: trades, quotes and clicks, a second to a batch."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from streamjoin.queries.language.plan import Stream

START = dt.datetime(2026, 1, 1)
SYMBOLS = np.array(["ACME", "BOLT", "CORE", "DYNE", "ECHO", "FLUX", "GRID", "HALO"])
PAGES = np.array(["/", "/cart", "/help", "/item"])
TRADES = Stream(
    "trades", pa.schema({"ts": pa.timestamp("us"), "sym": pa.string(), "px": pa.int64(), "qty": pa.int64()}), "ts"
)
QUOTES = Stream(
    "quotes", pa.schema({"ts": pa.timestamp("us"), "sym": pa.string(), "bid": pa.int64(), "ask": pa.int64()}), "ts"
)
CLICKS = Stream("clicks", pa.schema({"ts": pa.timestamp("us"), "user": pa.int64(), "page": pa.string()}), "ts")
STREAMS = [TRADES, QUOTES, CLICKS]


def batch(number: int, rows: int = 20, start: dt.datetime = START) -> Mapping[str, pa.Table]:
    """The tables of one second."""
    n = np.arange(number * rows, (number + 1) * rows, dtype=np.int64)
    first = np.datetime64(start, "us").astype(np.int64) + number * 1_000_000
    ts = pa.array(first + (np.arange(rows) * 1_000_000) // rows).cast(pa.timestamp("us"))
    sym = pa.array(SYMBOLS[(n * 7 + n // 5) % 8])
    px = 100 + (n * 37 + n // 3) % 50
    trades = pa.table({"ts": ts, "sym": sym, "px": px, "qty": 1 + n % 9})
    quotes = pa.table({"ts": ts, "sym": pa.array(SYMBOLS[(n * 5 + n // 7) % 8]), "bid": px - n % 4, "ask": px + n % 3})
    clicks = pa.table({"ts": ts, "user": n * 13 % 100, "page": pa.array(PAGES[n * 3 % 4])})
    return {"trades": trades, "quotes": quotes, "clicks": clicks}
