"""What remains of a run: a table on the terminal, a JSON file that says where it comes from, a picture.

Nothing here measures; the JSON holds all the table and the picture were made from.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import provenance
from benchmarks.hardware import gained
from benchmarks.harness import Experiment, Row, human

_VERSIONS = ("streamjoin", "numpy", "numba", "pyarrow", "pyspark", "duckdb", "polars")
_PLAIN_WIDTH = 140


def console() -> Console:
    """Rich on a terminal; wide plain text in a file or a pipe, which has no width."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


@contextlib.contextmanager
def progress(out: Console, total: int) -> Iterator[Callable[[str], None]]:
    """A function that takes one line for each finished run: a bar on a terminal, plain lines elsewhere."""
    if not out.is_terminal:
        done = 0

        def plain(line: str) -> None:
            nonlocal done
            done += 1
            out.print(f"[{done}/{total}] {line}", markup=False)

        yield plain
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda line: bar.update(task, advance=1, description=line)


def table(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """The rows as a table: the cell's parameters, the result, its ratio, and the rest; lists are for the picture."""
    names = list(
        dict.fromkeys(
            key
            for row in rows
            for key in row
            if key not in ("repeats", "least", "most") and not isinstance(row[key], list)
        )
    )
    made = Table(title=experiment.title, title_justify="left")
    for name in names:
        numeric = all(isinstance(row.get(name, 0), (int, float)) for row in rows)
        header = f"{name}\n[dim]{experiment.unit}[/dim]" if name == experiment.measure else name
        made.add_column(header, justify="right" if numeric else "left")
    for row in rows:
        made.add_row(*(_text(name, row.get(name)) for name in names))
    return made


def document(
    name: str, experiment: Experiment, rows: Sequence[Row], command: str, failed: Sequence[str] = (), **run: Any
) -> dict[str, Any]:
    """All that is known of a run, as it goes into the JSON file; `failed` are the runs that gave nothing."""
    return {
        "experiment": name,
        "title": experiment.title,
        "claim": experiment.claim,
        "measure": experiment.measure,
        "unit": experiment.unit,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        **run,
        "repeats": min((row["repeats"] for row in rows), default=0),
        "machine": machine(),
        "modules": provenance.digests(),
        **_judge(experiment, rows, failed),
        "apart": gained(),
        **({"failed": list(failed)} if failed else {}),
        "rows": list(rows),
    }


def _judge(experiment: Experiment, rows: Sequence[Row], failed: Sequence[str]) -> dict[str, Any]:
    try:
        findings, lines = experiment.findings(rows), experiment.verdict(rows)
    except Exception as error:
        if not failed:
            raise
        return {"verdict": [f"no verdict, as runs that it needs failed ({type(error).__name__}: {error})"]}
    return {"findings": [asdict(finding) for finding in findings], "verdict": lines}


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, versions, and the state of the source."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": _versions(),
        "commit": provenance.commit(),
        "load": round(os.getloadavg()[0], 2),
    }


def write(out_dir: Path, name: str, experiment: Experiment, record: dict[str, Any]) -> list[Path]:
    """The JSON, and the picture where the experiment draws one; what was written."""
    out_dir.mkdir(parents=True, exist_ok=True)
    data = out_dir / f"{name}.json"
    data.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    try:
        picture = _picture(out_dir / f"{name}.png", experiment, record["rows"])
    except Exception:
        # What a picture shows may be what failed; the rows that there are, are written.
        if "failed" not in record:
            raise
        picture = None
    return [data, picture] if picture is not None else [data]


def _picture(path: Path, experiment: Experiment, rows: Sequence[Row]) -> Path | None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    experiment.plot(rows, figure)
    if not figure.axes:
        return None
    figure.suptitle(experiment.title, fontsize="medium")
    figure.savefig(path)
    return path


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == "ratio":
        return f"{value:.2f}×" if value < 10 else f"{value:.0f}×"
    if isinstance(value, float):
        return human(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return platform.processor() or "unknown"


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
