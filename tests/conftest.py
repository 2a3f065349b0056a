"""What several folders of tests share: a Spark session for each worker, started by who asks first, and their order."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.durations import Durations
from tests.seeds import THOROUGH
from tests.spark.class_archive import make_archive, options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.kafka_broker import Broker


# The files that take longest, by build/durations.json: begun first, so that the workers end at about the same time.
# Those that mostly wait and those that compute take turns.
LONGEST = (
    "spark/test_kafka.py",
    "joins/test_conformance.py",
    "joins/test_live_pauses.py",
    "spark/test_connect.py",
    "spark/test_cluster.py",
    "page/test_many_queries.py",
    "spark/test_exactly_once.py",
    "spark/test_demo.py",
    "spark/test_stored_checkpoints.py",
    "spark/test_pipeline.py",
    "spark/test_session.py",
    "test_notebooks.py",
    "spark/test_kinds.py",
    "spark/test_adhoc_distributed.py",
    "spark/test_adhoc_isolation.py",
    "test_examples.py",
    "joins/test_failures.py",
    "kernels/test_plain_jit.py",
    "service/test_serve.py",
    "page/test_accessible.py",
    "joins/test_kinds.py",
    "queries/test_every_step_isolated.py",
    "indexes/test_task.py",
)
# Then whatever has a test that starts something or is slow, so that the last files are short ones.
HEAVY = {"spark", "broker", "browser", "slow"}

# A session that runs for some small batches spends its time compiling what it then hardly runs. The variable reaches
# the drivers of all programs that tests start: examples, notebooks and the command line as their users run them.
_SMALL = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {options()}".rstrip()
QUICK_START = {
    "spark.executor.extraJavaOptions": _SMALL,
    "spark.ui.enabled": False,
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
# What takes long here may be the machine's other work; a test that hangs has its own limit.
settings.register_profile("suite", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("suite")
MARKED_BY_FIXTURE = {"spark": pytest.mark.spark, "broker": pytest.mark.broker, "browser": pytest.mark.browser}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slowest", action="store_true", help="store how long each test took, and print the slowest")


def pytest_configure(config: pytest.Config) -> None:
    """Let JVMs start quickly, and have Ctrl-C interrupt, in child processes too.

    A shell starts what it runs in the background without that.
    """
    os.environ["SPARK_SUBMIT_OPTS"] = _SMALL
    # No test cuts the power, and what was written stays when a process is killed: nothing has to reach the disk.
    os.fsync = lambda fd: None
    if config.getoption("--slowest"):
        config.pluginmanager.register(Durations())
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
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for name in MARKED_BY_FIXTURE.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARKED_BY_FIXTURE[name])
    if not THOROUGH:
        left = [item for item in items if item.get_closest_marker("thorough") is not None]
        items[:] = [item for item in items if item.get_closest_marker("thorough") is None]
        config.hook.pytest_deselected(items=left)
    here = Path(__file__).parent
    places = dict.fromkeys((item.path for item in items if HEAVY & {mark.name for mark in item.iter_markers()}), 99)
    places |= {here / file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, 100))


def pytest_collection_finish() -> None:
    """What is there now stays: the collections of garbage that follow need not walk through all modules and tests."""
    gc.collect()
    gc.freeze()


# The threads of an ad-hoc engine and of a live join that run until it is stopped.
LOOPS = ("adhoc batches", "adhoc start", "streamjoin-live", "streamjoin-driver")


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """What a module opens it also stops: an engine that goes on works, and logs, while other modules are tested."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread.name in LOOPS and thread not in before]
    if left:
        # A live join that is no longer held by anything ends by itself.
        gc.collect()
    for thread in left:
        thread.join(10)
    open_still = [thread for thread in left if thread.is_alive()]
    for thread in open_still:
        owner = getattr(getattr(thread, "_target", None), "__self__", None)
        if owner is not None and hasattr(owner, "stop"):
            owner.stop()
    assert not open_still, f"left running: {', '.join(thread.name for thread in open_still)}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Small and shared: a test leaves no query running and no setting changed."""
    from streamjoin.spark.runtime.session import session

    make_archive()
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
