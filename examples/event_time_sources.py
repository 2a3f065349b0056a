"""Several sources in event-time order: the same rows whoever is faster, and late rows that are not lost.

Two gates count cars, one camera reads plates; each delivers at its own pace. Run it with
`python examples/event_time_sources.py`.
"""

from datetime import datetime, timedelta

import pyarrow as pa

import streamjoin as sj

MIDNIGHT = datetime(2025, 1, 1)


def cars(gate: str, *seconds: int) -> pa.Table:
    return pa.table({"ts": [MIDNIGHT + timedelta(seconds=s) for s in seconds], "gate": [gate] * len(seconds)})


def plates(**seconds: int) -> pa.Table:
    return pa.table({"ts": [MIDNIGHT + timedelta(seconds=s) for s in seconds.values()], "plate": list(seconds)})


spec = sj.JoinSpec(
    on=sj.Band("ts", "ts", "2 seconds"),  # a band on time takes a duration
    window=sj.TimeWindow("1 minute"),
    time="ts",
    order="event_time",
)


def show(when: str, found: pa.Table) -> None:
    rows = [f"{row['plate']} at the {row['gate']} gate" for row in found.to_pylist()]
    print(f"{when}: {', '.join(rows) or 'nothing yet'}")


# Naming the sources makes the join wait for all of them: a row is joined once no source can send an earlier one.
with sj.open(spec, sources={"left": ["north", "south"], "right": ["camera"]}) as join:
    show("camera, 0-40 s", join.push(right=plates(AB123=10, CD456=21, EF789=40), source="camera"))
    show("north, 0-30 s", join.push(left=cars("north", 11, 30), source="north"))
    show("south, 0-35 s", join.push(left=cars("south", 20, 35), source="south"))  # now all is known up to 30 s
    show("north, late", join.push(left=cars("north", 22), source="north"))  # behind its own 30 s: not joined
    show("south is done", join.finish("south", side="left"))  # the join no longer waits for it
    show("north, 41 s", join.push(left=cars("north", 41), source="north"))
    for row in join.late().to_pylist():
        print(f"set apart as {row['reason']}: a car at the {row['gate']} gate at {row['ts_left']:%M:%S}")
    show("the end", join.close())  # what was still waiting
