"""Conditions on intervals: calls that came during an outage, and shifts that overlap one.

Run it with `python examples/calls_in_outages.py`.
"""

import streamjoin as sj

outages = [
    {"area": "north", "begin": 10, "end": 25},
    {"area": "south", "begin": 40, "end": 41},
]
calls = [{"caller": name, "at": at} for name, at in (("Ada", 5), ("Bo", 12), ("Cy", 25), ("Di", 60))]
shifts = [{"team": name, "start": start, "stop": stop} for name, start, stop in (("red", 0, 8), ("blue", 20, 50))]


def main() -> None:
    window = sj.CountWindow(1_000)
    # The same as on="l.at BETWEEN r.begin AND r.end".
    with sj.open(sj.JoinSpec(on=sj.Within("at", "begin", "end"), window=window)) as join:
        for row in join.push(calls, outages).to_pylist():
            print(f"{row['caller']} called at {row['at']}, during the outage in the {row['area']}")
    with sj.open(sj.JoinSpec(on=sj.Overlaps(("start", "stop"), ("begin", "end")), window=window)) as join:
        for row in join.push(shifts, outages).to_pylist():
            print(f"team {row['team']} was on duty in the {row['area']}")


if __name__ == "__main__":
    main()
