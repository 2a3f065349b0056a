"""A standalone Spark cluster for the tests: a master and workers, started from the pip package, on loopback.

Also finds the executors of a job, by the sessions of the processes that started them, so that a test kills no others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from streamjoin.spark.runtime.java import find_java, wrapped_home

PATIENCE = 60.0
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Standalone:
    """One master and `workers` workers of one core each."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self.directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._port = listening.getsockname()[1]
        self.url = f"spark://127.0.0.1:{self._port}"
        try:
            self._start("master.Master", "--port", str(self._port))
            self._until_it_answers()
            for number in range(workers):
                work = directory / f"worker-{number}"
                self._start("worker.Worker", "--cores", "1", "--memory", "1g", "-d", str(work), self.url)
        except BaseException:
            self.stop()
            raise

    @property
    def sessions(self) -> list[int]:
        """The sessions that the cluster's processes live in."""
        return [process.pid for process in self._processes]

    def stop(self) -> None:
        """End all of it."""
        for process in self._processes:
            end(process)

    @property
    def output(self) -> str:
        """What master and workers said."""
        return (self.directory / "output").read_text()

    def _start(self, program: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environ = {
            **os.environ,
            "JAVA_HOME": str(wrapped_home(find_java())),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}", "--host", "127.0.0.1"]
        with (self.directory / "output").open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    [*command, "--webui-port", "0", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env=environ,
                )
            )

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, self.output[-4000:]
                # A refusal comes at once: wait a little on the process, which must not end.
                try:
                    self._processes[0].wait(timeout=0.1)
                    raise AssertionError(self.output[-4000:])
                except subprocess.TimeoutExpired:
                    continue


def linked_home(directory: Path) -> Path:
    """The pip package's Spark under another directory: a local cluster leaves its executors' files there."""
    import pyspark

    home = directory / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


def executors(sessions: Iterable[int]) -> list[int]:
    """The processes of executors that live in one of `sessions`."""
    wanted = set(sessions)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if _EXECUTOR in (entry / "cmdline").read_bytes().split(b"\0") and os.getsid(int(entry.name)) in wanted:
                found.append(int(entry.name))
        except (OSError, ProcessLookupError):
            # It ended while it was looked at.
            continue
    return sorted(found)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its session, and all in its group, with SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
