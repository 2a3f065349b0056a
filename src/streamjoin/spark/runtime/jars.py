"""Spark's Kafka connector: its jars, whether they are installed, and how they are fetched.

The jars are in a directory of the cache that is named after their digests. The directory appears only when complete,
and every use checks the digests, so a damaged or foreign jar never reaches a JVM. Ivy fetches the jars; it is part of
pyspark, and `spark.jars.packages` uses it too. See docs/decisions/0006-kafka-connector.md.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from streamjoin._cache import alone, cache_dir
from streamjoin.model.errors import SetupError
from streamjoin.spark.runtime.java import Java, find_java

SETTINGS = "STREAMJOIN_IVY_SETTINGS"
"""The environment variable with the path of an ivysettings.xml, for a mirror."""

_SECONDS = 900


@dataclass(frozen=True)
class Module:
    """One artifact of a Maven repository; with a digest, only that file is accepted."""

    group: str
    name: str
    version: str
    sha256: str = ""

    @property
    def file(self) -> str:
        """The name of its jar."""
        return f"{self.name}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


CONNECTOR = (
    Module(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    Module(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    Module(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    Module(
        "org.apache.commons",
        "commons-pool2",
        "2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)
"""The newest published connector and what it needs besides Spark. None is published for Spark 4.3 itself: that these
link against it is tested (tests/spark/test_jars.py), and that they run, by the Kafka tests."""


def directory(modules: Sequence[Module] = CONNECTOR, cache: Path | None = None) -> Path:
    """The directory of these jars, whether it exists or not."""
    digest = hashlib.sha256("\n".join(f"{module} {module.sha256}" for module in modules).encode()).hexdigest()
    return (cache_dir() if cache is None else cache) / f"jars-{digest[:16]}"


def present(modules: Sequence[Module] = CONNECTOR, cache: Path | None = None) -> list[Path] | None:
    """The installed jars; None if they were not fetched yet.

    Raises:
        SetupError: the digest of a jar is wrong.
    """
    place = directory(modules, cache)
    if not place.is_dir():
        return None
    paths = [place / module.file for module in modules]
    for module, path in zip(modules, paths, strict=True):
        problem = _wrong(module, path)
        if problem:
            raise SetupError(f"{problem}; remove {place} and run `streamjoin doctor --fetch`")
    return paths


def fetch(
    modules: Sequence[Module] = CONNECTOR, cache: Path | None = None, environ: Mapping[str, str] | None = None
) -> list[Path]:
    """The jars; fetches them if they are not installed.

    Raises:
        SetupError: they can't be fetched, or the digest of one is wrong.
    """
    paths = present(modules, cache)
    if paths is not None:
        return paths
    place = directory(modules, cache)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    except OSError as error:
        raise SetupError(f"jars can't be stored in {place.parent}: {error}; set XDG_CACHE_HOME elsewhere") from error
    try:
        retrieve(modules, draft / "jars", ivy_home=place.parent / "ivy", transitive=False, environ=environ)
        for module in modules:
            problem = _wrong(module, draft / "jars" / module.file)
            if problem:
                raise SetupError(f"{problem}; nothing was stored. Do not trust the repository it came from")
        try:
            (draft / "jars").rename(place)
        except OSError:
            # Another process was first.
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return present(modules, cache) or []


def _wrong(module: Module, path: Path) -> str | None:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return f"the jar {path} can't be read ({error.strerror})"
    return None if digest == module.sha256 else f"the jar {path.name} has the SHA-256 {digest}, not {module.sha256}"


def retrieve(
    modules: Sequence[Module],
    into: Path,
    *,
    ivy_home: Path,
    transitive: bool,
    environ: Mapping[str, str] | None = None,
    types: Sequence[str] = ("jar", "bundle"),
) -> None:
    """Download `modules` with Ivy into `into`, files of these types; with `transitive`, their dependencies too.

    Raises:
        SetupError: there is no Java or pyspark, or a module can't be fetched.
    """
    environ = os.environ if environ is None else environ
    java = find_java()
    into.mkdir(parents=True, exist_ok=True)
    ivy_file = into.parent / "ivy.xml"
    ivy_file.write_text(_ivy_file(modules, transitive))
    command = [
        *_ivy(java, ivy_home),
        "-types",
        *types,
        "-ivy",
        str(ivy_file),
        "-retrieve",
        f"{into}/[artifact]-[revision](-[classifier]).[ext]",
    ]
    if environ.get(SETTINGS):
        command += ["-settings", environ[SETTINGS]]
    try:
        # Two that fill one cache at a time fail on each other's drafts.
        with alone(ivy_home / "filling.lock"):
            ivy = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"the jars could not be fetched: {error}") from error
    finally:
        ivy_file.unlink(missing_ok=True)
    missing = [str(module) for module in modules if not (into / module.file).exists()]
    if ivy.returncode or missing:
        raise SetupError(
            f"could not fetch {', '.join(missing) or 'all that is needed'}: {_complaint(ivy.stdout + ivy.stderr)}. "
            f"Where Maven Central can't be reached, name an ivysettings.xml for a mirror in {SETTINGS}, or put the "
            "jars into spark.jars"
        )


def _ivy(java: Java, home: Path) -> list[str]:
    import pyspark

    ivy_jars = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not ivy_jars:
        raise SetupError("this pyspark has no Ivy among its jars: name the connector's jars in spark.jars yourself")
    program = str(java.home / "bin" / "java")
    return [program, f"-Divy.default.ivy.user.dir={home}", "-jar", str(ivy_jars[-1])]


def _ivy_file(modules: Sequence[Module], transitive: bool) -> str:
    lines = [
        f"<dependency org={quoteattr(m.group)} name={quoteattr(m.name)} rev={quoteattr(m.version)} "
        f'conf="default->default" transitive="{str(transitive).lower()}"/>'
        for m in modules
    ]
    return (
        '<ivy-module version="2.0"><info organisation="streamjoin" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _complaint(output: str) -> str:
    """The lines of Ivy's output that name the failure."""
    marks = (
        "not found",
        "unresolved",
        "refused",
        "UnknownHost",
        "timed out",
        "SERVER ERROR",
        "invalid sha1",
        "Exception",
    )
    complaints = [line.strip(" :\t") for line in output.splitlines() if any(mark in line for mark in marks)]
    return "; ".join(dict.fromkeys(complaints[:4])) or "Ivy gave no reason"


def classpath_setting(conf: Mapping[str, str], jars: Sequence[Path]) -> dict[str, str]:
    """The setting that adds `jars` to those of `conf` on the class path of the driver and all executors."""
    own = [entry for entry in conf.get("spark.jars", "").split(",") if entry]
    return {"spark.jars": ",".join([*own, *(str(jar) for jar in jars)])}


def with_connector(conf: Mapping[str, str], report: Callable[[str], object]) -> dict[str, str]:
    """Settings of a session with the connector, unless they bring one; `report` is told if it has to be fetched."""
    if brings_connector(conf):
        return dict(conf)
    if present() is None:
        report("fetching Spark's Kafka connector (once) ...")
    return {**conf, **classpath_setting(conf, fetch())}


def brings_connector(conf: Mapping[str, str]) -> bool:
    """Whether the user's settings already contain a Kafka connector."""
    settings = " ".join(
        conf.get(key, "") for key in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    )
    return "spark-sql-kafka" in settings
