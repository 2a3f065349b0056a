"""A window join: for every flight the weather from six hours before its departure to an hour after it, in one row.

Run it with `python examples/weather_around.py`; the data are real and part of the package.
"""

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj

flights, weather = sj.data.flights(), sj.data.weather()

spec = sj.JoinSpec(
    on=sj.Equi("airport"),
    match=sj.Summary(
        {"observations": "count(*)", "gust": "max(r.wind)", "mean_wind": "avg(r.wind)", "worst": "min(r.visibility)"},
        between=("-6 hours", "1 hour"),
    ),
    time=("scheduled", "observed"),
    how="left",  # a row for every flight, also where nothing was observed
)
with sj.open(spec) as join:
    # In pushes of any size: a row comes out once the weather has passed the end of its window.
    rows = pa.concat_tables([join.push(flights, weather), join.close()])

print(f"{rows.num_rows:,} flights, {pc.sum(pc.equal(rows['observations'], 0)).as_py()} without an observation")
for low, high in ((0, 15), (15, 25), (25, 100)):
    is_in = pc.and_(pc.greater_equal(rows["gust"], low), pc.less(rows["gust"], high))
    chosen = rows.filter(is_in)
    print(
        f"wind up to {low}-{high} mph: {pc.mean(chosen['delay']).as_py():.0f} minutes late, {chosen.num_rows:,} flights"
    )
