"""Starts Spark ready for the join: a Java found at run time, the join's settings, and a silent terminal.

The caller's settings override the defaults here. An existing session is never stopped or restarted: its settings are
changed as far as Spark allows, and the others are reported. Environment variables for Spark's start are removed again
before the call returns.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import logging
import os
import re
import site
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from streamjoin.model.errors import SetupError
from streamjoin.spark.runtime.checkpoint_files import write_without_processes
from streamjoin.spark.runtime.java import Java, find_java, wrapped_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARROW_ROWS = 200_000
"""Rows per Arrow batch sent to Python; with Spark's default of 10,000 the transfer dominates a batch."""
FEWEST_ARROW_ROWS = 100_000

DAEMON = "streamjoin.spark.runtime.daemon"
MORE_WARMING = "STREAMJOIN_WARMING"
"""Variable of the workers' environment: further modules, separated by commas, whose `warm` the daemon calls."""
_ARROW = "spark.sql.execution.arrow.maxRecordsPerBatch"
_DAEMON = "spark.python.daemon.module"
_PYTHON_PATH = "spark.executorEnv.PYTHONPATH"

_starting = threading.Lock()


def session(
    app_name: str = "streamjoin",
    master: str | None = None,
    *,
    config: Mapping[str, object] | None = None,
    memory: str | None = None,
    quiet: bool = True,
) -> SparkSession:
    """The Spark session of this process; starts one if there is none.

    Args:
        app_name: the name Spark shows for it.
        master: Spark's master; default: all cores of this machine (`local[*]`).
        config: Spark settings, which override the defaults.
        memory: the heap of the driver, such as "4g"; in local mode the driver is all of Spark.
        quiet: whether to keep Spark's log off the terminal. Failures are raised in Python in any case.

    Raises:
        SetupError: no pyspark, no usable Java, or an existing session whose settings can't be changed as requested.
    """
    settings = {key: _text(value) for key, value in (config or {}).items()}
    if memory is not None:
        settings["spark.driver.memory"] = memory
    if master is not None:
        settings["spark.master"] = master
    with _starting:
        existing = _existing()
        if existing is not None:
            return _adapt(existing, settings)
        return _start(app_name, settings, quiet)


def defaults(master: str) -> dict[str, str]:
    """The settings a new session gets for `master`, before the caller's own."""
    settings = {
        "spark.master": master,
        _ARROW: str(ARROW_ROWS),
        _DAEMON: DAEMON,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    root = _package_root()
    if root is not None:
        settings[_PYTHON_PATH] = str(root)
    if _is_local(master):
        # Loopback works without a network and with any host name, and no other machine can connect.
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.sql.shuffle.partitions"] = str(_local_cores(master))
    return settings


def _existing() -> SparkSession | None:
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SetupError("pyspark is not installed: pip install 'streamjoin[spark]'") from error
    if os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_CONNECT_MODE_ENABLED"):
        raise SetupError(
            "this process is set up for Spark Connect, which streamjoin does not support: unset SPARK_REMOTE "
            "and SPARK_CONNECT_MODE_ENABLED, and name a cluster with master= instead"
        )
    if SparkContext._active_spark_context is None:
        return None
    return SparkSession.builder.getOrCreate()


def _start(app_name: str, wanted: Mapping[str, str], quiet: bool) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    master = wanted.get("spark.master", "local[*]")
    settings = {**defaults(master), **wanted, "spark.app.name": app_name}
    root = _package_root()
    if root is not None:
        settings[_PYTHON_PATH] = _prepended(str(root), settings[_PYTHON_PATH])
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    # A JVM outlives the sessions that ran in it, and spark-submit brings its own: neither starts another.
    running = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    java = None if running else find_java()
    if quiet:
        _silence_error_copies()
    with _environment(master, java, quiet):
        try:
            spark = builder.getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED" or java is None:
                raise
            raise SetupError(
                f"Spark did not start on Java {java.version} ({java.origin}: {java.home}); the reason is "
                "printed above, often memory= or a setting in config= that Java does not accept"
            ) from error
    if _is_one_process(master):
        write_without_processes(spark)
    return spark


@contextlib.contextmanager
def _environment(master: str, java: Java | None, quiet: bool) -> Iterator[None]:
    """Set the environment variables that the JVM and pyspark read, for the duration of the launch."""
    changed: dict[str, str] = {}
    if java is not None:
        changed["JAVA_HOME"] = str(wrapped_home(java))
    if _is_local(master):
        # pyspark would run the workers on the first python3 of PATH, which need not have pyspark.
        changed["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    with contextlib.ExitStack() as files:
        if quiet and java is not None:
            resource = importlib.resources.files("streamjoin.spark") / "log4j2-quiet.properties"
            path = files.enter_context(importlib.resources.as_file(resource))
            option = f"-Dlog4j2.configurationFile={path.resolve().as_uri()}"
            changed["SPARK_SUBMIT_OPTS"] = f"{option} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()
        before = {key: os.environ.get(key) for key in changed}
        os.environ.update(changed)
        try:
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value


def _silence_error_copies() -> None:
    """Stop pyspark from printing, as JSON, the analysis errors that it raises as exceptions anyway."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _adapt(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Apply the requested settings and the join's to `spark`, or report those that can't be changed."""
    refused = []
    for key, value in settings.items():
        now = spark.conf.get(key, None)
        if now == value:
            continue
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
        else:
            refused.append(f"{key} is {now!r}, not {value!r}")
    if refused:
        raise SetupError(
            "a Spark session exists already and these settings are fixed when it starts: "
            + ", ".join(refused)
            + ". Stop it first (spark.stop()), or call session() without them"
        )
    if _ARROW not in settings and 0 < int(spark.conf.get(_ARROW) or 0) < FEWEST_ARROW_ROWS:
        spark.conf.set(_ARROW, ARROW_ROWS)
    if spark.conf.get(_DAEMON, None) is None:
        warnings.warn(
            f"this Spark session was started without {_DAEMON}={DAEMON}: joins work, but every Python worker "
            "imports its modules again. Start it with streamjoin.spark.session(), or with that setting",
            UserWarning,
            # session() is one frame up, its caller two.
            stacklevel=3,
        )
    return spark


def _package_root() -> Path | None:
    """The directory that PYTHONPATH needs to import streamjoin, or None if Python finds it anyway.

    Site directories are left out: on PYTHONPATH they would come before the standard library.
    """
    root = Path(__file__).resolve().parents[3]
    directories = [*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")]
    return None if any(Path(entry).resolve() == root for entry in directories) else root


def _prepended(root: str, path: str) -> str:
    entries = [entry for entry in path.split(os.pathsep) if entry]
    return path if root in entries else os.pathsep.join([root, *entries])


def _is_local(master: str) -> bool:
    return _is_one_process(master) or master.startswith("local-cluster[")


def _is_one_process(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _local_cores(master: str) -> int:
    """The number of cores of `master`; one task per core keeps them busy.

    >>> _local_cores("local"), _local_cores("local[3]"), _local_cores("local-cluster[2, 4, 1024]")
    (1, 3, 8)
    """
    if cluster := re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)", master):
        return int(cluster.group(1)) * int(cluster.group(2))
    if threads := re.match(r"local\[\s*(\d+)", master):
        return int(threads.group(1))
    return 1 if master == "local" else os.cpu_count() or 1


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
