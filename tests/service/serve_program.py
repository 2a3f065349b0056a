"""Serves the engine without Spark as a process: `python -m tests.service.serve_program FILE [fail-at-start|fail]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streamjoin.model.errors import SetupError, StateError, StreamJoinError
from streamjoin.service.config import ServiceConfig
from streamjoin.service.config_file import read_config
from streamjoin.service.server import serve
from tests.service import feeds
from tests.service.memory_engine import MemoryEngine


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Started:
    engine: MemoryEngine

    def sink(self, name: str, query: str) -> str:
        return f"{name} for {query}"

    def stop(self) -> None:
        self.engine.stop()
        say(f"engine stopped after batch {self.engine.batch}")


def launcher(mode: str) -> Callable[[ServiceConfig, Callable[[str], None]], Started]:
    def launch(_: ServiceConfig, __: Callable[[str], None]) -> Started:
        if mode == "fail-at-start":
            raise SetupError("no Java")
        engine = MemoryEngine(feeds.STREAMS, feeds.batch)
        engine.start(0.05)
        if mode == "fail":
            engine.error = StateError("stream 'trades' failed")
        return Started(engine)

    return launch


if __name__ == "__main__":
    try:
        serve(read_config(Path(sys.argv[1])), launcher(sys.argv[2] if len(sys.argv) > 2 else ""), say)
    except StreamJoinError as error:
        say(f"error: {error}")
        sys.exit(1)
