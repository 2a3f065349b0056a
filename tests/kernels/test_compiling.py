"""What a person at a terminal sees while kernels are compiled, and what others do not."""

from __future__ import annotations

import io
import logging
import sys
from types import SimpleNamespace

import pytest

from streamjoin.jit.compiling import CompileWatch
from streamjoin.kernels.batch.sorting import lower_bound, sort_entries


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def theirs() -> None: ...


def compiling(watch: CompileWatch, *functions: object) -> None:
    """Each function is compiled while the one before it is."""
    events = [SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)}) for function in functions]
    for event in events:
        watch.on_start(event)
    for event in reversed(events):
        watch.on_end(event)


@pytest.fixture
def kernels() -> tuple[object, object]:
    return sort_entries.py_func, lower_bound.py_func  # type: ignore[attr-defined]


def test_a_terminal_sees_what_is_compiled(kernels: tuple[object, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    watch = CompileWatch()
    compiling(watch, *kernels)
    compiling(watch, kernels[1])
    text = terminal.getvalue()
    assert text.count("streamjoin: compiling kernels") == 1
    assert "kernel 1: sort_entries," in text
    assert "kernel 3: lower_bound," in text
    # Nothing is left on the line where the program goes on writing.
    assert text.endswith("\r\x1b[2K")
    assert watch.kernels == 3
    assert watch.seconds > 0


def test_nobody_else_is_disturbed(
    kernels: tuple[object, object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "streamjoin")
    for stream in (io.StringIO(), None, closed := Terminal()):
        closed.close()
        monkeypatch.setattr(sys, "stderr", stream)
        compiling(CompileWatch(), *kernels)
        assert not isinstance(stream, io.StringIO) or stream.closed or stream.getvalue() == ""
    assert [record.levelname for record in caplog.records] == ["INFO", "DEBUG"] * 3


def test_a_dumb_terminal_gets_one_line(kernels: tuple[object, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "dumb")
    compiling(CompileWatch(), *kernels)
    assert terminal.getvalue().count("\n") == 1
    assert "\x1b" not in terminal.getvalue()


def test_a_programs_own_kernels_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    watch = CompileWatch()
    compiling(watch, theirs)
    assert (watch.kernels, watch.seconds, terminal.getvalue()) == (0, 0.0, "")
