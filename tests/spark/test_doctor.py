"""`streamjoin doctor`: what it finds, what it advises, and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamjoin.model.errors import SetupError
from streamjoin.spark.runtime import doctor, jars


def found(what: str) -> doctor.Finding:
    return next(finding for finding in doctor.examine() if finding.what == what)


def ask(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamjoin", "doctor", *arguments]
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environ.pop("NUMBA_CACHE_DIR", None)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)


def test_a_fresh_machine_is_healthy_and_is_told_what_it_may_get(tmp_path: Path) -> None:
    out = ask("--json", cache=tmp_path)
    assert out.returncode == 0, out.stderr
    told = json.loads(out.stdout)
    assert told["healthy"] is True
    states = {finding["what"]: finding for finding in told["findings"]}
    assert list(states) == ["java", "spark", "kernels", "kafka", "memory", "service"]
    assert (states["kafka"]["state"], states["kernels"]["state"]) == ("optional", "optional")
    assert "streamjoin doctor --fetch" in states["kafka"]["fix"]
    assert states["kernels"]["fix"] == "streamjoin warmup"
    assert not list(tmp_path.glob("streamjoin/jars-*")), "looking fetches nothing"


def test_the_text_has_a_line_for_each(tmp_path: Path) -> None:
    out = ask(cache=tmp_path)
    assert [line.split()[0] for line in out.stdout.splitlines() if "->" not in line] == [
        finding.what for finding in doctor.examine()
    ]


def test_without_java_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise SetupError("Spark needs Java 17 or newer, and none was found")

    monkeypatch.setattr(doctor, "find_java", none)
    assert found("java").state == "missing"
    assert not doctor.is_healthy(doctor.examine())


def test_another_spark_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda _: "4.1.0")  # type: ignore[attr-defined]
    assert (found("spark").state, "4.1.0" in found("spark").told) == ("missing", True)


def test_a_damaged_jar_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = jars.directory()
    place.mkdir(parents=True)
    for module in jars.CONNECTOR:
        (place / module.file).write_bytes(b"not a jar")
    assert found("kafka").state == "missing"
    assert f"rm -r {place}" in found("kafka").fix


def test_the_service_is_not_needed_by_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found("service").state == "ok"
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)  # type: ignore[attr-defined]
    assert (found("service").state, "streamjoin[service]" in found("service").fix) == ("optional", True)
    assert doctor.is_healthy([found("service")])
