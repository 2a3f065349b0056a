"""For the tests of capacity: a pipeline file, and constants that are easy to reckon with."""

from __future__ import annotations

from streamjoin.spark.capacity.estimate import Bytes, JoinShape, MachineConstants, Seconds

PIPELINE = """\
name = "trades near quotes"
checkpoint = "out/checkpoint"
source.left = { format = "parquet", path = "trades", schema = "ts TIMESTAMP, sym STRING, px DOUBLE" }
source.right = { format = "parquet", path = "quotes", schema = "ts TIMESTAMP, sym STRING, bid DOUBLE" }
join = { on = "l.sym = r.sym AND abs(l.px - r.bid) <= 0.25", window = "5 seconds", time = "ts" }
sink = { format = "parquet", path = "out/matches" }
"""

SIMPLE = MachineConstants(
    JoinShape(),
    Seconds(1e-3, 2e-7, 1e-5, 2e-3, 1e-4, 1e-6, 2e-7, 1e-7, 0.0, 1e-4, 1e-6, 5e-7, 0.3, 2e-3, 3e-3, 1e-9),
    Bytes(200.0, 40.0, 900.0, 1.0, 60.0, 150.0, 24.0, 1e6, 150.0, 40.0),
)
