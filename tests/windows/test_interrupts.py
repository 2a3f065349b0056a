"""Signals that are noted in a block: handled behind it, and the handlers are those from before."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from streamjoin.windows import interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Came(Exception):
    """What the handlers raise."""


def fail(number: int, _: Any) -> None:
    raise Came(number)


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """All signals have a handler that raises, inside the test."""
    before = {number: signal.signal(number, fail) for number in SIGNALS}
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == [fail] * len(SIGNALS)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_handled_behind_the_block(number: int) -> None:
    done = False
    with pytest.raises(Came, match=str(int(number))), interrupts.Deferred():
        signal.raise_signal(number)
        done = True
    assert done


def test_what_the_operating_system_does_is_left_to_it() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with interrupts.Deferred():
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_while_handlers_are_put_back_keeps_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, put_back = interrupts.set_handler, []

    def set_handler(number: int, handler: Any) -> Any:
        usual(number, handler)
        if handler is fail:
            put_back.append(number)
            if len(put_back) == 1:
                raise Came("between")

    with pytest.raises(Came, match=str(int(signal.SIGINT))) as raised, interrupts.Deferred():
        monkeypatch.setattr(interrupts, "set_handler", set_handler)
        signal.raise_signal(signal.SIGINT)
    assert str(raised.value.__context__) == "between"
