"""Runs other systems as programs of their own environments: installs them, gives them tasks, reads their rows.

A program in `benchmarks/rivals/programs` reads one task per line and answers with one line of JSON: a JVM starts once
for many tasks. One program runs at a time: the next system's stops it. What fails or takes too long ends its
program and raises `RivalError`; the next task starts it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from streamjoin._cache import cache_dir
from streamjoin.spark.runtime.java import find_java, wrapped_home

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "pathway": ("pathway==0.33.0", "pandas<3"),
    "bytewax": ("bytewax==0.21.1",),
    "flink": ("apache-flink==2.3.0", "setuptools<81"),
    "spark": (),
}
"""What the environment of each system holds; Spark is that of this environment."""
ANSWER = "answer "
"""Begins the line of a program that is its answer: some systems print lines of their own."""
_PROGRAMS = Path(__file__).with_name("programs")
_CLOSING_S = 20


class RivalError(RuntimeError):
    """A system that could not be installed, failed or took too long."""


class RivalTimeoutError(RivalError):
    """A system that took too long."""


@dataclass(frozen=True)
class Stream:
    """One stream of a task: batches by time; `time` is a column of milliseconds, `key` that of a versioned table."""

    name: str
    time: str
    batches: Sequence[pa.Table]
    key: str | None = None

    @property
    def table(self) -> pa.Table:
        """All rows."""
        return pa.concat_tables(self.batches)

    def beginning(self) -> pa.Table:
        """A thousandth of the rows, at least 100: what a program joins to warm up."""
        table = self.table
        return table.slice(0, max(100, table.num_rows // 1000))


@dataclass(frozen=True)
class RivalRun:
    """What a system gave; `start_up` is the time that it takes for a thousandth of the input.

    `seconds` are without it, unless it is more than half of all: the difference would mostly be noise. A rate is then
    at least what the seconds give (`at_least`).
    """

    seconds: float
    start_up: float
    version: str
    tables: Sequence[pa.Table]
    at_least: bool = False


class Programs:
    """The systems' programs; `limit` is the longest that a task may take, in seconds."""

    def __init__(self, limit: float = 300.0, folder: Path = _PROGRAMS) -> None:
        self.limit, self._folder = limit, folder
        self._running: tuple[str, _Program] | None = None

    def run(
        self, system: str, task: Mapping[str, Any], streams: Sequence[Stream], outputs: Sequence[pa.Schema]
    ) -> RivalRun:
        """Let a system do a task; `outputs` are the schemas of its results."""
        with tempfile.TemporaryDirectory(prefix="streamjoin-rivals-") as directory:
            home = Path(directory)
            described = [_write(stream, home, system) for stream in streams]
            (home / "out").mkdir()
            answer = self._program(system).ask({**task, "streams": described, "out": str(home / "out")}, self.limit)
            tables = [_read(home / "out", number, schema) for number, schema in enumerate(outputs)]
        start_up, took = answer["start_up"], answer["seconds"]
        at_least = start_up > took / 2
        return RivalRun(took if at_least else took - start_up, start_up, answer["version"], tables, at_least)

    def ask(self, system: str, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a task without streams."""
        return self._program(system).ask(task, self.limit)

    def close(self) -> None:
        """End the program that runs."""
        if self._running is not None:
            self._running[1].close()
            self._running = None

    def _program(self, system: str) -> _Program:
        if self._running is not None and (self._running[0] != system or not self._running[1].alive):
            self.close()
        if self._running is None:
            self._running = (system, _Program(system, environment(system), self._folder / f"{system}_program.py"))
        return self._running[1]


class _Program:
    """One process that answers tasks."""

    def __init__(self, system: str, python: str, program: Path) -> None:
        self._system = system
        self._directory = tempfile.TemporaryDirectory(prefix="streamjoin-rival-")
        self._errors = Path(self._directory.name) / "errors"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, str(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self._directory.name,
                env={**os.environ, "JAVA_HOME": str(wrapped_home(find_java()))},
                start_new_session=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read_lines, name=f"answers of {system}", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether it can take a task."""
        return self._process.poll() is None

    def ask(self, task: Mapping[str, Any], limit: float) -> Mapping[str, Any]:
        """Its answer to a task."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            self.close(grace=0)
            raise RivalTimeoutError(f"no answer within {limit:g} s") from None
        except OSError:
            line = None
        if line is None:
            self._process.wait()
            lines = self._errors.read_text(errors="replace").strip().splitlines()
            self.close()
            raise RivalError(_reason(lines) or f"{self._system} ended without an answer")
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def close(self, grace: float = _CLOSING_S) -> None:
        """Ask it to end, and end it with all its children if it does not."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._directory.cleanup()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith(ANSWER):
                    self._lines.put(line.removeprefix(ANSWER))
        self._lines.put(None)


def environment(system: str) -> str:
    """The interpreter of a system's environment, made at the first use."""
    packages = PACKAGES[system]
    if not packages:
        return sys.executable
    home = cache_dir() / "rivals" / f"{system}-{'-'.join(map(str, sys.version_info[:2]))}"
    python, stamp = home / "bin" / "python", home / "installed.json"
    if not stamp.exists() or json.loads(stamp.read_text()) != list(packages):
        print(f"installing {', '.join(packages)} (once) ...", flush=True)
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(home)],
            [str(python), "-m", "pip", "install", "--quiet", *packages],
        ):
            installed = subprocess.run(command, capture_output=True, text=True, check=False)
            if installed.returncode:
                raise RivalError(f"can't be installed: {_reason(installed.stderr.strip().splitlines())}")
        stamp.write_text(json.dumps(packages))
    return str(python)


def _reason(lines: Sequence[str]) -> str:
    """The last line that names an error and is no frame of a stack, else the last one; at most 300 characters."""
    named = [line for line in lines if ("Error" in line or "Exception" in line) and not line.lstrip().startswith("at ")]
    return (named or list(lines) or [""])[-1].strip()[:300]


def _write(stream: Stream, home: Path, system: str) -> dict[str, Any]:
    """Write both inputs of a stream as the system reads them; the description of the stream."""
    schema = stream.table.schema
    described: dict[str, Any] = {
        "name": stream.name,
        "time": stream.time,
        "key": stream.key,
        "columns": [[field.name, "BIGINT" if pa.types.is_integer(field.type) else "STRING"] for field in schema],
    }
    for part, batches in (("warm", [stream.beginning()]), ("whole", stream.batches)):
        if system == "spark":
            path = home / f"{stream.name}_{part}"
            path.mkdir()
            for number, table in enumerate(batches):
                file = path / f"{number:05}.parquet"
                pq.write_table(table, file)
                # Spark takes files in the order of their times, two of which could be equal.
                os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
        else:
            path = home / f"{stream.name}_{part}.csv"
            # Flink reads a header as a row.
            csv.write_csv(pa.concat_tables(batches), path, csv.WriteOptions(include_header=system != "flink"))
        described[part] = str(path)
    return described


def _read(out: Path, number: int, schema: pa.Schema) -> pa.Table:
    """What a program wrote: one CSV file with a header, or a folder of Parquet files or of CSV files without."""
    file, folder = out / f"whole-{number}.csv", out / f"whole-{number}"
    types = csv.ConvertOptions(column_types=schema, strings_can_be_null=False)
    if file.exists():
        return csv.read_csv(file, convert_options=types).select(schema.names)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    names = csv.ReadOptions(column_names=schema.names)
    tables = [schema.empty_table()]
    for path in paths:
        if path.suffix == ".parquet":
            tables.append(pq.read_table(path).select(schema.names).cast(schema))
        elif not path.name.startswith((".", "_")) and "_spark_metadata" not in path.parts:
            tables.append(csv.read_csv(path, names, convert_options=types))
    return pa.concat_tables(tables)
