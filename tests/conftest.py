"""What several folders of tests share: one Spark session for the whole run, started by who asks first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A session that runs for some small batches spends its time compiling what it then hardly runs.
QUICK_START = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Small and shared: a test leaves no query running and no setting changed."""
    from streamjoin.spark.session import session

    started = session(
        "streamjoin-tests",
        "local[2]",
        memory="1g",
        config={"spark.sql.shuffle.partitions": 2, **QUICK_START},
    )
    yield started
    started.stop()
