"""What a query may take of one batch, and which queries took more: they lose this batch's rows, the others nothing.

Candidates are the stored tuples that a query's tuples and partial results were compared with; in a step that many
queries share, each counts those that its own tuples read. (What a step reads in less than a thousandth of the smallest
budget counts for all its queries in full: to tell them apart would cost more than it is worth.) Rows are results, and
bytes those of their columns. All is counted while the batch runs, before the memory is asked for. The invariant:
whether a query is over its own budget depends on the tuples and the plan, and what the others get on neither.

All queries together have a budget too, that of the engine. Over it the query that holds most loses its rows, then the
next, until the rest fits: whoever holds less than an equal share of the budget is never among them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from streamjoin._arrays import Array
from streamjoin.model.errors import (
    BudgetExceededError,
    EngineBudgetExceededError,
    InputError,
    InterruptedBatchError,
    SpecError,
)
from streamjoin.queries.core import memory
from streamjoin.queries.core.row_lists import ListedRows
from streamjoin.queries.core.selection_tables import pack_bits

Kind = Literal["candidates", "rows", "bytes"]
KINDS: Final[tuple[Kind, ...]] = ("candidates", "rows", "bytes")
Usage = dict[Kind, tuple[int, str]]
"""What a query took of a batch by kind, and the step of the plan that took the last of it."""
NOBODY: Final = 0
"""The account of queries without a budget."""
_SMALL: Final = 1 / 1024
_WEIGHED_EVERY: Final = 0.02
"""Seconds between two looks at the memory of the process."""
_UNFREED: Final = 1 / 8
"""The share of the engine's bytes that queries may hold which have lost their rows, before these are let go of."""


@dataclass(frozen=True)
class Budget:
    """The most that a query may take of one batch: candidates read, result rows, and their bytes; None for no limit."""

    candidates: int | None = None
    rows: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for kind in KINDS:
            limit = getattr(self, kind)
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
                raise SpecError(f"a budget of {kind} is a whole number from 1 or None, not {limit!r}")

    @property
    def is_bounded(self) -> bool:
        """Whether it limits anything."""
        return any(getattr(self, kind) is not None for kind in KINDS)


UNLIMITED: Final = Budget()


@dataclass(frozen=True)
class EngineBudget:
    """The most that all queries together may hold: result rows and bytes of a batch, memory of the process.

    None is no limit.
    """

    rows: int | None = None
    bytes: int | None = None
    memory: int | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether it limits anything."""
        return self != EngineBudget()

    def shared_by(self, parts: int) -> EngineBudget:
        """What each of several processes may hold of it; their memory is their own."""
        rows, size = (None if limit is None else max(1, limit // parts) for limit in (self.rows, self.bytes))
        return EngineBudget(rows, size)


ANY_AMOUNT: Final = EngineBudget()


class Ledger:
    """The accounts of the queries that have a budget, and what they took of the batch that runs.

    Several threads may charge. Setting `interrupted` stops the batch at its next step. With an `engine` that limits
    anything every query has an account, and `held` says what its results take in memory.
    """

    def __init__(self, interrupted: threading.Event, engine: EngineBudget | None = None) -> None:
        self.engine = engine or ANY_AMOUNT
        self._held = np.zeros(1)
        self._unfreed = 0.0
        self._weighed_at = 0.0
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []
        self._limits: dict[Kind, Array] = {kind: np.full(1, np.inf) for kind in KINDS}
        self._used: dict[Kind, Array] = {kind: np.zeros(1) for kind in KINDS}
        self._places: dict[Kind, Array] = {kind: np.full(1, "", np.object_) for kind in KINDS}
        self._names: list[int] = [-1]
        self._is_over = np.zeros(1, np.bool_)
        self._lock = threading.Lock()
        self._errors: dict[int, InputError] = {}
        self._interrupted = interrupted

    # Accounts -----------------------------------------------------------------------------------------------------

    def open(self, serial: int, budget: Budget) -> None:
        """Give a query class an account, if its budget or the engine's limits anything."""
        if not (budget.is_bounded or self.engine.is_bounded):
            return
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._names)
            self._names.append(-1)
            self._is_over = np.append(self._is_over, False)
            self._held = np.append(self._held, 0.0)
            for kind in KINDS:
                self._limits[kind] = np.append(self._limits[kind], np.inf)
                self._used[kind] = np.append(self._used[kind], 0.0)
                self._places[kind] = np.append(self._places[kind], "")
        self._numbers[serial], self._names[number] = number, serial
        for kind in KINDS:
            limit = getattr(budget, kind)
            self._limits[kind][number] = np.inf if limit is None else limit

    def close(self, serial: int) -> None:
        """Take the account of a query class back."""
        number = self._numbers.pop(serial, None)
        if number is not None:
            self._free.append(number)
            for kind in KINDS:
                self._limits[kind][number] = np.inf

    @property
    def is_empty(self) -> bool:
        """Whether no query has a budget."""
        return not self._numbers

    def number_of(self, serial: int) -> int:
        """The account of a query class; `NOBODY` if it has none."""
        return self._numbers.get(serial, NOBODY)

    # A batch ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A batch begins: no query took anything yet."""
        for used in self._used.values():
            used[:] = 0
        self._is_over[:] = False
        self._held[:] = self._unfreed = 0
        self._errors = {}

    def check(self) -> bool:
        """Stop if somebody asked for it, and look at the memory; whether a query lost its rows by that.

        Raises:
            InterruptedBatchError: the batch was interrupted; the next one is not.
        """
        if self._interrupted.is_set():
            self._interrupted.clear()
            raise InterruptedBatchError("the batch was interrupted before its rows were computed; it can be run again")
        limit = self.engine.memory
        if limit is None or time.monotonic() < self._weighed_at + _WEIGHED_EVERY:
            return False
        with self._lock:
            self._weighed_at = time.monotonic()
            excess = memory.excess(limit) - self._unfreed
            total = float(self._held[~self._is_over].sum())
            # Where the results are not what takes the memory, to lose them would not help.
            if excess <= 0 or total < excess / 2:
                return False
            self._pause_largest("memory", self._held, max(0.0, total - excess), limit, memory.used())
            return True

    def limits(self, kind: Kind, accounts: Array) -> float:
        """The least that one of these accounts is limited to."""
        return float(self._limits[kind][accounts].min())

    def charge(self, kind: Kind, accounts: Array, amounts: Array | float, place: str) -> bool:
        """Count what accounts took; whether one of them is over its budget by that, or was before."""
        with self._lock:
            used, limits = self._used[kind], self._limits[kind]
            np.add.at(used, accounts, amounts)
            self._places[kind][accounts] = place
            over = accounts[(used[accounts] > limits[accounts]) & ~self._is_over[accounts]]
            for number in np.unique(over).tolist():
                self._is_over[number] = True
                limit, reached = int(limits[number]), int(used[number])
                self._errors[self._names[number]] = BudgetExceededError(kind, limit, reached, place)
                self._unfreed += self._held[number]
            if kind == "rows":
                self._keep_within("rows", used, self.engine.rows)
            return bool(self._is_over[accounts].any())

    def hold(self, accounts: Array, amounts: Array | float) -> bool:
        """Count the bytes that results of accounts take in memory; whether one of them has to go, or had before."""
        if not self.engine.is_bounded:
            return False
        with self._lock:
            np.add.at(self._held, accounts, amounts)
            self._keep_within("bytes", self._held, self.engine.bytes)
            return bool(self._is_over[accounts].any())

    def _keep_within(self, kind: Literal["rows", "bytes"], amounts: Array, limit: int | None) -> None:
        if limit is not None:
            total = float(amounts[~self._is_over].sum())
            if total > limit:
                self._pause_largest(kind, amounts, limit, limit, int(total))

    def _pause_largest(self, kind: str, amounts: Array, most: float, limit: int, total: int) -> None:
        """Have the accounts that hold most lose their rows, until the others hold no more than `most`."""
        living = np.where(self._is_over, 0.0, amounts)
        everything = left = float(living.sum())
        for number in np.argsort(-living).tolist():
            if left <= most or living[number] <= 0:
                break
            left -= living[number]
            self._is_over[number] = True
            self._unfreed += self._held[number]
            held = int(living[number])
            error = EngineBudgetExceededError(kind, limit, total, held, living[number] / everything)
            self._errors[self._names[number]] = error

    def takes_room(self) -> bool:
        """Whether queries that have lost their rows hold enough for freeing it now."""
        limits = [limit for limit in (self.engine.bytes, self.engine.memory) if limit is not None]
        return bool(limits) and self._unfreed > _UNFREED * min(limits)

    def freed(self) -> None:
        """Note that what such queries held is freed."""
        with self._lock:
            self._unfreed = 0.0

    def over(self, accounts: Array) -> Array:
        """Which of these accounts have lost their rows."""
        lost: Array = self._is_over[accounts]
        return lost

    def largest(self) -> tuple[int, EngineBudgetExceededError] | None:
        """The class that holds most of the batch, and what to say of it where memory has run out; None if none does."""
        number = int(np.argmax(self._held))
        total = float(self._held.sum())
        if not total:
            return None
        limit, held = self.engine.memory or memory.available(), int(self._held[number])
        return self._names[number], EngineBudgetExceededError("memory", limit, memory.used(), held, held / total)

    @property
    def held_share(self) -> float:
        """What all queries took of the engine's budget in this batch, or of the nearer of two limits; 0 without one."""
        amounts = (self._used["rows"], self.engine.rows), (self._held, self.engine.bytes)
        return max((float(taken.sum()) / limit for taken, limit in amounts if limit is not None), default=0.0)

    def living(self, accounts: Array) -> Array:
        """The bits whose accounts are within their budgets."""
        return pack_bits(~self._is_over[accounts], len(accounts) // 64)

    def usage(self) -> dict[int, Usage]:
        """By serial, what query classes took of the batch in the kinds that they are limited in, and where last."""
        usage: dict[int, Usage] = {}
        for kind in KINDS:
            limited = (self._used[kind] > 0) & (self._limits[kind] < np.inf)
            for number in np.flatnonzero(limited).tolist():
                charge = int(self._used[kind][number]), str(self._places[kind][number])
                usage.setdefault(self._names[number], {})[kind] = charge
        return usage

    @property
    def exceeded(self) -> Mapping[int, InputError]:
        """By serial, the query classes that are over their budgets, or had to go because all together were."""
        return self._errors


def exceeded_together(budget: Budget, parts: Sequence[Usage]) -> BudgetExceededError | None:
    """What to say of a query if the parts of a batch together took more than its budget; None if they did not."""
    for kind in KINDS:
        limit = getattr(budget, kind)
        charges = [part[kind] for part in parts if kind in part]
        total = sum(amount for amount, _ in charges)
        if limit is not None and total > limit:
            return BudgetExceededError(kind, limit, total, max(charges)[1])
    return None


def largest_over(held: Mapping[str, tuple[int, int]], engine: EngineBudget) -> dict[str, InputError]:
    """The queries that have to go where all together are over the engine's budget; `held` has rows and bytes."""
    ledger = Ledger(threading.Event(), EngineBudget(engine.rows, engine.bytes))
    names = list(held)
    for number, name in enumerate(names):
        ledger.open(number, UNLIMITED)
        account = np.array([ledger.number_of(number)])
        rows, size = held[name]
        if account[0]:
            ledger.charge("rows", account, float(rows), name)
            ledger.hold(account, float(size))
    return {names[serial]: error for serial, error in ledger.exceeded.items()}


def keep_within(outputs: dict[str, ListedRows], failures: dict[str, InputError], engine: EngineBudget) -> None:
    """Have the queries with the most rows lose them, where all together are over the engine's budget."""
    held = {name: (table.num_rows, table.nbytes) for name, table in outputs.items() if table.num_rows}
    for name, error in largest_over(held, engine).items():
        failures[name], outputs[name] = error, outputs[name].schema.empty_table()


def is_small(count: float, limit: float) -> bool:
    """Whether `count` candidates are so few that all queries of a step are charged for all of them."""
    return count <= limit * _SMALL
