"""A condition on an interval: flights that were due while their airport was in fog.

Run it with `python examples/within_interval.py`; the data are real and part of the package.
"""

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj

flights, weather = sj.data.flights(), sj.data.weather()

# Hours of fog in a row, as one interval.
fogs: list[dict[str, object]] = []
for airport in ("EWR", "JFK", "LGA"):
    low = pc.and_(pc.equal(weather["airport"], airport), pc.less(weather["visibility"], 1))
    for time in weather.filter(low)["observed"].to_pylist():
        if fogs and fogs[-1]["airport"] == airport and (time - fogs[-1]["end"]).total_seconds() <= 3600:
            fogs[-1]["end"] = time
        else:
            fogs.append({"airport": airport, "begin": time, "end": time})

# Without an equality the interval itself is looked up in an index.
within = sj.Within("scheduled", "begin", "end")
with sj.open(sj.JoinSpec(on=within & sj.Equi("airport"), window=sj.CountWindow(100_000))) as join:
    rows = join.push(flights, pa.Table.from_pylist(fogs))
longest = max(fogs, key=lambda fog: fog["end"] - fog["begin"])
print(f"{len(fogs)} times of fog, {rows.num_rows} flights in them")
print(f"the longest: {longest['airport']} from {longest['begin']:%d %b %H:%M} to {longest['end']:%d %b %H:%M}")
