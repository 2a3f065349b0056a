"""A semi join: flights that were due while a storm was near their airport, each once.

Run it with `python examples/semi_join.py`; the data are real and part of the package.
"""

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj

flights, weather = sj.data.flights(), sj.data.weather()
storms = weather.filter(pc.greater(weather["gust"], 45))

spec = sj.JoinSpec(
    on=sj.Equi("airport"),
    window=sj.TimeWindow("1 hour"),
    time=("scheduled", "observed"),
    order="event_time",
    how="semi",
)
with sj.open(spec) as join:
    # Two observations of the same storm are near most flights; a semi join gives a flight once, and its columns alone.
    rows = pa.concat_tables([join.push(flights, storms), join.close()])
print(f"{rows.num_rows} flights near a storm, {pc.mean(rows['delay']).as_py():.0f} minutes late on average")
print(f"all flights: {pc.mean(flights['delay']).as_py():.0f} minutes")
