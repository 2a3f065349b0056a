"""Choice of the algorithm, with the reason.

Batches with an index word use the sweep, whose cost per tuple grows with the logarithm of the window. If the first
push is so small that, by the cost model, sorting does not pay, an index is used instead. Without an index word, or if
the windows are so small that scanning is cheapest, the nested loop runs.

The sweep and the index take over from each other when the size of pushes changes for long enough: a window that was
filled from history in large batches is then probed by small ones.

A join starts with the nested loop, which is by far the fastest to compile, and switches once scanning costs more than
the other algorithm would. If that algorithm is not compiled yet, the join switches when scanning has cost as much as
compiling: the total is then at most twice the cheaper of the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from streamjoin.indexes.registry import INDEXES, check_settings, settings_of
from streamjoin.joins.batch.nested_loop import NestedLoop
from streamjoin.joins.batch.sweep import Sweep
from streamjoin.joins.cost import Constants, Workload, cheapest, model, sweep_cost
from streamjoin.joins.indexed import Indexed, check_index, finds_single_words
from streamjoin.joins.kinds.interval_sweep import IntervalSweep
from streamjoin.joins.registry import KINDS, AlgorithmChoice, AlgorithmKind
from streamjoin.kernels.batch.sweep import sweep_batch
from streamjoin.kernels.flags import is_compiled
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import NotSupportedError, SpecError

AS_OF = "asof"
"""The algorithm of as-of joins by key; only `auto` chooses it."""

_RANGE_INDEXES = ("btree", "b_chain", "ib_chain", "im_tree", "pim_tree")
# The assumed size of a time window before any data has arrived.
_UNKNOWN_WINDOW = 1 << 16
# Scanning this many tuples in vector registers is faster than sorting and merging one.
_SMALL_WINDOW = 256
# Nanoseconds to compare two tuples: by words in vector registers, or by evaluating the condition over columns.
_WORD_NS, _CONDITION_NS = 0.1, 20.0
# The assumed cost of compiling an algorithm, in nanoseconds.
_COMPILING_NS = 5e9
# The assumed cost of sorting or indexing a stored tuple anew, in nanoseconds.
_MOVING_NS = 100.0


@dataclass(frozen=True)
class AlgorithmRequest:
    """The user's request."""

    algorithm: str = "auto"
    index: str | None = None
    index_options: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("index_options", "options"):
            if not isinstance(getattr(self, name), Mapping):
                raise SpecError(f"{name}= takes settings by name, such as {{'merge_ratio': 0.125}}")
            object.__setattr__(self, name, dict(getattr(self, name)))
        if self.algorithm not in names():
            raise SpecError(f"algorithm={self.algorithm!r} is not known; it is one of {', '.join(names())}")
        if self.index is not None and self.index not in INDEXES:
            raise SpecError(f"index={self.index!r} is not known; it is one of {', '.join(sorted(INDEXES))}")
        kind = KINDS.get(self.algorithm)
        if (self.index is not None or self.index_options) and (kind is None or not kind.indexes):
            able = [repr(name) for name, kind in KINDS.items() if kind.indexes]
            raise SpecError(f"index= goes with algorithm={' or '.join(able)}, not with {self.algorithm!r}")
        self._check_index_options(kind)
        known = frozenset() if kind is None else kind.options
        unknown = sorted(set(self.options) - known)
        if unknown:
            can = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
            raise SpecError(f"options= of {self.algorithm!r} does not know {', '.join(map(repr, unknown))}; {can}")

    def _check_index_options(self, kind: AlgorithmKind | None) -> None:
        if kind is None or not self.index_options:
            return
        if self.index is not None:
            check_settings(self.index, self.index_options)
        elif kind.scans:
            raise SpecError(f"index_options= needs index=: without one, {self.algorithm!r} runs over no index")
        else:
            known = {name for index in kind.indexes for name in settings_of(index)}
            unknown = sorted(map(repr, set(self.index_options) - known))
            if unknown:
                raise SpecError(
                    f"index_options= does not know {', '.join(unknown)}; the indexes of {self.algorithm!r} take "
                    f"{', '.join(sorted(known))}"
                )

    def __str__(self) -> str:
        return f"{self.algorithm} over {self.index}" if self.index else self.algorithm


def requests() -> tuple[AlgorithmRequest, ...]:
    """Every algorithm with every index it supports, for tests and the warm-up."""
    each = [AlgorithmRequest()]
    for name, kind in KINDS.items():
        each += [AlgorithmRequest(name, index) for index in kind.indexes]
        each += [AlgorithmRequest(name)] if kind.scans else []
    return tuple(each)


def names() -> tuple[str, ...]:
    """All values that `algorithm=` accepts."""
    return ("auto", *KINDS)


def choose(bound: BoundSpec, request: AlgorithmRequest, batch: int | None = None) -> AlgorithmChoice:
    """The algorithm for `bound`: the requested one, or the cheapest for pushes of about `batch` tuples."""
    name = request.algorithm
    kind = KINDS.get(name)
    if bound.match is not None:
        if name == "auto" and _is_as_of_by_key(bound):
            by = " and ".join(str(key.term) for key in bound.keys) or "time alone"
            return AlgorithmChoice(AS_OF, f"both sides are read once in order, and looked up by {by}")
        if name != "auto" and bound.match.tolerance is None and bound.spec.window is None:
            raise NotSupportedError(
                f"algorithm={name!r} looks for the partners of an as-of join in a window: add tolerance= to AsOf, or "
                "use algorithm='auto'"
            )
    if kind is not None and not bound.index and (kind.needs_word or request.index is not None):
        raise NotSupportedError(
            f"algorithm={name!r} looks tuples up by a key or a band, and {bound.spec.predicate} has neither; "
            "use algorithm='nested_loop' or 'auto', or add an Equi or a Band"
        )
    if kind is not None and kind.needs_interval and bound.intervals is None:
        raise NotSupportedError(
            f"algorithm={name!r} looks up intervals, and {bound.spec.predicate} has none; add a Within or an Overlaps, "
            "or use algorithm='auto'"
        )
    if name == Indexed.name:
        return _indexed(bound, request, "asked for")
    if kind is not None:
        if request.index is not None:
            _check_offered(name, request.index)
            check_index(bound, request.index)
        return AlgorithmChoice(name, "asked for", request.index, request.index_options, request.options)
    if not bound.index and bound.intervals is not None:
        ends = " and ".join(str(bound.terms[t].term) for t in (bound.intervals.upper, bound.intervals.lower))
        return AlgorithmChoice(IntervalSweep.name, f"intervals are looked up by {ends}, in classes by length")
    if not bound.index:
        return AlgorithmChoice(NestedLoop.name, f"{bound.spec.predicate} has no key or band to look tuples up by")
    counts = [w.size for w in bound.windows if w.kind == "count"]
    if len(counts) == 2 and max(counts) <= _SMALL_WINDOW and bound.terms:
        return AlgorithmChoice(
            NestedLoop.name, f"both windows hold {max(counts)} tuples or fewer: scanning is cheapest"
        )
    window = expected_window(bound)
    if batch is not None and batch > 0 and _index_cost(window) < sweep_cost(window, batch):
        why = f"pushes of {batch:,} tuples are too small to sort"
        return replace(_indexed(bound, AlgorithmRequest(Indexed.name), why), adaptive=True)
    by = " with ".join(str(term.term) for term in bound.index)
    return AlgorithmChoice(Sweep.name, f"tuples are looked up by {by} in sorted runs", adaptive=True)


def _is_as_of_by_key(bound: BoundSpec) -> bool:
    """Whether keys alone decide, so that the newest tuple of each is all that has to be kept."""
    timed = bound.spec.order == "arrival" and bound.windows[1].kind == "time"
    return bound.match is not None and bound.match.by_equalities and not timed


def begin(bound: BoundSpec, request: AlgorithmRequest, batch: int | None = None) -> AlgorithmChoice:
    """The algorithm for the first push, of `batch` tuples: the requested one, or a scan while that is cheap."""
    later = choose(bound, request, batch)
    if request.algorithm != "auto" or later.name in (NestedLoop.name, AS_OF):
        return later
    if _outgrown(bound, batch or 0, 0) and _is_worth_compiling(bound, later, batch or 0, 0, 0):
        return later
    reason = f"few tuples so far, and scanning compiles fastest; later {later.name}: {later.reason}"
    return AlgorithmChoice(NestedLoop.name, reason, provisional=True)


def successor(bound: BoundSpec, arriving: int, held: int, compared: int) -> AlgorithmChoice | None:
    """The algorithm that replaces the scan before `arriving` tuples are joined with `held` per side, if any."""
    if not _outgrown(bound, arriving, held):
        return None
    later = choose(bound, AlgorithmRequest(), arriving)
    return later if _is_worth_compiling(bound, later, arriving, held, compared) else None


def excess(window: float, choice: AlgorithmChoice, arriving: int) -> float:
    """What a push costs with one of sweep and index beyond the other, in nanoseconds; called for every push."""
    if not arriving:
        return 0.0
    beyond = arriving * (sweep_cost(window, arriving) - _index_cost(window))
    return beyond if choice.name == Sweep.name else -beyond


def most_for_index(window: float, most: int) -> int:
    """The largest push, of at most `most` tuples, for which the sweep is not cheaper than the index."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if sweep_cost(window, middle) >= _index_cost(window):
            least = middle
        else:
            most = middle - 1
    return least


def rival(bound: BoundSpec, choice: AlgorithmChoice, arriving: int, held: int, wasted: float) -> AlgorithmChoice | None:
    """The one of sweep and index that is not `choice`, once moving `held` stored tuples to it pays.

    `wasted` is what the pushes so far cost beyond the other one.
    """
    if wasted < _MOVING_NS * held:
        return None
    other = choose(bound, AlgorithmRequest(), arriving)
    kernel = sweep_batch if other.index is None else INDEXES[other.index].task
    if other.name == choice.name or not (is_compiled(kernel) or wasted >= _COMPILING_NS):
        return None
    return other


def _outgrown(bound: BoundSpec, arriving: int, held: int) -> bool:
    """Whether an index or the sweep is cheaper than scanning for this push."""
    window = expected_window(bound)
    cost = min(_index_cost(window), sweep_cost(window, max(arriving, 1)))
    return _pairs(bound, arriving, held) * _pair_ns(bound) > arriving * cost


def _is_worth_compiling(bound: BoundSpec, later: AlgorithmChoice, arriving: int, held: int, compared: int) -> bool:
    """Whether nothing has to be compiled, or scanning, including this push, costs as much as compiling."""
    compiled = is_compiled(sweep_batch if later.index is None else INDEXES[later.index].task)
    return compiled or (compared + _pairs(bound, arriving, held)) * _pair_ns(bound) >= _COMPILING_NS


def _pairs(bound: BoundSpec, arriving: int, held: int) -> float:
    """The number of pairs that a scan compares: each tuple with the window and, on average, half of its push."""
    most = max(window.size if window.kind == "count" else math.inf for window in bound.windows)
    return arriving * min(most, held + arriving / 2)


def _pair_ns(bound: BoundSpec) -> float:
    return _WORD_NS if all(term in bound.terms for term in bound.index) else _CONDITION_NS


@cache
def _index_cost(window: float) -> float:
    return model(Workload(window), Constants())["pim_tree"].total


def _check_offered(algorithm: str, index: str) -> None:
    """Reject an index that this algorithm does not support."""
    indexes = KINDS[algorithm].indexes
    if index not in indexes:
        raise NotSupportedError(
            f"algorithm={algorithm!r} does not run over index={index!r}; it runs over {' or '.join(map(repr, indexes))}"
        )


def _indexed(bound: BoundSpec, request: AlgorithmRequest, why: str) -> AlgorithmChoice:
    """The join over an index: the requested one, the hash table for plain keys, or the cheapest by the cost model."""
    if request.index is not None:
        check_index(bound, request.index)
        return AlgorithmChoice(Indexed.name, f"{why}, over {request.index}", request.index, request.index_options)
    if finds_single_words(bound):
        return AlgorithmChoice(
            Indexed.name, f"{why}; equal keys are found in a hash table", "hashed", request.index_options
        )
    index = cheapest(Workload(expected_window(bound)), _RANGE_INDEXES)
    return AlgorithmChoice(
        Indexed.name, f"{why}; {index} is the cheapest by the cost model", index, request.index_options
    )


def expected_window(bound: BoundSpec) -> float:
    """The number of tuples that the larger window holds, as far as it is known."""
    return max((w.size for w in bound.windows if w.kind == "count"), default=_UNKNOWN_WINDOW)
