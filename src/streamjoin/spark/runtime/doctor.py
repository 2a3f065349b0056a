"""Checks whether a machine has what a join on Spark needs, and says how to get what is missing.

The checks change nothing, and start a JVM only to ask Java for its version. A finding is `ok`, `optional` (something is
missing that only some uses need) or `missing`; only `missing` counts as a failure.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from streamjoin._cache import cache_dir
from streamjoin._version import __version__
from streamjoin.model.errors import SetupError
from streamjoin.spark.runtime import jars
from streamjoin.spark.runtime.java import find_java

SPARK = "4.3"
LEAST_MEMORY = 2 << 30
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    state: Literal["ok", "optional", "missing"]
    told: str
    fix: str = ""


def examine() -> list[Finding]:
    """Run all checks; a check that fails to run is a finding too."""
    looks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("java", _java),
        ("spark", _spark),
        ("kernels", _kernels),
        ("kafka", _kafka),
        ("memory", _memory),
        ("service", _service),
    )
    findings = []
    for what, look in looks:
        try:
            findings.append(look())
        except (OSError, ValueError) as error:
            findings.append(Finding(what, "missing", f"could not be checked: {error}", "see the message"))
    return findings


def is_healthy(findings: list[Finding]) -> bool:
    """Whether joins can run on Spark here."""
    return all(finding.state != "missing" for finding in findings)


def as_data(findings: list[Finding]) -> dict[str, Any]:
    """The findings as data; the keys are stable across versions."""
    return {
        "version": __version__,
        "healthy": is_healthy(findings),
        "findings": [asdict(finding) for finding in findings],
    }


def as_text(findings: list[Finding]) -> str:
    """The findings as text."""
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.what:<{width}}  {finding.state:<8}  {finding.told}")
        if finding.fix:
            lines.append(f"{'':<{width}}  {'':<8}  -> {finding.fix}")
    return "\n".join(lines)


def _java() -> Finding:
    try:
        java = find_java()
    except SetupError as error:
        return Finding("java", "missing", str(error), "pip install 'streamjoin[spark]', or install a JDK 17 or 21")
    return Finding("java", "ok", f"Java {java.version} from {java.origin}, {java.home}")


def _spark() -> Finding:
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return Finding("spark", "missing", "pyspark is not installed", "pip install 'streamjoin[spark]'")
    if not version.startswith(f"{SPARK}."):
        message = f"pyspark {version}; the join relies on internals of {SPARK}"
        return Finding("spark", "missing", message, "pip install 'streamjoin[spark]'")
    return Finding("spark", "ok", f"pyspark {version}")


def _kernels() -> Finding:
    place = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_dir())
    compiled = sum(1 for _ in place.rglob("*.nbc")) if place.is_dir() else 0
    nearest = next(parent for parent in (place, *place.parents) if parent.exists())
    if not os.access(nearest, os.W_OK):
        message = f"{place} can't be written to, so every process compiles its kernels again"
        return Finding("kernels", "optional", message, "set XDG_CACHE_HOME to a writable directory")
    if not compiled:
        message = f"none compiled yet in {place}; the first join will wait for it"
        return Finding("kernels", "optional", message, "streamjoin warmup")
    return Finding("kernels", "ok", f"{compiled} compiled kernels in {place}")


def _kafka() -> Finding:
    versions = f"connector {jars.CONNECTOR[0].version}, clients {jars.CONNECTOR[2].version}"
    try:
        paths = jars.present()
    except SetupError as error:
        return Finding("kafka", "missing", str(error), f"rm -r {jars.directory()}; streamjoin doctor --fetch")
    if paths is None:
        message = f"the jars are not installed ({versions}); only pipelines from or to Kafka need them"
        fix = "streamjoin doctor --fetch; `streamjoin run` also fetches them when a pipeline needs them"
        return Finding("kafka", "optional", message, fix)
    message = f"{versions} in {paths[0].parent}; none for Spark {SPARK} was published when these were chosen and tested"
    return Finding("kafka", "ok", message)


def _service() -> Finding:
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        message = f"{' and '.join(missing)} not installed; only `streamjoin serve` needs them"
        return Finding("service", "optional", message, "pip install 'streamjoin[service]'")
    return Finding("service", "ok", f"fastapi {importlib.metadata.version('fastapi')}")


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _available() or total
    disk = shutil.disk_usage(next(p for p in (cache_dir(), *cache_dir().parents) if p.exists())).free
    message = f"{_gib(free)} of {_gib(total)} GiB available, {_gib(disk)} GiB of disk for the cache"
    if free < LEAST_MEMORY:
        return Finding(
            "memory", "optional", message, "Spark needs 2 GiB or more: free some memory, or set memory = in [spark]"
        )
    return Finding("memory", "ok", message)


def _available() -> int | None:
    """The available memory as Linux reports it; None elsewhere."""
    if not _MEMINFO.exists():
        return None
    lines = _MEMINFO.read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f}"
