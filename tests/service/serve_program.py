"""Serves an engine without Spark as a process: `python -m tests.service.serve_program FILE [MODE]`.

Modes: `fail-at-start`, `fail`, `stuck`, where no batch ends and a stop waits for one second, and `files`, where every
batch writes many files at once, of the few that may be open.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from streamjoin.model.errors import SetupError, StateError, StreamJoinError
from streamjoin.queries.sinks.base import Sink
from streamjoin.service import server
from streamjoin.service.config import ServiceConfig
from streamjoin.service.config_file import read_config
from streamjoin.service.launch import named_sink
from streamjoin.service.server import serve
from tests.service import feeds
from tests.service.held_engine import hold
from tests.service.ticking import TickingEngine


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Started:
    engine: TickingEngine
    config: ServiceConfig

    def sink(self, name: str, query: str) -> Sink:
        return named_sink(self.config, name, query)

    def stop(self) -> None:
        self.engine.stop()
        say(f"engine stopped after {self.engine.metrics().batches} batches")


OPEN_FILES = 256


class Writing:
    """Batches that each have many files open, as those of an engine with many sinks; one that can't fails for good."""

    def __init__(self) -> None:
        self.engine: TickingEngine | None = None

    def __call__(self, number: int) -> Mapping[str, pa.Table]:
        try:
            with contextlib.ExitStack() as files:
                for _ in range(OPEN_FILES // 4):
                    files.enter_context(tempfile.TemporaryFile())
        except OSError as error:
            assert self.engine is not None
            self.engine.fail(StateError(str(error)))
        return feeds.batch(number)


def launcher(mode: str) -> Callable[[ServiceConfig, Callable[[str], None]], Started]:
    def launch(config: ServiceConfig, _: Callable[[str], None]) -> Started:
        if mode == "fail-at-start":
            raise SetupError("no Java")
        writing = Writing()
        engine = TickingEngine(writing if mode == "files" else feeds.batch)
        writing.engine = engine
        if mode == "stuck":
            hold(engine)
        engine.tick_every(0.05)
        if mode == "fail":
            engine.fail(StateError("the disk is full"))
        return Started(engine, config)

    return launch


if __name__ == "__main__":
    mode = sys.argv[2] if len(sys.argv) > 2 else ""
    if mode == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    if mode == "stuck":
        server.LONGEST_STOP = 1.0  # type: ignore[misc]
    try:
        serve(read_config(Path(sys.argv[1])), launcher(mode), say)
    except StreamJoinError as error:
        say(f"error: {error}")
        sys.exit(1)
