"""What compiling costs: all kernels in a new process with an empty cache, in CPU seconds, by module and kernel.

The process runs what `streamjoin warmup` runs. A kernel's seconds are its own, without those of the kernels that it
calls; one that is compiled for several types counts once for each. The time in which LLVM optimises a kernel together
with all that it calls is the calling kernel's. Beside it is the same process with the cache that the first one left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.harness import Cell, Context, Experiment, Figure, Row, met
from benchmarks.product.first_push import EMPTY, FILLED, cpu_seconds

_AIM = 60.0
_LARGEST = 12
_ENGINE, _ALL = "embedded engine", "all"
_PROGRAM = """
import collections, json, time
from numba.core import event

class Listener(event.Listener):
    def __init__(self):
        self.running, self.seconds, self.overloads = [], collections.Counter(), collections.Counter()

    def on_start(self, event):
        self.running.append([time.thread_time(), 0.0])

    def on_end(self, event):
        begin, inside = self.running.pop()
        took = time.thread_time() - begin
        function = event.data["dispatcher"].py_func
        name = f"{function.__module__}.{function.__qualname__}".removeprefix("streamjoin.kernels.")
        self.seconds[name] += took - inside
        self.overloads[name] += 1
        if self.running:
            self.running[-1][1] += took

listener = Listener()
event.register("numba:compile", listener)
from streamjoin.joins import warming as engine
list(engine.warm())
if WHOLE:
    from streamjoin.queries.executors import warming as adhoc
    from streamjoin.spark.runtime import warming as spark
    spark.warm()
    adhoc.warm()
print(json.dumps([[name, listener.seconds[name], listener.overloads[name]] for name in listener.seconds]))
"""


class CompileTime(Experiment):
    """CPU seconds of the warm-up."""

    title = "compile_time: all kernels in a new process, CPU seconds"
    measure = "runs_per_cpu_minute"
    unit = "runs per CPU minute"
    repeats = 1
    warmups = 0
    against: ClassVar = {"cache": EMPTY}

    def cells(self, quick: bool) -> Sequence[Cell]:
        """All kernels, or those of the embedded engine alone, with both caches."""
        return [{"kernels": _ENGINE if quick else _ALL, "cache": cache} for cache in (EMPTY, FILLED)]

    def run(self, cell: Cell, context: Context) -> Mapping[str, Any]:
        """Run the warm-up once; the filled cache is what the run with the empty one left."""
        program = _PROGRAM.replace("WHOLE", str(cell["kernels"] == _ALL))
        cache = context.scratch / "cache"
        seconds, output = cpu_seconds(program, cache, context.scratch / "bytecode")
        compiled = sorted(json.loads(output.splitlines()[-1]), key=lambda each: -each[1])
        modules: dict[str, tuple[float, int]] = {}
        for name, own, n in compiled:
            module = name.partition(".<locals>")[0].rpartition(".")[0]
            seconds_before, overloads_before = modules.get(module, (0.0, 0))
            modules[module] = seconds_before + own, overloads_before + n
        return {
            "runs_per_cpu_minute": 60 / seconds,
            "cpu_s": seconds,
            "compiled": len(compiled),
            "overloads": sum(n for _, _, n in compiled),
            "modules": [
                f"{name}: {own:.1f} s, {n} overloads"
                for name, (own, n) in sorted(modules.items(), key=lambda item: -item[1][0])
            ],
            "largest": [f"{name}: {own:.1f} s, {n} times" for name, own, n in compiled[:_LARGEST]],
        }

    def plot(self, rows: Sequence[Row], figure: Figure) -> None:
        """A bar for each cache."""
        axes = figure.subplots()
        axes.barh([f"{row['kernels']}, {row['cache']} cache" for row in rows], [row["cpu_s"] for row in rows])
        axes.set(xlabel="CPU seconds of the process")

    def verdict(self, rows: Sequence[Row]) -> list[str]:
        """The aim, the kernel modules, and the largest kernels."""
        lines = []
        for row in rows:
            if row["cache"] == EMPTY:
                lines.append(
                    f"{row['kernels']}: {row['cpu_s']:.1f} CPU seconds for {row['overloads']} overloads of "
                    f"{row['compiled']} kernels; aim {_AIM}: {met(row['cpu_s'] < _AIM)}"
                )
                lines += [*row["modules"], "the largest kernels:", *row["largest"]]
        return lines


EXPERIMENT = CompileTime()
