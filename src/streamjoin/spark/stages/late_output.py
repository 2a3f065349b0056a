"""Late rows as a growing set of Parquet files, `late-<join>-<start>-<batch>.parquet`, written within the batch.

The task that publishes the last piece of a batch finds all late rows of the batch in the log and writes them as one
file, before any task of the batch can succeed without it. `<join>` is its name and `<start>` the log's first start, so
that a new query or another join never uses the file of another log. A batch that runs again has the same late rows, and
an existing file stays; files of batches that were never committed are removed when the query restarts.

A late output that can't be written does not fail the batch: the rows are in the log. The driver tries again after each
batch, and the next start of the query writes what is still missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.storage.log import WindowLog, first_epoch, late_files
from streamjoin.storage.pieces import atomic
from streamjoin.storage.places import Place, entries

_FILE = re.compile(r"late-(.+)-(\d+)\.parquet")


def write_batch(log: WindowLog, target: Place, batch: int, ranges: int) -> None:
    """Write the batch's late rows if all pieces are published; called by a task that has published its piece.

    Late rows are in the log before their piece, so at least the last task of a batch sees all pieces and late rows.
    """
    if log.all_published(batch, ranges):
        files = log.late(batch)
        if files:
            _write(target / _file(_log(log.root), batch), files)


def catch_up(root: Place, target: Place, committed: int, after: int = -1) -> list[Place]:
    """Write the missing files of the batches after `after`, up to `committed`; returns the new files."""
    batches: dict[int, list[Place]] = {}
    for batch, path in late_files(root):
        if after < batch <= committed:
            batches.setdefault(batch, []).append(path)
    if not batches:
        return []
    log, there = _log(root), {path.name for path in entries(target)}
    # Earlier versions of streamjoin wrote names without the log.
    missing = [b for b in batches if not there & {_file(log, b), f"late-{b:010}.parquet"}]
    return [_write(target / _file(log, batch), batches[batch]) for batch in missing]


def forget_uncommitted(root: Place, target: Place, committed: int) -> None:
    """Remove the files of batches that will run again, because their late rows may be different."""
    log = _log(root)
    for path in entries(target):
        match = _FILE.fullmatch(path.name)
        if match and match[1] == log and int(match[2]) > committed:
            path.unlink(missing_ok=True)


def _log(root: Place) -> str:
    """The identity of the log among all logs that write to the same directory."""
    return f"{root.name}-{first_epoch(root)}"


def _file(log: str, batch: int) -> str:
    return f"late-{log}-{batch:010}.parquet"


def _write(file: Place, parts: Sequence[Place]) -> Place:
    tables = [pa.ipc.open_file(pa.BufferReader(part.read_bytes())).read_all() for part in parts]
    # A batch that runs again after a restart may have other column names.
    rows = pa.concat_tables(tables, promote_options="default")
    with atomic(file, once=True) as out:
        pq.write_table(rows, out)
    return file
