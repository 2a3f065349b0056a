"""`make fuzz` gives every round a seed of its own and says how to repeat one that failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fuzz import TARGETS, fuzz


def test_every_file_that_draws_is_fuzzed() -> None:
    assert {"tests/joins/test_conformance.py", "tests/spark/test_combinations.py"} <= set(TARGETS)


@pytest.mark.slow
def test_a_failure_is_told_with_its_seed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rounds = tmp_path / "rounds"
    program = tmp_path / "test_found.py"
    program.write_text(
        "import os, pathlib\n"
        "def test_found():\n"
        f"    rounds = pathlib.Path({str(rounds)!r})\n"
        "    rounds.open('a').write(os.environ['STREAMJOIN_FUZZ_SEED'] + chr(10))\n"
        "    assert len(rounds.read_text().splitlines()) != 1\n"
    )
    assert fuzz(10, [str(program)], rounds=2) == 1
    seeds = rounds.read_text().split()
    assert len(seeds) == len(set(seeds)) == 2
    again = re.findall(r"again: STREAMJOIN_FUZZ_SEED=(\d+) .*--hypothesis-seed=(\d+)", capfd.readouterr().out)
    assert again == [(seeds[0], seeds[0])]
