"""Live joins whose threads pause at every line of every hand-over: the rows are the oracle's, and every run ends."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import streamjoin as sj
from streamjoin.joins.live.running import InboxIntake
from tests.joins.pause_runs import HAND_OVER, SUBJECTS, Subject, check
from tests.seeds import FRESH, THOROUGH

pytestmark = pytest.mark.slow


def test_a_paused_collector_gives_no_task_to_the_next_array() -> None:
    """It was paused after it had given the lock back and before it handed on; now it is at each line around that."""
    assert check(HAND_OVER, 1, 0.0, at_once=12, times=6, rounds=8) >= 20


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_a_thread_may_pause_anywhere(subject: Subject) -> None:
    """In `make fuzz` also at the lines that subjects have in common; there and in `make thorough` at fewer in a run."""
    assert check(subject, FRESH + 2, 1.0 if FRESH else 0.0, 3 if FRESH else 8 if THOROUGH else 45) >= 20


def test_what_comes_just_before_the_end_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The intake has found nothing to take; before it goes on, the last tuples come, and the end."""
    spec = sj.JoinSpec(on=sj.Equi("k"), window=sj.CountWindow(5))
    one = pa.table({"k": [1]})
    asked, ended = threading.Event(), threading.Event()
    look = InboxIntake._send_waiting

    def looked(intake: InboxIntake) -> bool:
        found = look(intake)
        if not asked.is_set():
            while look(intake):
                pass
            asked.set()
            assert ended.wait(60)
            return False
        return found

    def end(intake: InboxIntake) -> None:
        finish(intake)
        ended.set()

    finish = InboxIntake.end
    # The intake's thread alone takes what comes.
    monkeypatch.setattr(InboxIntake, "_take_in_here", lambda intake: intake._inbox.wake())
    monkeypatch.setattr(InboxIntake, "_send_waiting", looked)
    monkeypatch.setattr(InboxIntake, "end", end)
    schemas: dict[str, Any] = {"left_schema": one.schema, "right_schema": one.schema}
    with sj.live(spec, "low_latency_handshake", 2, **schemas) as join:
        reader = join.consumer()
        join.source("left").push(one)
        assert asked.wait(60)
        join.source("right").push(one)
        join.close()
        assert sum(rows.num_rows for rows in reader) == 1
