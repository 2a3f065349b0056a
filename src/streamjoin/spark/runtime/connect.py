"""How the client of a Spark Connect server passes the checkpoint's location and the join's settings to the tasks.

Spark copies the settings of a session when a query starts, and gives the copy to all tasks of the query. So the
settings are made right before the start and taken back right after it. Spark asks for no checkpoint where a sink needs
none and chooses a directory itself, which a client can't find out: a join over Connect therefore needs a location.
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from streamjoin.model.errors import SetupError, SpecError
from streamjoin.spark.runtime.checkpoints import COMMITS_LATER, joins_of, query_settings
from streamjoin.spark.runtime.unattended import CHECKPOINT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from streamjoin.storage.blueprint import Blueprint

_DEFAULT = "spark.sql.streaming.checkpointLocation"
_starting = threading.Lock()


@contextlib.contextmanager
def starting(frame: DataFrame, options: Mapping[str, str], name: str | None) -> Iterator[str]:
    """Yield the location of the checkpoint of a query over `frame`; the query is started within.

    Args:
        frame: a DataFrame with joins in its plan.
        options: the options of the query's writer, with keys in lower case.
        name: the query's name.

    Raises:
        SetupError: no location is given.
        SpecError: the location is relative, or another than that given to a join.
    """
    spark, joins = frame.sparkSession, joins_of(frame)
    if options.get("asyncprogresstrackingenabled", "false").lower() == "true":
        raise SetupError(COMMITS_LATER)
    location = _location(spark, joins, options.get("checkpointlocation"), name)
    settings = {
        CHECKPOINT: location,
        **query_settings(joins, lambda key: spark.conf.get(key), lambda key: spark.conf.get(key, None) is not None),
    }
    with _starting:
        before = {key: spark.conf.get(key, None) for key in settings}
        for key, value in settings.items():
            spark.conf.set(key, value)
        try:
            yield location
        finally:
            for key, earlier in before.items():
                if earlier is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, earlier)


def _location(spark: SparkSession, joins: list[Blueprint], given: str | None, name: str | None) -> str:
    wanted = {join.checkpoint.rstrip("/") for join in joins if join.checkpoint is not None}
    if given is None and not wanted:
        parent = spark.conf.get(_DEFAULT, None)
        if not parent:
            raise SetupError(
                "over Spark Connect a join can't find out which checkpoint Spark chooses: name one with "
                ".option('checkpointLocation', ...)"
            )
        return _whole(f"{parent.rstrip('/')}/{name or uuid.uuid4()}")
    location = given if given is not None else min(wanted)
    if wanted - {location.rstrip("/")}:
        raise SpecError(
            f"the query's checkpoint is {location!r}, and the join was given {', '.join(map(repr, sorted(wanted)))}: "
            "give both the same location, or leave checkpoint= of the join out"
        )
    return _whole(location)


def _whole(location: str) -> str:
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+:|/", location):
        raise SpecError(
            f"the checkpoint {location!r} is relative to a directory of the Spark Connect server: give the whole path"
        )
    return location
