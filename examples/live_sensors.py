"""Sensors that push from threads of their own, and alarms as soon as two of them agree.

Smoke and heat sensors come and go; each is a source of a live join in event-time order, so the alarms and their order
do not depend on which thread is faster. Run it with `python examples/live_sensors.py`.
"""

import threading
from datetime import datetime, timedelta

import streamjoin as sj

MIDNIGHT = datetime(2025, 1, 1)

# An alarm: smoke and heat in one room within ten seconds.
spec = sj.JoinSpec(
    on="l.room = r.room AND l.density > 0.4 AND r.celsius > 60",
    window=sj.TimeWindow("10 seconds"),
    time="at",
    order="event_time",
)


def measure(source: "sj.LiveSource", room: str, name: str, values: list[float]) -> None:
    """A sensor: one reading per second, then it is switched off."""
    with source:
        for second, value in enumerate(values):
            source.push([{"at": MIDNIGHT + timedelta(seconds=second), "room": room, name: value}])


# `idle`: a sensor whose battery fails does not hold back the others for longer than a minute.
with sj.live(spec, idle="1 minute") as join:
    sensors = [
        ("left", "kitchen", "density", [0.1, 0.2, 0.5, 0.7, 0.2]),
        ("left", "cellar", "density", [0.5, 0.1, 0.1, 0.1, 0.1]),
        ("right", "kitchen", "celsius", [21.0, 25.0, 40.0, 64.0, 70.0]),
        ("right", "cellar", "celsius", [12.0, 12.0, 12.0, 12.0, 12.0]),
    ]
    # All sources are open before the first one pushes: the join waits for every one of them.
    opened = [(join.source(side, room), room, name, values) for side, room, name, values in sensors]
    threads = [threading.Thread(target=measure, args=sensor) for sensor in opened]
    for thread in threads:
        thread.start()

    def close() -> None:
        for thread in threads:
            thread.join()
        join.close()

    threading.Thread(target=close).start()
    for rows in join:  # record batches, as soon as alarms are certain
        for alarm in rows.to_pylist():
            print(f"{alarm['at']:%M:%S} fire in the {alarm['room']}: {alarm['density']} smoke, {alarm['celsius']} °C")
