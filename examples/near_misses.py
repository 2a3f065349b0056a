"""Find aircraft that came close to each other: less than 5 nautical miles apart and less than 1,000 feet in altitude.

The positions are real: an afternoon near Paris, from the sample of `traffic` (`pip install --no-deps traffic`).
Run it with `python examples/near_misses.py`.
"""

import math

import pyarrow.compute as pc

import streamjoin as sj

positions = sj.data.aircraft()
# Above the approach to an airport, where aircraft are led closer to each other on purpose.
positions = positions.filter(pc.greater(positions["altitude"], 12_000))

# A plane in nautical miles: a minute of latitude is one, a minute of longitude shorter by the cosine of the latitude.
narrowing = math.cos(math.radians(pc.mean(positions["latitude"]).as_py()))
positions = positions.append_column("x", pc.multiply(positions["longitude"], 60 * narrowing))
positions = positions.append_column("y", pc.multiply(positions["latitude"], 60.0))

# The bands are looked up in an index; what is left of them is tested exactly. Each of two tuples can be the left one:
# `<` instead of `<>` takes a pair once.
spec = sj.JoinSpec(
    on=sj.Band("altitude", "altitude", 1_000)
    & sj.Band("x", "x", 5)
    & sj.Band("y", "y", 5)
    & sj.Theta("l.icao24 < r.icao24 AND (l.x - r.x) * (l.x - r.x) + (l.y - r.y) * (l.y - r.y) < 25"),
    window=sj.TimeWindow("1 second"),
    time="time",
    order="event_time",
    self_join=True,
)

first_seen = {}


def look(rows):
    """Remember when each pair was first seen."""
    for row in rows.to_pylist():
        pair = tuple(sorted((row["icao24_left"], row["icao24_right"])))
        first_seen.setdefault(pair, row["time"])


with sj.open(spec) as join:
    for batch in sj.data.replay({"positions": positions}, "time", every="10 minutes"):
        look(join.push(left=batch["positions"]))
    # The newest positions wait, as others of the same second might follow.
    look(join.close())
    print(f"{positions.num_rows:,} positions, {join.metrics()['results']:,} close encounters, {len(first_seen)} pairs")
for (one, other), time in sorted(first_seen.items(), key=lambda seen: seen[1])[:5]:
    print(f"{time:%H:%M:%S} {one} and {other}")
