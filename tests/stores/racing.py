"""Races of two writers for one checkpoint: what each was allowed to acknowledge is there, and only one goes on."""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamjoin.queries.engine.journal import FileJournal
from tests.stores.race_program import last_serial

PATIENCE = 60.0
ENDS = ("fenced", "stopped", "refused")


class Writer:
    """A process that writes changes."""

    def __init__(self, name: str, storage: Mapping[str, Any]) -> None:
        root = Path(__file__).parents[2]
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("race_program.py")), name, json.dumps(storage)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in map(str.strip, self.process.stdout):
            # Hadoop writes to the same place.
            if text in ENDS or text.endswith(f" {self.name}"):
                self._lines.put(text)
        self._lines.put("ended")

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def line(self) -> str:
        """The next line that it prints."""
        text = self._lines.get(timeout=PATIENCE)
        assert text != "ended", f"{self.name} ended"
        return text

    def waiting(self) -> Iterator[str]:
        """The lines that are there already."""
        while not self._lines.empty():
            yield self.line()

    def lines(self, most: int = 1 << 30) -> Iterator[str]:
        """What it prints, up to an end or to `most` lines."""
        for _ in range(most):
            text = self.line()
            yield text
            if text in ENDS:
                return


@contextmanager
def writers(storage: Mapping[str, Any]) -> Iterator[tuple[Writer, Writer]]:
    pair = Writer("a", storage), Writer("b", storage)
    try:
        yield pair
    finally:
        for writer in pair:
            writer.process.send_signal(signal.SIGCONT)
            writer.process.kill()
            writer.process.communicate()


def race(pair: tuple[Writer, Writer], checkpoint: str, rng: random.Random) -> str:
    """Two writers on a new checkpoint, begun at once or with the first one paused; returns how the loser ended."""
    first, second = pair
    first.tell(checkpoint)
    printed: dict[str, list[str]] = {"a": [], "b": []}
    if rng.random() < 0.5:
        printed["a"] += first.lines(rng.randint(1, 3))
        first.process.send_signal(signal.SIGSTOP)
        second.tell(checkpoint)
        printed["b"] += second.lines(rng.randint(1, 3))
        first.process.send_signal(signal.SIGCONT)
        if printed["b"][-1] != "refused":
            printed["a"] += first.lines()
    else:
        second.tell(checkpoint)
        _read_until_one_ends(pair, printed)
    loser = first if printed["a"][-1:] and printed["a"][-1] in ENDS else second
    winner = second if loser is first else first
    winner.tell("stop")
    printed[winner.name] += winner.lines()
    assert printed[winner.name][-1] == "stopped"
    _check(checkpoint, printed)
    return printed[loser.name][-1]


def _read_until_one_ends(pair: tuple[Writer, Writer], printed: dict[str, list[str]]) -> None:
    ending = time.monotonic() + PATIENCE
    while not any(lines and lines[-1] in ENDS for lines in printed.values()):
        assert time.monotonic() < ending, printed
        for writer in pair:
            printed[writer.name] += writer.waiting()


def _check(checkpoint: str, printed: Mapping[str, list[str]]) -> None:
    journal = FileJournal(checkpoint, "embedded")
    try:
        numbers = journal.numbers("changes")
        stored = {number: journal.read("changes", number)["records"][0]["by"] for number in numbers}
        assert numbers == list(range(1, len(numbers) + 1)), (numbers, printed)
        assert all(last_serial(journal, number) == number for number in numbers)
    finally:
        journal.close()
    for name, lines in printed.items():
        acknowledged = [int(line.split()[0]) for line in lines if line[0].isdigit()]
        assert all(stored[serial] == name for serial in acknowledged), (stored, printed)
    # One had it before the other: their changes are not mixed.
    assert len(list(itertools.groupby(stored.values()))) <= 2, (stored, printed)
