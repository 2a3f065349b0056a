"""Every index kernel once more as plain Python, with the JIT off, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import numpy as np
from numba import config
from streamjoin.indexes.base import Matches, push_task
from streamjoin.indexes.registry import INDEXES
from tests.indexes.reference import CASES, brute_force, random_task

assert config.DISABLE_JIT
for name, shape in CASES:
    for seed, (domain, size) in enumerate([(1, 100), (50, 250), (10**6, 250)]):
        width = domain // 8 if INDEXES[name].capabilities.ranges else 0
        task = random_task(np.random.default_rng(seed), size, (40, 70), domain, width)
        left, right = INDEXES[name](**shape), INDEXES[name](**shape)
        pairs = push_task(left, right, task, Matches(16))
        found = list(zip(*(column.tolist() for column in pairs), strict=True))
        assert found == brute_force(task), (name, shape, seed)
        left.check()
        right.check()
for name, shape in CASES:
    index = INDEXES[name](**shape)
    index.insert(np.arange(30) % 7, np.arange(30))
    index.expire(5)
    index.merge()
    copy = INDEXES[name](**shape)
    copy.restore(index.snapshot())
    copy.check()
    assert copy.probe([3], [3])[1].tolist() == [10, 17, 24]
print("all", len(CASES))
"""


@pytest.mark.slow
def test_kernels_run_without_the_jit() -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all ")
