"""Which algorithm runs, and why.

Batches with an index word go to the sweep: its cost a tuple grows with the logarithm of the window. Without one,
or where the windows are so small that scanning them is cheaper than sorting the chunk, the nested loop runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamjoin.joins.base import Algorithm
from streamjoin.joins.nested_loop import NestedLoop
from streamjoin.joins.sweep import Sweep
from streamjoin.model.binding import BoundSpec
from streamjoin.model.errors import NotSupportedError, SpecError
from streamjoin.windows.workers import Workers

ALGORITHMS: dict[str, Callable[[BoundSpec, Workers], Algorithm]] = {
    NestedLoop.name: NestedLoop,
    Sweep.name: Sweep,
}
_NEEDS_INDEX = frozenset({Sweep.name})
# Scanning this many tuples in vector registers takes less time than sorting and merging one.
_SMALL_WINDOW = 256


@dataclass(frozen=True)
class Choice:
    """The algorithm that runs and the reason in one sentence."""

    name: str
    reason: str


def names() -> tuple[str, ...]:
    """Everything `algorithm=` takes."""
    return ("auto", *sorted(ALGORITHMS))


def check_name(name: str) -> None:
    """Refuse an algorithm nobody knows."""
    if name not in names():
        raise SpecError(f"algorithm={name!r} is not known; it is one of {', '.join(names())}")


def choose(bound: BoundSpec, asked: str) -> Choice:
    """The algorithm for `bound`: the one asked for, or the cheapest."""
    if asked != "auto":
        if asked in _NEEDS_INDEX and not bound.index:
            raise NotSupportedError(
                f"algorithm={asked!r} looks tuples up by a key or a band, and {bound.spec.on} has neither; "
                "use algorithm='nested_loop' or 'auto', or add an Equi or a Band"
            )
        return Choice(asked, "asked for")
    if not bound.index:
        return Choice(NestedLoop.name, f"{bound.spec.on} has no key or band to look tuples up by")
    counts = [w.size for w in bound.windows if w.kind == "count"]
    if len(counts) == 2 and max(counts) <= _SMALL_WINDOW and bound.terms:
        return Choice(NestedLoop.name, f"both windows hold {max(counts)} tuples or fewer: scanning is cheapest")
    by = " with ".join(str(term.term) for term in bound.index)
    return Choice(Sweep.name, f"tuples are looked up by {by} in sorted runs")
