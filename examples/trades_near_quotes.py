"""Join two streams of files on Spark: trades with the quotes of the same symbol, near in price and in time.

Run it with `python examples/trades_near_quotes.py`; it makes its own data, joins it, prints a few rows and ends.
"""

import tempfile
from datetime import timedelta
from pathlib import Path

import streamjoin as sj
from streamjoin.spark.demo.feeds import QUOTES_DDL, TRADES_DDL, Market, play


def main(directory: Path) -> None:
    # Two directories of Parquet files: four seconds of a made-up market, written as fast as it goes.
    for _ in play(Market(seed=1), directory, duration=timedelta(seconds=4), speed=1e6):
        pass

    # A Spark session with what the join needs; it finds a Java by itself. One of your own works as well.
    spark = sj.spark.session("trades-near-quotes")

    # Any streaming source will do, such as Kafka. A batch takes at most two files of each feed.
    trades = spark.readStream.schema(TRADES_DDL).option("maxFilesPerTrigger", 2).parquet(f"{directory}/trades")
    quotes = spark.readStream.schema(QUOTES_DDL).option("maxFilesPerTrigger", 2).parquet(f"{directory}/quotes")

    spec = sj.JoinSpec(
        on=sj.Equi("sym") & sj.Band("px", "bid", 0.015),  # the same symbol, |px - bid| <= 1.5 cents
        window=sj.TimeWindow("2 seconds"),  # ... and at most 2 seconds apart,
        time="ts",  # by the clock of the data, not of the machine
        order="event_time",
    )
    joined = sj.spark.join(trades, quotes, spec)  # a streaming DataFrame like any other

    # Any sink will do. The join keeps its state under the checkpoint: started again with the same one, the query goes
    # on where it stopped, and the files hold every match exactly once.
    query = (
        joined.select("ts", "sym", "px", "bid", "ask")
        .writeStream.format("parquet")
        .option("path", f"{directory}/matches")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)  # end with the files; leave this line out to keep waiting for new ones
        .start()
    )
    query.awaitTermination()

    matches = spark.read.parquet(f"{directory}/matches")
    matches.orderBy("ts", "sym", "px", "bid", "ask").show(5, truncate=False)
    print(f"{matches.count():,} matches, {sj.spark.late(f'{directory}/checkpoint').num_rows} late rows")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
