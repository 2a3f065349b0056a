"""The threads and the memory for the steps of one join; with one thread, everything runs in the caller's.

A thread that needs the interpreter's lock waits for the one that has it, and being woken takes longer than many a
step. So a step should be calls of one kernel (`Workers.call`): the threads that carry them out never go back to the
interpreter. A step in Python (`Workers.map`) wakes each worker once, and only the last one wakes the caller. Where
there is little to do, handing it over takes longer than doing it: see `Workers.sharing`.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from math import inf
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from streamjoin.jit.calls import KernelCalls, are_possible, close, new_board, run_calls, serve
from streamjoin.windows.memory import Memory

T = TypeVar("T")
R = TypeVar("R")

Orders = SimpleQueue[Callable[[], None] | None]
# Handing a step over takes a tenth of a millisecond, in which one thread does most steps for a few thousand tuples. A
# single helper gains half of what is left, many gain nearly all of it.
_LEAST_SHARED, _LEAST_SHARED_BY_TWO = 1 << 14, 1 << 16


class Workers:
    """Runs independent parts of a step in parallel. The first error stops the step and reaches the caller."""

    def __init__(self, n: int, *, reuses: bool = False) -> None:
        """With `reuses`, arrays and results without references are used again."""
        self.n = n
        self.memory = Memory(reuses)
        self._alone = n == 1
        self._least = least_shared(n)
        self._orders: list[Orders] = []
        self._threads: list[threading.Thread] = []
        self._helpers: list[threading.Thread] = []
        self._has_helpers = False
        self._board = new_board()
        # Reentrant, and never waited for: an interrupt may come between taking it and letting it go.
        self._calling = threading.RLock()

    def call(self, kernel: Callable[..., Any], *groups: KernelCalls) -> list[Any]:
        """Carry out calls of a kernel side by side; what they return, which is an integer or nothing."""
        n = sum(group.n for group in groups)
        if self._alone or n < 2 or not are_possible():
            return self.map(lambda arguments: kernel(*arguments), _listed(groups))
        if not self._calling.acquire(blocking=False):
            # Another thread has the board.
            return [kernel(*arguments) for arguments in _listed(groups)]
        try:
            self._hire_helpers(min(self.n, n) - 1)
            return run_calls(self._board, kernel, [group for group in groups if group.n])
        finally:
            self._calling.release()

    @contextmanager
    def sharing(self, tuples: int | None) -> Iterator[None]:
        """Share the steps inside only if they are for enough tuples; with None, all of them."""
        before, self._alone = self._alone, self.n == 1 or (tuples is not None and tuples < self._least)
        try:
            yield
        finally:
            self._alone = before

    def _hire_helpers(self, n: int) -> None:
        if n > 0 and not self._has_helpers:
            self._has_helpers = True
            # As for `_hire`.
            weakref.finalize(self, close, self._board).atexit = False
        while len(self._helpers) < n:
            name = f"streamjoin_helper_{len(self._helpers)}"
            helper = threading.Thread(target=serve, args=(self._board,), name=name, daemon=True)
            helper.start()
            self._helpers.append(helper)

    def map(self, step: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """`step` of every part, in order. With more than one worker, each takes the next part that is not taken yet."""
        helpers = min(self.n, len(parts)) - 1
        if helpers < 1 or self._alone:
            return [step(part) for part in parts]
        results: list[R | None] = [None] * len(parts)
        untaken = iter(range(len(parts)))
        errors: list[BaseException] = []

        def run() -> None:
            try:
                for k in untaken:
                    results[k] = step(parts[k])
            except BaseException as error:  # passed on to the caller
                errors.append(error)
                # The others take no more parts.
                deque(untaken, maxlen=0)

        done = self._send(run, helpers)
        try:
            run()
        finally:
            # Do not return while a part still writes to shared arrays.
            done.acquire()
        if errors:
            raise errors[0]
        return cast("list[R]", results)

    def _send(self, order: Callable[[], None], helpers: int) -> threading.Lock:
        """Let the first threads run `order`; the lock returned is free once all of them have."""
        while len(self._orders) < helpers:
            self._hire()
        done, returns = threading.Lock(), count(1)
        done.acquire()

        def carry_out() -> None:
            order()
            if next(returns) == helpers:
                done.release()

        for orders in self._orders[:helpers]:
            orders.put(carry_out)
        return done

    def _hire(self) -> None:
        orders: Orders = SimpleQueue()
        # A thread holds no reference to its owner, so workers that were not closed can be collected.
        thread = threading.Thread(target=_serve, args=(orders,), name=f"streamjoin_{len(self._orders)}", daemon=True)
        # Not at exit: a thread woken during interpreter shutdown may never finish.
        weakref.finalize(self, orders.put, None).atexit = False
        thread.start()
        self._orders.append(orders)
        self._threads.append(thread)

    def spread(self, step: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`step` of every item; items are assigned to the workers round-robin."""
        parts = [list(range(i, len(items), self.n)) for i in range(min(self.n, len(items)))]
        results = self.map(lambda part: [(i, step(items[i])) for i in part], parts)
        return [result for _, result in sorted((pair for part in results for pair in part), key=lambda pair: pair[0])]

    def settle(self) -> None:
        """Wait until no part is running: an interrupt may have ended `map` before its threads were done."""
        if self._orders:
            self._send(_nothing, len(self._orders)).acquire()

    def close(self) -> None:
        """End the threads."""
        self.memory.clear()
        threads, self._threads = self._threads, []
        orders, self._orders = self._orders, []
        for each in orders:
            each.put(None)
        if self._has_helpers:
            close(self._board)
            threads += self._helpers
            self._helpers, self._has_helpers, self._board = [], False, new_board()
        for thread in threads:
            thread.join()


def _listed(groups: Sequence[KernelCalls]) -> list[tuple[Any, ...]]:
    """The arguments of each call."""
    return [group.of(k) for group in groups for k in range(group.n)]


def _serve(orders: Orders) -> None:
    while (order := orders.get()) is not None:
        order()
        del order


def _nothing() -> None:
    """An order that every thread carries out after those before it."""


def least_shared(n: int) -> float:
    """The least number of tuples whose steps are worth sharing among `n` workers."""
    return max(_LEAST_SHARED, _LEAST_SHARED_BY_TWO / (n - 1)) if n > 1 else inf


def cuts(n: int, parts: int) -> list[tuple[int, int]]:
    """0..n cut into at most `parts` ranges of nearly one size.

    >>> cuts(10, 3)
    [(0, 3), (3, 6), (6, 10)]
    """
    parts = max(1, min(parts, n))
    edges = [n * i // parts for i in range(parts + 1)]
    return list(pairwise(edges))
