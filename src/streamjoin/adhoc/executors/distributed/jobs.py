"""Spark jobs with one task for each cell, which go back to the executor and the Python worker that had the cell before.

Spark promises neither. A preferred place makes it wait a moment for the executor; a variable in the worker's
environment keeps workers of different cells apart, because Spark keeps a pool of workers for each environment. A task
that runs elsewhere is right too: it begins from the files.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from streamjoin.adhoc.executors.spark_tasks import WARMING
from streamjoin.spark.runtime.session import MORE_WARMING

if TYPE_CHECKING:
    from pyspark import SparkContext

CELL: Final = "STREAMJOIN_CELL"


def run_cells(context: SparkContext, cells: int, task: Callable[[int], Any]) -> list[Any]:
    """Call `task` with the number of each cell, one task each, and return what they returned."""
    from pyspark import RDD

    # Objects of Java that are asked for by name, through PySpark's gateway: PySpark itself has no such call.
    java: Any = context._jvm
    scala: Any = context._jsc.sc()
    executors = executor_names(context)
    parts = [_placed(context, java, scala, cell, executors, task) for cell in range(cells)]
    rdds = context._gateway.new_array(java.org.apache.spark.api.java.JavaRDD, cells)  # type: ignore[union-attr]
    for cell, part in enumerate(parts):
        rdds[cell] = part
    union = context._jsc.union(rdds)
    rdd: RDD[Any] = RDD(union, context)
    return list(rdd.collect())


def executor_names(context: SparkContext) -> list[str]:
    """The executors that there are, in a lasting order; none with a local master, which has no other process."""
    scala: Any = context._jsc.sc()
    if scala.isLocal():
        return []
    names = scala.getExecutorIds()
    return sorted((str(names.apply(number)) for number in range(names.size())), key=lambda name: (len(name), name))


def _placed(
    context: SparkContext, java: Any, scala: Any, cell: int, executors: Sequence[str], task: Callable[[int], Any]
) -> Any:
    """An RDD of one partition that calls the task for one cell."""
    from pyspark.core.rdd import _prepare_for_python_RDD
    from pyspark.serializers import AutoBatchedSerializer, CPickleSerializer

    def call(_: int, numbers: Any) -> list[Any]:
        return [task(number) for number in numbers]

    places = [f"executor_any_{executors[cell % len(executors)]}"] if executors else []
    element = java.scala.Tuple2(bytearray(pickle.dumps(cell)), java.PythonUtils.toSeq(places))
    tag = java.scala.reflect.ClassTag.apply(java.java.lang.Class.forName("[B"))
    source = scala.makeRDD(java.PythonUtils.toSeq([element]), tag)
    command = (call, None, CPickleSerializer(), AutoBatchedSerializer(CPickleSerializer()))  # type: ignore[no-untyped-call]
    pickled, broadcasts, environment, includes = _prepare_for_python_RDD(context, command)
    function = java.SimplePythonFunction(
        bytearray(pickled),
        {**environment, CELL: str(cell), MORE_WARMING: WARMING},
        includes,
        context.pythonExec,
        context.pythonVer,
        broadcasts,
        context._javaAccumulator,
    )
    return java.PythonRDD(source, function, False, False).asJavaRDD()
