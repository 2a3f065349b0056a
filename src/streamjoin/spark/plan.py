"""`join`: two streaming DataFrames in, one out.

Each side is cut into ranges of index words, Spark moves the parts to one task a range, and that task joins them
with the window log. What is wrong is found here, before a query exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamjoin.model.binding import RESULT_TIME, BoundSpec, bind
from streamjoin.model.errors import InputError, NotSupportedError, SetupError, SpecError
from streamjoin.model.spec import JoinSpec
from streamjoin.model.window import CountWindow
from streamjoin.spark.blueprint import TASK, Blueprint
from streamjoin.spark.checkpoints import expect, joins_in
from streamjoin.spark.merging import MergePolicy
from streamjoin.spark.parts import DDL
from streamjoin.spark.route import Route
from streamjoin.spark.task import JoinTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

MOST_PARTITIONS = 100_000


def join(
    left_df: DataFrame,
    right_df: DataFrame | None,
    spec: JoinSpec,
    *,
    partitions: int | None = None,
    name: str | None = None,
) -> DataFrame:
    """Join two streaming DataFrames; any sink can take the result.

    The state lives under the checkpoint of the query that runs the join. With a sink that writes a batch once (files,
    tables, Kafka transactions, ...) every result is there exactly once, whatever is killed on the way.

    Args:
        left_df: the left side, a streaming DataFrame.
        right_df: the right side; None for a self-join.
        spec: what to join, with time windows and order="event_time".
        partitions: how many tasks join side by side; `spark.sql.shuffle.partitions` when not given. It may be
            another one at the next start.
        name: where the state lies under the checkpoint; needed only where one query holds several joins next to
            each other. It must stay the same from start to start.

    Raises:
        SpecError: the spec can't be, does not fit the columns, or asks for what is not there on Spark.
        InputError: a side is not a streaming DataFrame.
        SetupError: pyspark is missing, or the session can't run the join.
    """
    return _join(left_df, right_df, spec, partitions, name, MergePolicy())


def _join(
    left_df: DataFrame,
    right_df: DataFrame | None,
    spec: JoinSpec,
    partitions: int | None,
    name: str | None,
    policy: MergePolicy,
) -> DataFrame:
    _check_spec(spec)
    spark = _check_sides(left_df, right_df, spec)
    bound = _bound(spec, left_df, right_df)
    blueprint = Blueprint(bound, _name(name, left_df, right_df), _partitions(partitions, spark), policy)
    expect(spark, blueprint)
    parts = _stage(left_df, Route(blueprint, 0), DDL, f"streamjoin_route_{blueprint.token}")
    if right_df is not None and not spec.self_join:
        parts = parts.union(_stage(right_df, Route(blueprint, 1), DDL, f"streamjoin_route_{blueprint.token}"))
    ranged = parts.repartitionById(blueprint.partitions, parts["partition"])
    schema = _output_schema(bound, left_df, right_df)
    return _stage(ranged, JoinTask(blueprint), schema, f"{TASK}_{blueprint.token}")


def _check_spec(spec: JoinSpec) -> None:
    if not isinstance(spec, JoinSpec):
        raise SpecError(f"spec is a streamjoin.JoinSpec, not {spec!r}")
    if any(isinstance(window, CountWindow) for window in spec.windows):
        raise NotSupportedError(
            "count windows are not there on Spark yet: they need the gate, which numbers the tuples of all partitions; "
            "use a TimeWindow, or streamjoin.open on one machine"
        )
    if spec.order != "event_time":
        raise NotSupportedError(
            f"order={spec.order!r} means nothing across partitions, which have no common order of arrival: "
            "write order='event_time' in the spec"
        )


def _check_sides(left_df: DataFrame, right_df: DataFrame | None, spec: JoinSpec) -> SparkSession:
    try:
        from pyspark.sql.classic.dataframe import DataFrame as Classic
    except ImportError as error:
        raise SetupError("pyspark is not installed: pip install 'streamjoin[spark]'") from error
    if spec.self_join and right_df is not None and right_df is not left_df:
        raise InputError("with self_join=True one stream is both sides: give None for the right one")
    if right_df is None and not spec.self_join:
        raise InputError("the right side is missing; for a self-join write self_join=True in the spec")
    for side, frame in (("left", left_df), ("right", right_df)):
        if frame is None:
            continue
        if type(frame).__module__.startswith("pyspark.sql.connect"):
            raise SetupError(
                f"the {side} side is a DataFrame of Spark Connect, on which streamjoin does not run: use a session of "
                "streamjoin.spark.session()"
            )
        if not isinstance(frame, Classic):
            raise InputError(f"the {side} side is a {type(frame).__name__}, not a streaming DataFrame")
        if not frame.isStreaming:
            raise InputError(
                f"the {side} side is a batch DataFrame; read it with spark.readStream, or join a table that does not "
                "change with Spark's own DataFrame.join"
            )
    if right_df is not None and right_df.sparkSession._jsparkSession != left_df.sparkSession._jsparkSession:
        raise InputError("the two sides belong to different Spark sessions; build both with the same one")
    return left_df.sparkSession


def _bound(spec: JoinSpec, left_df: DataFrame, right_df: DataFrame | None) -> BoundSpec:
    left = _arrow_schema("left", left_df)
    bound = bind(spec, left, left if right_df is None else _arrow_schema("right", right_df))
    if not bound.index:
        raise NotSupportedError(
            "a join on Spark needs an Equi or a Band next to the Theta, by which the rows are cut into partitions"
        )
    return bound


def _arrow_schema(side: str, frame: DataFrame) -> pa.Schema:
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    except PySparkTypeError as error:
        raise InputError(f"the {side} side has a column that Arrow can't carry: {error.getMessage()}") from error


def _name(name: str | None, left_df: DataFrame, right_df: DataFrame | None) -> str:
    if name is not None:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
            raise SpecError(f"name={name!r}: up to 64 letters, digits, - and _, as it becomes the name of a directory")
        return name
    frames = [frame for frame in (left_df, right_df) if frame is not None]
    below = {t for f in frames for t in joins_in(f._jdf.queryExecution().analyzed().toString())}
    return f"join{len(below) + 1}" if below else "join"


def _partitions(partitions: int | None, spark: SparkSession) -> int:
    if partitions is None:
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MOST_PARTITIONS:
        raise SpecError(
            f"partitions={partitions!r}: it is a whole number from 1 to {MOST_PARTITIONS:,}, or None for "
            "spark.sql.shuffle.partitions"
        )
    return partitions


def _output_schema(bound: BoundSpec, left_df: DataFrame, right_df: DataFrame | None) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    sources = {"left": left_df.schema, "right": (right_df or left_df).schema}
    fields = [StructField(c.name, sources[c.side][c.source].dataType) for c in bound.columns]
    time = bound.schema.field(RESULT_TIME).type
    return StructType([*fields, StructField(RESULT_TIME, from_arrow_type(time))])


def _stage(frame: DataFrame, function: Stage, schema: StructType | str, name: str) -> DataFrame:
    """`frame.mapInArrow(function, schema)` under a name of our own.

    The public method asks for pandas, which no part of it uses, and names the stage after the function.
    """
    from pyspark.sql.classic.dataframe import DataFrame as Classic
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(function, returnType=schema, name=name, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    inputs: Any = udf(*[frame[column] for column in frame.columns])
    return Classic(frame._jdf.mapInArrow(inputs._jc, False, None), frame.sparkSession)
