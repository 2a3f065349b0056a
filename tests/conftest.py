"""What several folders of tests share: a Spark session for each worker, started by who asks first, and their order."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.class_archive import make_archive, options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.kafka_broker import Broker


# The files that take longest, in this order: begun first, so that two workers end at about the same time.
LONGEST = (
    "spark/test_exactly_once.py",
    "spark/test_kafka.py",
    "spark/test_cluster.py",
    "joins/test_conformance.py",
    "spark/test_adhoc_killed.py",
    "benchmarks/test_llhj_experiments.py",
    "spark/test_combinations.py",
    "service/test_soak.py",
    "joins/test_handshake.py",
    "test_examples.py",
    "spark/test_demo.py",
)

# A session that runs for some small batches spends its time compiling what it then hardly runs.
_SMALL = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {options()}".rstrip()
QUICK_START = {
    "spark.driver.extraJavaOptions": _SMALL,
    "spark.executor.extraJavaOptions": _SMALL,
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


# A test that asks for one of these fixtures gets the marker, so that `make quick` leaves it out without being told.
MARKED_BY_FIXTURE = {"spark": pytest.mark.spark, "broker": pytest.mark.broker, "browser": pytest.mark.browser}


def pytest_configure() -> None:
    """Have Ctrl-C interrupt, in child processes too: a shell starts what it runs in the background without that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that starts Spark by itself must say so: otherwise `make quick` would run it."""
    before = _has_session()
    yield
    if not before and _has_session() and item.get_closest_marker("spark") is None:
        pytest.fail(f"{item.nodeid} starts a Spark session: mark it spark, or ask for the fixture")


def _has_session() -> bool:
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in MARKED_BY_FIXTURE.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARKED_BY_FIXTURE[name])
    here = Path(__file__).parent
    places = {here / file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Small and shared: a test leaves no query running and no setting changed."""
    from streamjoin.spark.runtime.session import session

    make_archive(tmp_path_factory.mktemp("classes"))
    started = session(
        "streamjoin-tests",
        "local[2]",
        memory="1g",
        config={"spark.sql.shuffle.partitions": 2, **QUICK_START},
    )
    yield started
    started.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker, started."""
    from tests.spark.kafka_broker import Broker

    started = Broker(tmp_path_factory.mktemp("broker"))
    try:
        started.start()
        yield started
    finally:
        started.kill()
