"""The process that Spark forks its Python workers from, with the join's modules and kernels already loaded.

Named by `spark.python.daemon.module` and run as `python -m streamjoin.spark.runtime.daemon`. Workers inherit the loaded
modules and kernels and need not import, load or compile them. The heap is collected and frozen, which keeps a worker's
garbage collection after each task cheap. Spark reads the worker port from the standard output: nothing else may be
written there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Callable
from typing import Any

import pyspark.daemon

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
PRELOADED_PACKAGES = (
    "streamjoin.model",
    "streamjoin.jit",
    "streamjoin.kernels",
    "streamjoin.windows",
    "streamjoin.queries.kernels",
)


def preload() -> list[str]:
    """Import the workers' modules and freeze the heap; returns the names of the imported modules.

    A module that fails to import is skipped. The task that needs it then fails with a traceback that reaches the user;
    a failure here would end every worker without a message.
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
    """Load modules and kernels, and record the time for the figures of the first batch.

    Failures are ignored here: the tasks' own errors reach the user.
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


def ends_quietly(worker: Callable[..., int]) -> Callable[..., int]:
    """A worker that leaves no trace where Spark has closed the connection.

    Over a Unix domain socket its last flush fails then, while over TCP it is taken and lost.
    """

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return run


if __name__ == "__main__":
    start()
    pyspark.daemon.worker = ends_quietly(pyspark.daemon.worker)
    pyspark.daemon.manager()
