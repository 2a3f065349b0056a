"""Names for the stages of a join in Spark's UI: the query's name, and route, collect, gate, join or order.

Spark names all stages after the line of code that started the query. An operator in the driver's Java
(`NamedStages.java`), which replaces the one that runs a Python stage, sets the name. If that class can't be loaded,
stages have Spark's names. A later stage of the query, such as one after an aggregation's shuffle, has the name of the
join's last stage, because Spark offers no way to set it.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from streamjoin._cache import cache_dir
from streamjoin.spark.runtime.driver_classes import load
from streamjoin.spark.runtime.internals import StartingQuery, driver_jvm
from streamjoin.storage.blueprint import TASK, Blueprint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASS = "streamjoin.spark.NamedStages"
_SOURCE = "NamedStages.java"
_SETTING = "spark.streamjoin.stage."
_STAGES = re.compile(r"(streamjoin_[a-z]+)_([0-9a-f]{32})\(")

_logger = logging.getLogger(__name__)


def name_stages(spark: SparkSession, query: StartingQuery, joins: list[Blueprint]) -> None:
    """Name the stages of a query that is about to start."""
    from py4j.protocol import Py4JError

    session = query.session
    names = {join.token: join.name for join in joins}
    try:
        strategy = load(driver_jvm(spark), CLASS, _SOURCE, cache_dir()).newInstance()
        others = session.experimental().extraStrategies()
        getattr(session.experimental(), "extraStrategies_$eq")(others.prepended(strategy))
    except (Py4JError, OSError, TypeError) as error:
        # The first line; the rest of what Py4J says is a stack trace of Java's.
        _logger.info("the stages of joins have Spark's own names: %s", str(error).partition("\n\t")[0])
        return
    for function, token in _STAGES.findall(query.plan):
        if token in names:
            label = stage_name(query.name, names[token], function)
            session.conf().set(f"{_SETTING}{function}_{token}", label)


def stage_name(query: str | None, join: str, function: str) -> str:
    """What Spark's UI calls a stage.

    >>> stage_name("prices", "join", "streamjoin_route"), stage_name(None, "first", "streamjoin_task")
    ('prices: route', 'streamjoin: join of first')
    """
    stage = "join" if function == TASK else function.removeprefix("streamjoin_")
    return f"{query or 'streamjoin'}: {stage}" + ("" if join == "join" else f" of {join}")
