"""Spark jobs without a plan: a task for each partition of a micro-batch that is read, and a task for each cell.

A task for a cell goes back to the executor and the Python worker that had the cell before. Spark promises neither. A
preferred place makes it wait a moment for the executor; a variable in the worker's environment keeps workers of
different cells apart, because Spark keeps a pool of workers for each environment. A task that runs elsewhere is right
too: it begins from the files.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from streamjoin.model.errors import StreamJoinError, reason_of
from streamjoin.model.large_columns import row_bytes
from streamjoin.spark.runtime.session import ARROW_ROWS, MORE_WARMING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

CELL: Final = "STREAMJOIN_CELL"
WARMING: Final = "streamjoin.queries.executors.warming"
"""Spark forks workers of another environment from a process of their own, which loads what is named here."""
_MOST_BYTES, _FEW_ROWS = 1 << 28, 256
"""The largest Arrow batch of rows with a fixed width, and the rows of one where a row may have any width."""


def map_partitions(frame: DataFrame, task: Callable[[Iterator[pa.RecordBatch], int, int], Any]) -> list[Any]:
    """Call `task` with the rows of each partition, its number and that of the attempt; returns what they returned.

    As `mapInArrow`, without a plan of its own, without a struct around each row and without a look at the bytes of a
    batch after each row: that takes Spark twice the time.
    """
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    context = frame.sparkSession.sparkContext
    # `DataFrame.toArrow` reads by this call too.
    messages = frame._jdf.toArrowBatchRdd(_rows_per_batch(schema), "UTC", True, False)
    function = _PythonFunction(context, partial(_call_with_rows, task, schema), NoOpSerializer())
    rdd: RDD[Any] = RDD(function.rdd(messages, {}), context)
    return list(rdd.collect())


def _call_with_rows(
    task: Callable[[Iterator[pa.RecordBatch], int, int], Any],
    schema: pa.Schema,
    partition: int,
    messages: Iterable[bytes],
) -> list[Any]:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise AssertionError("rows are read by a task")
    batches = (pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages)
    return [task(batches, partition, context.taskAttemptId())]


def _rows_per_batch(schema: pa.Schema) -> int:
    """How many rows an Arrow batch may have so that none of its columns exceeds what Java can hold.

    >>> _rows_per_batch(pa.schema([("x", pa.int64())])), _rows_per_batch(pa.schema([("x", pa.string())]))
    (200000, 256)
    """
    width = row_bytes(schema)
    return _FEW_ROWS if width is None else max(1, min(ARROW_ROWS, _MOST_BYTES // max(1, width)))


def run_cells(context: SparkContext, cells: int, task: Callable[[int], Any]) -> list[Any]:
    """Call `task` with the number of each cell, one task each, and return what they returned."""
    from pyspark import RDD
    from pyspark.serializers import CPickleSerializer

    executors = executor_names(context)
    function = _PythonFunction(context, partial(_call_with_cells, task), CPickleSerializer())
    rdds = context._gateway.new_array(_java(context).java_rdd, cells)  # type: ignore[union-attr]
    for cell in range(cells):
        place = f"executor_any_{executors[cell % len(executors)]}" if executors else None
        rdds[cell] = function.rdd(_placed(context, cell, place), {CELL: str(cell), MORE_WARMING: WARMING})
    rdd: RDD[Any] = RDD(context._jsc.union(rdds), context)
    return list(rdd.collect())


def task_reason(error: BaseException) -> str:
    r"""Why a job failed, in one line: what the Python of a task raised, if its traceback is in the error's text.

    >>> task_reason(ValueError("a job\n  Traceback (most recent call last):\n    File x\n  KeyError: 'k'\n\n  at a.b"))
    "KeyError: 'k'"
    """
    if isinstance(error, StreamJoinError):
        return reason_of(error)
    lines = iter(str(error).splitlines())
    found = None
    for line in lines:
        if not line.strip().startswith("Traceback (most recent call last)"):
            continue
        # Frames are indented, and what was raised is not; a traceback that follows is of what came of it.
        depth = len(line) - len(line.lstrip())
        for inner in lines:
            if inner.strip() and len(inner) - len(inner.lstrip()) <= depth:
                found = inner.strip()
                break
    if found is None:
        return reason_of(error)
    # The module of an error says nothing to who reads it.
    kind, colon, text = found.partition(": ")
    return f"{kind.rpartition('.')[2]}{colon}{text}"


def _call_with_cells(task: Callable[[int], Any], _: int, numbers: Iterable[int]) -> list[Any]:
    return [task(number) for number in numbers]


def executor_names(context: SparkContext) -> list[str]:
    """The executors that there are, in a lasting order; none with a local master, which has no other process."""
    scala = _java(context).scala_context
    if scala.isLocal():
        return []
    names = scala.getExecutorIds()
    return sorted((str(names.apply(number)) for number in range(names.size())), key=lambda name: (len(name), name))


@dataclass(frozen=True)
class _Java:
    """Classes and objects of Java that PySpark has no call for; finding one by its name takes a few round trips."""

    scala_context: Any
    java_rdd: Any
    tuple2: Any
    to_seq: Any
    bytes_tag: Any
    function: Any
    python_rdd: Any


@lru_cache(maxsize=2)
def _java(context: SparkContext) -> _Java:
    java: Any = context._jvm
    return _Java(
        context._jsc.sc(),
        java.org.apache.spark.api.java.JavaRDD,
        java.scala.Tuple2,
        java.PythonUtils.toSeq,
        java.scala.reflect.ClassTag.apply(java.java.lang.Class.forName("[B")),
        java.SimplePythonFunction,
        java.PythonRDD,
    )


@lru_cache(maxsize=256)
def _placed(context: SparkContext, cell: int, place: str | None) -> Any:
    """An RDD of one partition, which has a cell's number and is computed at a place if that is free."""
    java = _java(context)
    element = java.tuple2(bytearray(pickle.dumps(cell)), java.to_seq([] if place is None else [place]))
    return java.scala_context.makeRDD(java.to_seq([element]), java.bytes_tag)


class _PythonFunction:
    """A function of Python that turns the elements of partitions into others; pickled once for any number of RDDs."""

    def __init__(self, context: SparkContext, function: Callable[[int, Any], Any], reader: Any) -> None:
        from pyspark.core.rdd import _prepare_for_python_RDD
        from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer

        self._context = context
        command = (function, None, reader, AutoBatchedSerializer(CPickleSerializer()))  # type: ignore[no-untyped-call]
        pickled, self._broadcasts, self._variables, self._includes = _prepare_for_python_RDD(context, command)
        self._pickled = bytearray(pickled)

    def rdd(self, source: Any, environment: Mapping[str, str]) -> Any:
        """An RDD of Java, made of another; `environment` is that of the workers."""
        context, java = self._context, _java(self._context)
        function = java.function(
            self._pickled,
            {**self._variables, **environment},
            self._includes,
            context.pythonExec,
            context.pythonVer,
            self._broadcasts,
            context._javaAccumulator,
        )
        return java.python_rdd(source, function, False, False).asJavaRDD()
