"""Feeds are the same rows for any cut, look like a market, and arrive as whole files at the pace asked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.spark.demo import feeds
from streamjoin.spark.demo.feeds import QUOTES_DDL, TRADES_DDL, Feed, Market, drop, play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKET = Market(symbols=50, seed=3, trades_per_second=300, quotes_per_second=700)
BOTH: Sequence[Feed] = ("trades", "quotes")


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def rows(feed: Feed, begin: float, end: float, market: Market = MARKET) -> pa.Table:
    return market.slice(feed, seconds(begin), seconds(end)).combine_chunks()


class Turned:
    """A clock that stands still until it is slept on."""

    def __init__(self, cost: float = 0.0) -> None:
        self.time, self.cost, self.slept = 100.0, cost, list[float]()

    def now(self) -> float:
        self.time += self.cost
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5_000_000), max_size=6), st.sampled_from(BOTH))
def test_any_cut_gives_the_same_rows(cuts: list[int], feed: Feed) -> None:
    edges = [timedelta(microseconds=at) for at in sorted([0, *cuts, 5_000_000])]
    fresh = Market(**{name: getattr(MARKET, name) for name in MARKET.__dataclass_fields__})
    pieces = [fresh.slice(feed, begin, end) for begin, end in pairwise(edges)]
    assert pa.concat_tables(pieces).combine_chunks().equals(rows(feed, 0, 5))


@pytest.mark.parametrize("feed", BOTH)
def test_a_late_slice_needs_no_earlier_one(feed: Feed) -> None:
    read_first = Market(symbols=50, seed=3, trades_per_second=300, quotes_per_second=700)
    late = rows(feed, 600, 601, read_first)
    rows(feed, 0, 2, read_first)
    assert late.equals(rows(feed, 600, 601)) and late.equals(rows(feed, 600, 601, read_first))


@pytest.mark.parametrize("feed", BOTH)
def test_another_seed_is_another_market(feed: Feed) -> None:
    other = Market(symbols=50, seed=4, trades_per_second=300, quotes_per_second=700)
    assert not rows(feed, 0, 2).equals(rows(feed, 0, 2, other))
    assert MARKET.names != other.names


def test_pieces_cover_the_slice() -> None:
    pieces = list(MARKET.tables("quotes", seconds(1), seconds(2.7), seconds(0.5)))
    assert len(pieces) == 4
    assert pa.concat_tables(pieces).combine_chunks().equals(rows("quotes", 1, 2.7))


def test_schemas_and_times() -> None:
    trades, quotes = rows("trades", 0, 20), rows("quotes", 0, 20)
    ts = pa.field("ts", pa.timestamp("us", tz="UTC"))
    assert trades.schema == pa.schema([ts, ("sym", "string"), ("px", "double"), ("qty", "int32")])
    sizes = [("bid_size", "int32"), ("ask_size", "int32")]
    assert quotes.schema == pa.schema([ts, ("sym", "string"), ("bid", "double"), ("ask", "double"), *sizes])
    for table, rate in ((trades, 300), (quotes, 700)):
        assert abs(table.num_rows / 20 - rate) < 0.1 * rate
        at = table["ts"].cast("int64").to_numpy()
        assert (np.diff(at) >= 0).all()
        assert MARKET.start <= table["ts"][0].as_py() and table["ts"][-1].as_py() < MARKET.start + seconds(20)


def test_prices_look_like_a_market() -> None:
    trades, quotes = rows("trades", 250, 262), rows("quotes", 250, 262)
    assert pc.all(pc.less(quotes["bid"], quotes["ask"])).as_py()
    assert pc.min(trades["px"]).as_py() > 0 and pc.min(trades["qty"]).as_py() >= 100
    assert set(trades["sym"].to_pylist()) <= set(MARKET.names)
    name = MARKET.names[0]
    paid = trades.filter(pc.equal(trades["sym"], name))["px"].to_numpy()
    mine = quotes.filter(pc.equal(quotes["sym"], name))
    assert len(paid) > 5 * trades.num_rows / MARKET.symbols / 2, "the first symbol is traded most"
    low, high = pc.min(mine["bid"]).as_py(), pc.max(mine["ask"]).as_py()
    assert ((paid > low - 0.1) & (paid < high + 0.1)).all(), "trades happen where the quotes are"
    assert (np.abs(np.diff(paid)) < 0.02 * paid[:-1]).all(), "no jump where a chunk of the walk begins"


def test_an_empty_slice_has_the_columns() -> None:
    nothing = rows("trades", 3, 3)
    assert nothing.num_rows == 0 and nothing.schema == rows("trades", 0, 1).schema


@pytest.mark.parametrize(
    "wrong",
    [{"symbols": 0}, {"symbols": 26**3 + 1}, {"trades_per_second": -1.0}, {"start": datetime(2025, 1, 1)}],
)
def test_a_market_refuses_what_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|can't be|needs a"):
        Market(**wrong)


def test_slices_and_pace_refuse_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a slice goes"):
        rows("trades", 2, 1)
    with pytest.raises(ValueError, match="must be positive"):
        list(MARKET.tables("trades", seconds(0), seconds(1), seconds(0)))
    with pytest.raises(ValueError, match="must be positive"):
        next(play(MARKET, tmp_path, duration=seconds(1), speed=0))


def test_files_appear_at_the_pace_of_the_clock(tmp_path: Path) -> None:
    clock = Turned()
    dropped = list(play(MARKET, tmp_path, duration=seconds(2.2), every=seconds(0.5), speed=2, clock=clock))
    assert clock.slept == pytest.approx([0.25] * 4 + [0.1])
    assert [piece.until for piece in dropped] == [seconds(at) for at in (0.5, 1.0, 1.5, 2.0, 2.2)]
    assert {piece.behind for piece in dropped} == {0.0}
    for feed in BOTH:
        files = sorted((tmp_path / feed).iterdir())
        assert [path.name for path in files] == [f"{number:08d}.parquet" for number in range(5)]
        assert pa.concat_tables(map(pq.read_table, files)).combine_chunks().equals(rows(feed, 0, 2.2))
    assert sum(piece.trades for piece in dropped) == rows("trades", 0, 2.2).num_rows


def test_a_slow_machine_falls_behind_and_says_so(tmp_path: Path) -> None:
    clock = Turned(cost=0.3)
    dropped = list(play(MARKET, tmp_path, duration=seconds(1), every=seconds(0.25), clock=clock))
    assert clock.slept == []
    assert [round(piece.behind, 2) for piece in dropped] == [0.05, 0.1, 0.15, 0.2]


def test_no_file_is_seen_before_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def half_written(table: pa.Table, where: Path) -> None:
        where.write_bytes(b"PAR1")
        seen.extend(path.name for path in tmp_path.iterdir())
        raise OSError("disk full")

    monkeypatch.setattr(feeds.pq, "write_table", half_written)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="disk full"):
        drop(rows("trades", 0, 1), tmp_path / "a.parquet")
    assert [name[0] for name in seen] == ["."]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_spark_reads_the_files_as_they_arrive(spark: SparkSession, tmp_path: Path) -> None:
    arriving = play(MARKET, tmp_path, duration=seconds(1), every=seconds(0.5), clock=Turned())
    first = next(arriving)
    (tmp_path / "trades" / ".00000001.parquet.17").write_bytes(b"PAR1 half a file")
    stream = spark.readStream.schema(TRADES_DDL).parquet(str(tmp_path / "trades"))
    query = stream.writeStream.format("memory").queryName("feed_trades").start()
    try:
        query.processAllAvailable()
        assert spark.table("feed_trades").count() == first.trades
        list(arriving)
        query.processAllAvailable()
    finally:
        query.stop()
    quotes = spark.read.schema(QUOTES_DDL).parquet(str(tmp_path / "quotes"))
    for feed, read in (("trades", spark.table("feed_trades").toArrow()), ("quotes", quotes.toArrow())):
        expected = rows(feed, 0, 1)
        assert read.column_names == expected.column_names
        order = [(name, "ascending") for name in read.column_names]
        assert read.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
