"""What several folders of tests share: one Spark session for the whole run, started by who asks first."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.spark.class_archive import make_archive, options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A session that runs for some small batches spends its time compiling what it then hardly runs.
QUICK_START = {
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {options()}".rstrip(),
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@atexit.register
def _let_the_closing_line_be_the_last() -> None:
    """Close stderr to what native code says on the way out.

    Py4J's threads outlive the session, so the interpreter can't free what they might see, and DuckDB's binding then
    lists all its types as leaked.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Small and shared: a test leaves no query running and no setting changed."""
    from streamjoin.spark.session import session

    make_archive(tmp_path_factory.mktemp("classes"))
    started = session(
        "streamjoin-tests",
        "local[2]",
        memory="1g",
        config={"spark.sql.shuffle.partitions": 2, **QUICK_START},
    )
    yield started
    started.stop()
