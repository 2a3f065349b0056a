"""What a restart finds: the state at the newest batch in the log, and what of that batch is still to be done.

The invariant: the rows of a batch are computed from the queries that were in force at it, so changes that came after
are made only once the batch is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from streamjoin.adhoc.core.arrivals import Arrived, Aside, Clocks
from streamjoin.adhoc.core.buckets import Bucket
from streamjoin.adhoc.core.kind_states import KindState
from streamjoin.adhoc.core.kinds import unpacked_states
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.core.shared import Snapshot
from streamjoin.adhoc.engine.info import ChangeRecord
from streamjoin.adhoc.engine.journal import Body, Journal, Position
from streamjoin.adhoc.engine.stored import EngineChange, StoredState, unpacked_clocks
from streamjoin.adhoc.optimizer.optimizer import Optimizer
from streamjoin.model.errors import CheckpointError


@dataclass(frozen=True)
class RecoveredState:
    """What the log holds; `later` are the changes to make after `unfinished`, the newest batch if it is not done.

    `aside` says how many rows were set aside in that batch: they are in the log, and not yet in `counts`.
    """

    state: StoredState
    snapshot: Snapshot
    unfinished: Arrived | None
    later: tuple[EngineChange, ...]
    changelog: tuple[ChangeRecord, ...]
    positions: Mapping[str, Position]
    counts: Body
    counted: int
    """The batch after which `counts` were written; -1 if nothing was counted."""
    aside: Mapping[str, Aside] = field(default_factory=dict)


def recover(journal: Journal, settings: Settings) -> RecoveredState:
    """Read the log.

    Raises:
        CheckpointError: a file is missing, damaged, foreign or of another format.
    """
    newest = max(journal.numbers("batches"), default=-1)
    journal.remove_unfinished(newest)
    record = journal.read("batches", newest) if newest >= 0 else None
    base, base_batch = _base(journal)
    changes = _changes(journal)
    numbers = [change.record.serial for change in changes]
    first, last = (numbers[0], numbers[-1]) if numbers else (1, 0)
    known = max(base.serial, record["serial"] if record is not None else 0)
    if numbers != list(range(first, last + 1)) or known > last or first > base.serial + 1:
        raise CheckpointError(
            f"records of the changelog are missing in {journal.root / 'changes'}: restore it from a copy"
        )
    done = newest < 0 or base_batch >= newest or newest in journal.numbers("done")
    due = [change for change in changes if change.record.serial > base.serial]
    now = [change for change in due if done or change.record.batch <= newest]
    state = base.changed(now)
    # Batches without tuples are not in the log, but changes may be in force since one.
    last = max([newest, *(change.record.batch - 1 for change in changes)])
    optimizer = state.optimizer(Optimizer(settings), newest)
    kinds = _kinds(journal, state, newest if done else newest - 1)
    snapshot = Snapshot(last, state.registry, {}, _clocks(record, state), optimizer, kinds)
    unfinished = None
    if record is not None:
        held = _buckets(journal, record)
        snapshot = replace(snapshot, buckets=held)
        if not done:
            snapshot, unfinished = _before(snapshot, newest)
    return RecoveredState(
        state,
        snapshot,
        unfinished,
        tuple(due[len(now) :]),
        tuple(change.record for change in changes),
        {} if record is None else record["consumed"],
        *_counts(journal),
        {} if record is None else {name: Aside(*counted) for name, counted in record.get("aside", {}).items()},
    )


def _base(journal: Journal) -> tuple[StoredState, int]:
    numbers = journal.numbers("state")
    if not numbers:
        return StoredState.empty(), -1
    body = journal.read("state", numbers[-1])
    return StoredState.unpacked(body, numbers[-1]), int(body["batch"])


def _changes(journal: Journal) -> list[EngineChange]:
    groups = [journal.read("changes", number) for number in journal.numbers("changes")]
    return [EngineChange.unpacked(body) for group in groups for body in group["records"]]


def _counts(journal: Journal) -> tuple[Body, int]:
    numbers = journal.numbers("done")
    return (journal.read("done", numbers[-1]), numbers[-1]) if numbers else ({}, -1)


def _kinds(journal: Journal, state: StoredState, newest: int) -> dict[str, KindState]:
    """What waited after the batch `newest`, of the queries that were there."""
    stored = journal.read_kinds(newest)
    if stored is None:
        return {}
    batch, table = stored
    entries = state.registry.queries.items()
    return unpacked_states(table, {name: entry.query for name, entry in entries if entry.created <= batch})


def _clocks(record: Body | None, state: StoredState) -> Clocks:
    if record is None:
        return Clocks.start({name: stored.lateness for name, stored in state.streams.items()})
    return unpacked_clocks(record["clocks"], state.streams)


def _buckets(journal: Journal, record: Body) -> dict[str, tuple[Bucket, ...]]:
    return {
        stream: tuple(journal.read_bucket(stream, batch) for batch in batches)
        for stream, batches in record["held"].items()
    }


def _before(snapshot: Snapshot, newest: int) -> tuple[Snapshot, Arrived]:
    """The state before the newest batch, and that batch."""
    fresh = {s: held[-1] for s, held in snapshot.buckets.items() if held and held[-1].batch == newest}
    before = {stream: tuple(b for b in held if b.batch < newest) for stream, held in snapshot.buckets.items()}
    return replace(snapshot, batch=newest - 1, buckets=before), Arrived(fresh, {}, {}, snapshot.clocks, newest)
