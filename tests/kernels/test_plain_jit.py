"""Numba as it is, without our dispatcher and our cache: the same joins, also with a version that was not tested."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from streamjoin.jit.flags import TESTED
from tests.seeds import THOROUGH

JOINS = """
import sys
import numpy as np, pyarrow as pa, streamjoin as sj
from streamjoin.jit.calls import run
rng = np.random.default_rng(5)
table = lambda: pa.table({"k": rng.integers(0, 30, 70), "t": np.sort(rng.integers(0, 50, 70))})
left, right = table(), table()
spec = sj.JoinSpec(on=sj.Band("k", "k", 1), window=sj.CountWindow(25), time="t", order="arrival")
print(type(run).__name__, type(run._cache).__name__)
for name in sys.argv[1:]:
    algorithm, _, index = name.partition(":")
    with sj.open(spec, algorithm, workers=1 + (algorithm == "scalejoin"), index=index or None) as join:
        rows = [join.push(left.slice(i, 35), right.slice(i, 35)).to_pylist() for i in (0, 35)]
    print([sorted(map(repr, each)) for each in rows])
"""
# Sorted runs, and threads with atomics: the others are built of the same parts, and take longer to compile.
ALGORITHMS = ["sweep", "scalejoin"]
if THOROUGH:
    ALGORITHMS += ["indexed:pim_tree", "nested_loop", "handshake"]

UNTESTED = """
import numba
numba.__version__ = "0.999.1"
from streamjoin.jit.flags import is_compiled, kernel

@kernel
def add_one(x):
    return x + 1

before = is_compiled(add_one)
print(add_one(1), before, is_compiled(add_one), type(add_one).__name__, type(add_one._cache).__name__)
"""


def ran(program: str, *arguments: str, plain: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=600, check=True,
        env={**os.environ, "STREAMJOIN_PLAIN_JIT": plain},
    )  # fmt: skip


@pytest.mark.slow
def test_joins_are_the_same_with_numba_as_it_is() -> None:
    ours, expected = ran(JOINS, "nested_loop").stdout.splitlines()
    assert len(expected) > 1_000
    theirs, *joined = ran(JOINS, *ALGORITHMS, plain="1").stdout.splitlines()
    assert (ours, theirs) == ("KernelDispatcher KernelCache", "CPUDispatcher NullCache")
    assert dict(zip(ALGORITHMS, joined, strict=True)) == dict.fromkeys(ALGORITHMS, expected)


def test_an_untested_numba_is_used_as_it_is_with_a_warning() -> None:
    done = ran(UNTESTED)
    assert done.stdout.split() == ["2", "False", "True", "CPUDispatcher", "NullCache"]
    assert "numba 0.999.1 is installed; tested are 0.61 to before 0.69" in done.stderr


def test_the_tested_versions_are_those_that_are_installed_with_the_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    required = tomllib.loads(text)["project"]["dependencies"]
    for library, (_, first, end) in TESTED.items():
        assert f"{library}>={first[0]}.{first[1]},<{end[0]}.{end[1]}" in required
