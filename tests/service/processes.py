"""Services as processes: started, listened to, signalled."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import Empty, Queue

LISTENING = r"listening on (https?://127\.0\.0\.1:\d+)"
"""What a service says once it can be reached; the group is its address."""


class Process:
    """A service whose standard error is read line by line."""

    def __init__(self, arguments: list[str], directory: Path, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=directory,
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def until(self, pattern: str, seconds: float = 300) -> re.Match[str]:
        """Wait for a line."""
        while True:
            try:
                line = self._queue.get(timeout=seconds)
            except Empty:
                raise AssertionError(f"no line {pattern!r} in {self.lines}") from None
            if line is None:
                raise AssertionError(f"it ended without a line {pattern!r}: {self.lines}")
            self.lines.append(line)
            found = re.search(pattern, line)
            if found is not None:
                return found

    def ended(self, seconds: float = 300) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        while (line := self._queue.get()) is not None:
            self.lines.append(line)
        return code


@contextlib.contextmanager
def running(arguments: list[str], directory: Path, **environment: str) -> Iterator[Process]:
    """A process that is gone at the end whatever happens."""
    process = Process(arguments, directory, environment)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()
        process._reader.join()
        assert process.process.stderr is not None
        process.process.stderr.close()


ROOT = Path(__file__).parents[2]


def command(directory: Path, *arguments: str, url: str = "", code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "streamjoin", *arguments],
        cwd=directory,
        env={**os.environ, "STREAMJOIN_URL": url},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def light(file: Path, *mode: str) -> list[str]:
    return ["-m", "tests.service.serve_program", str(file), *mode]
