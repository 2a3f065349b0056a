"""The end of input: a batch without rows, in which every join of a query decides what waits.

A stream on Spark has no end, and Spark runs no batch without rows. So once a run with the trigger `availableNow` has
processed its backlog, the entry of its last batch in Spark's log of offsets is written again as that of the next batch,
with a mark. Spark finds a batch that is planned and not committed, and runs it, as after a crash.

The mark is in the entry itself: the batch is planned and marked at once, and if it runs again, after a kill and with or
without the option, it is the end again. What is read after it is joined as a stream of its own.
"""

from __future__ import annotations

import json
import time
from typing import Any

from streamjoin.model.errors import CheckpointError, StateError
from streamjoin.spark.runtime.starts import newest_number
from streamjoin.storage.pieces import atomic, damaged
from streamjoin.storage.places import Place

_MARK = "spark.streamjoin.end_of_input"
"""Among the settings that Spark stores with the offsets of a batch; Spark ignores those it does not know."""


def planned_end(checkpoint: Place, committed: int) -> int | None:
    """The batch after `committed`, if it is planned as the end of input."""
    newest = newest_number(checkpoint / "offsets")
    return newest if newest == committed + 1 and _is_end(checkpoint, newest) else None


def plan_end(checkpoint: Place) -> int | None:
    """Plan the end of input as the next batch; None if nothing was read since the last one.

    Raises:
        StateError: a batch is planned and not committed.
        CheckpointError: Spark's log can't be read or written.
    """
    newest, committed = (newest_number(checkpoint / name) for name in ("offsets", "commits"))
    if newest != committed:
        raise StateError(
            f"the input can't end: batch {newest} of {checkpoint} is planned and not committed. Run the query again"
        )
    if newest < 0 or _is_end(checkpoint, newest):
        return None
    path = checkpoint / "offsets" / str(newest)
    version, metadata, *offsets = _lines(path)
    facts = _metadata(path, metadata)
    after = _metadata(path, _lines(checkpoint / "commits" / str(newest))[1])
    facts["batchWatermarkMs"] = max(facts.get("batchWatermarkMs", 0), after.get("nextBatchWatermarkMs", 0))
    facts["batchTimestampMs"] = max(facts.get("batchTimestampMs", 0), time.time_ns() // 1_000_000)
    facts["conf"] = {**facts.get("conf", {}), _MARK: "true"}
    text = "\n".join([version, json.dumps(facts, separators=(",", ":")), *offsets])
    try:
        with atomic(checkpoint / "offsets" / str(newest + 1), once=True) as file:
            file.write(text.encode())
    except OSError as error:
        raise CheckpointError(f"the end of input can't be planned in {checkpoint}: {error}") from error
    return newest + 1


def _is_end(checkpoint: Place, batch: int) -> bool:
    path = checkpoint / "offsets" / str(batch)
    return _MARK in _metadata(path, _lines(path)[1]).get("conf", {})


def _lines(path: Place) -> list[str]:
    """The lines of an entry of Spark's: a version, metadata as JSON, and more."""
    try:
        lines = path.read_bytes().decode().split("\n")
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    if len(lines) < 2:
        raise damaged(path, ValueError("it is cut off"))
    return lines


def _metadata(path: Place, line: str) -> dict[str, Any]:
    # Spark writes a dash where there is nothing.
    if line in ("", "-"):
        return {}
    try:
        facts: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise damaged(path, error) from error
    return facts
