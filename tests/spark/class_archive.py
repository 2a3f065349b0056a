"""An archive of the classes that Spark loads, which makes a young JVM half as dear: the tests start dozens.

`python -m tests.spark.class_archive` makes it, by a small program that runs a query, once for a Java and a pyspark at
one place: a JVM refuses an archive of classes from elsewhere. A JVM that can't use it goes on without.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_PLACE = Path(__file__).parents[2] / "build"
_PROGRAM = """
import sys
from streamjoin.spark import session
spark = session("classes", "local[2]", memory="512m", config={"spark.driver.extraJavaOptions": sys.argv[1]})
rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
rows = rate.mapInArrow(lambda batches: batches, rate.schema)
query = rows.writeStream.format("parquet").option("path", sys.argv[2] + "/out")
query = query.option("checkpointLocation", sys.argv[2] + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()
java.wait()
"""


def archive() -> Path:
    """Where it lies, if it was made."""
    found = importlib.util.find_spec("pyspark")
    place, version = found and found.origin, importlib.metadata.version("pyspark")
    which = f"{os.environ.get('JAVA_HOME')} {shutil.which('java')} {place} {version}"
    return _PLACE / f"spark-classes-{hashlib.sha256(which.encode()).hexdigest()[:16]}.jsa"


def options() -> str:
    """What a JVM is to be told."""
    path = archive()
    return f"-XX:SharedArchiveFile={path} -Xlog:disable" if path.exists() else ""


def make_archive() -> None:
    """Make it where it is not there; whoever comes second waits for the first."""
    path = archive()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        none = path.with_suffix(".none")
        if path.exists() or none.exists():
            return
        draft = path.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        flags = f"-XX:ArchiveClassesAtExit={draft} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
        with tempfile.TemporaryDirectory() as scratch:
            ran = subprocess.run([sys.executable, "-c", _PROGRAM, flags, scratch], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        if draft.exists():
            draft.rename(path)
        else:
            # A Java that makes none: not worth another try.
            none.touch()


if __name__ == "__main__":
    make_archive()
