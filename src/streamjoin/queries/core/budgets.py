"""What a query may take of one batch, and which queries took more: they lose this batch's rows, the others nothing.

Candidates are the stored tuples that a query's tuples and partial results were compared with; in a step that many
queries share, each counts those that its own tuples read. (What a step reads in less than a thousandth of the smallest
budget counts for all its queries in full: to tell them apart would cost more than it is worth.) Rows are results, and
bytes those of their columns. All is counted while the batch runs, before the memory is asked for. The invariant:
whether a query is over its budget depends on the tuples and the plan, and what the others get on neither.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from streamjoin._arrays import Array
from streamjoin.adhoc.core.selection_tables import pack_bits
from streamjoin.model.errors import BudgetExceededError, InterruptedBatchError, SpecError

Kind = Literal["candidates", "rows", "bytes"]
KINDS: Final[tuple[Kind, ...]] = ("candidates", "rows", "bytes")
Usage = dict[Kind, tuple[int, str]]
"""What a query took of a batch by kind, and the step of the plan that took the last of it."""
NOBODY: Final = 0
"""The account of queries without a budget."""
_SMALL: Final = 1 / 1024


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


class Ledger:
    """The accounts of the queries that have a budget, and what they took of the batch that runs.

    Several threads may charge. Setting `interrupted` stops the batch at its next step.
    """

    def __init__(self, interrupted: threading.Event) -> None:
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []
        self._limits: dict[Kind, Array] = {kind: np.full(1, np.inf) for kind in KINDS}
        self._used: dict[Kind, Array] = {kind: np.zeros(1) for kind in KINDS}
        self._places: dict[Kind, Array] = {kind: np.full(1, "", np.object_) for kind in KINDS}
        self._names: list[int] = [-1]
        self._is_over = np.zeros(1, np.bool_)
        self._lock = threading.Lock()
        self._errors: dict[int, BudgetExceededError] = {}
        self._interrupted = interrupted

    # Accounts -----------------------------------------------------------------------------------------------------

    def open(self, serial: int, budget: Budget) -> None:
        """Give a query class an account, if its budget limits anything."""
        if not budget.is_bounded:
            return
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._names)
            self._names.append(-1)
            self._is_over = np.append(self._is_over, False)
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
        """Whether nobody has a budget."""
        return not self._numbers

    def number_of(self, serial: int) -> int:
        """The account of a query class; `NOBODY` if it has none."""
        return self._numbers.get(serial, NOBODY)

    # A batch ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A batch begins: nobody took anything yet."""
        for used in self._used.values():
            used[:] = 0
        self._is_over[:] = False
        self._errors = {}

    def check(self) -> None:
        """Stop if somebody asked for it.

        Raises:
            InterruptedBatchError: the batch was interrupted; the next one is not.
        """
        if self._interrupted.is_set():
            self._interrupted.clear()
            raise InterruptedBatchError("the batch was interrupted before its rows were computed; it can be run again")

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
            return bool(self._is_over[accounts].any())

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
    def exceeded(self) -> Mapping[int, BudgetExceededError]:
        """By serial, the query classes that are over their budgets."""
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


def is_small(count: float, limit: float) -> bool:
    """Whether so many candidates count for all queries of a step."""
    return count <= limit * _SMALL
