"""The join kinds in plain Python, in quadratic time: outer, semi, anti and as-of joins by their definitions.

Like `oracle` it imports nothing from the engine. A result row is a pair of positions, with None for a missing side.
Where several rules meet, each is written where it applies: what is matched, when a tuple is gone, and what comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamjoin.testing import oracle
from streamjoin.testing.oracle import Event, Match, Window

Keyless = Callable[[Event], bool]
"""Whether a tuple has a NULL or NaN key and so can never match."""
KindRow = tuple[int | None, int | None]

PRESERVED = {"left": (False,), "anti": (False,), "right": (True,), "full": (False, True)}
"""The sides whose unmatched tuples come out, by kind; True is the right one."""


@dataclass(frozen=True)
class Kind:
    """A kind of join: its name, each side's window, and the lateness where order is that of arrival."""

    how: str
    left: Window
    right: Window
    self_join: bool = False
    lateness: int | None = None


def accepted(events: Sequence[Event], kind: Kind) -> list[Event]:
    """The tuples that are not late, in arrival order: a tuple is late behind the newest time of its own side.

    Only tuples that look up a time window can be late.
    """
    clocks: dict[bool, int] = {}
    kept = []
    for event in events:
        probed = (kind.left, kind.right) if kind.self_join else (kind.left if event.right else kind.right,)
        clock = clocks.get(event.right, event.ts)
        timed = any(window[0] == "time" for window in probed)
        if not timed or kind.lateness is None or event.ts >= clock - kind.lateness:
            kept.append(event)
        clocks[event.right] = max(clock, event.ts)
    return kept


def rows(events: Sequence[Event], match: Match, keyless: Keyless, kind: Kind) -> list[KindRow]:
    """The rows of an outer, semi or anti join of tuples in gate order, none of them late."""
    return [row for _, row in placed_rows(events, match, keyless, kind)]


def placed_rows(events: Sequence[Event], match: Match, keyless: Keyless, kind: Kind) -> list[tuple[int, KindRow]]:
    """The rows, each with the place in gate order of the tuple with which it comes out; the end is one further."""
    inner = oracle.self_join if kind.self_join else oracle.join
    pairs = inner(events, match, kind.left, kind.right)
    order = _gate_places(events)
    lefts = rights = {pair[0] for pair in pairs}
    if not kind.self_join:
        rights = {pair[1] for pair in pairs}
    if kind.how == "semi":
        places: dict[int, int] = {}
        for left, partner in pairs:
            places.setdefault(left, max(order[False][left], order[not kind.self_join][partner]))
        return [(place, (left, None)) for left, place in places.items()]
    # Rows by the place in gate order: first those that leave there, then the results of the tuple itself.
    output: dict[int, list[KindRow]] = {place: [] for place in range(len(events) + 1)}
    for right in PRESERVED[kind.how]:
        matched = rights if right else lefts
        for position, place in enumerate(order[right]):
            if position not in matched:
                row: KindRow = (None, position) if right else (position, None)
                output[_leaves_at(events, place, keyless, kind)].append(row)
    for leaving in output.values():
        leaving.sort(key=lambda row: order[row[0] is None][_position(row)])
    if kind.how != "anti":
        for left, right_position in pairs:
            other = order[not kind.self_join][right_position]
            output[max(order[False][left], other)].append((left, right_position))
    return [(place, row) for place in sorted(output) for row in output[place]]


def _position(row: KindRow) -> int:
    left, right = row
    if left is not None:
        return left
    if right is None:
        raise AssertionError("a row of no tuple")
    return right


def _gate_places(events: Sequence[Event]) -> dict[bool, list[int]]:
    """Each side's places in gate order."""
    return {right: [place for place, event in enumerate(events) if event.right == right] for right in (False, True)}


def _leaves_at(events: Sequence[Event], place: int, keyless: Keyless, kind: Kind) -> int:
    """The place of the first tuple that finds a tuple gone; the number of all tuples if none does."""
    event = events[place]
    if keyless(event):
        return place
    what, size = kind.right if event.right else kind.left
    later = range(place + 1, len(events))
    if what == "count":
        own = [other for other in later if events[other].right == event.right]
        return own[size - 1] if len(own) >= size else len(events)
    if kind.lateness is None:
        return next((other for other in later if events[other].ts > event.ts + size), len(events))
    # In arrival order times may fall: only the other side's newest time, less the lateness, decides.
    newest = None
    for other in range(len(events)):
        if kind.self_join or events[other].right != event.right:
            newest = events[other].ts if newest is None else max(newest, events[other].ts)
        if newest is not None and newest - kind.lateness > event.ts + size and other >= place:
            return other
    return len(events)


@dataclass(frozen=True)
class AsOfRule:
    """An as-of match; `window` is the right side's where order is that of arrival."""

    direction: str
    tolerance: int | None
    exact: bool
    how: str
    arrival: bool = False
    window: Window | None = None


def as_of(events: Sequence[Event], match: Match, rule: AsOfRule) -> list[KindRow]:
    """The rows of an as-of join of tuples in gate order."""
    places = _gate_places(events)
    output: list[KindRow] = []
    for left, place in enumerate(places[False]):
        partner = _newest(events, place, match, rule) if rule.arrival else _nearest(events, place, match, rule)
        if partner is not None and rule.how != "anti":
            output.append((left, places[True].index(partner)))
        elif partner is None and rule.how != "inner":
            output.append((left, None))
    return output


def _newest(events: Sequence[Event], place: int, match: Match, rule: AsOfRule) -> int | None:
    for earlier in range(place - 1, -1, -1):
        other = events[earlier]
        if not other.right or not match(events[place].row, other.row):
            continue
        after = sum(1 for event in events[earlier + 1 : place] if event.right)
        if rule.window is None or oracle.alive(rule.window, after, events[place].ts, other.ts):
            return earlier
    return None


def _nearest(events: Sequence[Event], place: int, match: Match, rule: AsOfRule) -> int | None:
    left = events[place]
    backward, forward = None, None
    for other, event in enumerate(events):
        distance = abs(event.ts - left.ts)
        within = rule.tolerance is None or distance <= rule.tolerance
        if not event.right or not within or (distance == 0 and not rule.exact) or not match(left.row, event.row):
            continue
        if event.ts <= left.ts:
            backward = other
        if event.ts >= left.ts and forward is None:
            forward = other
    if rule.direction == "backward" or (rule.direction == "nearest" and forward is None):
        return backward
    if rule.direction == "forward" or backward is None or forward is None:
        return forward
    return backward if left.ts - events[backward].ts <= events[forward].ts - left.ts else forward


def point_within(point: object, low: object, high: object) -> bool:
    """Low <= point <= high; NULL and NaN are within nothing."""
    return _ordered(low, point) and _ordered(point, high)


def intervals_overlap(one: tuple[object, object], other: tuple[object, object]) -> bool:
    """Whether two closed intervals share a point; an interval whose end is before its start has none."""
    return all(_ordered(start, end) for start in (one[0], other[0]) for end in (one[1], other[1]))


def _ordered(low: object, high: object) -> bool:
    return not oracle.is_nothing(low) and not oracle.is_nothing(high) and bool(low <= high)  # type: ignore[operator]
