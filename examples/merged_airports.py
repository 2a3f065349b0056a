"""Departures of three airports, merged into one stream by `sj.ScaleGate`: every reader gets the same order.

Each airport is a thread that sends real flights at its own pace; two readers follow all of them. Run it with
`python examples/merged_airports.py`.
"""

import threading
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

import streamjoin as sj

flights = sj.data.flights().filter(pc.field("departure").is_valid()).sort_by("departure")
airports = sorted(pc.unique(flights["airport"]).to_pylist())

# Naming the sources makes readers wait for all of them: a flight comes out once no airport can send an earlier one.
gate = sj.ScaleGate("departure", sources=airports)


def send(airport):
    """One source. A push waits where a reader is far behind; leaving the block says that the airport has ended."""
    own = flights.filter(pc.field("airport") == airport)
    with gate.source(airport) as source:
        for begin in range(0, own.num_rows, 500):
            source.push(own.slice(begin, 500))


def follow(reader, order):
    """One reader: iteration ends when the gate is closed."""
    order.extend(reader)


seen = [[], []]
readers = [threading.Thread(target=follow, args=(gate.reader(), order)) for order in seen]
sources = [threading.Thread(target=send, args=(airport,)) for airport in airports]
for thread in [*readers, *sources]:
    thread.start()
for thread in sources:
    thread.join()
gate.close()
for thread in readers:
    thread.join()

first, second = (pa.concat_tables(order) for order in seen)
print(f"{first.num_rows:,} departures in one order, the same for both readers: {first.equals(second)}")
ahead = Counter(zip(first["airport"].to_pylist(), first["airport"].to_pylist()[1:], strict=False))
for (one, next_one), times in ahead.most_common(3):
    print(f"after a departure from {one} the next one was from {next_one} {times:,} times")
