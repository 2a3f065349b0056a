"""What a batch spends on beginning: starting Python with all that tasks import, and compiling kernels.

Kernels are compiled once a host and modules imported once an executor, by the daemon that workers are forked from, so
the first batch pays for both and hardly any other. A task that finds something untold leaves it in a small file
next to its piece; nothing is decided from it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import struct
from dataclasses import dataclass

from streamjoin.kernels.compiling import WATCH
from streamjoin.model.errors import CheckpointError
from streamjoin.storage.log import WindowLog
from streamjoin.storage.pieces import atomic

_UNTOLD = struct.Struct("dd")
# Shared with the workers that are forked from this process: the first of them to run a task tells it.
_shared = mmap.mmap(-1, _UNTOLD.size)
_told = 0.0


@dataclass(frozen=True)
class Spent:
    """Seconds, of the task that spent most."""

    starting: float = 0.0
    compiling: float = 0.0


def keep(starting: float) -> None:
    """In the daemon, before workers are forked: what starting took, and what of it was compiling."""
    global _told
    compiling = WATCH.seconds
    _shared[:] = _UNTOLD.pack(max(0.0, starting - compiling), compiling)
    _told = compiling


def tell(log: WindowLog, batch: int, partition: int) -> None:
    """At the end of a task: leave word of what this process has spent and not told yet."""
    global _told
    starting, compiling = _UNTOLD.unpack(_shared[:])
    if not starting and not compiling and WATCH.seconds == _told:
        return
    _shared[:] = bytes(_UNTOLD.size)
    compiling += WATCH.seconds - _told
    _told = WATCH.seconds
    # A figure is not worth a batch.
    with contextlib.suppress(CheckpointError), atomic(log.spending(batch, partition)) as file:
        file.write(json.dumps([starting, compiling]).encode())


def spent(log: WindowLog, batch: int, epoch: int) -> Spent:
    """What the tasks of one start told of a batch."""
    told = []
    for path in log.spendings(batch, epoch):
        try:
            told.append(json.loads(path.read_bytes()))
        except (OSError, ValueError):
            # Only a figure is lost.
            continue
    return Spent(*(max(column) for column in zip(*told, strict=True))) if told else Spent()
