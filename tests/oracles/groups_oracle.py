"""What grouped ad-hoc queries give, batch by batch, in plain Python: every row of the join, every group, exact sums."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

from tests.oracles.summary_oracle import between

Tuple = dict[str, Any]
"""Columns by name; `t` is the time."""
Batch = Mapping[str, Sequence[Tuple]]
Row = Mapping[str, Tuple]
"""The tuples of a row by alias."""


@dataclass(frozen=True)
class Meaning:
    """What a query's text says. Aliases are joined in a chain, by equal `k` and within `reach` of the one before."""

    streams: Mapping[str, str]
    reach: int
    time: str | None
    size: int
    slide: int
    keys: Sequence[Callable[[Row], Any]]
    outputs: Mapping[str, Callable[[Sequence[Row]], Any]]
    having: Callable[[Mapping[str, Any]], bool] = lambda group: True
    top: tuple[str, int, bool] | None = None
    """Of each window the groups with the greatest of this output, how many, and whether equals have one place."""


@dataclass(frozen=True)
class Life:
    """From which batch to before which it runs; it begins anew after each pause."""

    runs: Sequence[tuple[int, int]]


def rows_by_batch(batches: Sequence[Batch], lateness: int, query: Meaning, life: Life) -> list[list[dict[str, Any]]]:
    """The rows that a query gains by each batch, in order."""
    clocks: dict[str, float] = {stream: -math.inf for batch in batches for stream in batch}
    accepted: list[tuple[int, str, Tuple]] = []
    states: list[dict[str, float]] = [dict(clocks)]
    for number, batch in enumerate(batches):
        for stream, tuples in batch.items():
            kept = [one for one in tuples if one["t"] >= clocks[stream] - lateness]
            accepted += [(number, stream, one) for one in kept]
        for stream, tuples in batch.items():
            clocks[stream] = max([clocks[stream], *(one["t"] for one in tuples)])
        states.append(dict(clocks))
    result: list[list[dict[str, Any]]] = [[] for _ in batches]
    for begin, end in life.runs:
        _one_run(accepted, states, lateness, query, begin, min(end, len(batches)), result)
    return result


def _one_run(
    accepted: Sequence[tuple[int, str, Tuple]],
    states: Sequence[Mapping[str, float]],
    lateness: int,
    query: Meaning,
    begin: int,
    end: int,
    result: list[list[dict[str, Any]]],
) -> None:
    aliases = list(query.streams)
    place = {alias: number for number, alias in enumerate(aliases)}
    newest = max(states[begin].get(stream, -math.inf) for stream in query.streams.values())
    ends = [0, len(aliases) - 1] if query.time is None else [place[query.time]]
    reach = max(abs(one - other) for one in ends for other in range(len(aliases))) * query.reach
    since = -math.inf if newest == -math.inf else (math.floor((newest + reach) / query.slide) + 1) * query.slide
    rows = _rows(accepted, query, begin, end)
    groups: dict[int, dict[tuple[Any, ...], list[Row]]] = {}
    for row in rows:
        when = max(one["t"] for one in row.values()) if query.time is None else row[query.time]["t"]
        key = tuple(_key(make(row)) for make in query.keys)
        start = when // query.slide * query.slide
        while start > when - query.size:
            if start >= since:
                groups.setdefault(start, {}).setdefault(key, []).append(row)
            start -= query.slide
    given: set[int] = set()
    for batch in range(begin, end):
        after = states[batch + 1]
        bound = min(
            after.get(stream, -math.inf)
            - lateness
            - (0 if query.time is None else abs(place[alias] - place[query.time]) * query.reach)
            for alias, stream in query.streams.items()
        )
        for start in sorted(start for start in groups if start + query.size <= bound and start not in given):
            given.add(start)
            result[batch] += _window(query, start, groups[start])


def _rows(accepted: Sequence[tuple[int, str, Tuple]], query: Meaning, begin: int, end: int) -> list[Row]:
    aliases = list(query.streams)
    choices = [
        [
            (number, one)
            for number, (batch, stream, one) in enumerate(accepted)
            if stream == query.streams[alias] and begin <= batch < end
        ]
        for alias in aliases
    ]
    rows: list[Row] = []
    for chosen in product(*choices):
        near = all(
            one[1]["k"] is not None
            and one[1]["k"] == other[1]["k"]
            and abs(one[1]["t"] - other[1]["t"]) <= query.reach
            and one[0] != other[0]
            for one, other in pairwise(chosen)
        )
        if near:
            rows.append({alias: one for alias, (_, one) in zip(aliases, chosen, strict=True)})
    return rows


def _window(query: Meaning, start: int, groups: Mapping[tuple[Any, ...], Sequence[Row]]) -> list[dict[str, Any]]:
    found = []
    for key in sorted(groups, key=lambda key: [_order(part) for part in key]):
        values = {"window_start": start, "window_end": start + query.size}
        values |= {f"k{number}": part for number, part in enumerate(key)}
        values |= {name: make(groups[key]) for name, make in query.outputs.items()}
        if query.having(values):
            found.append(values)
    if query.top is None:
        return found
    name, most, ties = query.top
    places = [(_descending(group[name]), 0 if ties else number) for number, group in enumerate(found)]
    return [group for group, place in zip(found, places, strict=True) if sum(one < place for one in places) < most]


NAN = "not a number"
"""In place of NaN, which equals itself."""


def _key(value: Any) -> Any:
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0
    return value


def _order(value: Any) -> tuple[int, Any]:
    return (2, 0) if value is None else (1, 0) if value == NAN else (0, value)


def _descending(value: Any) -> tuple[int, Any]:
    return (2, 0) if value is None else (0, 0) if value == NAN else (1, -value)


# Aggregates -----------------------------------------------------------------------------------------------------------


def present(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def total(values: Sequence[Any]) -> Any:
    """The exact sum, rounded once."""
    there = present(values)
    if not there:
        return None
    if all(isinstance(value, int) for value in there):
        whole = sum(there)
        return whole if -(2**63) <= whole < 2**63 else None
    special = [value for value in there if not math.isfinite(value)]
    if special:
        return NAN if math.isnan(sum(special)) else special[0]
    try:
        return math.fsum(there)
    except OverflowError:
        whole = sum(map(Fraction, there))
        try:
            return float(whole)
        except OverflowError:
            return math.inf if whole > 0 else -math.inf


def average(values: Sequence[Any]) -> Any:
    there = present(values)
    whole = total([float(value) if abs(value) < 2**53 else value for value in there])
    if whole is None or whole == NAN:
        return whole if not there or whole == NAN else float(sum(there)) / len(there)
    return whole / len(there)


def least(values: Sequence[Any], pick: Callable[..., Any] = min) -> Any:
    there = present(values)
    if any(isinstance(value, float) and math.isnan(value) for value in there):
        return NAN
    return pick(there) if there else None


def distinct(values: Sequence[Any]) -> int:
    return len({_key(value) for value in present(values)})


def middle(values: Sequence[Any]) -> Any:
    there = present(values)
    if any(math.isnan(value) for value in there):
        return NAN
    if not there:
        return None
    low, high = statistics.median_low(there), statistics.median_high(there)
    value = float(low if low == high else between(low, high, 0.5))
    return NAN if math.isnan(value) else value


def best(values: Sequence[tuple[Any, Any]], pick: Callable[..., Any]) -> Any:
    """The value with the least, or the greatest, of another; of several the least value."""
    there = [
        (by, value)
        for value, by in values
        if value is not None and by is not None and not (isinstance(by, float) and math.isnan(by))
    ]
    if not there:
        return None
    wanted = pick(by for by, _ in there)
    return least([value for by, value in there if by == wanted])
