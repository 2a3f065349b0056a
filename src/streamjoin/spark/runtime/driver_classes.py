"""Small Java classes that are loaded into the driver, where Spark has no Python interface.

A source is compiled once, with the compiler that Spark uses for its queries, stored in the user's cache as a jar, and
added to the driver's class path. Executors in other processes do not have these classes. Where one can't be loaded
Spark keeps its own way.

- `NamedStages.java` replaces the operator that runs a Python stage, and names the stage in Spark's UI: the query's
  name, and route, collect, gate, join or order. Spark itself names all stages after the line of code that started the
  query. A later stage of the query, such as one after an aggregation's shuffle, has the name of the join's last stage.
- `LocalCheckpointFiles.java` writes the files of local checkpoints without starting processes. Without its native
  library, which PySpark does not bring, Hadoop starts a process for every permission it sets on a local disk and every
  link it looks for: about ten for each file of a checkpoint, and a batch writes at least four. Only a Spark that runs
  in one Java takes it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import logging
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamjoin._cache import cache_dir
from streamjoin.spark.runtime.internals import StartingQuery, driver_jvm
from streamjoin.storage.blueprint import TASK, Blueprint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def load(jvm: Any, name: str, source: str, cache: Path) -> Any:
    """The class `name`, which `source` (a file of this package) defines; a loaded class stays.

    Raises:
        Py4JError: it can't be compiled or loaded by this Java.
        OSError: the cache can't be written.
    """
    from py4j.protocol import Py4JJavaError

    loader = jvm.Thread.currentThread().getContextClassLoader()
    try:
        return jvm.Class.forName(name, True, loader)
    except Py4JJavaError:
        jar = _jar(jvm, loader, source, cache)
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
        try:
            return jvm.Class.forName(name, True, loader)
        except Py4JJavaError:
            # The jar is damaged: the next session compiles it again.
            jar.unlink(missing_ok=True)
            raise


def _jar(jvm: Any, loader: Any, source: str, cache: Path) -> Path:
    """The compiled classes, cached per source and version of Spark: compiling takes a new JVM about a second."""
    text = (importlib.resources.files("streamjoin.spark") / source).read_text()
    made_of = f"{text} {importlib.metadata.version('pyspark')}"
    jar = cache / f"{source.removesuffix('.java')}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.jar"
    if not jar.exists():
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(source, text)
        _write(jar, dict(compiler.getBytecodes()))
    return jar


def _write(jar: Path, classes: Mapping[str, bytes]) -> None:
    jar.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=jar.parent, prefix=f".{jar.name}-")
    with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, code in classes.items():
            archive.writestr(f"{name.replace('.', '/')}.class", code)
    Path(draft).replace(jar)


STAGES_CLASS = "streamjoin.spark.NamedStages"
_STAGES_SOURCE = "NamedStages.java"
_STAGE_NAME = "spark.streamjoin.stage."
_STAGES = re.compile(r"(streamjoin_[a-z]+)_([0-9a-f]{32})\(")

_LOG = logging.getLogger(__name__)


def name_stages(spark: SparkSession, query: StartingQuery, joins: list[Blueprint]) -> None:
    """Name the stages of a query that is about to start."""
    from py4j.protocol import Py4JError

    session = query.session
    names = {join.token: join.name for join in joins}
    try:
        strategy = load(driver_jvm(spark), STAGES_CLASS, _STAGES_SOURCE, cache_dir()).newInstance()
        others = session.experimental().extraStrategies()
        getattr(session.experimental(), "extraStrategies_$eq")(others.prepended(strategy))
    except (Py4JError, OSError, TypeError) as error:
        # The first line; the rest of what Py4J says is a stack trace of Java's.
        _LOG.info("the stages of joins have Spark's own names: %s", str(error).partition("\n\t")[0])
        return
    for function, token in _STAGES.findall(query.plan):
        if token in names:
            label = stage_name(query.name, names[token], function)
            session.conf().set(f"{_STAGE_NAME}{function}_{token}", label)


def stage_name(query: str | None, join: str, function: str) -> str:
    """What Spark's UI calls a stage.

    >>> stage_name("prices", "join", "streamjoin_route"), stage_name(None, "first", "streamjoin_task")
    ('prices: route', 'streamjoin: join of first')
    """
    stage = "join" if function == TASK else function.removeprefix("streamjoin_")
    return f"{query or 'streamjoin'}: {stage}" + ("" if join == "join" else f" of {join}")


CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINT_CLASS = "streamjoin.spark.LocalCheckpointFiles"
_CHECKPOINT_SOURCE = "LocalCheckpointFiles.java"


def write_without_processes(spark: SparkSession) -> bool:
    """Set it on `spark`, unless the user chose another one; returns whether it is set now."""
    from py4j.protocol import Py4JError

    if spark.conf.get(CHECKPOINT_FILES, None) is not None:
        return False
    try:
        load(driver_jvm(spark), CHECKPOINT_CLASS, _CHECKPOINT_SOURCE, cache_dir())
    except (Py4JError, OSError) as error:
        _LOG.info("Spark uses its own checkpoint writer: %s", error)
        return False
    spark.conf.set(CHECKPOINT_FILES, CHECKPOINT_CLASS)
    return True
