"""Overlapping intervals: aircraft that waited at the same airport at the same time for an hour or more.

Run it with `python examples/overlapping_intervals.py`; the data are real and part of the package.
"""

import pyarrow.compute as pc

import streamjoin as sj

flights = sj.data.flights()
waiting = flights.filter(pc.greater_equal(flights["delay"], 60))
waiting = waiting.select(["airport", "carrier", "flight", "scheduled", "departure"])

# Each of two flights can be the left one: `<` takes a pair once.
overlap = sj.Overlaps(("scheduled", "departure"), ("scheduled", "departure"))
spec = sj.JoinSpec(
    on=overlap & sj.Theta("l.airport = r.airport AND l.flight < r.flight"), window=sj.CountWindow(100_000)
)
with sj.open(spec) as join:
    rows = join.push(waiting, waiting)
by_airport = sorted((row["values"], row["counts"]) for row in rows["airport"].value_counts().to_pylist())
print(f"{waiting.num_rows:,} flights waited, {rows.num_rows:,} pairs at the same time")
print(", ".join(f"{name} {count:,}" for name, count in by_airport))
