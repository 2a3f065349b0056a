"""Streams that the tests of ad-hoc queries share."""

from __future__ import annotations

import pyarrow as pa

from streamjoin.adhoc import Stream
from streamjoin.queries.language.plan import Query
from streamjoin.queries.language.sql import parse

TRADES = Stream(
    "trades",
    pa.schema({"sym": pa.string(), "px": pa.int64(), "qty": pa.int32(), "ts": pa.timestamp("us")}),
    "ts",
)
QUOTES = Stream(
    "quotes",
    pa.schema({"sym": pa.string(), "bid": pa.int64(), "ask": pa.float64(), "at": pa.timestamp("ms")}),
    "at",
)
NEWS = Stream("news", pa.schema({"sym": pa.string(), "score": pa.decimal128(9, 2), "ts": pa.timestamp("us")}), "ts")
TICKS = Stream("ticks", pa.schema({"k": pa.int64(), "t": pa.int64()}), "t")
ZONED = Stream("zoned", pa.schema({"sym": pa.string(), "ts": pa.timestamp("us", "UTC")}), "ts")
STREAMS = (TRADES, QUOTES, NEWS, TICKS, ZONED)


def plan(text: str) -> Query:
    return parse(text, STREAMS)


def joined(on: str, rest: str = "", within: str = "3 SECONDS", outputs: str = "t.px") -> Query:
    """A query of trades t and quotes q."""
    return plan(f"SELECT {outputs} FROM trades t JOIN quotes q WITHIN {within} ON {on} {rest}")
