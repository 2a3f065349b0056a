"""The semantics in plain Python, in quadratic time: the reference for every algorithm and runtime.

It imports nothing from the engine and does not use Arrow. A tuple is an `Event`; a condition is any function of
two rows; windows are ("count", n) or ("time", d). It is slow on purpose: each rule is written where it applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Row = Mapping[str, Any]
Match = Callable[[Row, Row], bool]
Window = tuple[str, int]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Event:
    """An arriving tuple: its side, its values, its time and its physical source."""

    right: bool
    row: Row
    ts: int = 0
    source: str = ""


def join(events: Sequence[Event], match: Match, left: Window, right: Window) -> list[Pair]:
    """Result pairs (left position, right position) of tuples in gate order, in result order.

    A position counts a side's own tuples from 0.
    """
    positions = _positions(events)
    results = []
    for later, event in enumerate(events):
        for earlier in range(later):
            other = events[earlier]
            if other.right == event.right:
                continue
            window = right if other.right else left
            own_side_after = sum(1 for e in events[earlier + 1 : later] if e.right == other.right)
            if not alive(window, own_side_after, event.ts, other.ts):
                continue
            pair = (earlier, later) if event.right else (later, earlier)
            if match(events[pair[0]].row, events[pair[1]].row):
                results.append((positions[pair[0]], positions[pair[1]]))
    return results


def self_join(events: Sequence[Event], match: Match, left: Window, right: Window) -> list[Pair]:
    """Result pairs of one stream as both sides: by the later tuple, then the earlier, the later as left first."""
    results = []
    for later, event in enumerate(events):
        for earlier in range(later):
            other = events[earlier]
            after = later - earlier
            for role in ("left", "right"):
                a, b = (later, earlier) if role == "left" else (earlier, later)
                window = right if role == "left" else left
                if alive(window, after, event.ts, other.ts) and match(events[a].row, events[b].row):
                    results.append((a, b))
    return results


def event_time_order(events: Sequence[Event]) -> list[Event]:
    """The tuples of all sources in gate order: by time, left before right, source name, position in source."""
    return sorted(events, key=lambda e: (e.ts, e.right, e.source))


def _positions(events: Sequence[Event]) -> list[int]:
    counts = {False: 0, True: 0}
    positions = []
    for event in events:
        positions.append(counts[event.right])
        counts[event.right] += 1
    return positions


def alive(window: Window, own_side_after: int, later_ts: int, earlier_ts: int) -> bool:
    """Whether a tuple is in its window when a later one arrives; that one's time may be the smaller one."""
    kind, size = window
    return own_side_after < size if kind == "count" else abs(later_ts - earlier_ts) <= size


def equal(a: Any, b: Any) -> bool:
    """Equality; NULL and NaN equal nothing."""
    return not is_nothing(a) and not is_nothing(b) and bool(a == b)


def within(left: Any, right: Any, below: Any, above: Any, strict: bool = False) -> bool:
    """-above <= left - right <= below; exact for ints and fractions, with float rounding for floats."""
    if is_nothing(left) or is_nothing(right):
        return False
    if isinstance(left, float) or isinstance(right, float):
        difference: Any = float(left) - float(right)
        if math.isnan(difference):
            return False
        below, above = float(below), float(above)
    else:
        difference = Fraction(left) - Fraction(right)
    return bool(-above < difference < below) if strict else bool(-above <= difference <= below)


def is_nothing(value: Any) -> bool:
    """Whether a value is NULL or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))
