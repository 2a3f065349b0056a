"""A full join: cancelled flights and dense fog, together where they meet and alone where they don't.

Run it with `python examples/full_join.py`; the data are real and part of the package.
"""

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj

flights, weather = sj.data.flights(), sj.data.weather()
cancelled = flights.filter(flights["departure"].is_null()).select(["scheduled", "airport", "flight"])
fog = weather.filter(pc.less(weather["visibility"], 0.25)).select(["observed", "airport", "visibility"])

spec = sj.JoinSpec(
    on=sj.Equi("airport"),
    window=sj.TimeWindow("30 minutes"),
    time=("scheduled", "observed"),
    order="event_time",
    how="full",
)
with sj.open(spec) as join:
    rows = pa.concat_tables([join.push(cancelled, fog), join.close()])
alone = {name: rows[name].null_count for name in ("flight", "visibility")}
both = rows.num_rows - sum(alone.values())
print(f"{both} pairs, {alone['visibility']} cancelled flights without fog, {alone['flight']} foggy hours without one")
