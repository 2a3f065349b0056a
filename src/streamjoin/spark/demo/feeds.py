"""Simulated market feeds: seeded trades and quotes, and a writer that creates files in real time.

Event time is divided into blocks of one second. Each block has its own seed, and prices walk from block to block, so
any slice of a feed has the same rows, whichever slices were read before. Spark sees a file whole or not at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Feed = Literal["trades", "quotes"]

TRADES_DDL = "ts timestamp, sym string, px double, qty int"
QUOTES_DDL = "ts timestamp, sym string, bid double, ask double, bid_size int, ask_size int"

_TS = pa.timestamp("us", tz="UTC")
_BLOCK_US = 1_000_000
_BLOCKS = 256
_TICK = 0.01
_LOT = 100
_STEP = 4e-4
"""Standard deviation of a price's relative change in a block."""

# The second number of a block's seed: what is drawn for one purpose never shifts what is for another.
_STREAMS: dict[str, int] = {"trades": 1, "quotes": 2, "walk": 3, "names": 4}


@dataclass(frozen=True)
class Market:
    """A few hundred symbols, traded and quoted at constant mean rates, some far more than others."""

    symbols: int = 300
    seed: int = 7
    trades_per_second: float = 2_000.0
    quotes_per_second: float = 6_000.0
    start: datetime = field(default=datetime(2025, 1, 2, 14, 30, tzinfo=UTC))

    def __post_init__(self) -> None:
        if not 1 <= self.symbols <= 26**3:
            raise ValueError(f"symbols must be between 1 and {26**3}, not {self.symbols}")
        if self.trades_per_second < 0 or self.quotes_per_second < 0:
            raise ValueError("the rates of a market can't be negative")
        if self.start.tzinfo is None:
            raise ValueError("the start of a market needs a time zone, such as datetime.UTC")

    def slice(self, feed: Feed, begin: timedelta, end: timedelta) -> pa.Table:
        """The rows with `begin` <= time since the start < `end`, in time order."""
        first, last = _microseconds(begin), _microseconds(end)
        if not 0 <= first <= last:
            raise ValueError(f"a slice goes from 0 or later to an end not before it, not {begin} to {end}")
        make = self._trades if feed == "trades" else self._quotes
        parts = []
        for block in range(first // _BLOCK_US, -(-last // _BLOCK_US)):
            at, columns = make(block)
            lo, hi = np.searchsorted(at, [first, last])
            parts.append(self._table(at, columns).slice(lo, hi - lo))
        return pa.concat_tables(parts or [self._table(*make(0)).slice(0, 0)])

    def tables(self, feed: Feed, begin: timedelta, end: timedelta, every: timedelta) -> Iterator[pa.Table]:
        """The same slice in pieces of `every`; the last one may be shorter."""
        if every <= timedelta(0):
            raise ValueError(f"the length of a piece must be positive, not {every}")
        at = begin
        while at < end:
            yield self.slice(feed, at, min(at + every, end))
            at += every

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The symbols, the most traded first: three letters each."""
        letters = [chr(code) for code in range(ord("A"), ord("Z") + 1)]
        numbers = self._random("names", 0).permutation(26**3)[: self.symbols].tolist()
        return tuple(letters[n // 676] + letters[n // 26 % 26] + letters[n % 26] for n in numbers)

    @cached_property
    def _walk(self) -> _Walk:
        return _Walk(self)

    @cached_property
    def _popularity(self) -> npt.NDArray[np.float64]:
        weights = 1.0 / (np.arange(self.symbols) + 10.0)
        return np.cumsum(weights / weights.sum())

    def _random(self, stream: str, block: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, _STREAMS[stream], block])

    def _events(
        self, feed: Feed, block: int, rate: float
    ) -> tuple[np.random.Generator, npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The random values of both feeds: times, symbols, and the symbols' prices at those times."""
        random = self._random(feed, block)
        count = int(random.poisson(rate * _BLOCK_US / 1e6))
        within = np.sort(random.integers(0, _BLOCK_US, count))
        symbol = np.minimum(np.searchsorted(self._popularity, random.random(count)), self.symbols - 1)
        return random, block * _BLOCK_US + within, symbol, self._walk.price(block, within / _BLOCK_US, symbol)

    def _trades(self, block: int) -> tuple[npt.NDArray[np.int64], dict[str, pa.Array]]:
        random, at, symbol, price = self._events("trades", block, self.trades_per_second)
        paid = _ticks(price + random.normal(0.0, 1.5 * _TICK, len(at)))
        lots = np.minimum(random.geometric(0.4, len(at)), 100)
        return at, {"sym": self._named(symbol), "px": paid, "qty": (lots * _LOT).astype(np.int32)}

    def _quotes(self, block: int) -> tuple[npt.NDArray[np.int64], dict[str, pa.Array]]:
        random, at, symbol, price = self._events("quotes", block, self.quotes_per_second)
        below, above = random.integers(1, 4, (2, len(at)))
        sizes = np.minimum(random.geometric(0.2, (2, len(at))), 500).astype(np.int32) * np.int32(_LOT)
        columns = {
            "sym": self._named(symbol),
            "bid": _ticks(price - below * _TICK),
            "ask": _ticks(price + above * _TICK),
            "bid_size": sizes[0],
            "ask_size": sizes[1],
        }
        return at, columns

    def _named(self, symbol: npt.NDArray[np.int64]) -> pa.Array:
        return pa.array(self.names, pa.string()).take(pa.array(symbol))

    def _table(self, at: npt.NDArray[np.int64], columns: dict[str, pa.Array]) -> pa.Table:
        opening = _microseconds(self.start - datetime(1970, 1, 1, tzinfo=UTC))
        ts = pc.cast(pa.array(opening + at, pa.int64()), _TS)
        return pa.table({"ts": ts, **columns})


class _Walk:
    """All prices at every block's end; stored for every 256th block and computed again in between."""

    def __init__(self, market: Market) -> None:
        self._market = market
        opening = market._random("walk", 0).lognormal(4.0, 0.7, market.symbols)
        self._starts = [np.log(opening)]
        self._chunk = (-1, np.empty((0, 0)))

    def price(
        self, block: int, within: npt.NDArray[np.float64], symbol: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """The prices of `symbol` at fractions `within` of the block: straight from one end to the other."""
        levels = self._levels(block // _BLOCKS)
        before, after = levels[block % _BLOCKS], levels[block % _BLOCKS + 1]
        out: npt.NDArray[np.float64] = np.exp(before[symbol] + within * (after[symbol] - before[symbol]))
        return out

    def _levels(self, chunk: int) -> npt.NDArray[np.float64]:
        if self._chunk[0] != chunk:
            while len(self._starts) <= chunk:
                self._starts.append(self._draw(len(self._starts) - 1)[-1])
            self._chunk = (chunk, self._draw(chunk))
        return self._chunk[1]

    def _draw(self, chunk: int) -> npt.NDArray[np.float64]:
        steps = self._market._random("walk", chunk + 1).normal(0.0, _STEP, (_BLOCKS, self._market.symbols))
        return np.cumsum(np.vstack([self._starts[chunk], steps]), axis=0)


class Clock(Protocol):
    """The time that paces a feed."""

    def now(self) -> float:
        """Seconds from any fixed moment."""

    def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for real."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Dropped:
    """One slice of both feeds, now visible as files."""

    until: timedelta
    trades: int
    quotes: int
    behind: float
    """Seconds by which it is behind the requested pace."""


def play(
    market: Market,
    directory: Path,
    *,
    duration: timedelta,
    every: timedelta = timedelta(milliseconds=500),
    speed: float = 1.0,
    clock: Clock | None = None,
) -> Iterator[Dropped]:
    """Write both feeds to `directory`/trades and `directory`/quotes in real time, `speed` times as fast.

    A slice of event time appears when it is over. Stop taking from the iterator to stop the feeds; played
    again into the same directory it writes the same files.
    """
    if speed <= 0:
        raise ValueError(f"the speed must be positive, not {speed}")
    clock = SystemClock() if clock is None else clock
    for feed in ("trades", "quotes"):
        (directory / feed).mkdir(parents=True, exist_ok=True)
    began = clock.now()
    pieces = zip(
        market.tables("trades", timedelta(0), duration, every),
        market.tables("quotes", timedelta(0), duration, every),
        strict=True,
    )
    for number, (trades, quotes) in enumerate(pieces):
        until = min((number + 1) * every, duration)
        wait = began + until.total_seconds() / speed - clock.now()
        if wait > 0:
            clock.sleep(wait)
        drop(trades, directory / "trades" / f"{number:08d}.parquet")
        drop(quotes, directory / "quotes" / f"{number:08d}.parquet")
        yield Dropped(until, trades.num_rows, quotes.num_rows, max(0.0, -wait))


def drop(table: pa.Table, path: Path) -> None:
    """Write `table` so that `path` is absent or complete; Spark ignores names that begin with a dot."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(table, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _ticks(price: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    out: npt.NDArray[np.float64] = np.maximum(np.round(price / _TICK), 1.0) / round(1 / _TICK)
    return out


def _microseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
