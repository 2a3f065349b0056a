"""The recipes under `deploy/`, as far as a machine without Docker, Kubernetes and YARN can check them.

Not checked: that the image builds, that pods start, that YARN runs it. `docs/deploying.md` says so too.
"""

from __future__ import annotations

import configparser
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from streamjoin.config.pipeline_file import read_pipeline
from streamjoin.model.errors import PipelineFileError
from streamjoin.service.config_file import read_config
from streamjoin.service.server import LONGEST_STOP
from streamjoin.spark.runtime.java import find_java, wrapped_home
from streamjoin.spark.runtime.session import ARROW_ROWS, DAEMON

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _instructions(file: str = "Dockerfile") -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", "\n".join(l for l in (DEPLOY / file).read_text().splitlines() if l[:1] != "#"))
    lines = [line for line in text.splitlines() if line.strip()]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_contains_what_a_machine_needs() -> None:
    instructions = _instructions()
    assert {name for name, _ in instructions} <= {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "ENTRYPOINT"}
    everything = "\n".join(f"{name} {rest}" for name, rest in instructions)
    (pinned,) = PROJECT["optional-dependencies"]["spark-without-java"]
    version = re.search(r"ARG SPARK=apache/spark:(\d+\.\d+)", everything)
    assert version is not None
    assert f"pyspark>={version[1]}," in pinned
    extras = re.search(r"'/src\[(.*?)\]'", everything)
    assert extras is not None
    assert set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()
    python = re.search(r"ARG PYTHON=python:3\.(\d+)-", everything)
    assert python is not None
    assert int(python[1]) >= 11
    # What is copied from the checkout is there, and is not left out of what Docker gets.
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for name, rest in instructions:
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored
    assert set(PROJECT["license-files"]) | {PROJECT["readme"], "pyproject.toml"} <= {entry[1:] for entry in ignored}
    # Compiled kernels belong to the user that runs it, in the directory that the package looks at.
    order = [rest for name, rest in instructions if name in ("USER", "RUN")]
    assert order.index("185") < order.index("streamjoin warmup")
    for variable in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "XDG_CACHE_HOME"):
        assert f"{variable}=" in everything


def test_the_image_of_the_service_starts_it_with_settings_that_it_knows(tmp_path: Path) -> None:
    instructions = _instructions("service.Dockerfile")
    everything = dict(instructions)
    extras = re.search(r"'/src\[(.*?)\]'", "\n".join(rest for _, rest in instructions))
    assert extras is not None
    assert {"service"} <= set(extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()
    ignored = (DEPLOY / "service.Dockerfile.dockerignore").read_text()
    assert ignored == (DEPLOY / "Dockerfile.dockerignore").read_text()
    users = [rest for name, rest in instructions if name in ("USER", "RUN")]
    assert users.index("185") < users.index("streamjoin warmup")
    assert json.loads(everything["ENTRYPOINT"]) == ["streamjoin", "serve"]
    template = ROOT / "src/streamjoin/service/template.toml"
    file = tmp_path / "streamjoin.toml"
    file.write_text(template.read_text())
    variables = dict(entry.split("=", 1) for entry in everything["ENV"].split())
    # As the image has it, the service listens on all addresses, and so needs a token.
    with pytest.raises(PipelineFileError, match="a token is needed"):
        read_config(file, variables)
    config = read_config(file, {**variables, "STREAMJOIN_SERVICE__TOKEN": "a-token-for-the-image"})
    assert (config.host, config.log) == ("0.0.0.0", "json")
    volume = everything["VOLUME"]
    assert config.checkpoint.startswith(f"{volume}/")
    assert str(config.port) == everything["EXPOSE"]
    _, _, check = everything["HEALTHCHECK"].partition(" CMD ")
    assert f"127.0.0.1:{config.port}/api/v1/health" in json.loads(check)[2]


def test_the_unit_is_one_that_systemd_takes_and_its_settings_are_known(tmp_path: Path) -> None:
    unit = DEPLOY / "systemd/streamjoin.service"
    read = configparser.RawConfigParser(strict=True)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read_string(unit.read_text())
    service = dict(read["Service"])
    assert service["ExecStart"].split()[1:] == ["serve", "/etc/streamjoin/streamjoin.toml"]
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert int(service["TimeoutStopSec"]) > LONGEST_STOP
    # What the service writes lies in directories that the unit gives it.
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    variables = dict(entry.split("=", 1) for entry in service["Environment"].split())
    file = tmp_path / "streamjoin.toml"
    file.write_text((ROOT / "src/streamjoin/service/template.toml").read_text())
    assert read_config(file, variables).log == "json"
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        # The program is not installed where the unit expects it; everything else must be as systemd knows it.
        text = unit.read_text().replace("/opt/streamjoin/bin/streamjoin", sys.executable)
        (tmp_path / unit.name).write_text(text)
        command = [verify, "verify", str(tmp_path / unit.name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert unit.name not in done.stderr, done.stderr


def _manifests() -> dict[str, dict[str, Any]]:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/streamjoin.yaml").read_text()))
    assert len({entry["kind"] for entry in documents}) == len(documents)
    return {entry["kind"]: entry for entry in documents}


@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_the_manifests_are_those_of_kubernetes(version: str) -> None:
    for manifest in _manifests().values():
        kubernetes_validate.validate(manifest, version, strict=True)
    broken = _manifests()["Deployment"]
    broken["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_the_manifests_belong_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = _manifests()
    pod = manifests["Deployment"]["spec"]["template"]
    container = pod["spec"]["containers"][0]
    assert container["command"][:2] == ["streamjoin", "run"]
    monkeypatch.setenv("POD_NAME", "pod")
    monkeypatch.setenv("POD_NAMESPACE", "space")
    assert {entry["name"] for entry in container["env"]} == {"POD_NAME", "POD_NAMESPACE"}
    ((name, text),) = manifests["ConfigMap"]["data"].items()
    assert Path(container["command"][2]).name == name
    (tmp_path / name).write_text(text)
    pipeline = read_pipeline(tmp_path / name)
    conf = dict(pipeline.conf)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    claim = manifests["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.checkpoint"
    assert conf[f"{volume}.mount.path"] == mounts["checkpoint"]
    assert conf[f"{volume}.options.claimName"] == claim["metadata"]["name"]
    assert str(pipeline.checkpoint).startswith(mounts["checkpoint"])
    assert conf["spark.kubernetes.container.image"] == container["image"]
    service = manifests["Service"]
    assert conf["spark.driver.host"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {str(conf["spark.driver.port"]), str(conf["spark.driver.blockManager.port"])}
    assert {str(port["port"]) for port in service["spec"]["ports"]} == ports
    assert {str(port["containerPort"]) for port in container["ports"]} == ports
    account = manifests["ServiceAccount"]["metadata"]["name"]
    assert conf["spark.kubernetes.authenticate.serviceAccountName"] == pod["spec"]["serviceAccountName"] == account
    assert manifests["RoleBinding"]["subjects"][0]["name"] == account
    assert manifests["RoleBinding"]["roleRef"]["name"] == manifests["Role"]["metadata"]["name"]
    # A second driver on the checkpoint would be refused; none is started in the first place.
    assert manifests["Deployment"]["spec"]["strategy"]["type"] == "Recreate"


def test_sparks_own_launcher_takes_the_submit_command(tmp_path: Path) -> None:
    """The launcher turns the arguments of spark-submit into a command of Java, which it prints and does not run."""
    import pyspark

    home = Path(pyspark.__file__).parent
    java = wrapped_home(find_java())
    dry = tmp_path / "dry-submit"
    main = [str(java / "bin/java"), "-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main"]
    dry.write_text(f'#!/bin/sh\nexec {shlex.join(main)} org.apache.spark.deploy.SparkSubmit "$@"\n')
    dry.chmod(0o755)
    (tmp_path / "environment.zip").touch()
    variables = {
        **os.environ, "SPARK_SUBMIT": str(dry), "SPARK_HOME": str(home), "JAVA_HOME": str(java),
        "SPARK_SCALA_VERSION": "2.13",
        "ENVIRONMENT": str(tmp_path / "environment.zip"), "HADOOP_CONF_DIR": str(tmp_path),
    }  # fmt: skip
    submit = [str(DEPLOY / "yarn/submit.sh"), "join.py", "hdfs:///checkpoint"]
    done = subprocess.run(submit, env=variables, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    command = done.stdout.decode().split("\0")
    assert command[-3:-1] == ["join.py", "hdfs:///checkpoint"]
    assert command[command.index("--master") + 1] == "yarn"
    assert command[command.index("--archives") + 1] == f"{tmp_path}/environment.zip#environment"
    conf = dict(entry.split("=", 1) for entry in (command[i + 1] for i, word in enumerate(command) if word == "--conf"))
    assert conf["spark.python.daemon.module"] == DAEMON
    assert conf["spark.sql.execution.arrow.maxRecordsPerBatch"] == str(ARROW_ROWS)
    assert conf["spark.executorEnv.PYTHONPATH"] == "environment"
    refused = subprocess.run(
        [str(DEPLOY / "yarn/submit.sh"), "--mastre"], env=variables, capture_output=True, check=False
    )
    assert refused.returncode or b"mastre" in refused.stderr
    del variables["HADOOP_CONF_DIR"]
    assert b"HADOOP_CONF_DIR" in subprocess.run(submit, env=variables, capture_output=True, check=False).stderr


def test_the_environment_is_packed_as_executors_import_it(tmp_path: Path) -> None:
    """With a pip that installs one module: the real one fetches what the package needs."""
    (tmp_path / "pip.py").write_text(
        "import pathlib, sys\n"
        f"assert sys.argv[1] == 'install' and sys.argv[-1] == '{ROOT}[s3]', sys.argv\n"
        "package = pathlib.Path(sys.argv[sys.argv.index('--target') + 1]) / 'streamjoin'\n"
        "package.mkdir()\n"
        "(package / '__init__.py').write_text('answer = 42')\n"
    )
    target = tmp_path / "environment.zip"
    variables = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    subprocess.run([str(DEPLOY / "pack-environment.sh"), str(target)], env=variables, check=True, capture_output=True)
    with zipfile.ZipFile(target) as archive:
        assert fnmatch.filter(archive.namelist(), "streamjoin/__init__.py")
        archive.extractall(tmp_path / "environment")
    program = "import streamjoin; assert streamjoin.answer == 42"
    found = {**os.environ, "PYTHONPATH": "environment"}
    subprocess.run([sys.executable, "-S", "-c", program], env=found, cwd=tmp_path, check=True)
