"""A right join: flights that were cancelled in dense fog, and the foggy hours in which none was.

Run it with `python examples/right_join.py`; the data are real and part of the package.
"""

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj

flights, weather = sj.data.flights(), sj.data.weather()
cancelled = flights.filter(flights["departure"].is_null()).select(["scheduled", "airport", "carrier", "flight"])
fog = weather.filter(pc.less(weather["visibility"], 0.25)).select(["observed", "airport", "visibility"])

spec = sj.JoinSpec(
    on=sj.Equi("airport"),
    window=sj.TimeWindow("30 minutes"),
    time=("scheduled", "observed"),
    order="event_time",
    how="right",
)
with sj.open(spec) as join:
    rows = pa.concat_tables([join.push(cancelled, fog), join.close()])
print(f"{rows.num_rows - rows['flight'].null_count} cancelled flights in fog")
quiet = rows.filter(rows["flight"].is_null())
print(f"{quiet.num_rows} foggy observations without one, the first at {quiet['airport'][0]}, {quiet['observed'][0]}")
