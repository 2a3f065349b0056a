"""Late rows as a growing set of Parquet files, written by the driver after each batch.

A file is named after its batch and holds that batch's late rows whole, so writing it again changes nothing: what a
driver that died left out is written after the next batch. Only committed batches are written.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.spark.log import late_files
from streamjoin.spark.pieces import atomic
from streamjoin.spark.places import Place


def export_late(root: Place, target: Place, committed: int) -> list[Place]:
    """Write the late rows of all batches up to `committed` that are not there yet; returns the new files."""
    batches: dict[int, list[Place]] = {}
    for batch, path in late_files(root):
        if batch <= committed:
            batches.setdefault(batch, []).append(path)
    written = []
    for batch, paths in batches.items():
        file = target / f"late-{batch:010}.parquet"
        if file.exists():
            continue
        rows = pa.concat_tables([pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all() for path in paths])
        with atomic(file) as out:
            pq.write_table(rows, out)
        written.append(file)
    return written
