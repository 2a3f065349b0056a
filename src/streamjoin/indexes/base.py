"""The protocol of every index over the entries of one side's sliding window.

An entry is (word, seq): an order-preserving int64 encoding of the key, and the tuple's position in its side's stream.
Invariants: seqs are inserted in ascending order; the bound of `expire(min_seq)` never decreases, and entries below it
are invisible at once, even before the index drops them; a probe returns live entries only, grouped by probe, with
ascending seq in each group. No Python code runs per entry: everything goes through the kind's fused kernel.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from streamjoin.kernels.trees.entries import HEAD_WORDS, MIN_SEQ, OWN, SIZE, STEP_NAMES, STEPS, TICKS, TIMED
from streamjoin.kernels.trees.task import DONE, FULL, INSERTS, MAINTAIN_LEFT, PROBES, read_cycles
from streamjoin.model.errors import CheckpointError, InputError, NotSupportedError

I64 = npt.NDArray[np.int64]
Task = Callable[..., tuple[int, int, int]]

LINE = 8  # words of a cache line
PAGE = 64  # sections start at multiples, so that node numbers and cache lines fall together


@dataclass(frozen=True)
class Capabilities:
    """What an index supports."""

    ranges: bool = True  # answers intervals, not only single words
    merges: bool = False  # has an immutable part that `merge` brings up to date


def arena(words: int) -> I64:
    """A zeroed head followed by uninitialized sections, aligned to a cache line."""
    raw = np.empty(words + LINE, dtype=np.int64)
    skip = (-raw.ctypes.data // raw.itemsize) % LINE
    mem = raw[skip : skip + words]
    mem[:HEAD_WORDS] = 0
    return mem


def pages(words: int) -> int:
    """Round a section's length up to whole pages."""
    return -(-words // PAGE) * PAGE


def demand(holds: object, what: str) -> None:
    """Assert an invariant in `check`, at every optimization level of the interpreter."""
    if not holds:
        raise AssertionError(what)


@cache
def ticks_per_ns() -> float:
    """The rate of the cycle counter, measured once over two milliseconds."""
    read_cycles()  # compiled, or loaded from the cache, before the clock starts
    begin, ticks = time.perf_counter_ns(), read_cycles()
    while time.perf_counter_ns() - begin < 2_000_000:
        pass
    return (read_cycles() - ticks) / (time.perf_counter_ns() - begin)


def column(values: npt.ArrayLike, length: int | None = None) -> I64:
    """One contiguous int64 column; a scalar is repeated."""
    array: I64 = np.asarray(values, dtype=np.int64, order="C")
    if array.ndim == 0 and length is not None:
        array = np.full(length, array)
    if array.ndim != 1 or (length is not None and array.size != length):
        expected = "one dimension" if length is None else f"{length} values"
        raise InputError(f"an index column has shape {array.shape}, not {expected}")
    return array


class Index(ABC):
    """One side's window, searchable by key."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()
    task: ClassVar[Task]

    mem: I64  # the arena: what the fused kernel takes; replaced when the index grows

    # -- what a kind defines ---------------------------------------------------------------------------

    @abstractmethod
    def maintain(self) -> None:
        """Make room for the next entry: called when the kernel returned MAINTAIN for this side."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all entries and the expiry bound."""

    @abstractmethod
    def held(self) -> tuple[I64, I64]:
        """Copies of all stored words and seqs, including expired ones, in any order."""

    @abstractmethod
    def sections(self) -> dict[str, int]:
        """Arena words per component, without the head."""

    @abstractmethod
    def check(self) -> None:
        """Raise AssertionError if the structure violates its invariant; for debug runs and tests."""

    def merge(self) -> None:
        """Merge into the immutable part and drop expired entries; a kind without one only expires."""
        self.expire(self.min_seq)

    # -- what all share --------------------------------------------------------------------------------

    def insert(self, words: npt.ArrayLike, seqs: npt.ArrayLike) -> None:
        """Add entries; seqs ascend, and exceed every seq added before."""
        words = column(words)
        seqs = column(seqs, words.size)
        self._run(INSERTS, words, words, seqs, self._bound(words.size))

    def probe(self, lo: npt.ArrayLike, hi: npt.ArrayLike, min_seq: npt.ArrayLike = 0) -> tuple[I64, I64]:
        """All live entries with lo[i] <= word <= hi[i] and seq >= min_seq[i], as (i, seq)."""
        lo = column(lo)
        hi = column(hi, lo.size)
        if not self.capabilities.ranges and np.any(lo < hi):
            raise NotSupportedError(f"the {self.name} index answers equality only: use btree or pim_tree for ranges")
        return self._run(PROBES, lo, hi, lo, column(min_seq, lo.size))

    def expire(self, min_seq: int) -> None:
        """Make every entry with seq < min_seq invisible; a bound below the current one has no effect."""
        one = np.zeros(1, dtype=np.int64)
        self._run(0, one, one, one, one, own_min=np.full(1, max(min_seq, self.min_seq), dtype=np.int64))

    def snapshot(self) -> dict[str, I64]:
        """The live entries in seq order and the bound. The format is the same for every kind of index."""
        words, seqs = self.held()
        live = np.flatnonzero(seqs >= self.min_seq)
        order = live[np.argsort(seqs[live], kind="stable")]
        return {"words": words[order], "seqs": seqs[order], "min_seq": np.array([self.min_seq], dtype=np.int64)}

    def restore(self, snapshot: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace the contents by a snapshot's."""
        missing = {"words", "seqs", "min_seq"} - snapshot.keys()
        if missing:
            raise CheckpointError(f"the snapshot lacks {sorted(missing)}: it was not made by an index")
        words, seqs = column(snapshot["words"]), column(snapshot["seqs"])
        if words.size != seqs.size or np.any(np.diff(seqs) <= 0):
            raise CheckpointError("the snapshot's seqs do not ascend with its words: it is damaged")
        self.reset()
        self.expire(int(snapshot["min_seq"][0]))
        self.load(words, seqs)

    def load(self, words: I64, seqs: I64) -> None:
        """Fill an empty index, in bulk where the kind supports it."""
        self.insert(words, seqs)

    def settings(self) -> dict[str, float]:
        """The parameters in use, whether set or chosen."""
        return {}

    def nbytes(self) -> dict[str, int]:
        """Bytes per component; their sum is the size of the arena."""
        sizes = {"head": HEAD_WORDS, **self.sections()}
        sizes["padding"] = self.mem.size - sum(sizes.values())
        return {name: 8 * words for name, words in sizes.items()}

    def counters(self) -> dict[str, int]:
        """Steps per kind of work, and nanoseconds per kind of work since `time_steps` was called."""
        steps = {name: int(self.mem[STEPS + k]) for k, name in enumerate(STEP_NAMES)}
        if self.mem[TIMED]:
            ticks = self.mem[TICKS : TICKS + len(STEP_NAMES)] / ticks_per_ns()
            steps |= {f"{name}_ns": int(ticks[k]) for k, name in enumerate(STEP_NAMES)}
        return steps

    def time_steps(self, enabled: bool = True) -> None:
        """Start (from zero) or stop measuring time per step; it slows a probe down by about 10%."""
        self.mem[TICKS : TICKS + len(STEP_NAMES)] = 0
        self.mem[TIMED] = enabled

    @property
    def min_seq(self) -> int:
        """The expiry bound."""
        return int(self.mem[MIN_SEQ])

    def __len__(self) -> int:
        """The number of entries, including expired ones that are not dropped yet."""
        return int(self.mem[SIZE])

    def _carry(self, old: I64) -> None:
        """Copy the bound, the size and the counters of the arena that this one replaces."""
        self.mem[:OWN] = old[:OWN]

    def _bound(self, length: int) -> I64:
        return np.full(length, self.mem[MIN_SEQ])

    def _run(self, op: int, word: I64, hi: I64, seq: I64, min_seq: I64, own_min: I64 | None = None) -> tuple[I64, I64]:
        """Send one operation through the fused kernel, with this index as both sides."""
        ops = np.full(word.size, op, dtype=np.int64)
        own_min = self._bound(word.size) if own_min is None else own_min
        return push_task(self, self, (ops, word, word, hi, seq, min_seq, own_min), Matches(word.size * 4))


class Matches:
    """Reusable room for a task's results."""

    def __init__(self, room: int = 1024) -> None:
        self.probe: I64
        self.seq: I64
        # Both or none: a failure can't leave them with different sizes.
        self.probe, self.seq = (np.empty(max(room, 16), dtype=np.int64) for _ in range(2))

    def double(self) -> None:
        """Double the capacity and discard the contents."""
        self.__init__(2 * self.seq.size)  # type: ignore[misc]


def push_task(
    left: Index, right: Index, columns: tuple[I64, ...], out: Matches, start: int = 0, stop: int | None = None
) -> tuple[I64, I64]:
    """Process a task of tuples in arrival order; returns (tuple number, seq on the other side) of all matches.

    `columns` are ops, word, lo, hi, seq, min_seq and own_min, one value per tuple: the operation (ON_RIGHT, PROBES,
    INSERTS), its own word and seq, the interval and live bound it probes the other side with, and the bound its own
    side expires to. The task is the tuples from `start` to `stop`: a caller with many small tasks cuts them from
    one set of columns without slicing it. Both indexes are of one kind; a self-join passes the same one twice.
    The arrays returned may be views of `out`, valid until the next call.
    """
    done: list[tuple[I64, I64]] = []
    stop = columns[0].size if stop is None else stop
    task = type(left).task
    while True:
        code, start, count = task(left.mem, right.mem, *columns, out.probe, out.seq, start, stop)
        if code == DONE and not done:
            return out.probe[:count], out.seq[:count]
        if count:
            done.append((out.probe[:count].copy(), out.seq[:count].copy()))
        if code == DONE:
            break
        if code != FULL:
            (left if code == MAINTAIN_LEFT else right).maintain()
        elif not count:
            out.double()
    empty = np.empty(0, dtype=np.int64)
    return (
        np.concatenate([probe for probe, _ in done] or [empty]),
        np.concatenate([seq for _, seq in done] or [empty]),
    )
