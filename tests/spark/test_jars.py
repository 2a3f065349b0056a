"""The Kafka connector's jars: that they link against the installed Spark, and that no other file gets in."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamjoin as sj
from streamjoin.spark.runtime import jars
from tests.spark.class_files import read_jars, unresolved

SPARK = "org/apache/spark"
# Kerberos delegation tokens log through names that Spark has changed since; docs/kafka.md says that they don't work.
KNOWN = {"org/apache/spark/kafka010/KafkaDelegationTokenProvider"}


@pytest.fixture(scope="module")
def connector() -> list[Path]:
    return jars.fetch()


@pytest.mark.slow
def test_the_connector_links_against_the_installed_spark(connector: list[Path]) -> None:
    import pyspark

    spark = read_jars((Path(pyspark.__file__).parent / "jars").glob("spark-*.jar"), SPARK)
    classes = read_jars(connector, SPARK)
    assert len(spark) > 10_000
    assert len(classes) > 100
    broken = set(unresolved(classes, spark, SPARK))
    assert {holder for holder, _ in broken} == KNOWN
    # That the check can fail: a Spark without one of its classes.
    gone = "org/apache/spark/sql/execution/streaming/Source"
    without = {name: found for name, found in spark.items() if name != gone}
    assert gone in {reference for _, reference in unresolved(classes, without, SPARK)}


@pytest.fixture
def cache(tmp_path: Path, connector: list[Path]) -> Path:
    shutil.copytree(connector[0].parent, tmp_path / connector[0].parent.name)
    return tmp_path


def test_what_is_here_is_not_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "retrieve", lambda *_, **__: pytest.fail("fetched"))
    assert [path.name for path in jars.fetch(cache=cache)] == [module.file for module in jars.CONNECTOR]


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_damaged_jar_is_refused(cache: Path, damage: str) -> None:
    jar = jars.directory(cache=cache) / jars.CONNECTOR[2].file
    jar.unlink() if damage == "gone" else jar.write_bytes(jar.read_bytes()[:-1])
    with pytest.raises(sj.SetupError, match=r"kafka-clients.*doctor --fetch"):
        jars.present(cache=cache)


def test_a_foreign_jar_is_not_kept(tmp_path: Path, connector: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def foreign(modules: tuple[jars.Module, ...], into: Path, **_: object) -> None:
        shutil.copytree(connector[0].parent, into)
        (into / modules[0].file).write_bytes(b"something else")

    monkeypatch.setattr(jars, "retrieve", foreign)
    with pytest.raises(sj.SetupError, match="nothing was stored"):
        jars.fetch(cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_can_not_be_had_is_said(tmp_path: Path) -> None:
    # A repository in an empty directory: the network takes no part.
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="here"/><resolvers><filesystem name="here" m2compatible="true">'
        f'<artifact pattern="{tmp_path}/none/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"/>'
        "</filesystem></resolvers></ivysettings>"
    )
    module = replace(jars.CONNECTOR[3], version="0.0.0")
    with pytest.raises(sj.SetupError, match=r"could not fetch org\.apache\.commons:commons-pool2:0\.0\.0.*not found"):
        jars.fetch([module], cache=tmp_path / "cache", environ={jars.SETTINGS: str(settings)})


def test_two_processes_do_not_fill_one_cache_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    real = subprocess.run

    def run(command: list[str], **settings: Any) -> subprocess.CompletedProcess[Any]:
        if "-ivy" not in command:
            return real(command, **settings)
        with (tmp_path / "ivy" / "filling.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(command)
        return subprocess.CompletedProcess(command, 1, "", "module not found")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(sj.SetupError):
        jars.retrieve(jars.CONNECTOR, tmp_path / "jars", ivy_home=tmp_path / "ivy", transitive=False)
    assert len(held) == 1


def test_the_users_own_connector_is_left_alone() -> None:
    assert jars.brings_connector({"spark.jars.packages": "org.apache.spark:spark-sql-kafka-0-10_2.13:9.9.9"})
    assert not jars.brings_connector({"spark.jars": "/opt/mine.jar"})
    setting = jars.classpath_setting({"spark.jars": "/opt/mine.jar"}, [Path("/a.jar"), Path("/b.jar")])
    assert setting == {"spark.jars": "/opt/mine.jar,/a.jar,/b.jar"}
