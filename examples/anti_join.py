"""An anti join: aircraft that left New York and did not leave it again within five days.

Run it with `python examples/anti_join.py`; the data are real and part of the package.
"""

import pyarrow.compute as pc

import streamjoin as sj

flights = sj.data.flights()
flown = flights.filter(pc.and_(flights["departure"].is_valid(), flights["tail"].is_valid()))
flown = flown.select(["scheduled", "tail", "destination"])

spec = sj.JoinSpec(
    # Only a later flight of the same aircraft counts.
    on="l.tail = r.tail AND l.scheduled < r.scheduled",
    window=sj.TimeWindow("5 days"),
    time="scheduled",
    order="event_time",
    how="anti",
)
with sj.open(spec) as join:
    rows = join.push(flown, flown)
    # The end of the input decides the flights of the last five days.
    last = join.close()
print(f"{rows.num_rows:,} of {flown.num_rows:,} flights were the last of their aircraft for five days")
print(f"{last.num_rows:,} more at the end of the data")
first = rows.slice(0, 1).to_pylist()[0]
print(f"the first: {first['tail']} to {first['destination']}, {first['scheduled']:%d %B %H:%M}")
