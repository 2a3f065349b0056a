"""Late rows as a growing set of Parquet files, written by the driver after each batch.

A file is named after its batch and holds that batch's late rows whole, so writing it again changes nothing: what a
driver that died left out is written after the next batch. Only committed batches are written.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.spark.log import late_files


def export_late(root: Path, target: Path, committed: int) -> list[Path]:
    """Write the late rows of all batches up to `committed` that are not there yet; returns the new files."""
    batches: dict[int, list[Path]] = {}
    for batch, path in late_files(root):
        if batch <= committed:
            batches.setdefault(batch, []).append(path)
    written = []
    for batch, paths in batches.items():
        file = target / f"late-{batch:010}.parquet"
        if file.exists():
            continue
        target.mkdir(parents=True, exist_ok=True)
        rows = pa.concat_tables([pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in paths])
        draft = target / f".{file.name}.{uuid.uuid4().hex}"
        pq.write_table(rows, draft)
        draft.rename(file)
        written.append(file)
    return written
