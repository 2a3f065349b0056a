"""Summaries by a quadratic loop in plain Python: `math.fsum`, whole numbers without end, lists that are sorted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """A tuple of one side; events are in gate order."""

    right: bool
    row: Row
    ts: int


def fsum(values: Sequence[float]) -> float:
    """The exact sum, rounded once; IEEE decides where a value is no finite number."""
    odd = [value for value in values if not math.isfinite(value)]
    if odd:
        return sum(odd)
    try:
        return math.fsum(values)
    except OverflowError:
        exact = sum(map(Fraction, values))
        try:
            return float(exact)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf


def there(rows: Sequence[Row], name: str) -> list[Any]:
    """The values of a column that are not NULL."""
    return [row[name] for row in rows if row[name] is not None]


def total(values: Sequence[Any], low: int, end: int) -> Any:
    """A sum; NULL without values or beyond its type."""
    if not values:
        return None
    if isinstance(values[0], float):
        return fsum(values)
    result = sum(values, values[0] * 0)
    return result if isinstance(result, Decimal) or low <= result < end else None


def mean(values: Sequence[Any]) -> float | None:
    """The exact sum, rounded once, divided by the count."""
    if not values:
        return None
    exact = fsum(values) if isinstance(values[0], float) else float(sum(map(Fraction, values)))
    return exact / len(values)


def extreme(values: Sequence[Any], sign: int) -> Any:
    """The least (1) or the greatest (-1) value; NaN if one is NaN, and -0.0 is less than 0.0."""
    for value in values:
        if isinstance(value, float) and math.isnan(value):
            return value
    if not values:
        return None
    key = (lambda v: (v, math.copysign(1, v))) if isinstance(values[0], float) else (lambda v: (v, 0))
    return min(values, key=key) if sign > 0 else max(values, key=key)


def chosen(rows: Sequence[Row], value: str, by: str, sign: int) -> Any:
    """The value of the first row with the least or the greatest number; NaN is neither."""
    known = [
        row for row in rows
        if row[value] is not None and row[by] is not None and not (isinstance(row[by], float) and math.isnan(row[by]))
    ]  # fmt: skip
    best: Row | None = None
    for row in known:
        if best is None or extreme([best[by], row[by]], sign) != best[by]:
            best = row
    return None if best is None else best[value]


def between(low: float, high: float, part: float) -> float:
    """The number at a part of the way from one to another, which may lie further apart than the greatest float."""
    span = high - low
    return float(low + span * part if math.isfinite(span) else low * (1 - part) + high * part)


def quantile(values: Sequence[float], p: float) -> float | None:
    """Between two values in proportion."""
    if not values:
        return None
    if any(map(math.isnan, values)):
        return math.nan
    ordered, at = sorted(values), (len(values) - 1) * p
    low, high = ordered[math.floor(at)], ordered[min(len(values) - 1, math.ceil(at))]
    return low if low == high else between(low, high, at - math.floor(at))


def variance(values: Sequence[float], less: int) -> float | None:
    """The exact sum of the squared distances to the mean, over the count, or one less."""
    if len(values) <= less:
        return None
    middle = mean(values)
    assert middle is not None
    return fsum([(value - middle) * (value - middle) for value in values]) / (len(values) - less)


def distance(values: Sequence[int]) -> int | None:
    """The greatest value less the least one."""
    return max(values) - min(values) if values else None


def product(row: Row, one: str, other: str) -> float | None:
    """The product of two columns."""
    return None if row[one] is None or row[other] is None else float(row[one]) * float(row[other])


Of = Callable[[Row, Sequence[Row]], Any]
INT64, UINT64 = (-(2**63), 2**63), (0, 2**64)
PLAIN: dict[str, Of] = {
    "count(*)": lambda _, rows: len(rows),
    "count(r.px)": lambda _, rows: len(there(rows, "px")),
    "sum(r.px)": lambda _, rows: total(there(rows, "px"), 0, 0),
    "avg(r.px)": lambda _, rows: mean(there(rows, "px")),
    "min(r.px)": lambda _, rows: extreme(there(rows, "px"), 1),
    "max(r.px)": lambda _, rows: extreme(there(rows, "px"), -1),
    "first(r.px)": lambda _, rows: next(iter(there(rows, "px")), None),
    "last(r.px)": lambda _, rows: next(iter(there(rows, "px")[::-1]), None),
    "sum(r.qty)": lambda _, rows: total(there(rows, "qty"), *INT64),
    "avg(r.qty)": lambda _, rows: mean(there(rows, "qty")),
    "min(r.qty)": lambda _, rows: extreme(there(rows, "qty"), 1),
    "max(r.qty)": lambda _, rows: extreme(there(rows, "qty"), -1),
    "sum(r.u)": lambda _, rows: total(there(rows, "u"), *UINT64),
    "max(r.u)": lambda _, rows: extreme(there(rows, "u"), -1),
    "sum(r.amount)": lambda _, rows: total(there(rows, "amount"), 0, 0),
    "avg(r.amount)": lambda _, rows: mean(there(rows, "amount")),
    "min(r.amount)": lambda _, rows: extreme(there(rows, "amount"), 1),
    "first(r.name)": lambda _, rows: next(iter(there(rows, "name")), None),
    "last(r.name)": lambda _, rows: next(iter(there(rows, "name")[::-1]), None),
    "sum(r.px * r.w)": lambda _, rows: total(
        [p for p in (product(row, "px", "w") for row in rows) if p is not None], 0, 0
    ),
    "sum(r.w) + count(*)": lambda _, rows: sum(there(rows, "w")) + len(rows) if there(rows, "w") else None,
}
LISTED: dict[str, Of] = {
    "count(DISTINCT r.w)": lambda _, rows: len(set(there(rows, "w"))),
    "count(DISTINCT r.name)": lambda _, rows: len(set(there(rows, "name"))),
    "min(r.name)": lambda _, rows: extreme(there(rows, "name"), 1),
    "max(r.name)": lambda _, rows: extreme(there(rows, "name"), -1),
    "arg_min(r.name, r.px)": lambda _, rows: chosen(rows, "name", "px", 1),
    "arg_max(r.name, r.qty)": lambda _, rows: chosen(rows, "name", "qty", -1),
    "median(r.px)": lambda _, rows: quantile(there(rows, "px"), 0.5),
    "quantile(r.w, 0.3)": lambda _, rows: quantile([float(v) for v in there(rows, "w")], 0.3),
    "var_samp(r.w)": lambda _, rows: variance([float(v) for v in there(rows, "w")], 1),
    "var_pop(r.w)": lambda _, rows: variance([float(v) for v in there(rows, "w")], 0),
    "sum(l.w - r.w)": lambda left, rows: total(
        [left["w"] - value for value in there(rows, "w")] if left["w"] is not None else [], *INT64
    ),
    "max(r.w) - min(r.w)": lambda _, rows: distance(there(rows, "w")),
}


@dataclass(frozen=True)
class Rule:
    """What is summarised: the condition on two rows, the bounds, and which tuples count beside."""

    match: Callable[[Row, Row], bool]
    low: int
    high: int
    how: str
    prevailing: bool = False
    self_join: bool = False
    itself: bool = False


def summarised(events: Sequence[Event], rule: Rule, texts: Sequence[str]) -> list[list[Any]]:
    """The id of each left tuple that comes out, and its summaries."""
    functions = {**PLAIN, **LISTED}
    result = []
    for place, left in enumerate(events):
        if left.right and not rule.self_join:
            continue
        candidates = [
            other
            for other_place, other in enumerate(events)
            if (other.right or rule.self_join)
            and rule.match(left.row, other.row)
            and (rule.itself or not rule.self_join or other_place != place)
        ]
        start, end = left.ts + rule.low, left.ts + rule.high
        inside = [other.row for other in candidates if start <= other.ts <= end]
        before = [other.row for other in candidates if other.ts < start]
        exact = any(other.ts == start for other in candidates)
        if rule.prevailing and before and not exact:
            inside = [before[-1], *inside]
        if inside or rule.how == "left":
            result.append([left.row["id"], *(functions[text](left.row, inside) for text in texts)])
    return result
