"""A Spark Connect server for the tests, in a process of its own, as clients elsewhere would find it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import QUICK_START
from tests.spark.spark_cluster import end

PATIENCE = 120.0


class ConnectServer:
    """The server, started; `stop` ends it."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "server.log"
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._port = listening.getsockname()[1]
        root = Path(__file__).parents[2]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.connect_server", str(self._port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
                cwd=root,
            )
        assert self._process.stdin is not None
        self._waiting = self._process.stdin
        self.url = f"sc://127.0.0.1:{self._port}"
        self._wait_until_it_answers()

    def stop(self) -> None:
        """End it."""
        end(self._process)
        self._waiting.close()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, self._log.read_text()[-4000:]
                # A refusal comes at once: wait a little on the process, which must not end.
                try:
                    self._process.wait(timeout=0.1)
                except subprocess.TimeoutExpired:
                    continue
                raise AssertionError(self._log.read_text()[-4000:]) from None


def main(port: int) -> None:
    """Serve until the standard input ends."""
    from streamjoin.spark import session

    config = {
        **QUICK_START,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.sql.artifact.isolation.enabled": True,
        "spark.sql.shuffle.partitions": 2,
    }
    session("connect server", "local[2]", memory="1g", config=config)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
