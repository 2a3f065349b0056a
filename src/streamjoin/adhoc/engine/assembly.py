"""What an engine is put together from: journal, core, loop and executor, by where it runs; and which arguments fit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from streamjoin.adhoc.core.changes import no_such_query
from streamjoin.adhoc.core.contract import Core
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.core.unshared import open_core
from streamjoin.adhoc.engine.executor import Executor
from streamjoin.adhoc.engine.journal import Journal
from streamjoin.adhoc.engine.loop import BatchLoop
from streamjoin.adhoc.engine.memory_journal import MemoryJournal
from streamjoin.adhoc.engine.recovery import RecoveredState
from streamjoin.adhoc.executors.embedded import EmbeddedExecutor
from streamjoin.model.errors import SpecError


def known_names(quarantine: Collection[str], recovery: RecoveredState) -> set[str]:
    """The queries to pause at the start.

    Raises:
        SpecError: the checkpoint has no such query.
    """
    if isinstance(quarantine, str):
        raise SpecError(f"quarantine is a list of names, such as [{quarantine!r}]")
    for name in quarantine:
        if name not in recovery.state.queries:
            raise no_such_query(name, recovery.state.queries)
    return set(quarantine)


def check_arguments(
    spark: Any, checkpoint: str | None, settings: Settings, partitions: int | str | None, executor: str
) -> None:
    """Refuse what does not go together.

    Raises:
        SpecError: an argument is wrong, or needs another.
    """
    if executor not in ("driver", "distributed"):
        raise SpecError(f"executor is 'driver' or 'distributed', not {executor!r}")
    if executor == "distributed" and spark is None:
        raise SpecError("the distributed executor runs on Spark: give Engine a Spark session, or leave executor out")
    if executor == "distributed" and settings.sharing == "nothing":
        raise SpecError("queries that share nothing are run by the driver: leave executor out")
    if spark is not None and not hasattr(spark, "sparkContext"):
        raise SpecError(f"Engine(spark, ...) takes a Spark session or nothing, not {spark!r}; is it checkpoint=?")
    if spark is not None and checkpoint is None:
        raise SpecError("an engine on Spark needs a checkpoint: Engine(spark, checkpoint)")
    if spark is None and partitions is not None:
        raise SpecError("partitions are tasks of Spark: give Engine a Spark session, or leave partitions out")
    if partitions is not None and settings.sharing == "nothing":
        raise SpecError("queries that share nothing are run by the driver: leave partitions out")


def engine_parts(kind: str, checkpoint: str | None, settings: Settings) -> tuple[Journal, Core, type[BatchLoop]]:
    """The journal, the core and the loop of an engine."""
    if checkpoint is None:
        return MemoryJournal(), open_core([], settings), BatchLoop
    if kind != "distributed":
        return Journal(checkpoint, kind), open_core([], settings), BatchLoop
    from streamjoin.adhoc.executors.distributed.driver_core import DriverCore
    from streamjoin.adhoc.executors.distributed.journal import FiledJournal
    from streamjoin.adhoc.executors.distributed.loop import DistributedLoop

    return FiledJournal(checkpoint), DriverCore(settings), DistributedLoop


def open_executor(
    spark: Any,
    journal: Journal,
    trigger: str | None,
    partitions: int | Literal["auto"] | None,
    core: Any,
) -> Executor:
    """What reads the streams and computes rows; modules of Spark are loaded only where there is a session."""
    if spark is None:
        return EmbeddedExecutor(journal, trigger)
    from streamjoin.adhoc.executors.distributed.executor import DistributedExecutor
    from streamjoin.adhoc.executors.distributed.journal import FiledJournal
    from streamjoin.adhoc.executors.spark import SparkExecutor

    if isinstance(journal, FiledJournal):
        return DistributedExecutor(spark, journal, trigger, partitions, core)
    return SparkExecutor(spark, journal, trigger, partitions, core.settings.latency_threshold)
