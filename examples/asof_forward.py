"""An as-of join, forward: after each storm the first flight that really left.

Run it with `python examples/asof_forward.py`; the data are real and part of the package.
"""

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj

flights, weather = sj.data.flights(), sj.data.weather()
flown = flights.filter(flights["departure"].is_valid()).sort_by("departure")
storms = weather.filter(pc.greater(weather["gust"], 50)).select(["observed", "airport", "gust"])

spec = sj.JoinSpec(
    on=sj.Equi("airport"),
    match=sj.AsOf("forward", tolerance="12 hours", exact=False),  # strictly after the observation
    time=("observed", "departure"),
    order="event_time",
    how="left",
)
with sj.open(spec) as join:
    rows = pa.concat_tables([join.push(storms, flown), join.close()])
for row in rows.to_pylist():
    waited = (row["departure"] - row["observed"]).seconds // 60
    storm = f"{row['airport']} {row['observed']:%d %b %H:%M}, {row['gust']:.0f} mph"
    print(f"{storm}: {row['carrier']} left {waited} min later")
