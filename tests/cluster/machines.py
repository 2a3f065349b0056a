"""A standalone Spark cluster on the hosts of a network: a master, three workers, a store, and a driver.

The hosts share the disk, but the workers' hosts do not see streamjoin's sources, and run the plain Python of the
machine, which has none of its packages: all of it must come with the archive.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import streamjoin
from streamjoin.spark.runtime.java import find_java, wrapped_home
from tests.cluster.network import Network
from tests.spark.spark_cluster import end
from tests.stores.servers import S3_MODULES, Store, spark_jars

WORKERS = ("worker-1", "worker-2", "worker-3")
HOSTS = ("master", *WORKERS, "store", "driver")
MASTER_PORT, STORE_PORT = 7077, 9000
PATIENCE = 120.0
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ROOT = Path(__file__).parents[2]

# A host that does not answer is given up before it is back.
SETTINGS = {
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "4s",
    "spark.executor.memory": "640m",
    "spark.executor.cores": 1,
    "spark.executor.extraJavaOptions": SMALL,
    "spark.driver.extraJavaOptions": SMALL,
    "spark.task.maxFailures": 50,
    "spark.deploy.maxExecutorRetries": -1,
    "spark.stage.maxConsecutiveAttempts": 50,
    "spark.sql.shuffle.partitions": 3,
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.fileSink.log.compactInterval": 1000,
}


class Machines:
    """All programs of the cluster; closes itself."""

    def __init__(self, network: Network, directory: Path, archive: Path) -> None:
        self.network = network
        self.directory = directory
        self._archive = archive
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses = {name: host.address for name, host in network.hosts.items()}
        endpoint = f"http://{self._addresses['store']}:{STORE_PORT}"
        s3 = {"endpoint": endpoint, "region": "us-east-1", "access_key": "user", "secret_key": "secret"}
        self._store = Store({"s3": s3}, "s3a://bucket", S3_MODULES)
        self.master = f"spark://{self._addresses['master']}:{MASTER_PORT}"

    def __enter__(self) -> Machines:
        moto = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(STORE_PORT)]
        self._start("store", moto)
        self._wait_for("store", STORE_PORT)
        put = "import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1], method='PUT'))"
        bucket = f"http://{self._addresses['store']}:{STORE_PORT}/bucket"
        subprocess.run(self.network.hosts["driver"].command(sys.executable, "-c", put, bucket), check=True)
        self._start("master", [*self._spark_class("master.Master", "master"), "--port", str(MASTER_PORT)])
        self._wait_for("master", MASTER_PORT)
        for worker in WORKERS:
            self.start_worker(worker)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            end(process)
        for host in self.network.hosts:
            self.kill(host)

    def start_worker(self, name: str) -> None:
        """Start the worker of a host that has no Python packages of ours."""
        work = self.directory / name
        command = [
            *self._spark_class("worker.Worker", name),
            "--cores", "1", "--memory", "1g", "-d", str(work), self.master,
        ]  # fmt: skip
        sources = Path(streamjoin.__file__).parents[1]
        hidden = f"mount -t tmpfs none {shlex.quote(str(sources))} && exec {shlex.join(command)}"
        self._start(name, ["unshare", "--mount", "sh", "-c", hidden])

    def kill(self, host: str) -> None:
        """End all processes of a host with SIGKILL, as if it lost its power."""
        for pid in self.network.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def drive(self, directory: Path, name: str) -> subprocess.Popen[bytes]:
        """Start the driver's program over the input in `directory`, with checkpoints under `name`."""
        config: dict[str, Any] = {
            **SETTINGS,
            "spark.driver.host": self._addresses["driver"],
            "spark.driver.bindAddress": self._addresses["driver"],
            "spark.jars": ",".join(map(str, spark_jars(self._store.spark))),
            "spark.archives": f"{self._archive}#environment",
            "spark.executorEnv.PYTHONPATH": "environment",
        }
        checkpoints = self._store.location(name)
        arguments = [str(directory), self.master, checkpoints, json.dumps(config), json.dumps(self._store.storage)]
        variables = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            # That of the workers' hosts.
            "PYSPARK_PYTHON": str(Path(sys.executable).resolve()),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        self._start("driver", [sys.executable, "-m", "tests.cluster.program", *arguments], **variables)
        return self._running["driver"]

    def log(self, host: str) -> str:
        """What the programs of a host have written."""
        return (self.directory / f"{host}.log").read_text(errors="replace")

    def _spark_class(self, program: str, host: str) -> list[str]:
        import pyspark

        home = Path(pyspark.__file__).parent
        address = self._addresses[host]
        spark_class = str(home / "bin" / "spark-class")
        return [spark_class, f"org.apache.spark.deploy.{program}", "--host", address, "--webui-port", "0"]

    def _start(self, host: str, command: Sequence[str], **variables: str) -> None:
        import pyspark

        environ = {
            **os.environ,
            "JAVA_HOME": str(wrapped_home(find_java())),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": self._addresses[host],
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL,
            **variables,
        }
        with (self.directory / f"{host}.log").open("ab") as log:
            self._running[host] = subprocess.Popen(
                self.network.hosts[host].command(*command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environ,
                cwd=self.directory if host != "driver" else ROOT,
            )

    def _wait_for(self, host: str, port: int) -> None:
        """Wait until a program on a host listens, as seen from the host itself."""
        deadline = time.monotonic() + PATIENCE
        probe = f"import socket; socket.create_connection(('{self._addresses[host]}', {port}), 1).close()"
        command = self.network.hosts[host].command(sys.executable, "-c", probe)
        while subprocess.run(command, capture_output=True, check=False).returncode:
            assert self._running[host].poll() is None, self.log(host)[-4000:]
            assert time.monotonic() < deadline, self.log(host)[-4000:]


def free_namespace_reason() -> str | None:
    """Why programs can't be started with a mount of their own; None if they can."""
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip()
