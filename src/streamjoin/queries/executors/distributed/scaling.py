"""How many cells the next batch has: a pure policy of what was offered and measured.

The number is fixed, or that of Spark's cores, or it follows the load up to that: the longest cell of a batch may take
as long as a threshold. A change costs what rebuilding the cells takes, as the new ones begin from the part files. So
batches whose cells were rebuilt are no measure of the load, and the next change waits until cells have worked `_PAYS`
times as long as the last one took. Between going up and going down is a distance, so that the number does not
flap. (AJoin, section 4: vertical and horizontal scaling by a latency threshold.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Final, Literal

from streamjoin.model.errors import SpecError

STEADY: Final = 3
"""Batches in a row before which Spark had another number of cores: then the number of cells follows."""
_UP_AFTER: Final = 3
_DOWN_AFTER: Final = 8
_IDLE: Final = 0.25
"""The share of the threshold below which half the cells are enough."""
_PAYS: Final = 4
"""How many times as long as a change rebuilt them cells work before the next: at most a fifth of the time is lost."""
MOST_BYTES: Final = 256 << 20
"""What a cell may hold so that fewer cells are worth it: Spark gives workers 384 MiB unless told otherwise."""


@dataclass(frozen=True)
class CellBatch:
    """What a batch took of its cells."""

    longest: float
    """The seconds of the cell that took longest."""
    tuples: int
    held: int
    """The bytes that all cells hold."""
    rebuilt: bool
    """Whether a cell was made from files."""


@dataclass(frozen=True)
class Scaling:
    """The number of cells, and what the next one is decided by. Each call gives a new one."""

    cells: int
    follows: Literal["nothing", "cores", "load"] = "nothing"
    threshold: float = 0.0
    """The seconds that the longest cell may take."""
    cores: int = 0
    """The cores of Spark that have stayed."""
    seen: tuple[int, int] = (0, 0)
    """The cores that Spark had before the last batches, and for how many."""
    seconds: tuple[float, ...] = ()
    """The longest cell's in the batches since the number last changed, but for those that rebuilt one."""
    changing: bool = False
    """Whether cells that are rebuilt now are so because the number changed, and not for a lost executor."""
    owed: float = 0.0
    """The seconds that cells have to work before their number changes again."""

    def next(self, cores: int, batch: CellBatch | None) -> tuple[Scaling, str | None]:
        """For the next batch, before which Spark has `cores`; with what was decided, and why.

        `batch` is the one before, or None if it says nothing about the load.
        """
        if self.follows == "nothing":
            return self, None
        offered = self._offered(cores)
        wanted = offered.cores if self.follows == "cores" else min(self.cells, offered.cores)
        if wanted != self.cells:
            return offered._with(wanted), f"{_cells(wanted, self.cells)}: Spark has {offered.cores} cores"
        if self.follows == "cores" or batch is None:
            return offered, None
        return offered._measured(batch)._scaled(batch)

    def _offered(self, cores: int) -> Scaling:
        """With the cores that there are now, which count once they have stayed for some batches."""
        times = self.seen[1] + 1 if cores == self.seen[0] else 1
        return replace(self, seen=(cores, times), cores=cores if times >= STEADY else self.cores)

    def _measured(self, batch: CellBatch) -> Scaling:
        if batch.rebuilt:
            return replace(self, owed=self.owed + _PAYS * batch.longest) if self.changing else self
        seconds = (*self.seconds, batch.longest)[-_DOWN_AFTER:]
        return replace(self, seconds=seconds, changing=False, owed=max(0.0, self.owed - batch.longest))

    def _scaled(self, batch: CellBatch) -> tuple[Scaling, str | None]:
        if batch.rebuilt or self.owed:
            return self, None
        newest = self.seconds[-_UP_AFTER:]
        if len(newest) == _UP_AFTER and median(newest) > self.threshold and self.cells < self.cores:
            took = f"the longest took {median(newest):.3g} s for a batch of {batch.tuples:,} tuples"
            return self._decided(min(self.cores, 2 * self.cells), f"{took}, over the {self.threshold:.3g} s allowed")
        calm = len(self.seconds) == _DOWN_AFTER and max(self.seconds) < _IDLE * self.threshold
        fewer = -(-self.cells // 2)
        if calm and fewer < self.cells and batch.held <= fewer * MOST_BYTES:
            took = f"the longest took at most {max(self.seconds):.3g} s in {_DOWN_AFTER} batches"
            return self._decided(fewer, f"{took}, far below the {self.threshold:.3g} s allowed")
        return self, None

    def _decided(self, cells: int, why: str) -> tuple[Scaling, str]:
        return self._with(cells), f"{_cells(cells, self.cells)}: {why}"

    def _with(self, cells: int) -> Scaling:
        return replace(self, cells=cells, seconds=(), changing=True, owed=0.0)


def _cells(number: int, before: int) -> str:
    return f"{number} cell{'s'[: number != 1]} instead of {before}"


def scaling_for(partitions: int | Literal["auto"] | None, cores: int, threshold: float) -> Scaling:
    """As `Engine` is told: this number of cells, as many as Spark has cores (None), or fewer as the load allows.

    Raises:
        SpecError: `partitions` is no number from 1, nor "auto", nor None.
    """
    if partitions is None or partitions == "auto":
        # From many to few, because a restart has all that is held to take in.
        follows: Literal["cores", "load"] = "cores" if partitions is None else "load"
        return Scaling(cores, follows, threshold, cores)
    if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
        raise SpecError(f"partitions={partitions!r}: it is a whole number from 1 on, 'auto', or None for all cores")
    return Scaling(partitions)
