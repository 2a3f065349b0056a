"""The description of a join that its tasks get: the bound spec, and the join's name, token and fingerprint.

The name is the directory of the join's log under the checkpoint and stays the same across restarts. The token is new
for every call of `join` and identifies the call in the plan of the running query. The fingerprint covers everything
that a log depends on: two joins with the same fingerprint can read each other's files.
"""

from __future__ import annotations

import functools
import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from streamjoin.joins.types.asof import span
from streamjoin.model.binding import BoundSpec, condition_text
from streamjoin.model.comparisons import with_interval_index
from streamjoin.model.summary import Summary
from streamjoin.storage.merging import NEVER, MergePolicy, horizons
from streamjoin.windows.clock import less

FORMAT = 2
"""The version of the log's files; a log of another version is rejected."""

SIDES = ("left", "right")

ANY_ORDER = "in any order"
"""In a description, the sources of a join without a gate."""

TASK = "streamjoin_task"
"""The prefix of the name of the join's stage in Spark's plans; the token follows it."""


@dataclass(frozen=True)
class SourcePlan:
    """One DataFrame of a side: one source, or a column whose values are the sources; see `sources.Source`."""

    name: str
    by: str | None = None
    position: str | None = None
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name + (f" by {self.by}" if self.by else "") + (f" at {self.position}" if self.position else "")


@dataclass(frozen=True)
class GatePlan:
    """How tuples are brought into one order before the join.

    `most_waiting` is how many may wait after a batch; None for any number. `shared` says that every range decides by
    itself, from the times of all rows, so that no task sees all of them; earlier versions had one task for it.
    """

    sources: tuple[tuple[SourcePlan, ...], tuple[SourcePlan, ...]]
    idle_ms: int | None = None
    ordered: bool = False
    positions: bool = False
    punctuated: bool = False
    most_waiting: int | None = None
    shared: bool = False


@dataclass(frozen=True)
class Blueprint:
    """One join as its tasks see it.

    `partitions` is the number of tasks. The number of ranges is decided for every batch and starts with `first`; with
    `auto` it follows the load. `late` is where late rows are also written, in addition to the log. `unattended` joins
    run over Spark Connect: no code of the driver knows them, so tasks register starts, merge runs and complete the late
    output. `checkpoint` is the location of the query's checkpoint if the user gave it to the join as well. `spool` is
    from how many bytes on a part of a batch goes from task to task in a file; None for never. `end_of_input` says that
    its input ends with the backlog of a run. `former_sources` are the sources of the gate that an earlier version put
    before this join: its checkpoints are read.
    """

    bound: BoundSpec
    name: str
    partitions: int
    policy: MergePolicy = field(default_factory=MergePolicy)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    gate: GatePlan | None = None
    first: int | None = None
    auto: bool = False
    late: str | None = None
    unattended: bool = False
    checkpoint: str | None = None
    spool: int | None = None
    end_of_input: bool = False
    former_sources: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", with_interval_index(self.bound))
        if self.keeps_newest:
            object.__setattr__(self, "policy", replace(self.policy, whole=True))
        elif self.supersedes:
            # Rows go in merges and not by age, so a run may grow to the whole.
            object.__setattr__(self, "policy", replace(self.policy, runs=1))

    @property
    def windows(self) -> tuple[int, int]:
        """The lengths of both windows, in ticks or tuples; an as-of join has none, and its clocks are horizons.

        Of a summary, how long a left tuple waits, and how far its window reaches back.
        """
        if self.bound.match is not None:
            return 0, 0
        if self.bound.summary is not None:
            return max(0, self.bound.summary.high), max(0, -self.bound.summary.low)
        left, right = self.bound.windows
        return left.size, right.size

    @property
    def counted(self) -> tuple[bool, bool]:
        """Which sides have a count window."""
        if self.bound.match is not None:
            return False, False
        left, right = self.bound.windows
        return left.kind == "count", right.kind == "count"

    @property
    def preserved(self) -> tuple[int, ...]:
        """The sides whose unmatched tuples come out where they leave their windows."""
        spec = self.bound.spec
        return () if spec.match is not None else tuple(SIDES.index(side) for side in spec.preserved)

    @property
    def marked(self) -> tuple[int, ...]:
        """The sides whose tuples have a mark once they have matched."""
        return (0,) if self.bound.spec.how == "semi" else self.preserved

    @property
    def on_arrival(self) -> bool:
        """Whether a join that is not inner has no gate: its ranges decide by the facts that routing tasks send."""
        return self.gate is None and (bool(self.marked) or self.bound.match is not None)

    @property
    def shared_gate(self) -> bool:
        """Whether every range of a join with a gate decides by itself."""
        return self.gate is not None and self.gate.shared

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts of a run that last: rows of both sides, where no single task keeps them marks, rows without a key.

        See `manifest.py` for their numbers.
        """
        if self.on_arrival:
            return 0, 1, 2, 3, 4, 5
        return (0, 1, 2, 3) if self.shared_gate and self.marked else (0, 1)

    @property
    def numbered(self) -> bool:
        """Whether stored rows have a number: their position after a gate, or the order of their arrival."""
        return self.gate is not None or self.on_arrival

    @property
    def places(self) -> bool:
        """Whether unmatched tuples carry the place where they leave, because the output is ordered."""
        return bool(self.preserved) and self.gate is not None and self.gate.ordered

    @property
    def by_key(self) -> bool:
        """Whether one range has all tuples of a key: in an as-of join by key, and in one with summaries."""
        return self.summarises or (self.bound.match is not None and self.bound.match.by_equalities)

    @property
    def summarises(self) -> bool:
        """Whether left tuples wait, with keys or without, until their windows are complete."""
        return self.bound.summary is not None

    @property
    def keeps_newest(self) -> bool:
        """Whether summaries need the newest right tuple of each key, however old it is."""
        match = self.bound.spec.match
        return isinstance(match, Summary) and match.prevailing

    @property
    def supersedes(self) -> bool:
        """Whether a right tuple takes the place of the one before it of its key: in an as-of join that looks back."""
        match = self.bound.match
        return match is not None and match.by_equalities and match.direction != "forward"

    @property
    def indexed(self) -> bool:
        """Whether words find candidates: those of keys and bands, or of the begins of intervals."""
        return bool(self.bound.index) or self.bound.intervals is not None

    @property
    def lateness(self) -> int:
        """How far a row may be behind its side's clock, in ticks."""
        return self.bound.lateness or 0

    @property
    def open_terms(self) -> tuple[int, ...]:
        """The terms that an index match does not decide."""
        return tuple(i for i in range(len(self.bound.terms)) if i not in self.bound.settled)

    def schema(self, side: int) -> pa.Schema:
        """The columns of one side's rows."""
        return self.bound.right_schema if side else self.bound.left_schema

    def horizons(self, clocks: Sequence[int | None]) -> tuple[int, int]:
        """For each side the oldest age, in ticks or positions, that a future row can match.

        After a gate, a side's clock is the progress of the gate order on that side's own scale. Without a gate it is
        the side's newest time, and future rows may be behind it by the lateness.
        """
        if self.gate is None and self.bound.match is not None:
            decided, needed = self.as_of_progress(clocks)
            tolerance = 0 if self.bound.match.direction == "forward" else self.bound.match.tolerance
            return decided, NEVER if tolerance is None else max(NEVER, needed - tolerance)
        if self.gate is None:
            return horizons(clocks, self.windows, self.lateness)
        itself = int(self.bound.spec.self_join)
        left, right = (
            NEVER if clock is None else max(NEVER, clock - window + (itself if counted else 0))
            for clock, window, counted in zip(clocks, self.windows, self.counted, strict=True)
        )
        return left, right

    def as_of_progress(self, clocks: Sequence[int | None]) -> tuple[int, int]:
        """In an as-of join without a gate: the time before which left rows are decided, and that of the oldest to come.

        No right row to come can be nearer to a decided one.
        """
        match = self.bound.match
        ahead = 0 if match is None or match.direction == "backward" else match.tolerance or 0
        left, right = (NEVER if clock is None else max(NEVER, clock - self.lateness) for clock in clocks)
        decided = max(NEVER, right - ahead)
        return decided, min(left, decided)

    def earliest_left(self, clocks: Sequence[int | None]) -> int:
        """In an as-of join the time of the oldest left row that is still to be decided after a version."""
        match = self.bound.match
        if self.gate is None or match is None:
            return self.as_of_progress(clocks)[1]
        return NEVER if clocks[0] is None else less(clocks[0], span(match)[1])

    @property
    def description(self) -> dict[str, str]:
        """Everything that the content of the log depends on, as text."""
        spec = self.bound.spec
        gate = self.gate
        # Only the stored words of joins by a key and a band together have changed between versions.
        words = {"index of key and band": "version 2"} if len(self.bound.index) > 1 else {}
        # These had no index once.
        words |= {} if self.bound.intervals is None else {"index of intervals": "version 1"}
        return words | {
            "format": str(FORMAT),
            "on": condition_text(self.bound),
            "left window": str(spec.windows[0]),
            "right window": str(spec.windows[1]),
            "time": " and ".join(spec.time_columns or ()),
            "lateness": str(self.lateness),
            "self_join": str(spec.self_join),
            "left columns": _columns(self.bound.left_schema),
            "right columns": _columns(self.bound.right_schema),
            "left sources": ", ".join(map(str, gate.sources[0])) if gate else ANY_ORDER,
            "right sources": ", ".join(map(str, gate.sources[1])) if gate else ANY_ORDER,
            **({} if spec.how == "inner" else {"how": spec.how}),
            **({} if spec.match is None else {"match": self._match_text}),
            **({"gate": "in every range"} if self.shared_gate else {}),
        }

    @property
    def _match_text(self) -> str:
        """What the log depends on of an as-of join or of summaries: the state is the same for any aggregates."""
        match = self.bound.spec.match
        if not isinstance(match, Summary):
            return str(match)
        return f"summary between {match.between}" + ", with the one in force" * match.prevailing

    @property
    def former_description(self) -> dict[str, str] | None:
        """The description of the same join with the gate that an earlier version put before it, in one task."""
        if self.shared_gate:
            return {name: text for name, text in self.description.items() if name != "gate"}
        if self.former_sources is None:
            return None
        left, right = self.former_sources
        return {**self.description, "left sources": left, "right sources": right}

    @functools.cached_property
    def fingerprints(self) -> frozenset[str]:
        """The fingerprints of files that the join can read."""
        former = self.former_description
        return frozenset([self.fingerprint, *([] if former is None else [fingerprint(former)])])

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the description; every file of a batch has it."""
        return fingerprint(self.description)


def fingerprint(description: dict[str, str]) -> str:
    """A short digest of a description."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)
