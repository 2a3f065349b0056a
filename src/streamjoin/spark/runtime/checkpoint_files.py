"""Has Spark write the files of local checkpoints without starting processes.

Without its native library, which PySpark does not bring, Hadoop starts a process for every permission it sets on a
local disk and every link it looks for: about ten for each file that Spark writes into a checkpoint, and a batch writes
at least four. `LocalCheckpointFiles.java` does the same with calls of Java's own, there alone. A class is the one way
in that Spark offers (`driver_classes.py`).

Only a Spark that runs in one Java takes it: executors elsewhere would not have the class. Where anything is not as
expected Spark keeps its own way, which is only slower.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from streamjoin._cache import cache_dir
from streamjoin.spark.runtime.driver_classes import load
from streamjoin.spark.runtime.internals import driver_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CLASS = "streamjoin.spark.LocalCheckpointFiles"
_SOURCE = "LocalCheckpointFiles.java"

_logger = logging.getLogger(__name__)


def write_without_processes(spark: SparkSession) -> bool:
    """Set it on `spark`, unless the user chose another one; returns whether it is set now."""
    from py4j.protocol import Py4JError

    if spark.conf.get(SETTING, None) is not None:
        return False
    try:
        load(driver_jvm(spark), CLASS, _SOURCE, cache_dir())
    except (Py4JError, OSError) as error:
        _logger.info("Spark uses its own checkpoint writer: %s", error)
        return False
    spark.conf.set(SETTING, CLASS)
    return True
