"""Starts Spark ready for the join: a Java found at run time, the join's settings, and a silent terminal.

The caller's settings override the defaults here. An existing session is never stopped or restarted: its settings are
changed as far as Spark allows, and the others are reported. Environment variables for Spark's start are removed again
before the call returns.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.resources
import logging
import os
import re
import signal
import site
import socket
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamjoin.model.errors import SetupError
from streamjoin.spark.runtime.driver_classes import write_without_processes
from streamjoin.spark.runtime.internals import hand_over, has_context, has_gateway, is_connect
from streamjoin.spark.runtime.java import Java, find_java, wrapped_home
from streamjoin.storage.settings import VARIABLE, StorageSettings, current, hadoop_settings, storage_settings, use

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


@contextlib.contextmanager
def set_meanwhile(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Give settings of a session other values, and back what they had."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)


def session(
    app_name: str = "streamjoin",
    master: str | None = None,
    *,
    remote: str | None = None,
    config: Mapping[str, object] | None = None,
    memory: str | None = None,
    quiet: bool = True,
    storage: StorageSettings | Mapping[str, Any] | None = None,
) -> SparkSession:
    """The Spark session of this process; starts one if there is none.

    Args:
        app_name: the name Spark shows for it.
        master: Spark's master; default: all cores of this machine (`local[*]`).
        remote: a Spark Connect server instead of a master, such as "sc://host:15002"; "local[2]" starts one here.
            Default: the variable SPARK_REMOTE. Needs the extra `connect`.
        config: Spark settings, which override the defaults.
        memory: the heap of the driver, such as "4g"; in local mode the driver is all of Spark.
        quiet: whether to keep Spark's log off the terminal. Failures are raised in Python in any case.
        storage: endpoints and credentials of stores, for Spark, for this process and for Spark's workers; see
            `StorageSettings`. They are never written into a checkpoint.

    Raises:
        SetupError: no pyspark, no usable Java, or an existing session whose settings can't be changed as requested.
        SpecError: a setting in `storage` is wrong.
    """
    settings = {key: _text(value) for key, value in (config or {}).items()}
    if memory is not None:
        settings["spark.driver.memory"] = memory
    if master is not None:
        settings["spark.master"] = master
    stores = None if storage is None else storage_settings(storage)
    remote = remote or os.environ.get("SPARK_REMOTE")
    if remote is not None and master is not None:
        raise SetupError(f"master={master!r} and the Spark Connect server {remote!r} exclude each other: give one")
    with _starting:
        existing = _existing(remote)
        if existing is not None:
            spark = _adapt(existing, settings)
            if stores is not None:
                _hand_over(spark, stores)
        else:
            stored = {**_storage_conf(stores or current()), **settings}
            spark = _start(app_name, stored, quiet) if remote is None else _connect(app_name, remote, stored, quiet)
        if stores is not None:
            use(stores)
        return spark


def defaults(master: str) -> dict[str, str]:
    """The settings a new session gets for `master`, before the caller's own."""
    settings = {
        "spark.master": master,
        _ARROW: str(ARROW_ROWS),
        _DAEMON: DAEMON,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    root = _package_root()
    if root is not None:
        settings[_PYTHON_PATH] = str(root)
    if _is_local(master):
        # Loopback works without a network and with any host name, and no other machine can connect.
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.sql.shuffle.partitions"] = str(_local_cores(master))
        # Over TCP the last, short write to a Python worker waits 40 ms for the acknowledgement of the one before it. On
        # a cluster the path of the socket may be too long: containers have their own directory for temporary files.
        settings["spark.python.unix.domain.socket.enabled"] = str(hasattr(socket, "AF_UNIX")).lower()
    return settings


def _storage_conf(stores: StorageSettings) -> dict[str, str]:
    """Spark's settings for stores: Hadoop's, and the environment of Python workers."""
    conf = {f"spark.hadoop.{key}": value for key, value in hadoop_settings(stores).items()}
    if stores != StorageSettings():
        conf[f"spark.executorEnv.{VARIABLE}"] = stores.to_json()
        # Spark's own pattern misses the keys of Azure's accounts.
        conf["spark.redaction.regex"] = r"(?i)secret|password|token|access[.]?key|account[.]key|credential"
    return conf


def _hand_over(spark: SparkSession, stores: StorageSettings) -> None:
    """Give settings to a session that runs: to Hadoop's configuration, and to workers that start from now on."""
    if is_connect(spark):
        raise SetupError(
            "the settings of stores belong to the Spark Connect server and its executors: start it with spark.hadoop.* "
            f"and spark.executorEnv.{VARIABLE}, or leave storage= out"
        )
    hand_over(spark, hadoop_settings(stores), {VARIABLE: stores.to_json()})


def _existing(remote: str | None) -> SparkSession | None:
    try:
        running = has_context()
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SetupError("pyspark is not installed: pip install 'streamjoin[spark]'") from error
    if "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        # pyspark sets it when the process connects to a server.
        return SparkSession.builder.getOrCreate()
    if not running:
        return None
    if remote is not None:
        raise SetupError(
            f"this process runs a classic Spark session and can't connect to {remote}: stop it first (spark.stop()), "
            "or unset SPARK_REMOTE"
        )
    return SparkSession.builder.getOrCreate()


def _connect(app_name: str, remote: str, wanted: Mapping[str, str], quiet: bool) -> SparkSession:
    """A session of a Spark Connect server; with `local...` the server runs in a JVM of this process."""
    from pyspark.sql import SparkSession

    try:
        with _pandas_unjudged():
            importlib.import_module("pyspark.sql.connect.session")
    except ImportError as error:
        reason = str(error).partition("\n")[0]
        raise SetupError(f"Spark Connect needs more packages ({reason}): pip install 'streamjoin[connect]'") from error
    local = _is_local(remote)
    if not local and any(key.startswith("spark.executorEnv.") for key in wanted):
        raise SetupError(
            f"the executors belong to the Spark Connect server {remote}: set their environment, and storage=, where it "
            "starts"
        )
    settings = _with_package({**defaults(remote), **wanted}) if local else {_ARROW: str(ARROW_ROWS), **wanted}
    settings.pop("spark.master", None)
    builder = SparkSession.builder.remote(remote).appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    environment = _environment(remote, find_java(), quiet) if local else contextlib.nullcontext()
    with environment, warnings.catch_warnings():
        # pyspark sends the server's settings to the session as well, which has no use for them.
        warnings.filterwarnings("ignore", "Failed to set", UserWarning)
        return builder.getOrCreate()


def _with_package(settings: dict[str, str]) -> dict[str, str]:
    """`settings` with streamjoin on the workers' path, unless Python finds it anyway."""
    root = _package_root()
    if root is not None:
        settings[_PYTHON_PATH] = _prepended(str(root), settings[_PYTHON_PATH])
    return settings


def _start(app_name: str, wanted: Mapping[str, str], quiet: bool) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    master = wanted.get("spark.master", "local[*]")
    settings = _with_package({**defaults(master), **wanted, "spark.app.name": app_name})
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    # A JVM outlives the sessions that ran in it, and spark-submit brings its own: neither starts another.
    running = has_gateway() or "PYSPARK_GATEWAY_PORT" in os.environ
    java = None if running else find_java()
    if quiet:
        _silence_error_copies()
    with _environment(master, java, quiet), _pandas_unjudged():
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
def _pandas_unjudged() -> Iterator[None]:
    """Without pyspark's warning of pandas' version when its modules come in: a join does not use pandas."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


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


class Stopping:
    """Records the first SIGINT or SIGTERM and raises at the second: an exception breaks a call to Spark for good."""

    def __init__(self, *signals: signal.Signals) -> None:
        """`signals` are others than these two."""
        self.asked = False
        self._signals = signals or (signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> Stopping:
        self._before = {number: signal.signal(number, self._note) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def session_beside(*arguments: Any, **options: Any) -> SparkSession:
    """`session`, made on another thread: on the main thread pyspark replaces the handler of Ctrl-C."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(session, *arguments, **options).result()
