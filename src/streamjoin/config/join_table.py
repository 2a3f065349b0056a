"""The `[join]` table of a pipeline file as a `JoinSpec`.

A condition is SQL text, a table such as `{ equi = "sym" }`, or a list of these. Text becomes a `Theta`: binding finds
the keys and bands in it, as in any other SQL condition.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from streamjoin.config.pipeline import JoinSettings
from streamjoin.config.table import ConfigTable
from streamjoin.model import durations
from streamjoin.model.asof import AsOf
from streamjoin.model.predicates import Band, Equi, JoinPredicate, Theta
from streamjoin.model.spec import JoinSpec, as_suffixes, check_how
from streamjoin.model.window import CountWindow, TimeWindow, Window

_ON = 'on = "l.sym = r.sym AND abs(l.px - r.bid) <= 0.25"'
_TERM = '{ equi = "sym" }, { band = ["px", "bid"], distance = 0.25 } or { theta = "l.qty < r.size" }'
_KEYS = (
    "on", "window", "time", "lateness", "ordered", "idle", "positions", "punctuate", "columns", "late", "order", "how",
    "match", "self_join", "suffixes", "both_keys", "result_time",
)  # fmt: skip
_MATCH = 'match = { direction = "backward", tolerance = "5 seconds" }'
_WINDOW = 'window = "5 seconds", or { count = 1000 }, or a list of a left and a right one'


def read_join(table: ConfigTable, late: str | None) -> tuple[JoinSpec, JoinSettings]:
    """The whole table: the spec and the options of the join; `late` is the directory for late rows."""
    table.only(*_KEYS)
    ordered, positions, punctuate = (
        bool(table.get(key, (bool,), example=f"{key} = true")) for key in ("ordered", "positions", "punctuate")
    )
    if punctuate and not ordered:
        table.fail("punctuate = true needs ordered = true", "punctuate")
    idle = table.text("idle", 'idle = "10 seconds"')
    if idle is not None:
        table.build(lambda: durations.nanoseconds(idle), "idle")
    columns = table.texts("columns", 'columns = ["sym", "px", "bid"]')
    settings = JoinSettings(
        ordered=ordered, positions=positions, punctuate=punctuate, idle=idle, columns=columns or None, late=late
    )
    return _spec(table), settings


def term_lines(table: ConfigTable) -> dict[str, int]:
    """The line of each term of the condition, as `on.0`, `on.1`, ...; the table was read before."""
    value = table.values.get("on")
    if value is None:
        return {}
    if not isinstance(value, list):
        return {"on.0": table.line("on")}
    return {f"on.{number}": table.line("on", number) for number in range(len(value))}


def _spec(table: ConfigTable) -> JoinSpec:
    match = _match(table)
    on = None if match is not None and "on" not in table.values else table.build(lambda: _condition(table), "on")
    window = _windows(table) if match is None else None
    if match is not None and "window" in table.values:
        table.fail(f"an as-of join has no window: {_MATCH} says how far apart the two times may be", "window")
    time = table.pair("time", 'time = "ts", or ["left_ts", "right_ts"]')
    table.one_of("order", ("event_time",), "event_time")
    how = table.text("how", 'how = "left"') or "inner"
    lateness = table.get("lateness", (str, int), example='lateness = "2 seconds"')
    self_join = bool(table.get("self_join", (bool,), example="self_join = true"))
    names = _names(table)
    table.finish()
    if lateness is not None:
        table.build(lambda: TimeWindow(lateness), "lateness")
    table.build(lambda: check_how(how), *(("how",) if "how" in table.values else ()))
    kinds: dict[str, Any] = {"how": how, "match": match, "self_join": self_join}
    return table.build(
        lambda: JoinSpec(on=on, window=window, time=time, order="event_time", lateness=lateness, **kinds, **names),
        *(("how",) if how != "inner" else ("match",) if match is not None else ()),
    )


def _match(table: ConfigTable) -> AsOf | None:
    value = table.get("match", (dict,), example=_MATCH)
    if value is None:
        return None
    inner = table.below(value, "match")
    direction = inner.one_of("direction", ("backward", "forward", "nearest"), "backward")
    tolerance = inner.get("tolerance", (str, int), example='tolerance = "5 seconds"')
    exact = inner.get("exact", (bool,), example="exact = false")
    inner.finish()
    return table.build(lambda: AsOf(direction, tolerance, exact is not False), "match")  # type: ignore[arg-type]


def _names(table: ConfigTable) -> dict[str, Any]:
    """How the result's columns are named."""
    suffixes = table.get("suffixes", (list,), example='suffixes = ["_left", "_right"]')
    both_keys = bool(table.get("both_keys", (bool,), example="both_keys = true"))
    result_time = table.text("result_time", 'result_time = "matched_at"')
    names = {"both_keys": both_keys, "result_time": result_time}
    return names if suffixes is None else names | {"suffixes": table.build(lambda: as_suffixes(suffixes), "suffixes")}


def _condition(table: ConfigTable) -> JoinPredicate:
    value = table.get("on", (str, dict, list), example=_ON)
    if value is None or value == []:
        table.missing("on", _ON)
    if isinstance(value, str):
        return Theta(value)
    if isinstance(value, dict):
        return _item(table, value, "on")
    return reduce(lambda one, other: one & other, (_item(table, item, "on", n) for n, item in enumerate(value)))


def _item(table: ConfigTable, item: object, *place: str | int) -> JoinPredicate:
    """One item of a list of conditions."""
    if isinstance(item, str):
        return table.build(lambda: Theta(item), *place)
    if not isinstance(item, dict):
        table.fail(f"a condition is {_TERM}, not {item!r}", *place)
    return _term(table.below(item, *place))


def _term(table: ConfigTable) -> JoinPredicate:
    equi = table.pair("equi", 'equi = "sym", or ["left", "right"]')
    theta = table.text("theta", 'theta = "l.qty < r.size"')
    band = table.pair("band", 'band = ["px", "bid"]')
    kinds = [name for name in ("equi", "band", "theta") if name in table.values]
    bounds = {key: _distance(table, key) for key in ("distance", "below", "above")}
    strict = bool(table.get("strict", (bool,), example="strict = true"))
    table.finish()
    if len(kinds) != 1:
        table.fail(f"a condition is one of {_TERM}; this has {' and '.join(kinds) or 'none'}")
    if band is None and (strict or any(bound is not None for bound in bounds.values())):
        table.fail("distance, below, above and strict belong to a band: write { band = [...], distance = ... }")
    if equi is not None:
        return table.build(lambda: Equi(*_two(equi)), "equi")
    if theta is not None:
        return table.build(lambda: Theta(theta), "theta")
    left, right = _two(band or "")
    return table.build(
        lambda: Band(left, right, bounds["distance"], below=bounds["below"], above=bounds["above"], strict=strict),
        "band",
    )


def _distance(table: ConfigTable, key: str) -> int | float | str | None:
    distance: int | float | str | None = table.get(
        key, (int, float, str), example=f'{key} = 0.25, or "2 seconds" for times'
    )
    return distance


def _two(names: str | tuple[str, str]) -> tuple[str, str]:
    return (names, names) if isinstance(names, str) else names


def _windows(table: ConfigTable) -> Window | tuple[Window, Window]:
    value = table.get("window", (str, int, dict, list), example=_WINDOW)
    if value is None:
        table.missing("window", 'window = "5 seconds"')
    if not isinstance(value, list):
        return _window(table, value, "window")
    if len(value) != 2:
        table.fail(f"a list of windows holds two, a left and a right one, not {len(value)}: {_WINDOW}", "window")
    return _window(table, value[0], "window", 0), _window(table, value[1], "window", 1)


def _window(table: ConfigTable, value: Any, *place: str | int) -> Window:
    if isinstance(value, (str, int)):
        return table.build(lambda: TimeWindow(value), *place)
    if not isinstance(value, dict):
        table.fail(f"a window is {_WINDOW}, not {value!r}", *place)
    inner = table.below(value, *place)
    count = inner.get("count", (int,), example="{ count = 1000 }")
    length = inner.get("time", (str, int), example='{ time = "5 seconds" }')
    inner.finish()
    if (count is None) == (length is None):
        table.fail('a window is either { count = 1000 } or { time = "5 seconds" }', *place)
    return table.build(lambda: TimeWindow(length) if count is None else CountWindow(count), *place)
