"""What an engine is put together from: journal, core, loop and executor, by where it runs; and which arguments fit."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

from streamjoin.model.errors import SetupError, SpecError
from streamjoin.queries.core import memory
from streamjoin.queries.core.changes import no_such_query
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.engine.catalog import Catalog
from streamjoin.queries.engine.executor import Executor, QueryCore
from streamjoin.queries.engine.inbox import Inbox
from streamjoin.queries.engine.journal import FileJournal, Journal, MemoryJournal, stored_executor
from streamjoin.queries.engine.loop import RowsOut, TableRowsOut
from streamjoin.queries.engine.stored import RecoveredState, recover
from streamjoin.queries.executors.embedded import EmbeddedExecutor
from streamjoin.queries.language.plan import Stream


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


def with_engine_budget(settings: Settings) -> Settings:
    """Settings that say what all queries together may hold, by the memory that this process may have."""
    limit = settings.engine_memory or memory.default_limit()
    return replace(settings, engine_memory=limit, engine_bytes=settings.engine_bytes or max(1, limit // 2))


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
        raise SpecError("partitions are cells on Spark: give Engine a Spark session, or leave partitions out")
    if partitions is not None and settings.sharing == "nothing":
        raise SpecError("queries that share nothing are run by the driver: leave partitions out")
    if partitions is not None and executor_kind(spark, checkpoint, settings, executor) != "distributed":
        raise SpecError(
            f"partitions={partitions!r} are cells on Spark's executors, and here the driver joins in its own process: "
            'leave partitions out, or give executor="distributed" with a checkpoint that it has begun'
        )


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


@dataclass(frozen=True)
class EngineParts:
    """What an engine is put together from, by where it runs."""

    journal: Journal
    recovery: RecoveredState
    """What a restart finds in the journal."""
    core: QueryCore
    connect: Callable[[Catalog, Inbox], tuple[Executor, RowsOut[Any]]]
    """Gives what reads the streams and what becomes of rows."""


def open_parts(
    kind: str,
    spark: Any,
    checkpoint: str | None,
    settings: Settings,
    trigger: str | None,
    partitions: int | Literal["auto"] | None,
) -> EngineParts:
    """The parts of an engine; modules of Spark are loaded only where there is a session.

    Raises:
        CheckpointError: the checkpoint can't be read.
        StateError: another engine runs on it.
    """
    if kind == "distributed" and checkpoint is not None:
        return _distributed(spark, checkpoint, settings, trigger, partitions)
    core = open_core([], settings)
    files = None if checkpoint is None else FileJournal(checkpoint, kind, settings.aside_bytes)
    recovery = RecoveredState.nothing(settings) if files is None else _recovered(files, settings)
    journal: Journal = files or MemoryJournal()

    def connect(catalog: Catalog, _: Inbox) -> tuple[Executor, RowsOut[Any]]:
        if spark is None or files is None:
            return EmbeddedExecutor(journal, trigger), TableRowsOut(core, catalog, journal)
        from streamjoin.queries.executors.spark import SparkExecutor

        return SparkExecutor(spark, files, trigger), TableRowsOut(core, catalog, files)

    return EngineParts(journal, recovery, core, connect)


def _distributed(
    spark: Any, checkpoint: str, settings: Settings, trigger: str | None, partitions: int | Literal["auto"] | None
) -> EngineParts:
    from streamjoin.queries.executors.distributed.driver_core import DriverCore
    from streamjoin.queries.executors.distributed.executor import CellRows, PartReader
    from streamjoin.queries.executors.distributed.journal import FiledJournal
    from streamjoin.queries.executors.distributed.outputs import RowPool
    from streamjoin.queries.executors.distributed.rows_out import CellRowsOut
    from streamjoin.queries.executors.spark import SparkExecutor

    journal, core, pool = FiledJournal(checkpoint, settings.aside_bytes), DriverCore(settings), RowPool()

    def connect(catalog: Catalog, inbox: Inbox) -> tuple[Executor, RowsOut[Any]]:
        cells = CellRows(spark, journal, partitions, core, catalog.entries, pool)

        def reader(stream: Stream, mark: str | None, inbox: Inbox) -> PartReader:
            return PartReader(stream, mark, inbox, journal, cells)

        rows_out = CellRowsOut(core, catalog, journal, inbox, cells, pool)
        return SparkExecutor(spark, journal.log, trigger, reader), rows_out

    return EngineParts(journal.log, _recovered(journal.log, settings, journal.read_bucket), core, connect)


def _recovered(
    journal: FileJournal, settings: Settings, read_bucket: Callable[[str, int], Any] | None = None
) -> RecoveredState:
    try:
        return recover(journal, settings, read_bucket)
    except BaseException:
        journal.close()
        raise
