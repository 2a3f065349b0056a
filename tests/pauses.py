"""Pauses of threads at chosen lines, for interleavings that load alone produces once in hours.

A thread that comes to a chosen line waits until the other threads have run so many of the watched lines, or none of
them has moved for a while: then they wait for this one. So a pause is as long as the others need to get as far as they
can, and a pause under a lock that all of them need is short. Compiled code is not watched; what it does between two
lines of Python goes on during a pause.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

# Seconds without a watched line after which all others are taken to wait for the thread that pauses; and in all.
QUIET, LONGEST = 0.012, 0.3


@dataclass(frozen=True, order=True)
class Place:
    """A line of a watched function."""

    function: str
    line: int


def functions_of(*owners: type | Callable[..., Any], without: Iterable[str] = ()) -> list[CodeType]:
    """The code of functions, and of all methods that classes define themselves."""
    codes: list[CodeType] = []
    for owner in owners:
        members = vars(owner).values() if inspect.isclass(owner) else (owner,)
        for member in members:
            member = member.fget if isinstance(member, property) else member
            if inspect.isfunction(member) and member.__name__ not in without:
                codes.append(member.__code__)
    return codes


class Watch:
    """Watches the lines of some functions in all threads, and has a thread pause at some of them."""

    def __init__(self, codes: Iterable[CodeType], pauses: dict[Place, frozenset[int]] | None = None) -> None:
        """`pauses`: at which places, and there at which of the times that a thread comes by, counted over all."""
        self._codes = frozenset(codes)
        self._pauses = pauses or {}
        self._moved = threading.Condition()
        self._lines = 0
        self.seen: Counter[Place] = Counter()
        """How often each line was run."""
        self.paused: list[tuple[Place, str, int]] = []
        """Where which thread paused, and how many lines the others ran meanwhile."""
        self.enough = 200
        """After so many lines of the others a thread goes on."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread and those that are started inside the block."""
        # A measurement of coverage has tracers of its own and goes on after the block.
        before, before_threads = sys.gettrace(), threading.gettrace()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before_threads)  # type: ignore[arg-type]

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        del event, arg
        return self._line if frame.f_code in self._codes else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        del arg
        if event == "line":
            place = Place(frame.f_code.co_qualname, frame.f_lineno)
            with self._moved:
                self._lines += 1
                time_here = self.seen[place]
                self.seen[place] += 1
                if time_here in self._pauses.get(place, ()):
                    self._pause(place)
                self._moved.notify_all()
        return self._line

    def _pause(self, place: Place) -> None:
        begin, until = self._lines, time.monotonic() + LONGEST
        while self._lines < begin + self.enough and time.monotonic() < until:
            before = self._lines
            self._moved.wait(QUIET)
            if self._lines == before:
                break
        self.paused.append((place, threading.current_thread().name, self._lines - begin))
