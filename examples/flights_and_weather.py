"""Join two streams of files on Spark: flights with the weather at their airport, at most an hour before or after.

Run it with `python examples/flights_and_weather.py`; the data are real and part of the package.
"""

import tempfile
from pathlib import Path

import pyarrow.parquet as pq

import streamjoin as sj

SCHEMAS = {
    "flights": "scheduled timestamp, airport string, carrier string, flight int, delay int",
    "weather": "observed timestamp, airport string, wind double, visibility double",
}
TIMES = {"flights": "scheduled", "weather": "observed"}


def main(directory: Path) -> None:
    # Two directories of Parquet files, one per day of January 2013, as another program would write them.
    tables = {"flights": sj.data.flights(), "weather": sj.data.weather()}
    for name in tables:
        (directory / name).mkdir()
    for day, batch in enumerate(sj.data.replay(tables, TIMES, every="1 day")):
        for name, rows in batch.items():
            pq.write_table(rows, directory / name / f"{day:02}.parquet")

    # A Spark session with what the join needs; it finds a Java by itself. One of your own works as well.
    spark = sj.spark.session("flights-and-weather")
    # Any streaming source will do, such as Kafka.
    flights, weather = (spark.readStream.schema(SCHEMAS[name]).parquet(f"{directory}/{name}") for name in tables)

    spec = sj.JoinSpec(
        on=sj.Equi("airport"),
        window=sj.TimeWindow("1 hour"),  # at most an hour apart,
        time=("scheduled", "observed"),  # by the clock of the data, not of the machine
        order="event_time",
    )
    joined = sj.spark.join(flights, weather, spec)  # a streaming DataFrame like any other

    # Any sink will do. The join keeps its state under the checkpoint: started again with the same one, the query goes
    # on where it stopped, and the files hold every match exactly once.
    query = (
        joined.writeStream.format("parquet")
        .option("path", f"{directory}/matches")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)  # end with the files; leave this line out to keep waiting for new ones
        .start()
    )
    query.awaitTermination()

    matches = spark.read.parquet(f"{directory}/matches")
    print(f"{matches.count():,} matches, {sj.spark.late(f'{directory}/checkpoint').num_rows} late rows")
    storms = matches.where("wind > 25").groupBy("airport").avg("delay").orderBy("airport")
    for row in storms.collect():
        print(f"{row[0]}, wind above 25 mph: {row[1]:.0f} minutes late on average")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
