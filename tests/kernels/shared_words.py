"""Kernels that hammer the shared words from many threads, and what must hold afterwards; run as a program as well."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np

from streamjoin.handshake.kernels import spsc
from streamjoin.jit import atomics
from streamjoin.jit.crew import lock, try_lock, unlock
from streamjoin.jit.flags import kernel
from streamjoin.jit.machine import I64

COUNTER, LOCK, GUARDED, INSIDE, WORST = 0, 8, 16, 17, 18


@kernel
def _add(words: I64, times: int) -> None:
    for _ in range(times):
        atomics.add(words, COUNTER, 1)


@kernel
def _swap(words: I64, times: int) -> None:
    for _ in range(times):
        done = False
        while not done:
            seen = atomics.load(words, COUNTER)
            done = atomics.swap_if(words, COUNTER, seen, seen + 1)


@kernel
def _guarded(words: I64, times: int) -> None:
    for i in range(times):
        if i % 2:
            lock(words, LOCK)
        else:
            while not try_lock(words, LOCK):
                atomics.give_way()
        words[INSIDE] += 1
        words[WORST] = max(words[WORST], words[INSIDE])
        words[GUARDED] += 1
        words[INSIDE] -= 1
        unlock(words, LOCK)


@kernel
def _collect_tickets(words: I64, times: int, taken: I64) -> None:
    for i in range(times):
        taken[i] = atomics.exchange(words, COUNTER, taken[i])


@kernel
def _produce(mem: I64, at: int, first: int, count: int) -> None:
    sent = 0
    while sent < count:
        slot = spsc.free_slot(mem, at)
        if slot < 0:
            atomics.give_way()
            continue
        for word in range(mem[at + spsc.WIDTH]):
            mem[slot + word] = first + sent
        spsc.publish(mem, at)
        sent += 1


@kernel
def _consume(mem: I64, at: int, out: I64) -> int:
    torn = 0
    got = 0
    while got < out.size:
        slot = spsc.first_slot(mem, at)
        if slot < 0:
            atomics.give_way()
            continue
        out[got] = mem[slot]
        for word in range(mem[at + spsc.WIDTH]):
            torn += mem[slot + word] != out[got]
        spsc.release(mem, at)
        got += 1
    return torn


@kernel
def _take_turns(words: I64, mine: int, turns: int) -> None:
    """Raise the word whenever it is this thread's turn, and sleep until then."""
    for _ in range(turns):
        seen = atomics.load(words, COUNTER)
        while seen % 2 != mine:
            # Far longer than the test may take: only `wake` ends it.
            atomics.sleep_on(words, COUNTER, seen, 1_000_000_000)
            seen = atomics.load(words, COUNTER)
        atomics.add(words, COUNTER, 1)
        atomics.wake(words, COUNTER)


def together(*steps: Callable[[], object]) -> None:
    threads = [threading.Thread(target=step) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def count_with(step: Callable[[I64, int], None], threads: int, times: int) -> I64:
    words = np.zeros(64, np.int64)
    together(*[lambda: step(words, times)] * threads)
    return words


def check_counting(threads: int, times: int) -> None:
    for step in (_add, _swap):
        assert count_with(step, threads, times)[COUNTER] == threads * times
    words = count_with(_guarded, threads, times)
    assert (words[GUARDED], words[WORST], words[LOCK]) == (threads * times, 1, 0)


def check_sleep(turns: int) -> None:
    """Threads that sleep on a word wake each other."""
    words = np.zeros(64, np.int64)
    together(lambda: _take_turns(words, 0, turns), lambda: _take_turns(words, 1, turns))
    assert words[COUNTER] == 2 * turns


def check_exchange(threads: int, times: int) -> None:
    """Each value put in comes out exactly once: what is left over is in the word."""
    words = np.full(64, -1, np.int64)
    tickets = [np.arange(k * times, (k + 1) * times) for k in range(threads)]
    together(*[lambda mine=mine: _collect_tickets(words, times, mine) for mine in tickets])
    assert sorted([*np.concatenate(tickets).tolist(), int(words[COUNTER])]) == list(range(-1, threads * times))


def check_queue(capacity: int, width: int, count: int) -> None:
    at = 16
    mem = np.zeros(at + spsc.queue_words(capacity, width), np.int64)
    spsc.make_queue(mem, at, capacity, width)
    out = np.empty(count, np.int64)
    torn: list[int] = []
    together(lambda: _produce(mem, at, 7, count), lambda: torn.append(_consume(mem, at, out)))
    assert torn == [0]
    assert out.tolist() == list(range(7, 7 + count))
    assert spsc.waiting(mem, at) == 0


if __name__ == "__main__":
    n = int(sys.argv[1])
    check_counting(8, n)
    check_exchange(8, n)
    check_sleep(n)
    for capacity in (1, 2, 64):
        check_queue(capacity, 3, n)
    print("held")
