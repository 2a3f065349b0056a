"""All algorithms by name: constructor, requirements, options, live runner.

Those of the package register by the call that is there for everyone, at the end of their modules, which are imported
when they are asked for: this module imports no algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from streamjoin._lazy import Registered
from streamjoin.indexes.registry import INDEXES
from streamjoin.model.errors import SpecError

if TYPE_CHECKING:
    from streamjoin.joins.base import Algorithm
    from streamjoin.joins.live.runner import Runner, Setup
    from streamjoin.model.binding import BoundSpec
    from streamjoin.windows.workers import Workers

AlgorithmName = Literal[
    "auto",
    "handshake",
    "indexed",
    "low_latency_handshake",
    "interval",
    "nested_loop",
    "pim_parallel",
    "scalejoin",
    "sweep",
]
"""The package's own names, for editors; others can be registered."""
AUTO = "auto"
AS_OF = "asof"
"""The algorithm of as-of joins by key; only `auto` chooses it."""
SUMMARY = "summary"
"""The algorithm of joins with summaries; only `auto` chooses it."""


@dataclass(frozen=True)
class AlgorithmChoice:
    """The chosen algorithm, and the reason in one sentence."""

    name: str
    reason: str
    index: str | None = None
    index_options: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    provisional: bool = False
    """Whether another one may take over as the windows grow."""
    adaptive: bool = False
    """Whether the sweep and the index may take over from each other as the size of pushes changes."""
    rival: str | None = None
    """The index that may take over from the sweep."""


@dataclass(frozen=True)
class AlgorithmKind:
    """One algorithm, as `register_algorithm` describes it."""

    build: Callable[[BoundSpec, AlgorithmChoice, Workers], Algorithm]
    indexes: Collection[str]
    scans: bool
    needs_word: bool
    needs_interval: bool
    own_threads: bool
    options: frozenset[str]
    live: Callable[[Setup], Runner | None] | None
    kernel: Callable[[AlgorithmChoice], Any] | None


KINDS: Registered[AlgorithmKind] = Registered(
    "algorithm",
    {
        "handshake": "streamjoin.handshake.handshake",
        "indexed": "streamjoin.joins.indexed",
        "low_latency_handshake": "streamjoin.handshake.low_latency",
        "interval": "streamjoin.joins.kinds.interval_sweep",
        "nested_loop": "streamjoin.joins.batch.nested_loop",
        "pim_parallel": "streamjoin.pim_tree.join",
        "scalejoin": "streamjoin.scalejoin.join",
        "sweep": "streamjoin.joins.batch.sweep",
    },
    {
        "cell_join": "benchmarks.papers.cell_join",
        "round_robin": "benchmarks.papers.round_robin",
        "three_step": "benchmarks.papers.three_step",
    },
)


def register_algorithm(
    name: str,
    build: Callable[[BoundSpec, AlgorithmChoice, Workers], Algorithm],
    *,
    indexes: Iterable[str] = (),
    scans: bool = True,
    needs_word: bool = False,
    needs_interval: bool = False,
    own_threads: bool = False,
    options: Iterable[str] = (),
    live: Callable[[Setup], Runner | None] | None = None,
    kernel: Callable[[AlgorithmChoice], Any] | None = None,
) -> None:
    """Make an algorithm one that `algorithm=` takes. `auto` does not choose it.

    `streamjoin.testing.conformance` checks it. A module may register a name again; another module may not.

    Args:
        name: what `algorithm=` takes.
        build: makes the algorithm (the protocol `streamjoin.joins.base.Algorithm`) of one join, from the join, what
            was asked for (index, its settings, options) and the join's worker threads.
        indexes: the kinds of index it runs over, as `index=` takes them.
        scans: whether it runs without an index.
        needs_word: whether it only runs joins that look tuples up by a key or a band.
        needs_interval: whether it only runs joins that look up intervals.
        own_threads: whether it has threads besides the join's workers.
        options: the names that `options=` may hold; the algorithm checks their values.
        live: makes what runs a live inner join; without it, or what it makes, one driver thread runs the algorithm.
        kernel: the kernel that takes longest to compile, of those that are run.

    Raises:
        SpecError: the name is none or taken, an index is not known, or an argument is of the wrong kind.
    """
    if name in (AUTO, AS_OF, SUMMARY):
        raise SpecError(f"algorithm={name!r} is the package's own: register another name")
    for what, given in (("build", build), ("live", live), ("kernel", kernel)):
        if not callable(given) and (given is not None or what == "build"):
            raise SpecError(f"{what}= of algorithm {name!r} is called to make it; {given!r} can't be called")
    if indexes is not INDEXES:
        indexes = tuple(indexes)
        for index in indexes:
            if index not in INDEXES:
                raise INDEXES.unknown(index, sorted(INDEXES))
    entry = AlgorithmKind(
        build, indexes, scans, needs_word, needs_interval, own_threads, frozenset(options), live, kernel
    )
    KINDS.register(name, entry, build.__module__)
