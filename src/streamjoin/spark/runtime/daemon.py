"""The process that Spark forks its Python workers from, with what the join needs already loaded.

Named by `spark.python.daemon.module` and run as `python -m streamjoin.spark.runtime.daemon`. Workers inherit the loaded
modules and kernels, so none pays for importing, loading or compiling them, and the collected and frozen heap keeps
the garbage collection cheap that a worker runs after each task. Spark reads the worker port from our output: nothing
else may ever be written there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import sys
import time

from pyspark.daemon import manager

from streamjoin.spark.runtime.session import MORE_WARMING

PRELOADED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.worker",
    "streamjoin.spark.stages.gate",
    "streamjoin.spark.stages.route",
    "streamjoin.spark.stages.task",
)
PRELOADED_PACKAGES = ("streamjoin.model", "streamjoin.kernels", "streamjoin.windows")


def preload() -> list[str]:
    """Import what the workers will need and freeze it; returns the names that were loaded.

    A module that fails to import is left out: the task that needs it fails with the reason, in its own
    traceback, where it reaches the user; here it would only end every worker without a word.
    """
    loaded = []
    with contextlib.redirect_stdout(sys.stderr):
        for name in (*PRELOADED, *_modules()):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
                loaded.append(name)
    gc.collect()
    gc.freeze()
    return loaded


def _modules() -> list[str]:
    names = []
    for package in PRELOADED_PACKAGES:
        with contextlib.suppress(Exception):
            paths = importlib.import_module(package).__path__
            names += [package, *(module.name for module in pkgutil.walk_packages(paths, f"{package}."))]
    return names


def start() -> None:
    """Load modules and kernels, and note how long that took for the first batch to tell.

    What fails here is left to the tasks, whose own errors reach the user.
    """
    began = time.perf_counter()
    preload()
    for name in ("streamjoin.spark.runtime.warming", *filter(None, os.environ.get(MORE_WARMING, "").split(","))):
        with contextlib.suppress(Exception), contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(name).warm()
    with contextlib.suppress(Exception):
        importlib.import_module("streamjoin.spark.stages.spending").keep(time.perf_counter() - began)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    start()
    manager()
