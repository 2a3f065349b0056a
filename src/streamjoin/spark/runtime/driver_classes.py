"""Small Java classes that are loaded into the driver, where Spark has no Python interface.

A source is compiled once, with the compiler that Spark uses for its queries, stored in the user's cache as a jar, and
added to the driver's class path. Executors in other processes do not have these classes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
