"""An algorithm of your own: it pairs tuples, the join does the rest.

Run it with `python examples/own_algorithm.py`; the guide "Your own algorithm or index" explains it.
"""

import numpy as np
import pyarrow as pa

import streamjoin as sj
from streamjoin.joins.base import Chunk, Pairs, Refine


class EveryPair:
    """Pairs each tuple with all that is in the other window, and leaves the condition to the join."""

    name = "every_pair"

    def __init__(self) -> None:
        self.decides: frozenset[int] = frozenset()  # no part of the condition is tested here
        self.stored = [np.empty(0, np.int64), np.empty(0, np.int64)]  # the positions of both sides

    def process(self, chunk: Chunk, refine: Refine) -> Pairs:
        """Store the chunk, then pair its tuples with the positions that they may match."""
        places = [part.at[part.valid_places()] for part in (chunk.left, chunk.right)]
        self.stored = [np.append(held, chunk.own_seq[at]) for held, at in zip(self.stored, places, strict=True)]
        pairs = []
        for at, others in zip(places, reversed(self.stored), strict=True):
            for place in () if chunk.stored_only else at.tolist():
                first, last = np.searchsorted(others, (chunk.min_seq[place], chunk.stops[place]))
                pairs += [(place, seq) for seq in others[first:last].tolist()]
        probe, seq = np.array(sorted(pairs), np.int64).reshape(-1, 2).T.copy()
        return Pairs(*refine(probe, seq))

    def forget(self, left_min: int, right_min: int) -> None:
        """Drop what no later tuple can match."""
        bounds = (left_min, right_min)
        self.stored = [held[held >= bound] for held, bound in zip(self.stored, bounds, strict=True)]

    def saved(self) -> None:
        """After a call that failed, build the algorithm anew."""

    def counters(self) -> dict[str, int]:
        """What `join.metrics()` shows."""
        return {"stored": sum(held.size for held in self.stored)}

    def close(self) -> None:
        """There are no threads to end."""

    @property
    def nbytes(self) -> int:
        """What it holds."""
        return sum(held.nbytes for held in self.stored)


sj.register_algorithm(EveryPair.name, lambda *_: EveryPair())

heat = pa.table({"room": ["hall", "kitchen", "hall"], "celsius": [19.0, 64.5, 20.5]})
smoke = pa.table({"room": ["kitchen", "hall"], "density": [0.7, 0.1]})
spec = sj.JoinSpec(on=sj.Equi("room"), window=sj.CountWindow(100))
for algorithm in ("every_pair", "sweep"):
    with sj.open(spec, algorithm) as join:
        rows = join.push(heat, smoke)
    print(f"{algorithm}:", ", ".join(f"{row['room']} {row['celsius']} °C" for row in rows.to_pylist()))
