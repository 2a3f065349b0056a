"""Running the command line inside the test's process: its exit code and what it printed."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from streamjoin.cli.main import app


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Done:
    """`streamjoin ARGUMENTS`, as a process would end."""
    monkeypatch.setattr(sys, "argv", ["streamjoin", *arguments])
    code = 0
    try:
        app()
    except SystemExit as ended:
        code = int(ended.code or 0)
    printed = capsys.readouterr()
    return Done(code, printed.out, printed.err)
