"""Choice of the algorithm, with the reason.

Batches with an index word use the sweep, whose cost per tuple grows with the logarithm of the window. If pushes are so
small that, by the cost model, sorting does not pay, an index is used instead: a hash table where single words are
looked up, a B+-tree for small windows, else the PIM-Tree. The more pairs a tuple finds, the sooner sorting pays. With
several workers the parallel join over PIM-Trees is the third candidate: it does not sort, and its threads share the
lookups. Without an index word the nested loop runs.

Two comparisons that face each other bound an interval, or look as if they did: over columns that are none, the interval
index finds most of a window, at many times what comparing it costs. So the lengths decide, as data arrives, and what
both have cost (`AdaptingIntervals` in `joins/engine/adapting.py`).

The candidates take over from each other when pushes change for long enough, in size or in what they find: a window that
was filled from history in large batches is then probed by small ones (`joins/engine/adapting.py`).

A join starts with the nested loop, which is by far the fastest to compile, and switches once scanning costs more than
the other algorithm would; after some pushes that includes what a push without compiled steps costs. If that algorithm
is not compiled yet, the join switches when scanning has cost as much as compiling: the total is then at most twice the
cheaper of the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from streamjoin.indexes.registry import INDEXES, check_settings, settings_of
from streamjoin.jit.flags import is_compiled
from streamjoin.joins.batch.nested_loop import NestedLoop
from streamjoin.joins.batch.sweep import Sweep
from streamjoin.joins.cost import (
    PUSH_NS,
    UNKNOWN,
    Found,
    algorithm_cost,
    index_cost,
    interval_cost,
    scan_cost,
    sweep_cost,
)
from streamjoin.joins.indexed import Indexed, check_index, finds_single_words
from streamjoin.joins.kinds.interval_sweep import IntervalSweep
from streamjoin.joins.registry import AS_OF, AUTO, KINDS, SUMMARY, AlgorithmChoice, AlgorithmKind
from streamjoin.model.binding import BoundSpec, BoundSummary
from streamjoin.model.errors import NotSupportedError, SpecError
from streamjoin.model.predicates import Equi
from streamjoin.windows.intervals import Lookups

PIM_PARALLEL = "pim_parallel"

# The assumed size of a time window before any data has arrived.
_UNKNOWN_WINDOW = 1 << 16
# Up to this many tuples a B+-tree has so few levels that partitioning it does not pay.
_SMALL_WINDOW = 2048
# Pushes after which a scan is no longer taken for a join that ends soon.
_FEW_PUSHES = 64
# Nanoseconds to compare two tuples: by words in vector registers, or by evaluating the condition over columns.
_WORD_NS, _CONDITION_NS = 0.2, 20.0
# Nanoseconds of a scan for each tuple, whatever it is compared with.
_SCAN_TUPLE_NS = 150.0
# The assumed cost of compiling an algorithm, in nanoseconds.
_COMPILING_NS = 5e9
# The assumed cost of sorting or indexing a stored tuple anew, in nanoseconds.
_MOVING_NS = 100.0
# The parallel join must be cheaper by this factor: its threads take memory and wait for processors that others use.
_THREADS_PAY = 1.1


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
        if self.algorithm != AUTO and self.algorithm not in KINDS:
            raise KINDS.unknown(self.algorithm, names())
        if self.index is not None and self.index not in INDEXES:
            raise INDEXES.unknown(self.index, sorted(INDEXES))
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
    return (AUTO, *KINDS)


def choose(
    bound: BoundSpec,
    request: AlgorithmRequest,
    batch: int | None = None,
    workers: int = 1,
    found: Found = UNKNOWN,
) -> AlgorithmChoice:
    """The algorithm for `bound`: the requested one, or the cheapest for pushes of about `batch` tuples."""
    name = request.algorithm
    kind = KINDS.get(name)
    if bound.summary is not None:
        return _summary(bound, bound.summary, name)
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
        why = f"intervals are looked up by {_interval_text(bound)}, in classes by length"
        return AlgorithmChoice(IntervalSweep.name, why, adaptive=True)
    if not bound.index:
        return AlgorithmChoice(NestedLoop.name, f"{bound.spec.predicate} has no key or band to look tuples up by")
    window, index = expected_window(bound), _cheapest_index(bound)
    costs = _costs(window, index, batch, workers, found) if batch is not None and batch > 0 else {Sweep.name: 0.0}
    cheapest = min(costs, key=costs.__getitem__)
    if cheapest == Indexed.name:
        why = f"pushes of {batch:,} tuples are too small to sort"
        return replace(_indexed(bound, AlgorithmRequest(Indexed.name), why), adaptive=True)
    by = " with ".join(str(term.term) for term in bound.index)
    if cheapest == PIM_PARALLEL:
        why = f"{workers} workers look pushes of {batch:,} tuples up by {by} without sorting them"
        return AlgorithmChoice(PIM_PARALLEL, why, adaptive=True, rival=index)
    return AlgorithmChoice(Sweep.name, f"tuples are looked up by {by} in sorted runs", adaptive=True, rival=index)


def _summary(bound: BoundSpec, summary: BoundSummary, name: str) -> AlgorithmChoice:
    if name != AUTO:
        raise NotSupportedError(
            f"algorithm={name!r} pairs tuples, and match=Summary gives one row for each left tuple: use "
            "algorithm='auto'"
        )
    by = " and ".join(str(key.term) for key in bound.keys if isinstance(key.term, Equi)) or "time alone"
    listed = [str(a) for a, each in zip(summary.aggregates, summary.enumerated, strict=True) if each]
    rest = [str(a) for a, each in zip(summary.aggregates, summary.enumerated, strict=True) if not each]
    parts = [f"{', '.join(rest)} while windows slide, however many match"] if rest else []
    if listed:
        why = "" if summary.by_equalities else f", as {bound.spec.predicate} is more than equalities"
        parts.append(f"{', '.join(listed)} by enumerating every match{why}")
    return AlgorithmChoice(SUMMARY, f"both sides are read once in order, by {by}: {'; '.join(parts)}")


def _costs(window: float, index: str, batch: int, workers: int, found: Found) -> dict[str, float]:
    """Nanoseconds per tuple of the algorithms that take over from each other."""
    names = [Sweep.name, Indexed.name]
    # A hash table finds single words faster than any tree.
    if workers > 1 and index == "pim_tree":
        names.append(PIM_PARALLEL)
    costs = {name: algorithm_cost(name, window, batch, workers, index, found) for name in names}
    if PIM_PARALLEL in costs:
        costs[PIM_PARALLEL] *= _THREADS_PAY
    return costs


def _is_as_of_by_key(bound: BoundSpec) -> bool:
    """Whether keys alone decide, so that the newest tuple of each is all that has to be kept."""
    timed = bound.spec.order == "arrival" and bound.windows[1].kind == "time"
    return bound.match is not None and bound.match.by_equalities and not timed


def begin(bound: BoundSpec, request: AlgorithmRequest, batch: int | None = None, workers: int = 1) -> AlgorithmChoice:
    """The algorithm for the first push, of `batch` tuples: the requested one, or a scan while that is cheap."""
    later = choose(bound, request, batch, workers)
    if request.algorithm != "auto" or later.name in (NestedLoop.name, AS_OF, SUMMARY):
        return later
    if later.name == IntervalSweep.name:
        reason = f"scanning is cheaper so far; {later.name} once the intervals are short enough: {later.reason}"
        return AlgorithmChoice(NestedLoop.name, reason, adaptive=True)
    if _outgrown(bound, batch or 0, 0) and _is_worth_compiling(bound, later, batch or 0, 0, 0):
        return later
    reason = f"few tuples so far, and scanning compiles fastest; later {later.name}: {later.reason}"
    return AlgorithmChoice(NestedLoop.name, reason, provisional=True)


def successor(
    bound: BoundSpec, arriving: int, held: int, compared: int, pushes: int = 0, workers: int = 1
) -> AlgorithmChoice | None:
    """The algorithm that replaces the scan before `arriving` tuples are joined with `held` per side, if any.

    The scan has compared `compared` pairs in `pushes` pushes.
    """
    if not _outgrown(bound, arriving, held, pushes):
        return None
    later = choose(bound, AlgorithmRequest(), arriving, workers)
    return later if _is_worth_compiling(bound, later, arriving, held, compared, pushes) else None


def excess(window: float, choice: AlgorithmChoice, arriving: int, workers: int = 1, found: Found = UNKNOWN) -> float:
    """What a push costs beyond the cheapest other candidate, in nanoseconds."""
    if not arriving:
        return 0.0
    index = choice.index or choice.rival
    if index is None:
        raise AssertionError("an adaptive algorithm without an index beside it")
    costs = _costs(window, index, arriving, workers, found)
    own = costs.pop(choice.name)
    return arriving * (own - min(costs.values()))


def most_for_index(window: float, index: str, most: int, workers: int = 1, found: Found = UNKNOWN) -> int:
    """The largest push, of at most `most` tuples, for which nothing is cheaper than the index."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        costs = _costs(window, index, middle, workers, found)
        if costs[Indexed.name] <= min(costs.values()):
            least = middle
        else:
            most = middle - 1
    return least


def rival(
    bound: BoundSpec,
    choice: AlgorithmChoice,
    arriving: int,
    held: int,
    wasted: float,
    workers: int = 1,
    found: Found = UNKNOWN,
) -> AlgorithmChoice | None:
    """The candidate that takes over from `choice`, once moving `held` stored tuples to it pays.

    `wasted` is what the pushes so far cost beyond the cheapest other one.
    """
    if wasted < _MOVING_NS * held:
        return None
    other = choose(bound, AlgorithmRequest(), arriving, workers, found)
    if other.name == choice.name or not (_is_ready(other) or wasted >= _COMPILING_NS):
        return None
    return other


def interval_costs(bound: BoundSpec, arriving: int, held: int, lookups: Lookups, found: Found) -> dict[str, float]:
    """Nanoseconds per tuple of the interval index and of the scan, for a push joined with `held` tuples per side."""
    pairs = _pairs(bound, arriving, held) / arriving
    return {
        IntervalSweep.name: interval_cost(arriving, lookups.classes, lookups.share * pairs, found),
        NestedLoop.name: scan_cost(pairs, found),
    }


def interval_rival(
    bound: BoundSpec, choice: AlgorithmChoice, lookups: Lookups, wasted: float, held: int
) -> AlgorithmChoice | None:
    """What takes over from the interval index or the scan, once moving `held` stored tuples to it pays."""
    if wasted < _MOVING_NS * held:
        return None
    if choice.name == IntervalSweep.name:
        reason = (
            f"the index of {_interval_text(bound)} would leave {100 * lookups.share:.2g}% of a window to test, in "
            f"{lookups.classes} classes by length; scanning is cheaper"
        )
        return AlgorithmChoice(NestedLoop.name, reason, adaptive=True)
    later = choose(bound, AlgorithmRequest())
    return later if _is_ready(later) or wasted >= _COMPILING_NS else None


def _interval_text(bound: BoundSpec) -> str:
    if bound.intervals is None:
        raise AssertionError("no interval to look up")
    return " and ".join(str(bound.terms[t].term) for t in (bound.intervals.upper, bound.intervals.lower))


def _is_ready(choice: AlgorithmChoice) -> bool:
    """Whether an algorithm most likely runs without compiling anything first."""
    kernel = KINDS[choice.name].kernel
    return kernel is None or is_compiled(kernel(choice))


def _outgrown(bound: BoundSpec, arriving: int, held: int, pushes: int = 0) -> bool:
    """Whether an index or the sweep is cheaper than scanning for this push."""
    window = expected_window(bound)
    cost = min(index_cost(_cheapest_index(bound), window), sweep_cost(window, max(arriving, 1)))
    push = PUSH_NS if pushes >= _FEW_PUSHES else 0.0
    return push + _pairs(bound, arriving, held) * _pair_ns(bound) > arriving * (cost - _SCAN_TUPLE_NS)


def _is_worth_compiling(
    bound: BoundSpec, later: AlgorithmChoice, arriving: int, held: int, compared: int, pushes: int = 0
) -> bool:
    """Whether nothing has to be compiled, or scanning, including this push, costs as much as compiling."""
    spent = (compared + _pairs(bound, arriving, held)) * _pair_ns(bound) + pushes * PUSH_NS
    return _is_ready(later) or spent >= _COMPILING_NS


def _pairs(bound: BoundSpec, arriving: int, held: int) -> float:
    """The number of pairs that a scan compares: each tuple with the window and, on average, half of its push."""
    most = max(window.size if window.kind == "count" else math.inf for window in bound.windows)
    return arriving * min(most, held + arriving / 2)


def _pair_ns(bound: BoundSpec) -> float:
    return _WORD_NS if all(term in bound.terms for term in bound.index) else _CONDITION_NS


def _cheapest_index(bound: BoundSpec) -> str:
    """The index that takes small pushes."""
    if finds_single_words(bound):
        return "hashed"
    return "btree" if expected_window(bound) <= _SMALL_WINDOW else "pim_tree"


def _check_offered(algorithm: str, index: str) -> None:
    """Reject an index that this algorithm does not support."""
    indexes = KINDS[algorithm].indexes
    if index not in indexes:
        raise NotSupportedError(
            f"algorithm={algorithm!r} does not run over index={index!r}; it runs over {' or '.join(map(repr, indexes))}"
        )


def _indexed(bound: BoundSpec, request: AlgorithmRequest, why: str) -> AlgorithmChoice:
    """The join over an index: the requested one, or the cheapest."""
    if request.index is not None:
        check_index(bound, request.index)
        return AlgorithmChoice(Indexed.name, f"{why}, over {request.index}", request.index, request.index_options)
    index = _cheapest_index(bound)
    reason = "equal keys are found in a hash table" if index == "hashed" else f"{index} is the cheapest for the window"
    return AlgorithmChoice(Indexed.name, f"{why}; {reason}", index, request.index_options)


def expected_window(bound: BoundSpec) -> float:
    """The number of tuples that the larger window holds, as far as it is known."""
    return max((w.size for w in bound.windows if w.kind == "count"), default=_UNKNOWN_WINDOW)
