"""Claims: the starts of a query or engine on one checkpoint, in the order in which they took it over.

A start claims the checkpoint with a file that only one process can create (a conditional write, an exclusive create, a
rename that replaces nothing). The newest claim counts. A start that was paused, or cut off from its store, finds the
newer claim when it goes on, and stops.

    epochs/<number>          a claim
    runs/<id>                the number of a start that its tasks claimed

Over Spark Connect no code of the driver runs before the first batch, and the tasks of a start claim the checkpoint for
it. They share the id of its run, under which the first of them stores a number.
"""

from __future__ import annotations

import time
import uuid

from streamjoin.model.errors import CheckpointError, StateError
from streamjoin.storage.places import Place, create_file, entries

DIRECTORY, RUNS = "epochs", "runs"


def claim(root: Place) -> int:
    """Claim the checkpoint in `root`; returns the number of the claim, which no other start has.

    Claims are numbered by the clock, so that a number of a checkpoint that was deleted does not come again.

    Raises:
        OSError: it can't be written.
        SetupError: the store can't refuse to replace a file.
    """
    mine = uuid.uuid4().bytes
    number = _next(root)
    while not create_file(root / DIRECTORY / f"{number:08}", mine):
        # Another start had the same millisecond: it is the older one.
        number += 1
    return number


def _next(root: Place) -> int:
    return max(max(claims(root), default=0) + 1, time.time_ns() // 1_000_000)


def claim_for_run(root: Place, run: str) -> int:
    """Claim the checkpoint for the start `run`; all processes that do so get the same number.

    Raises:
        OSError: it can't be written.
        SetupError: the store can't refuse to replace a file.
        StateError: another start has the same number.
    """
    create_file(root / RUNS / run, str(_next(root)).encode())
    number = claim_of_run(root, run)
    if number is None:
        raise OSError(f"{root / RUNS / run} disappeared")
    path = root / DIRECTORY / f"{number:08}"
    if not create_file(path, run.encode()) and path.read_bytes() != run.encode():
        raise StateError(
            f"another start took over the checkpoint {root} in the same millisecond. Run one query per checkpoint"
        )
    return number


def claim_of_run(root: Place, run: str) -> int | None:
    """The number of the start `run`; None if none of its processes has claimed the checkpoint.

    Raises:
        CheckpointError: the file can't be read.
    """
    path = root / RUNS / run
    if not path.exists():
        return None
    try:
        return int(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): restart the query, which gets a new one") from error


def claims(root: Place) -> list[int]:
    """The numbers of all claims; the directory may have drafts of starts that were killed or are under way."""
    return [int(entry.name) for entry in entries(root / DIRECTORY) if entry.name.isdigit()]


def refuse_superseded(root: Place, number: int) -> None:
    """Stop a start that is not the newest.

    Raises:
        StateError: there is a newer claim.
    """
    newest = max(claims(root), default=number)
    if newest > number:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(newest / 1000))
        raise StateError(
            f"another start took over the checkpoint {root} at {when} UTC: this one stops, and nothing of the other's "
            "is touched. Run one query or engine per checkpoint"
        )
