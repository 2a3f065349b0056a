"""The demo's feeds hold every row of the month once, and arrive as whole files at the pace asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamjoin as sj
from streamjoin.spark.demo import feeds
from streamjoin.spark.demo.feeds import FLIGHTS_DDL, TIMES, WEATHER_DDL, Month, drop, play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHOLE = {"flights": sj.data.flights().combine_chunks(), "weather": sj.data.weather().combine_chunks()}


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


@pytest.mark.parametrize("slices", [1, 2, 7, 1_000])
@pytest.mark.parametrize("feed", list(TIMES))
def test_any_cut_gives_the_same_rows(feed: str, slices: int) -> None:
    month = Month.cut(slices)
    pieces = [month.slice(feed, number) for number in range(slices)]
    assert pa.concat_tables(pieces).combine_chunks().equals(WHOLE[feed])
    for number, piece in enumerate(pieces):
        moments = piece[TIMES[feed]].to_pylist()
        assert all((moment - month.start) // month.every == number for moment in moments)


def test_a_month_refuses_no_slices() -> None:
    with pytest.raises(ValueError, match="at least one slice"):
        Month.cut(0)


def test_files_appear_at_the_pace_of_the_clock(tmp_path: Path) -> None:
    clock = Turned()
    assert list(play(Month.cut(5), tmp_path, seconds=2, clock=clock)) == [0, 1, 2, 3, 4]
    assert clock.slept == pytest.approx([0.4] * 5)
    for feed, whole in WHOLE.items():
        files = sorted((tmp_path / feed).iterdir())
        assert [path.name for path in files] == [f"{number:08d}.parquet" for number in range(5)]
        assert pa.concat_tables(map(pq.read_table, files)).combine_chunks().equals(whole)


def test_a_slow_machine_does_not_wait(tmp_path: Path) -> None:
    clock = Turned(cost=0.3)
    assert list(play(Month.cut(4), tmp_path, seconds=1, slices=3, clock=clock)) == [0, 1, 2]
    assert clock.slept == []


def test_no_file_is_seen_before_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def half_written(table: pa.Table, where: Path) -> None:
        where.write_bytes(b"PAR1")
        seen.extend(path.name for path in tmp_path.iterdir())
        raise OSError("disk full")

    monkeypatch.setattr(feeds.pq, "write_table", half_written)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="disk full"):
        drop(WHOLE["weather"], tmp_path / "a.parquet")
    assert [name[0] for name in seen] == ["."]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_spark_reads_the_files_as_they_arrive(spark: SparkSession, tmp_path: Path) -> None:
    month = Month.cut(200)
    arriving = play(month, tmp_path, seconds=1, slices=12, clock=Turned())
    assert [next(arriving) for _ in range(6)] == list(range(6))
    (tmp_path / "flights" / ".00000006.parquet.17").write_bytes(b"PAR1 half a file")
    stream = spark.readStream.schema(FLIGHTS_DDL).parquet(str(tmp_path / "flights"))
    query = stream.writeStream.format("memory").queryName("feed_flights").start()
    try:
        query.processAllAvailable()
        first = sum(month.slice("flights", number).num_rows for number in range(6))
        assert spark.table("feed_flights").count() == first > 0
        list(arriving)
        query.processAllAvailable()
    finally:
        query.stop()
    weather = spark.read.schema(WEATHER_DDL).parquet(str(tmp_path / "weather"))
    for feed, read in (("flights", spark.table("feed_flights").toArrow()), ("weather", weather.toArrow())):
        expected = pa.concat_tables([month.slice(feed, number) for number in range(12)])
        assert read.column_names == expected.column_names
        order = [(name, "ascending") for name in read.column_names]
        assert read.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
