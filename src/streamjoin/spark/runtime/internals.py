"""Every call of `spark.join` that is not part of Spark's public interface, each with its reason.

No other module of this package makes such calls, and a test checks it. Over Spark Connect only `plan_of` is used, so a
join needs nothing there that a Connect server may lack. The ad-hoc engine schedules jobs of its own on a
`SparkContext`; its executors are classic only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_IO = "java.io.IOException"
_REPORTS_MS = 60_000


def is_connect(value: object) -> bool:
    """Whether a session or a DataFrame belongs to Spark Connect: this decides which calls there are."""
    return any(base.__module__.startswith("pyspark.sql.connect") for base in type(value).__mro__)


def plan_of(frame: DataFrame) -> str:
    """The analyzed plan as text, to find the joins and watermarks in it: `explain` only prints it."""
    if is_connect(frame):
        text: str = frame._explain_string(extended=True)  # type: ignore[operator]
        return text.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]
    return str(frame._jdf.queryExecution().analyzed().toString())


def session_id(spark: SparkSession) -> str:
    """What two Python objects of the same session have in common: only Connect has a public name for it."""
    if is_connect(spark):
        return str(spark.session_id)  # type: ignore[attr-defined]
    return str(spark._jsparkSession.sessionUUID())


@dataclass(frozen=True)
class NamedStage:
    """A stage over Spark Connect: Spark takes the name of a function from the attribute `__name__`."""

    function: Stage
    name: str

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the stage."""
        return self.function(batches)


def map_in_arrow(frame: DataFrame, function: Stage, schema: StructType | str, name: str) -> DataFrame:
    """`frame.mapInArrow(function, schema)` under a name: the public method requires pandas without using it.

    Where pandas is installed it warns of a version that Spark does not know. Over Connect it does neither.
    """
    if is_connect(frame):
        return frame.mapInArrow(NamedStage(function, name), schema)
    from pyspark.sql.classic.dataframe import DataFrame as Classic
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(function, returnType=schema, name=name, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    inputs: Any = udf(*[frame[column] for column in frame.columns])
    return Classic(frame._jdf.mapInArrow(inputs._jc, False, None), frame.sparkSession)


def has_context() -> bool:
    """Whether this process has a Spark: `getOrCreate` would start one."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def has_gateway() -> bool:
    """Whether this process has a JVM, for which no Java has to be found: it outlives the sessions that ran in it."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def driver_jvm(spark: SparkSession) -> Any:
    """The driver's JVM, for small classes of our own (`driver_classes.py`): Spark loads classes only by name."""
    return spark._jvm


def hand_over(spark: SparkSession, hadoop: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Give a running session settings of Hadoop and variables for new workers: publicly both are fixed at its start."""
    configuration = spark._jsc.hadoopConfiguration()
    for key, value in hadoop.items():
        configuration.set(key, value)
    spark.sparkContext.environment.update(environment)


def wait_for_reports(spark: SparkSession, milliseconds: int) -> None:
    """Wait until listeners were told of all finished batches: Spark reports on a thread of its own.

    Raises:
        Py4JJavaError: the bus was busy for all of the time.
    """
    spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(milliseconds)


def task_seconds(spark: SparkSession, run: str) -> list[float]:
    """The seconds of all tasks of each job of a query: only Spark's own store has those of single tasks."""
    wait_for_reports(spark, _REPORTS_MS)
    tracker, store = spark.sparkContext.statusTracker(), spark.sparkContext._jsc.sc().statusStore()
    found = []
    for job in sorted(tracker.getJobIdsForGroup(run)):
        info = tracker.getJobInfo(job)
        stages = [] if info is None else [store.taskList(stage, 0, 100_000) for stage in sorted(info.stageIds)]
        tasks = [stage.apply(i).duration() for stage in stages for i in range(stage.size())]
        found.append(sum(each.get() / 1000 for each in tasks if each.isDefined()))
    return found


def io_reason(error: Py4JJavaError) -> str | None:
    """The message of a Java I/O error; None for other errors: Spark's Python wraps only errors of its own."""
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    failure = error.java_exception
    while failure is not None:
        if is_instance_of(SparkContext._gateway, failure, _IO):
            return f"{failure.getMessage()} ({failure.getClass().getSimpleName()})"
        failure = failure.getCause()
    return None


class StartingQuery:
    """A query whose listeners run, before its first batch: Spark's public object has no plan, settings or location."""

    def __init__(self, spark: SparkSession, query_id: str) -> None:
        self._jvm: Any = spark._jvm
        self._java: Any = spark._jsparkSession.streams().get(query_id).streamingQuery()
        self.id = query_id

    @property
    def plan(self) -> str:
        """The analyzed plan as text."""
        return str(self._java.analyzedPlan().toString())

    @property
    def name(self) -> str | None:
        """The name that the user gave it."""
        name: str | None = self._java.name()
        return name

    @property
    def session(self) -> Any:
        """The session of the query alone: its settings go to every task."""
        return self._java.sparkSessionForStream()

    @property
    def checkpoint(self) -> str:
        """The location of its checkpoint, also if Spark chose it."""
        return str(self._java.resolvedCheckpointRoot())

    @property
    def commits_later(self) -> bool:
        """Whether Spark commits batches some time after they are done."""
        return "AsyncProgressTracking" in self._java.getClass().getSimpleName()

    @property
    def calls_function(self) -> bool:
        """Whether its sink is a function for `foreachBatch`, which need not read all rows."""
        return "ForeachBatch" in self._java.sink().getClass().getSimpleName()

    def end(self, text: str) -> None:
        """End it with a failure before it plans a batch or writes anything.

        Spark has no call for this: `stop` would wait for the thread that waits for its listeners. The query's state is
        set to the one that Spark itself sets when a query fails or is stopped while it starts.

        Raises:
            Py4JError: this version of Spark does not allow it.
            TypeError: a name that is missing.
        """
        jvm = self._jvm
        cause = jvm.java.lang.IllegalStateException(text)
        nothing = getattr(jvm, "scala.collection.immutable.Map$EmptyMap$")
        died = jvm.org.apache.spark.sql.streaming.StreamingQueryException(
            text, cause, "STREAM_FAILED", getattr(nothing, "MODULE$")
        )
        getattr(self._java, "streamDeathCause_$eq")(died)
        ended = getattr(jvm, "org.apache.spark.sql.execution.streaming.runtime.TERMINATED$")
        self._java.state().set(getattr(ended, "MODULE$"))
