"""All oracles with fresh seeds for as long as told: `make fuzz MINUTES=30`.

Test files that draw what they run compare generated joins and queries with references. Each round runs one of them, in
random order, under a new seed, which Hypothesis and the tests that draw by themselves (`tests.seeds`) both use. A
failure does not end the run: its output and the command that repeats it are printed, and the exit status is 1. A case
that was found becomes a test.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_DRAWS = re.compile(r"^from (hypothesis import|tests\.seeds import .*\b(examples|FRESH)\b)", re.MULTILINE)
TARGETS = sorted(
    str(path.relative_to(_ROOT)) for path in (_ROOT / "tests").glob("**/test_*.py") if _DRAWS.search(path.read_text())
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
    parser.add_argument("targets", nargs="*", default=random.sample(TARGETS, len(TARGETS)))
    given = parser.parse_args()
    sys.exit(1 if fuzz(given.minutes, given.targets) else 0)
