"""Seeded band workloads: uniform keys, and the band width that gives a wanted number of matches.

A tuple is 16 bytes, (key int64, payload int64). Row i of a side is the same whatever is asked for with it: a
seed gives one stream for any cut into batches, so every system under test joins the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Side = Literal["left", "right"]

_BLOCK = 1 << 16
_EPOCH_US = 1_700_000_000_000_000


@dataclass(frozen=True)
class BandWorkload:
    """Two streams whose keys are uniform over [0, domain).

    `band` is chosen so that a tuple meets `match_rate` partners on average in a window of `window` tuples of
    the other side.
    """

    window: int
    match_rate: float = 2.0
    seed: int = 0
    domain: int = 1 << 40

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1, not {self.window}")
        if not 0 <= self.match_rate <= self.window:
            raise ValueError(f"match rate must be between 0 and the window ({self.window}), not {self.match_rate}")

    @property
    def band(self) -> int:
        """The d of |l.key - r.key| <= d: it covers 2d + 1 keys of the domain."""
        return max(0, round((self.match_rate * self.domain / self.window - 1) / 2))

    def keys(self, side: Side, start: int, count: int) -> npt.NDArray[np.int64]:
        """Keys of rows `start` to `start + count` of one side."""
        out = np.empty(count, np.int64)
        for block in range(start // _BLOCK, -(-(start + count) // _BLOCK)):
            first = block * _BLOCK
            lo, hi = max(start, first), min(start + count, first + _BLOCK)
            out[lo - start : hi - start] = self._block(side, block)[lo - first : hi - first]
        return out

    def table(self, side: Side, start: int, count: int) -> pa.Table:
        """The same rows as Arrow; the payload is the row's number."""
        payload = np.arange(start, start + count, dtype=np.int64)
        import pyarrow as pa  # the keys alone need none of it

        return pa.table({"key": self.keys(side, start, count), "payload": payload})

    def timed_table(self, side: Side, start: int, count: int, step_us: int) -> pa.Table:
        """The same rows with an event time `ts`, one row every `step_us` microseconds on each side."""
        ts = _EPOCH_US + np.arange(start, start + count, dtype=np.int64) * step_us
        table = self.table(side, start, count)
        import pyarrow as pa

        return table.add_column(0, "ts", pa.array(ts, pa.int64()).cast(pa.timestamp("us", tz="UTC")))

    def batches(self, side: Side, rows: int, number: int, start: int = 0) -> Iterator[pa.Table]:
        """`number` tables of `rows` rows each."""
        for i in range(number):
            yield self.table(side, start + i * rows, rows)

    def write_files(self, directory: Path, side: Side, rows: int, number: int, step_us: int) -> None:
        """The timed rows as Parquet files that a file source reads in order, one a batch."""
        import pyarrow.parquet as pq

        directory.mkdir(parents=True, exist_ok=True)
        for i in range(number):
            path = directory / f"{i:06d}.parquet"
            pq.write_table(self.timed_table(side, i * rows, rows, step_us), path)

    def _block(self, side: Side, block: int) -> npt.NDArray[np.int64]:
        generator = np.random.default_rng([self.seed, side == "right", block])
        return generator.integers(0, self.domain, _BLOCK, dtype=np.int64)
