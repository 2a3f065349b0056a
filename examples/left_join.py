"""A left join: flights with the heavy rain around their departure, and the flights that had none.

Run it with `python examples/left_join.py`; the data are real and part of the package.
"""

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj

flights, weather = sj.data.flights(), sj.data.weather()
rain = weather.filter(pc.greater(weather["rain"], 0.2)).select(["observed", "airport", "rain"])

spec = sj.JoinSpec(
    on=sj.Equi("airport"),
    window=sj.TimeWindow("15 minutes"),
    time=("scheduled", "observed"),
    order="event_time",
    how="left",
)
with sj.open(spec) as join:
    # A flight without rain comes out when its quarter of an hour has passed; the last ones at the end of the input.
    rows = pa.concat_tables([join.push(flights, rain), join.close()])
dry = rows["rain"].null_count
print(f"{rows.num_rows - dry} flights in heavy rain, {dry:,} without")
