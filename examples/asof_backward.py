"""An as-of join, backward: every flight with the weather that was known when it was due.

Run it with `python examples/asof_backward.py`; the data are real and part of the package.
"""

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj

flights, weather = sj.data.flights(), sj.data.weather()

spec = sj.JoinSpec(
    on=sj.Equi("airport"),
    match=sj.AsOf("backward", tolerance="2 hours"),
    time=("scheduled", "observed"),
    order="event_time",
    how="left",
)
with sj.open(spec) as join:
    rows = pa.concat_tables([join.push(flights, weather), join.close()])
print(f"{rows.num_rows:,} flights, {rows['visibility'].null_count} without an observation")
for low, high in ((0, 1), (1, 5), (5, 11)):
    is_in = pc.and_(pc.greater_equal(rows["visibility"], low), pc.less(rows["visibility"], high))
    print(f"visibility {low} to {high} miles: {pc.mean(rows.filter(is_in)['delay']).as_py():.0f} minutes late")
