"""What an engine is put together from: journal, core, loop and executor, by where it runs; and which arguments fit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from streamjoin.adhoc.core.changes import no_such_query
from streamjoin.adhoc.core.contract import Core
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.core.unshared import open_core
from streamjoin.adhoc.engine.executor import Executor
from streamjoin.adhoc.engine.journal import Journal, stored_executor
from streamjoin.adhoc.engine.loop import BatchLoop
from streamjoin.adhoc.engine.memory_journal import MemoryJournal
from streamjoin.adhoc.engine.recovery import RecoveredState
from streamjoin.adhoc.executors.embedded import EmbeddedExecutor
from streamjoin.model.errors import SetupError, SpecError


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
    spark: Any, checkpoint: str | None, settings: Settings, partitions: int | str | None, executor: str | None
) -> None:
    """Refuse what does not go together.

    Raises:
        SpecError: an argument is wrong, or needs another.
    """
    if executor not in (None, "driver", "distributed"):
        raise SpecError(f"executor is 'driver' or 'distributed', not {executor!r}")
    if executor == "distributed" and spark is None:
        raise SpecError("the distributed executor runs on Spark: give Engine a Spark session, or leave executor out")
    if executor == "distributed" and settings.sharing == "nothing":
        raise SpecError("queries that share nothing are run by the driver: leave executor out")
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise SetupError(
            "the ad-hoc engine schedules its own jobs and needs a classic Spark session, not Spark Connect: use "
            "streamjoin.spark.session(master=...), or an engine without Spark; sj.spark.join runs over Connect"
        )
    if spark is not None and not hasattr(spark, "sparkContext"):
        raise SpecError(f"Engine(spark, ...) takes a Spark session or nothing, not {spark!r}; is it checkpoint=?")
    if spark is not None and checkpoint is None:
        raise SpecError("an engine on Spark needs a checkpoint: Engine(spark, checkpoint)")
    if spark is None and partitions is not None:
        raise SpecError("partitions are tasks of Spark: give Engine a Spark session, or leave partitions out")
    if partitions is not None and settings.sharing == "nothing":
        raise SpecError("queries that share nothing are run by the driver: leave partitions out")


def executor_kind(spark: Any, checkpoint: str | None, settings: Settings, executor: str | None) -> str:
    """What reads and joins, where the caller leaves it open: what the checkpoint was begun with, or by Spark's master.

    With a local master the driver is all there is, and sending tuples to other processes of the same machine and
    planning jobs for them costs more than it gains. On a cluster the driver would be the bottleneck.
    """
    if spark is None:
        return "embedded"
    if executor is not None:
        return "spark" if executor == "driver" else executor
    stored = None if checkpoint is None else stored_executor(checkpoint)
    if stored is not None:
        # The journal refuses what was begun without Spark.
        return "distributed" if stored == "distributed" else "spark"
    master = str(spark.sparkContext.master)
    is_local = master == "local" or master.startswith("local[")
    return "spark" if is_local or settings.sharing == "nothing" else "distributed"


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
