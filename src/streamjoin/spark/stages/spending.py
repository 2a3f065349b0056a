"""The time that a batch spends on starting Python, importing modules and compiling kernels.

Kernels are compiled once per host and modules imported once per executor, by the workers' daemon, so
the first batch pays for both and hardly any other does. A task with something to report writes a small file
next to its piece; no decision depends on it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import struct
from dataclasses import dataclass

from streamjoin.jit.compiling import WATCH
from streamjoin.model.errors import CheckpointError
from streamjoin.storage.log import WindowLog
from streamjoin.storage.pieces import atomic

_UNTOLD = struct.Struct("dd")
# Shared with the workers that are forked from this process: the first of them to run a task tells it.
_shared = mmap.mmap(-1, _UNTOLD.size)
_told = 0.0


@dataclass(frozen=True)
class Spent:
    """The seconds of the task that spent the most."""

    starting: float = 0.0
    compiling: float = 0.0


def keep(starting: float) -> None:
    """Record the time that the daemon spent on starting and on compiling, before it forks workers."""
    global _told
    compiling = WATCH.seconds
    _shared[:] = _UNTOLD.pack(max(0.0, starting - compiling), compiling)
    _told = compiling


def untold() -> Spent:
    """The time that no task has reported yet."""
    starting, compiling = _UNTOLD.unpack(_shared[:])
    return Spent(starting, compiling + WATCH.seconds - _told)


def tell(log: WindowLog, batch: int, partition: int) -> None:
    """At the end of a task, write the time that this process has not reported yet."""
    global _told
    began = untold()
    if not began.starting and not began.compiling:
        return
    _shared[:] = bytes(_UNTOLD.size)
    _told = WATCH.seconds
    # A batch must not fail because a metric can't be written.
    with contextlib.suppress(CheckpointError), atomic(log.spending(batch, partition)) as file:
        file.write(json.dumps([began.starting, began.compiling]).encode())


def spent(log: WindowLog, batch: int, epoch: int) -> Spent:
    """The times that the tasks of one start reported for a batch."""
    reports = []
    for path in log.spendings(batch, epoch):
        try:
            reports.append(json.loads(path.read_bytes()))
        except (OSError, ValueError):
            # Only a metric is lost.
            continue
    return Spent(*(max(column) for column in zip(*reports, strict=True))) if reports else Spent()
