"""The kernels run as plain Python give the same joins: what is tested is the code, not the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import numpy as np, pyarrow as pa, streamjoin as sj
import benchmarks.papers.cell_join
import benchmarks.papers.three_step
from numba import config
rng = np.random.default_rng(int(config.DISABLE_JIT) * 0 + 5)
table = lambda: pa.table({
    "k": rng.integers(0, 30, 70), "x": rng.normal(0, 2, 70).astype(np.float32), "t": np.sort(rng.integers(0, 50, 70)),
    "s": [f"s{i}" for i in rng.integers(0, 4, 70)]})
for on in (sj.Band("k", "k", 1), sj.Band("k", "k", 3) & sj.Band("x", "x", 0.5), sj.Equi("s") & sj.Band("x", "x", 1.0)):
    for window in (sj.CountWindow(25), sj.TimeWindow(6)):
        l, r = table(), table()
        for algorithm in ("nested_loop", "three_step", "cell_join", "sweep"):
            with sj.open(sj.JoinSpec(on=on, window=window, time="t", order="arrival"), algorithm) as join:
                rows = [join.push(l.slice(i, 35), r.slice(i, 35)).to_pydict() for i in (0, 35)]
            print(algorithm, rows)
ordered = {"time": "t", "order": "event_time", "lateness": 3}
windows = (sj.TimeWindow(6), sj.TimeWindow(3))
specs = [sj.JoinSpec(on=sj.Equi("k"), window=windows, how=how, **ordered) for how in ("full", "semi", "anti")]
specs += [sj.JoinSpec(on=sj.Equi("s"), match=sj.AsOf(direction, 4), how="left", **ordered)
          for direction in ("backward", "forward", "nearest")]
specs += [sj.JoinSpec(on="l.k <= r.k", match=sj.AsOf("nearest", 4), **ordered),
          sj.JoinSpec(on=sj.Within("k", "t", "u"), window=sj.CountWindow(25)),
          sj.JoinSpec(on="abs(l.k - r.k) * 2 < 5 and (l.x / r.x > 1 or not l.s <> r.s)", window=sj.CountWindow(25)),
          sj.JoinSpec(on="abs(l.k - r.k) * 2 < 5 and (l.x / r.x > 1 or not l.x <> r.x)", window=sj.CountWindow(25)),
          sj.JoinSpec(on=sj.Equi("k"), window=windows, time="t", order="arrival", lateness=5, how="left")]
for spec in specs:
    l, r = table(), table().append_column("u", pa.array(rng.integers(20, 60, 70)))
    with sj.open(spec, "interval" if "Within" in repr(spec.on) else "auto") as join:
        print([join.push(l.slice(i, 35), r.slice(i, 35)).to_pydict() for i in (0, 35)], join.close().to_pydict())
"""


def run(disabled: str) -> str:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": disabled, "PYTHONWARNINGS": "ignore:overflow"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True, env=environment
    )
    return done.stdout


@pytest.mark.slow
def test_joins_are_the_same_with_the_jit_off() -> None:
    compiled = run("0")
    assert len(compiled) > 1_000
    assert run("1") == compiled


@pytest.mark.slow
def test_a_sweep_over_descending_probes_is_refused_in_a_checked_build() -> None:
    program = (
        "import numpy as np\n"
        "from streamjoin.kernels.batch.sweep import sweep_run\n"
        "lo, one, out = np.array([5, 3]), np.zeros(2, np.int64), np.zeros(99, np.int64)\n"
        "sweep_run(lo, lo, one, one, np.arange(9), np.arange(9), one[:0], 0, np.array([0, -1]), 2, out, 0)\n"
    )
    for name in ("NUMBA_DISABLE_JIT", "STREAMJOIN_CHECKED"):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env={**os.environ, name: "1"}
        )
        assert "the low ends of probes must ascend" in done.stderr, name


def test_a_users_own_kernels_keep_their_cache(tmp_path: Path) -> None:
    program = (
        "import numba, streamjoin.kernels.batch.sorting as kernels\n"
        "print(kernels.lower_bound._cache.cache_path)\n"
        "print(numba.config.CACHE_DIR)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=120, check=True, env={**environment, "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    ours, theirs = done.stdout.splitlines()
    assert ours.startswith(str(tmp_path / "streamjoin" / "kernels-"))
    assert theirs == ""
