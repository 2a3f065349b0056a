"""Keeping the garbage collection cheap that a Python worker runs after each task.

What the daemon loaded is frozen before workers are forked; kernels come later, when a task first calls them, and leave
a hundred thousand objects that every collection would go through: tens of milliseconds a task. So a worker freezes its
heap anew at its 2nd, 4th, 8th, ... task of a join. That is right after a collection: hardly any garbage is kept.
"""

from __future__ import annotations

import gc
import itertools

_tasks = itertools.count(1)


def settle() -> bool:
    """Say that a task begins; whether the heap was frozen for it."""
    number = next(_tasks)
    due = number > 1 and number & (number - 1) == 0
    if due:
        gc.freeze()
    return due
