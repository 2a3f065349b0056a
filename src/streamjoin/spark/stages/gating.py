"""The gate's decisions for one batch: which rows are late, which are ready, and in which order.

Late and ready rows are decided as in the embedded engine (`gate/decisions.py`). A `Standing` is the state of the gate
between batches. Decisions depend only on it and on the batch's rows, so a batch that runs again has the same result.

A source is idle when it has sent nothing for longer than the user allows, measured by the batches' times, which Spark
records. The gate no longer waits for an idle source, and rows that it later sends behind the bound are late.

The gate orders equal times by the names of sources, and a name is in every checkpoint. So names that are values of a
column (`source_names`) have numbers and times with as many digits each, from the least that their type has. Checkpoints
of earlier versions have the values' text alone, where 10 comes before 2, and keep it: rows that were released in that
order can't be taken back.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin._arrays import Array
from streamjoin.gate.decisions import END, START, Bound, Key, late_mask, passed, ties_are_ready
from streamjoin.kernels.batch.sorting import sort_entries
from streamjoin.kernels.positions import merge_sides
from streamjoin.model.errors import StateError
from streamjoin.storage.blueprint import Blueprint, GatePlan, SourcePlan
from streamjoin.windows.clock import FOREVER, NEVER, less
from streamjoin.windows.encoding import read_only

_DIGITS = decimal.Context(prec=80)
_PLACE = re.compile(r"/\d{20,77} ")
"""The digits by which sources that are values of a column are ordered."""


@dataclass(frozen=True)
class SourceProgress:
    """One source: its newest time, and when its last row arrived."""

    clock: int | None
    seen_ms: int | None


@dataclass(frozen=True)
class Standing:
    """The state of the gate: its sources, the bound up to which rows are released, and how many tuples were.

    `by_text` says that the names of sources are as earlier versions wrote them (`source_names`).
    """

    sources: Mapping[Key, SourceProgress]
    bound: Bound = START
    counts: tuple[int, int] = (0, 0)
    by_text: bool = False

    @property
    def lag(self) -> int | None:
        """How far the bound is behind the newest time of all sources, in ticks."""
        clocks = [source.clock for source in self.sources.values() if source.clock is not None]
        return min(FOREVER, max(clocks) - self.bound[0]) if clocks and self.bound[0] > NEVER else None

    def to_json(self) -> dict[str, Any]:
        """The state as JSON data."""
        sources = [[*key, p.clock, p.seen_ms] for key, p in sorted(self.sources.items())]
        names = "text" if self.by_text else "values"
        return {"sources": sources, "bound": list(self.bound), "counts": list(self.counts), "names": names}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Standing:
        """The state from the data that `to_json` returned."""
        sources = {(side, name): SourceProgress(clock, seen) for side, name, clock, seen in data["sources"]}
        return cls(sources, tuple(data["bound"]), tuple(data["counts"]), data.get("names", "text") == "text")


@dataclass(frozen=True)
class UngatedRows:
    """One side's rows before the gate, in the order in which each source sent them.

    `source` is an index into `names`. A `strict` source sends in the order of its positions:
    whether a row is late depends on the rows before it. For other sources it depends on the clock before the batch.
    """

    ticks: Array
    source: Array
    names: Sequence[str]
    strict: frozenset[str] = frozenset()


def late_in(standing: Standing, side: int, rows: UngatedRows, lateness: int) -> Array:
    """Which new rows are behind their source by more than the lateness, or behind the released rows."""
    late = np.zeros(rows.ticks.size, np.bool_)
    for i, name in enumerate(rows.names):
        own = np.flatnonzero(rows.source == i)
        if own.size == 0:
            continue
        source_state = standing.sources.get((side, name))
        clock = NEVER if source_state is None or source_state.clock is None else source_state.clock
        late[own] = late_mask(
            (side, name), rows.ticks[own], clock, lateness, standing.bound, in_order=name in rows.strict
        )
    return late


def advanced(
    standing: Standing, batch: Iterable[tuple[int, UngatedRows]], lateness: int, now_ms: int | None, idle_ms: int | None
) -> Standing:
    """The sources after their new rows, and the new bound."""
    sources = {
        key: p if p.seen_ms is not None or now_ms is None else SourceProgress(p.clock, now_ms)
        for key, p in standing.sources.items()
    }
    for side, rows in batch:
        for i, name in enumerate(rows.names):
            own = rows.ticks[rows.source == i]
            if own.size:
                before = sources.get((side, name), SourceProgress(None, None)).clock
                newest = int(own.max()) if before is None else max(before, int(own.max()))
                sources[side, name] = SourceProgress(newest, now_ms)
    bound = _bound(sources, lateness, now_ms, idle_ms)
    return replace(standing, sources=sources, bound=standing.bound if bound is None else max(standing.bound, bound))


def ended(standing: Standing) -> Standing:
    """The standing at the end of input: no source sends any more, so every row is ready."""
    newest = max([standing.bound[0], *(p.clock for p in standing.sources.values() if p.clock is not None)])
    return standing if newest == NEVER else replace(standing, bound=(newest, *END[1:]))


@dataclass(frozen=True)
class HeldRows:
    """How many rows of each side wait in the gate after a batch, and for which source: None if all are idle."""

    waiting: tuple[int, ...]
    source: Key | None = None
    silent: bool = False
    """Whether the source has sent no row yet."""

    @classmethod
    def after(
        cls, standing: Standing, waiting: Sequence[int], lateness: int, now_ms: int | None, idle_ms: int | None
    ) -> HeldRows:
        """What waits at a standing, for the source that holds the bound back."""
        behind = {
            key: (False, START) if clock is None else (True, passed(key, clock, lateness))
            for key in _awaited(standing.sources, now_ms, idle_ms)
            for clock in [standing.sources[key].clock]
        }
        source = min(behind, key=behind.__getitem__, default=None)
        return cls(tuple(waiting), source, source is not None and not behind[source][0])

    @property
    def awaited(self) -> list[int | str | bool] | None:
        """The source as JSON data."""
        return None if self.source is None else [*self.source, self.silent]

    @classmethod
    def from_footer(cls, footer: Mapping[str, Any]) -> HeldRows:
        """What waits, from the footer of a gate's file; those of earlier versions do not name the source."""
        side, name, silent = footer.get("awaited") or (None, "", False)
        return cls(tuple(footer["waiting"]), None if side is None else (side, name), silent)

    def __str__(self) -> str:
        text = f"{sum(self.waiting):,} rows wait in the gate"
        if self.source is None:
            return text
        side, name = self.source
        reason = "has sent no row yet" if self.silent else "is behind all others"
        name = _PLACE.sub("/", name, count=1)
        return f"{text} for source {name!r} of the {('left', 'right')[side]} side, which {reason}"


def _awaited(sources: Mapping[Key, SourceProgress], now_ms: int | None, idle_ms: int | None) -> list[Key]:
    """The sources that the gate waits for: all that are not idle."""

    def idle(progress: SourceProgress) -> bool:
        times = (now_ms, idle_ms, progress.seen_ms)
        return None not in times and now_ms - progress.seen_ms > idle_ms  # type: ignore[operator]

    return [key for key, progress in sources.items() if not idle(progress)]


def _bound(
    sources: Mapping[Key, SourceProgress], lateness: int, now_ms: int | None, idle_ms: int | None
) -> Bound | None:
    reached = {key: passed(key, p.clock, lateness) for key, p in sources.items() if p.clock is not None}
    awaited = _awaited(sources, now_ms, idle_ms)
    if not awaited:
        return max(reached.values(), default=None)
    if any(key not in reached for key in awaited):
        return None
    return min(reached[key] for key in awaited)


def ready_in(standing: Standing, side: int, rows: UngatedRows) -> Array:
    """Which rows are not after the bound."""
    tick = standing.bound[0]
    ready: Array = rows.ticks < tick
    tied = [i for i, name in enumerate(rows.names) if ties_are_ready((side, name), standing.bound)]
    if tied:
        at = np.flatnonzero(rows.ticks == tick)
        ready[at] = np.isin(rows.source[at], tied)
    return ready


def ordered(rows: UngatedRows, places: Array) -> Array:
    """`places` in the order of one side: by time, then by source, then as before."""
    if len(rows.names) > 1:
        ranks = np.argsort(np.argsort(np.array(rows.names, object), kind="stable"), kind="stable")
        _, places = sort_entries(ranks[rows.source[places]].astype(np.int64), places)
    ticks = rows.ticks[places]
    if (ticks[1:] >= ticks[:-1]).all():
        return places
    return sort_entries(ticks, places)[1]


def numbered(left: Array, right: Array) -> tuple[Array, Array]:
    """How many tuples of the other side come before each; both sides' times are sorted, and left comes first."""
    is_right = np.empty(left.size + right.size, np.bool_)
    merge_sides(read_only(left), read_only(right), is_right)
    return (
        np.flatnonzero(~is_right) - np.arange(left.size),
        np.flatnonzero(is_right) - np.arange(right.size),
    )


@dataclass(frozen=True)
class Decided:
    """What the gate decided in one batch, by side; a self-join has one.

    Of the new rows, which are `late` and which have no time. Of those that wait, which are the ones that waited before
    and then the new ones, which are `ready`, and the places of these in order, with their times and their numbers:
    their positions in their side, and how many of the other side come before each.
    """

    after: Standing
    late: tuple[Array, ...]
    timeless: tuple[Array, ...]
    waiting: tuple[UngatedRows, ...]
    ready: tuple[Array, ...]
    orders: tuple[Array, ...]
    ticks: tuple[Array, Array]
    numbers: tuple[tuple[Array, Array], ...]
    held: HeldRows


def decide(
    blueprint: Blueprint,
    stood: Standing,
    waited: Sequence[UngatedRows],
    fresh: Sequence[UngatedRows],
    now_ms: int | None,
    reach: int,
    *,
    ends: bool,
) -> Decided:
    """The decisions of a batch, from the standing before it, the rows that waited, and the new ones.

    A left row of an as-of join waits until the bound is `reach` beyond it, when no closer right row can follow.
    """
    plan, lateness = gate_plan(blueprint), blueprint.lateness
    late = [late_in(stood, side, rows, lateness) for side, rows in enumerate(fresh)]
    timeless = [rows.source < 0 for rows in fresh]
    after = advanced(stood, enumerate(fresh), lateness, now_ms, plan.idle_ms)
    if ends:
        after = ended(after)
    on_time = [chosen(rows, ~(a | b)) for rows, a, b in zip(fresh, late, timeless, strict=True)]
    waiting = [together(old, new) for old, new in zip(waited, on_time, strict=True)]
    ready = [ready_in(after, side, rows) for side, rows in enumerate(waiting)]
    if blueprint.bound.match is not None and not ends:
        ready[0] = waiting[0].ticks < less(after.bound[0], reach)
    held = _held(blueprint, after, [int(np.count_nonzero(~mask)) for mask in ready], now_ms)
    orders = [ordered(rows, np.flatnonzero(mask)) for rows, mask in zip(waiting, ready, strict=True)]
    ticks = [rows.ticks[order] for rows, order in zip(waiting, orders, strict=True)]
    first = stood.counts
    seqs = [count + np.arange(own.size, dtype=np.int64) for count, own in zip(first, ticks, strict=False)]
    upto = seqs
    if len(ticks) == 2:
        before = numbered(ticks[0], ticks[1])
        upto = [first[1] + before[0], first[0] + before[1]]
    counts = first[0] + ticks[0].size, first[1] + ticks[-1].size
    return Decided(
        replace(after, counts=counts), tuple(late), tuple(timeless), tuple(waiting), tuple(ready), tuple(orders),
        (ticks[0], ticks[-1]), tuple(zip(seqs, upto, strict=True)), held,
    )  # fmt: skip


def gate_plan(blueprint: Blueprint) -> GatePlan:
    """The plan of a join that has a gate."""
    if blueprint.gate is None:
        raise AssertionError("a gate's decisions in a join without one")
    return blueprint.gate


def beginning(blueprint: Blueprint, *, by_text: bool = False) -> Standing:
    """The state before any row: the sources that the gate waits for from the start."""
    plan = gate_plan(blueprint)
    declared = [
        (side, name)
        for side in ((0,) if blueprint.bound.spec.self_join else (0, 1))
        for source in plan.sources[side]
        for name in _declared(source, blueprint.schema(side), by_text)
    ]
    return Standing({key: SourceProgress(None, None) for key in declared}, by_text=by_text)


def _declared(plan: SourcePlan, schema: pa.Schema, by_text: bool) -> Sequence[str]:
    if plan.by is None:
        return [plan.name]
    values = pa.array(plan.values, pa.string()).cast(schema.field(plan.by).type)
    return source_names(plan.name, values, by_text=by_text)


def _held(blueprint: Blueprint, after: Standing, numbers: Sequence[int], now_ms: int | None) -> HeldRows:
    """What goes on waiting, if it is not too much."""
    plan = gate_plan(blueprint)
    held = HeldRows.after(after, numbers, blueprint.lateness, now_ms, plan.idle_ms)
    most = plan.most_waiting
    if most is not None and sum(numbers) > most:
        raise StateError(
            f"{held}: most_waiting={most:,}. Nothing of the batch was joined, and the next start has it again: "
            "start with a larger most_waiting, and with idle= if the source may be silent for long"
        )
    return held


def together(old: UngatedRows, new: UngatedRows) -> UngatedRows:
    """All rows, `old` first."""
    names = [*old.names, *(name for name in new.names if name not in old.names)]
    places = np.array([*(names.index(name) for name in new.names), -1], np.int64)
    return UngatedRows(
        np.concatenate([old.ticks, new.ticks]),
        np.concatenate([old.source, places[new.source]]),
        names,
        old.strict | new.strict,
    )


def chosen(rows: UngatedRows, mask: Array) -> UngatedRows:
    """The rows where `mask` is true."""
    return rows if mask.all() else replace(rows, ticks=rows.ticks[mask], source=rows.source[mask])


def sources_in(plan: SourcePlan, values: pa.Array, *, by_text: bool) -> tuple[list[str], Array]:
    """The names of the sources that are values of a column, and which of them each row is of."""
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    names, source = source_names(plan.name, encoded.dictionary, by_text=by_text), codes(encoded)
    if len({*names}) < len(names):
        # A NULL and an empty text are one source.
        known = {name: place for place, name in reversed(list(enumerate(names)))}
        source = np.array([known[name] for name in names], np.int64)[source]
    return names, source


def codes(values: pa.DictionaryArray) -> Array:
    """The places of values in their dictionary."""
    return np.asarray(values.indices.to_numpy(zero_copy_only=False)).astype(np.int64)


def source_names(plan: str, values: pa.Array, *, by_text: bool = False) -> list[str]:
    """The name of the source of each value of a column; `by_text` as earlier versions wrote it.

    >>> sorted(source_names("s", pa.array([10, 2, -1])))
    ['s/09223372036854775807 -1', 's/09223372036854775810 2', 's/09223372036854775818 10']
    >>> source_names("s", pa.array(["b", None])), source_names("s", pa.array([10]), by_text=True)
    (['s/b', 's/'], ['s/10'])
    """
    texts = pc.fill_null(values.cast(pa.string()), "").to_pylist()
    places = [None] * len(texts) if by_text else _places(values)
    return [
        f"{plan}/{text}" if place is None else f"{plan}/{place} {text}"
        for place, text in zip(places, texts, strict=True)
    ]


def _places(values: pa.Array) -> list[str | None]:
    """Digits in the order of the values; None for NULL, and where the text itself has that order."""
    is_kind, type_ = pa.types, values.type
    if is_kind.is_decimal(type_):
        unscaled = [None if v is None else int(v.scaleb(type_.scale, _DIGITS)) for v in values.to_pylist()]
        return [None if v is None else f"{v + 10**76:077}" for v in unscaled]
    if is_kind.is_floating(type_):
        bits = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False).view(np.int64)
        numbers = (bits ^ ((bits >> 63) & np.int64((1 << 63) - 1))).tolist()
    elif is_kind.is_integer(type_) or is_kind.is_temporal(type_):
        numbers = pc.fill_null(_as_integers(values), 0).to_pylist()
    else:
        return [None] * len(values)
    return [
        f"{n - NEVER:020}" if valid else None for n, valid in zip(numbers, values.is_valid().to_pylist(), strict=True)
    ]


def _as_integers(values: pa.Array) -> pa.Array:
    if pa.types.is_integer(values.type):
        return values
    return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
