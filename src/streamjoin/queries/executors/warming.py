"""Kernels of the ad-hoc core ready before the first task, in the process that workers are forked from.

A few queries over a few tuples reach the kernels that joins by numbers and texts use. Only the tasks of cells ask for
it (`distributed/jobs.py`): whoever runs no ad-hoc queries does not wait for it.
"""

from __future__ import annotations

from typing import Final

from streamjoin.joins.warming import alone, sample
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.executors.distributed.cell import PlacementCell
from streamjoin.queries.language.plan import Stream

_COLUMNS: Final = ["i64", "s", "at"]
_JOINS: Final = (
    "SELECT x.i64 AS a, y.i64 AS b, x.at AS u FROM l x JOIN r y WITHIN 3 SECONDS ON x.i64 = y.i64 WHERE x.i64 > 0",
    "SELECT x.i64 AS a, y.s AS b FROM l x JOIN r y WITHIN 3 SECONDS ON x.s = y.s WHERE x.s LIKE 'k%'",
    "SELECT x.i64 AS a FROM l x JOIN r y WITHIN 3 ROWS ON ABS(x.i64 - y.i64) <= 1 JOIN l z WITHIN 3 ROWS ON y.s = z.s",
)
_BATCHES, _ROWS = 3, 16


def warm() -> None:
    """Run the queries; what a cell needs besides is loaded with it."""
    with alone():
        core = Shared([Stream(name, sample().select(_COLUMNS).schema, "at") for name in "lr"], PlacementCell.SETTINGS)
        core.apply([Create(f"q{number}", text) for number, text in enumerate(_JOINS)])
        for batch in range(_BATCHES):
            core.process(batch, dict.fromkeys("lr", sample(batch, _ROWS).select(_COLUMNS)))
