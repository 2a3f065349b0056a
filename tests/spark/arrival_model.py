"""What joins without a gate must have given after each batch, in plain Python: an oracle for tests of stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import streamjoin as sj
from streamjoin.model.binding import bind
from streamjoin.testing.cases import JoinCase

Row = dict[str, Any]
Ids = tuple[int | None, int | None]


@dataclass
class Model:
    """What all batches so far must have given: every pair, and the unmatched tuples that are gone."""

    case: JoinCase
    kept: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    clocks: list[int | None] = field(default_factory=lambda: [None, None])
    late: int = 0

    def __post_init__(self) -> None:
        bound = bind(self.case.spec, *self.case.schemas)
        self.lateness, self.windows = bound.lateness or 0, [window.size for window in bound.windows]

    def add(self, sides: Sequence[Sequence[Row]]) -> None:
        """One batch; rows behind the clock of their side before it are late."""
        for side, rows in enumerate(sides):
            clock = self.clocks[side]
            on_time = [row for row in rows if clock is None or row["t"] >= clock - self.lateness]
            if not (side and self.case.spec.self_join):
                self.late += len(rows) - len(on_time)
            self.kept[side].extend(on_time)
            self.clocks[side] = max([row["t"] for row in rows] + ([] if clock is None else [clock]), default=None)

    def rows(self) -> tuple[Counter[Ids], Counter[Ids]]:
        """The rows that are there, and those that are there at the end of input."""
        spec = self.case.spec
        pairs = [
            (l, r)
            for l in self.kept[0]
            for r in self.kept[1]
            if self._near(l["t"], r["t"]) and self.case.match(l, r) and not (spec.self_join and l["id"] == r["id"])
        ]
        matched = [{pair[side]["id"] for pair in pairs} for side in (0, 1)]
        sure: Counter[Ids] = Counter()
        if spec.how == "semi":
            sure = Counter((number, None) for number in matched[0])
        elif spec.how != "anti":
            sure = Counter((l["id"], r["id"]) for l, r in pairs)
        final = sure.copy()
        for side in (0, 1):
            if ("left", "right")[side] not in spec.preserved:
                continue
            other = self.clocks[1 - side]
            for row in self.kept[side]:
                if row["id"] in matched[side]:
                    continue
                ids: Ids = (None, row["id"]) if side else (row["id"], None)
                final[ids] += 1
                sure[ids] += other is not None and row["t"] + self.windows[side] < other - self.lateness
        return +sure, final

    def _near(self, left: int, right: int) -> bool:
        return right - left <= self.windows[0] if left <= right else left - right <= self.windows[1]


def _nearest(case: JoinCase, left: Row, rights: Sequence[Row]) -> Row | None:
    """The partner of a left row among right rows, which are in the order in which they came."""
    match = case.spec.match
    assert isinstance(match, sj.AsOf)
    tolerance = bind(case.spec, *case.schemas).match
    assert tolerance is not None
    best: tuple[tuple[int, int, int], Row] | None = None
    for place, right in enumerate(rights):
        away, ahead = abs(right["t"] - left["t"]), right["t"] > left["t"] or match.direction == "forward"
        allowed = {
            "backward": right["t"] <= left["t"], "forward": right["t"] >= left["t"], "nearest": True,
        }[match.direction]  # fmt: skip
        if not allowed or (not match.exact and not away) or not case.match(left, right):
            continue
        if tolerance.tolerance is not None and away > tolerance.tolerance:
            continue
        rank = (away, int(ahead), place if ahead else -place)
        if best is None or rank < best[0]:
            best = rank, right
    return None if best is None else best[1]


class AsOfModel(Model):
    """The same of an as-of join: rows come out when no right row to come can be nearer."""

    def rows(self) -> tuple[Counter[Ids], Counter[Ids]]:
        """The rows that are there, and those that are there at the end of input."""
        spec, right = self.case.spec, self.clocks[1]
        assert isinstance(spec.match, sj.AsOf)
        bound = bind(spec, *self.case.schemas).match
        assert bound is not None
        ahead = 0 if bound.direction == "backward" else bound.tolerance or 0
        there: Counter[Ids] = Counter()
        final: Counter[Ids] = Counter()
        for row in self.kept[0]:
            partner = _nearest(self.case, row, self.kept[1])
            if (spec.how == "inner" and partner is None) or (spec.how == "anti" and partner is not None):
                continue
            ids: Ids = (row["id"], None if partner is None else partner["id"])
            final[ids] += 1
            there[ids] += right is not None and row["t"] < right - self.lateness - ahead
        return +there, final
