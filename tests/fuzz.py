"""All oracles with fresh seeds for as long as told: `make fuzz MINUTES=30`.

The files below compare generated joins and queries with references. Each round runs one of them under a new seed, which
Hypothesis and the tests that draw by themselves (`tests.seeds`) both use. A failure does not end the run: its output
and the command that repeats it are printed, and the exit status is 1. A case that was found becomes a test.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence

TARGETS = (
    "tests/joins/test_conformance.py",
    "tests/joins/test_default_order.py",
    "tests/joins/test_live_conformance.py",
    "tests/spark/test_combinations.py",
    "tests/queries/test_core.py",
    "tests/spark/test_join_stages.py",
    "tests/kernels/test_encode.py",
    "tests/queries/test_core_disturbed.py",
    "tests/joins/test_large.py",
    "tests/indexes/test_conformance.py",
    "tests/gate/test_merge.py",
    "tests/gate/test_scale_gate_library.py",
    "tests/spark/test_gate_stages.py",
    "tests/queries/test_cell_scaling.py",
    "tests/model/test_evaluation.py",
    "tests/model/test_functions.py",
    "tests/queries/test_core_budgets.py",
    "tests/queries/test_distributed_cells.py",
    "tests/queries/test_embedded_engine.py",
    "tests/queries/test_every_step_isolated.py",
    "tests/queries/test_kinds.py",
    "tests/queries/test_optimizer.py",
    "tests/queries/test_selection_tables.py",
    "tests/queries/test_sources.py",
    "tests/formats/test_registry.py",
    "tests/joins/test_bitmap_blocks.py",
    "tests/joins/test_extreme_times.py",
    "tests/joins/test_kinds.py",
    "tests/joins/test_live_failures.py",
    "tests/joins/test_live_kinds.py",
    "tests/joins/test_live_runners.py",
    "tests/joins/test_registering.py",
    "tests/joins/test_shared_steps.py",
    "tests/benchmarks/papers/test_bw_tree.py",
    "tests/spark/test_kind_stages.py",
    "tests/spark/test_end_of_input.py",
    "tests/windows/test_clock.py",
    "tests/joins/test_live_here.py",
    "tests/queries/test_groups.py",
    "tests/queries/test_window_joins.py",
    "tests/spark/test_arrival_stages.py",
    "tests/spark/test_summary_stages.py",
)


def fuzz(minutes: float, targets: Sequence[str] = TARGETS, rounds: int | None = None) -> int:
    """Run the targets in turn until the time is over, or so many rounds; the number of rounds that failed."""
    begin = time.monotonic()
    failures = 0
    for target in itertools.islice(itertools.cycle(targets), rounds):
        left = 60 * minutes - (time.monotonic() - begin)
        if left <= 0:
            return failures
        seed = random.SystemRandom().randrange(1 << 32)
        command = [sys.executable, "-m", "pytest", "-q", "-x", f"--hypothesis-seed={seed}", target]
        environment = {**os.environ, "STREAMJOIN_FUZZ_SEED": str(seed)}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=left)
        except subprocess.TimeoutExpired:
            print(f"{minutes:6.1f} min  {target}  seed {seed}: stopped, the time is over", flush=True)
            return failures
        summary = (done.stdout.strip().splitlines() or ["no output"])[-1]
        print(f"{(time.monotonic() - begin) / 60:6.1f} min  {target}  seed {seed}: {summary}", flush=True)
        if done.returncode:
            failures += 1
            print(done.stdout, done.stderr, sep="\n")
            print(f"again: STREAMJOIN_FUZZ_SEED={seed} {' '.join(command)}", flush=True)
    return failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="run all oracles with fresh seeds")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("targets", nargs="*", default=TARGETS)
    given = parser.parse_args()
    sys.exit(1 if fuzz(given.minutes, given.targets) else 0)
