"""An as-of join, nearest: every cancelled flight with the observation closest in time, before or after it.

Run it with `python examples/asof_nearest.py`; the data are real and part of the package.
"""

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj

flights, weather = sj.data.flights(), sj.data.weather()
cancelled = flights.filter(flights["departure"].is_null()).select(["scheduled", "airport", "carrier", "flight"])

spec = sj.JoinSpec(
    on=sj.Equi("airport"),
    match=sj.AsOf("nearest", tolerance="1 hour"),  # of two equally far the earlier one
    time=("scheduled", "observed"),
    order="event_time",
)
with sj.open(spec) as join:
    rows = pa.concat_tables([join.push(cancelled, weather), join.close()])
before = pc.sum(pc.less_equal(rows["observed"], rows["scheduled"])).as_py()
after = rows.num_rows - before
print(f"{rows.num_rows} cancelled flights; the nearest observation: {before} times before, {after} times after")
print(f"wind {pc.mean(rows['wind']).as_py():.1f} mph; in the whole month {pc.mean(weather['wind']).as_py():.1f}")
