"""The command line, as processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import streamjoin


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streamjoin", *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def test_version() -> None:
    assert run("version").stdout.strip() == streamjoin.__version__


def test_no_arguments_list_the_commands() -> None:
    out = run()
    assert all(command in out.stdout + out.stderr for command in ("demo", "warmup", "version"))


@pytest.mark.slow
def test_warmup_compiles_everything_ahead() -> None:
    first = run("warmup")
    assert first.returncode == 0, first.stderr
    assert "sweep:" in first.stderr
    # Of two processes that write to the cache at the same time one may lose; this is not the only one that does.
    assert any("0 kernels compiled in 0.0 s" in run("warmup").stderr for _ in range(2))


def test_a_wrong_command_line_is_exit_code_2() -> None:
    assert run("demo", "--seconds", "soon").returncode == 2


def test_our_errors_are_one_line_and_exit_code_1() -> None:
    program = (
        "import streamjoin.cli as c, streamjoin as sj\n"
        "def fail(): raise sj.SetupError('no Java; install one')\n"
        "c.commands.command('fail')(fail)\n"
        "import sys; sys.argv = ['streamjoin', 'fail']\n"
        "c.app()\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (out.returncode, out.stderr.strip()) == (1, "error: no Java; install one")
