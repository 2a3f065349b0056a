"""Punctuations: what each batch guarantees about later results, in joins that have a gate or decide by facts.

After a batch, no result follows with a time before the batch's bound or with a gate position before the batch's end. A
punctuation is a small file next to the log, named after its batch and start. It is valid once Spark has committed the
batch, when the sink has its rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamjoin.spark.runtime.checkpoints import known_root
from streamjoin.spark.runtime.starts import newest_number
from streamjoin.storage.pieces import atomic, damaged
from streamjoin.storage.places import Place, entries, place

KEPT = 100
"""Punctuations of at least this many batches are kept, like the entries of Spark's own logs."""

_FILE = re.compile(r"(\d+)\.(\d+)\.json")


@dataclass(frozen=True)
class Punctuation:
    """One batch: the bound in ticks, the next gate position, how many rows wait, and how far behind the bound is.

    Without a gate there are no positions, and nothing waits there.
    """

    batch: int
    bound: int | None
    position: int | None
    waiting: int | None
    lag: int | None


def progress_of(batch: int, footer: Mapping[str, Any]) -> Punctuation:
    """What a batch guarantees, from the footer of its gate's file."""
    return Punctuation(batch, footer["bound"], footer["positions"][1], sum(footer["waiting"]), footer["lag"])


def write_punctuation(root: Place, epoch: int, punctuation: Punctuation) -> None:
    """Store a punctuation and remove old ones."""
    path = root / "punctuations" / f"{punctuation.batch:010}.{epoch:08}.json"
    if path.exists():
        return
    with atomic(path) as file:
        file.write(json.dumps(punctuation.__dict__, sort_keys=True).encode())
    if punctuation.batch % KEPT == 0:
        for old in entries(path.parent):
            if (match := _FILE.fullmatch(old.name)) and int(match[1]) < punctuation.batch - KEPT:
                old.unlink(missing_ok=True)


def punctuations(checkpoint: str | Path, name: str = "join") -> pa.Table:
    """The punctuations of the join under `checkpoint`, one row per committed batch.

    The columns are `batch`; `bound`, a time in units of the join's clock before which no result follows (NULL until a
    row was ready); `position`, a gate position before which no result follows; `waiting`, the number of rows that
    were not ready; `lag`, how far the bound is behind the newest row. At least the newest 100 batches are included.
    Without a gate, `position` and `waiting` are NULL.

    Args:
        checkpoint: the `checkpointLocation` of the query.
        name: the name of the join, if it has one.

    Raises:
        CheckpointError: there is no such join, or its files can't be read.
    """
    root = known_root(checkpoint, name)
    committed = newest_number(place(str(checkpoint)) / "commits")
    newest: dict[int, tuple[int, Place]] = {}
    for path in entries(root / "punctuations"):
        if match := _FILE.fullmatch(path.name):
            batch, epoch = int(match[1]), int(match[2])
            if batch <= committed:
                newest[batch] = max(newest.get(batch, (0, path)), (epoch, path))
    rows = []
    for _, (_, path) in sorted(newest.items()):
        try:
            rows.append(json.loads(path.read_bytes()))
        except FileNotFoundError:
            # A running batch may remove the oldest.
            continue
        except (OSError, ValueError) as error:
            raise damaged(path, error) from error
    names = ("batch", "bound", "position", "waiting", "lag")
    return pa.table({name: pa.array([entry[name] for entry in rows], pa.int64()) for name in names})
