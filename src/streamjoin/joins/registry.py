"""All algorithms by name: constructor, requirements and options. A new algorithm is one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from streamjoin.indexes.registry import INCREMENTAL
from streamjoin.joins.base import Algorithm
from streamjoin.joins.baselines.cell_join import CellJoin
from streamjoin.joins.baselines.round_robin import RoundRobin
from streamjoin.joins.baselines.three_step import ThreeStep
from streamjoin.joins.batch.nested_loop import NestedLoop
from streamjoin.joins.batch.sweep import Sweep
from streamjoin.joins.indexed import Indexed
from streamjoin.joins.kinds.interval_sweep import IntervalSweep
from streamjoin.joins.parallel.handshake import Handshake
from streamjoin.joins.parallel.low_latency_handshake import INDEXES as NODE_INDEXES
from streamjoin.joins.parallel.low_latency_handshake import NAME as LOW_LATENCY_HANDSHAKE
from streamjoin.joins.parallel.low_latency_handshake import low_latency_handshake
from streamjoin.joins.parallel.pim_parallel import OPTIONS as PIM_PARALLEL_OPTIONS
from streamjoin.joins.parallel.pim_parallel import PimParallel
from streamjoin.joins.parallel.scalejoin import INDEXES as SHARE_INDEXES
from streamjoin.joins.parallel.scalejoin import ScaleJoin
from streamjoin.model.binding import BoundSpec
from streamjoin.windows.workers import Workers


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
    """One algorithm. `indexes` are those it supports, `scans` says whether it also runs without one."""

    build: Callable[[BoundSpec, AlgorithmChoice, Workers], Algorithm]
    indexes: tuple[str, ...] = ()
    scans: bool = False
    needs_word: bool = False
    needs_interval: bool = False
    own_threads: bool = False
    """Whether it has threads besides the join's workers."""
    options: frozenset[str] = frozenset()
    """Names that `options=` may hold; the algorithm checks their values."""


def _indexed(bound: BoundSpec, choice: AlgorithmChoice, workers: Workers) -> Algorithm:  # noqa: ARG001
    if choice.index is None:
        raise AssertionError("indexed without an index")
    return Indexed(bound, choice.index, choice.index_options)


KINDS: Mapping[str, AlgorithmKind] = {
    Handshake.name: AlgorithmKind(
        lambda bound, choice, workers: Handshake(bound, workers, choice.options),
        scans=True,
        own_threads=True,
        options=frozenset({"batch"}),
    ),
    Indexed.name: AlgorithmKind(_indexed, indexes=INCREMENTAL, needs_word=True),
    LOW_LATENCY_HANDSHAKE: AlgorithmKind(
        lambda bound, choice, workers: low_latency_handshake(
            bound, workers, choice.options, choice.index, choice.index_options
        ),
        indexes=NODE_INDEXES,
        scans=True,
        own_threads=True,
        options=frozenset({"batch"}),
    ),
    IntervalSweep.name: AlgorithmKind(
        lambda bound, _, workers: IntervalSweep(bound, workers), scans=True, needs_interval=True
    ),
    NestedLoop.name: AlgorithmKind(lambda bound, _, workers: NestedLoop(bound, workers), scans=True),
    PimParallel.name: AlgorithmKind(
        lambda bound, choice, workers: PimParallel(bound, choice.options, workers),
        scans=True,
        own_threads=True,
        needs_word=True,
        options=PIM_PARALLEL_OPTIONS,
    ),
    RoundRobin.name: AlgorithmKind(
        lambda bound, choice, workers: RoundRobin(bound, choice.index, choice.index_options, workers),
        indexes=RoundRobin.indexes,
        needs_word=True,
    ),
    ScaleJoin.name: AlgorithmKind(
        lambda bound, choice, workers: ScaleJoin(bound, workers, choice.index, choice.index_options),
        indexes=SHARE_INDEXES,
        scans=True,
        own_threads=True,
    ),
    Sweep.name: AlgorithmKind(lambda bound, _, workers: Sweep(bound, workers), scans=True, needs_word=True),
    ThreeStep.name: AlgorithmKind(lambda bound, _, __: ThreeStep(bound), scans=True),
    CellJoin.name: AlgorithmKind(
        lambda bound, choice, workers: CellJoin(bound, workers.n, choice.options),
        scans=True,
        options=CellJoin.options,
    ),
}
