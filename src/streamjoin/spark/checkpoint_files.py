"""Has Spark write the files of local checkpoints without starting processes.

Without its native library, which PySpark does not bring, Hadoop starts a process for every permission it sets on a
local disk and every link it looks for: about ten for each file that Spark writes into a checkpoint, and a batch writes
at least four. `LocalCheckpointFiles.java` does the same with calls of Java's own, there alone. A class is the one way
in that Spark offers; it is compiled once, by the compiler that Spark compiles its queries with, and kept in the user's
cache.

Only a Spark that runs in one Java takes it: executors elsewhere would not have the class. Where anything is not as
expected Spark keeps its own way, which is only slower.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import logging
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamjoin._cache import cache_dir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CLASS = "streamjoin.spark.LocalCheckpointFiles"

_logger = logging.getLogger(__name__)


def write_without_processes(spark: SparkSession) -> bool:
    """Set it on `spark`, unless somebody chose how to write; whether it is set now."""
    from py4j.protocol import Py4JError

    if spark.conf.get(SETTING, None) is not None:
        return False
    try:
        _load(spark._jvm)
    except (Py4JError, OSError) as error:
        _logger.info("Spark writes checkpoints in its own way: %s", error)
        return False
    spark.conf.set(SETTING, CLASS)
    return True


def _load(jvm: Any) -> None:
    """Put the class where Spark looks for classes; one that is there stays."""
    from py4j.protocol import Py4JJavaError

    loader = jvm.Thread.currentThread().getContextClassLoader()
    try:
        jvm.Class.forName(CLASS, True, loader)
    except Py4JJavaError:
        jar = _jar(jvm, loader)
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
        try:
            jvm.Class.forName(CLASS, True, loader)
        except Py4JJavaError:
            # What can't be loaded was damaged: the next session makes it anew.
            jar.unlink(missing_ok=True)
            raise


def _jar(jvm: Any, loader: Any) -> Path:
    """The compiled classes, made once for a source and a version of Spark: a young Java takes a second for it."""
    source = (importlib.resources.files("streamjoin.spark") / "LocalCheckpointFiles.java").read_text()
    made_of = f"{source} {importlib.metadata.version('pyspark')}"
    jar = cache_dir() / f"checkpoint-files-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.jar"
    if not jar.exists():
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook("LocalCheckpointFiles.java", source)
        _write(jar, dict(compiler.getBytecodes()))
    return jar


def _write(jar: Path, classes: Mapping[str, bytes]) -> None:
    jar.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=jar.parent, prefix=f".{jar.name}-")
    with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, code in classes.items():
            archive.writestr(f"{name.replace('.', '/')}.class", code)
    Path(draft).replace(jar)
