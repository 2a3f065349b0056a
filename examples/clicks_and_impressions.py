"""Sessions of clicks and impressions: which ads were clicked, which were not, and which clicks have no impression.

An impression is an ad that a session was shown. A click belongs to it if it is of the same session and ad and at most
ten minutes away; a full outer join returns each row that has no partner once nothing can match it any more.
Run it with `python examples/clicks_and_impressions.py`; it makes up an hour of both streams.
"""

from collections import Counter

import numpy as np
import pyarrow as pa

import streamjoin as sj

random = np.random.default_rng(3)
SHOWN, MINUTE = 3_000, 60_000

shown = np.sort(random.integers(0, 60 * MINUTE, SHOWN))
sessions, ads = random.integers(0, 1_000, SHOWN), random.integers(0, 5, SHOWN)
impressions = pa.table({"at": pa.array(shown, pa.timestamp("ms")), "session": sessions, "ad": ads})

# One of ten is clicked, within a minute. Some clicks come from programs that were never shown the ad.
clicked = np.flatnonzero(random.random(SHOWN) < 0.1)
times = shown[clicked] + random.integers(500, MINUTE, clicked.size)
times = np.concatenate([times, random.integers(0, 60 * MINUTE, 40)])
order = np.argsort(times)
clicks = pa.table(
    {
        "clicked": pa.array(times[order], pa.timestamp("ms")),
        "session": np.concatenate([sessions[clicked], random.integers(5_000, 5_100, 40)])[order],
        "ad": np.concatenate([ads[clicked], random.integers(0, 5, 40)])[order],
    }
)

spec = sj.JoinSpec(
    on=sj.Equi("session") & sj.Equi("ad"),
    window=sj.TimeWindow("10 minutes"),
    time=("at", "clicked"),
    order="event_time",
    how="full",
)

outcomes: Counter[str] = Counter()


def count(rows: pa.Table) -> None:
    """Count what became of each impression and click."""
    for row in rows.select(["at", "clicked"]).to_pylist():
        unclicked = "shown, not clicked" if row["clicked"] is None else "shown and clicked"
        outcomes["clicked, never shown" if row["at"] is None else unclicked] += 1


with sj.open(spec, on_close=count) as join:
    streams, times = {"shown": impressions, "clicks": clicks}, {"shown": "at", "clicks": "clicked"}
    for batch in sj.data.replay(streams, times, every="1 minute"):
        count(join.push(left=batch.get("shown"), right=batch.get("clicks")))
for outcome, number in sorted(outcomes.items()):
    print(f"{outcome}: {number:,}")
