"""What is open of a grouped query: its first window, its groups so far, and which stream holds them back."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa

from streamjoin.queries.core.changes import LiveQuery
from streamjoin.queries.core.groups.feeds import GroupMember, GroupState, bounds_by_stream, due_of
from streamjoin.queries.core.shared import Snapshot
from streamjoin.queries.engine.info import OpenGroups
from streamjoin.windows.clock import FOREVER, NEVER


def open_groups_of(entry: LiveQuery, snapshot: Snapshot) -> OpenGroups | None:
    """What is open of a query after the last batch; None if it has no groups, or is paused."""
    if entry.query.grouping is None or entry.paused:
        return None
    member, state = entry.member, snapshot.kinds.get(entry.query.name)
    horizons = snapshot.clocks.horizons
    begins = None if member.since == NEVER else member.since
    lateness = {name: horizon.lateness for name, horizon in horizons.items()}
    due = None if begins is None else due_of(entry.query, begins + member.window.size, lateness)
    bounds = bounds_by_stream(entry.query, snapshot.clocks.progress)
    slowest = min(bounds, key=lambda name: bounds[name])
    run = member.complete(state.store, state.closed, FOREVER) if isinstance(state, GroupState) else None
    starts = np.empty(0, np.int64) if run is None else np.unique(run.panes)
    return OpenGroups(
        _told(member, begins),
        _told(member, due),
        int(starts.size),
        0 if run is None else run.n,
        _told(member, int(starts[0]) if starts.size else None),
        slowest if starts.size else None,
        _told(member, None if bounds[slowest] == NEVER else bounds[slowest]),
    )


def rows_so_far(entry: LiveQuery, snapshot: Snapshot, limit: int) -> pa.Table:
    """The rows that open groups would give if they were complete, the oldest first."""
    state = snapshot.kinds.get(entry.query.name)
    run = None
    if entry.query.grouping is not None and isinstance(state, GroupState):
        run = entry.member.complete(state.store, state.closed, FOREVER)
    return entry.query.schema.empty_table() if run is None else entry.member.rows(run)[0].slice(0, limit)


def _told(member: GroupMember, tick: int | None) -> str | int | None:
    """A time as text, or as a number where times are."""
    if tick is None:
        return None
    try:
        value = member.time(np.array([tick]))[0].as_py()
    except (ValueError, OverflowError):
        return f"{tick} ns since 1970"
    return value.isoformat() if isinstance(value, dt.date) else int(value)
