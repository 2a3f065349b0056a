"""The threads and the memory for the steps of one join; with one thread, everything runs in the caller's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar, cast

from streamjoin.windows.memory import Memory

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """Runs independent parts of a step in parallel. The first error stops the step and reaches the caller."""

    def __init__(self, n: int, *, reuses: bool = False) -> None:
        """With `reuses`, arrays and results that nobody refers to any more are used again."""
        self.n = n
        self.memory = Memory(reuses)
        self._pool = _pool(n)

    def map(self, step: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """`step` of every part, in order. With more than one worker, each takes the next part that nobody has taken."""
        if self._pool is None or len(parts) < 2:
            return [step(part) for part in parts]
        results: list[R | None] = [None] * len(parts)
        untaken = iter(range(len(parts)))

        def run() -> None:
            try:
                for k in untaken:
                    results[k] = step(parts[k])
            except BaseException:
                # The others take no more parts.
                deque(untaken, maxlen=0)
                raise

        futures = [self._pool.submit(run) for _ in range(min(self.n, len(parts)) - 1)]
        try:
            run()
        finally:
            # Do not return while a part still writes to shared arrays.
            errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return cast("list[R]", results)

    def split(self, step: Callable[[int, int], object], n: int, least: int) -> None:
        """`step` of ranges that cover 0..n, one for each worker; fewer than `least` are not worth a thread."""
        if n:
            self.map(lambda part: step(*part), cuts(n, max(1, min(self.n, n // least))))

    def spread(self, step: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`step` of every item; items are assigned to the workers round-robin."""
        parts = [list(range(i, len(items), self.n)) for i in range(min(self.n, len(items)))]
        results = self.map(lambda part: [(i, step(items[i])) for i in part], parts)
        return [result for _, result in sorted((pair for part in results for pair in part), key=lambda pair: pair[0])]

    def settle(self) -> None:
        """Wait until no part is running: an interrupt may have ended `map` before its threads were done."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = _pool(self.n)

    def close(self) -> None:
        """End the threads."""
        self.memory.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=True)


def _pool(n: int) -> ThreadPoolExecutor | None:
    # The caller's thread works too, so n workers need n - 1 more.
    return ThreadPoolExecutor(n - 1, thread_name_prefix="streamjoin") if n > 1 else None


def cuts(n: int, parts: int) -> list[tuple[int, int]]:
    """0..n cut into at most `parts` ranges of nearly one size.

    >>> cuts(10, 3)
    [(0, 3), (3, 6), (6, 10)]
    """
    parts = max(1, min(parts, n))
    edges = [n * i // parts for i in range(parts + 1)]
    return list(pairwise(edges))
