"""How many cells a batch has: by cores that stay, by the load, and never so often that rebuilding takes the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamjoin.adhoc import Settings
from streamjoin.model.errors import SpecError
from streamjoin.queries.executors.distributed.driver_core import DriverCore
from streamjoin.queries.executors.distributed.executor import CellRows
from streamjoin.queries.executors.distributed.outputs import RowPool
from streamjoin.queries.executors.distributed.scaling import MOST_BYTES, CellBatch, Scaling, scaling_for


def played(scaling: Scaling, load: list[float], cores: int, rebuild: float = 0.0) -> tuple[list[int], list[str]]:
    """The cells of each batch that takes so many seconds of one cell alone, and what was decided."""
    counts, told = [], []
    last: CellBatch | None = None
    for seconds in load:
        before = scaling.cells
        scaling, decided = scaling.next(cores, last)
        told += [] if decided is None else [decided]
        rebuilt = scaling.cells != before
        last = CellBatch(seconds / scaling.cells + 0.05 + rebuild * rebuilt, 1000, 0, rebuilt)
        counts.append(scaling.cells)
    return counts, told


def test_the_number_of_cells_follows_the_load_and_does_not_flap() -> None:
    counts, told = played(scaling_for("auto", 8, 1.0), [0.1] * 40 + [5.0] * 60 + [1.8] * 40 + [0.01] * 40, 8)
    assert counts[0] == 8, "what a restart has to take in is divided"
    assert counts[39] == 1
    assert counts[99] == 8, "a load of 5 s in cells of at most 1 s"
    assert counts[139] == 8, "more than a quarter of a threshold is no reason to go down"
    assert counts[-1] == 1
    downwards = ["4 cells instead of 8", "2 cells instead of 4", "1 cell instead of 2"]
    upwards = ["2 cells instead of 1", "4 cells instead of 2", "8 cells instead of 4"]
    assert [text.split(":")[0] for text in told] == [*downwards, *upwards, *downwards]
    assert "1,000 tuples, over the 1 s allowed" in told[3]
    assert played(scaling_for(3, 8, 1.0), [9.0] * 20, 2) == ([3] * 20, [])


def test_the_number_of_cells_follows_cores_that_stay() -> None:
    context = SimpleNamespace(defaultParallelism=2)
    rows = CellRows(SimpleNamespace(sparkContext=context), None, None, DriverCore(Settings()), {}, RowPool())  # type: ignore[arg-type]
    numbers = []
    # An executor that is away for a moment changes nothing.
    for cores in (2, 1, 1, 2, 3, 3, 3, 3, 1, 1, 1):
        context.defaultParallelism = cores
        rows.adapt()
        numbers.append(rows.partitions)
    assert numbers == [2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 1]
    assert [note.partition(":")[0] for note in rows.report().decided] == [
        "3 cells instead of 2",
        "1 cell instead of 3",
    ]


def test_the_load_is_no_reason_for_more_cells_than_cores() -> None:
    counts, told = played(scaling_for("auto", 4, 1.0), [100.0] * 10, 2)
    assert counts == [4] * 2 + [2] * 8
    assert told == ["2 cells instead of 4: Spark has 2 cores"]
    # Cores that come are there for who needs them.
    counts, _ = played(scaling_for("auto", 1, 1.0), [100.0] * 30, 4)
    assert counts[-1] == 4
    assert played(scaling_for("auto", 1, 1.0), [0.5] * 30, 4)[0] == [1] * 30


def test_batches_that_rebuilt_a_cell_say_nothing_of_the_load() -> None:
    scaling = scaling_for("auto", 1, 1.0)
    for rebuilt in (True, True, False, True, False, True, True):
        scaling, decided = scaling.next(4, CellBatch(3.0 if rebuilt else 0.9, 10, 0, rebuilt))
        assert decided is None
    assert scaling.seconds == (0.9, 0.9)
    assert scaling.next(4, None)[0].seconds == scaling.seconds, "a batch that failed says as little"


def test_fewer_cells_do_not_hold_more_than_a_worker_may() -> None:
    for held, cells in ((MOST_BYTES * 2, 2), (MOST_BYTES * 2 + 1, 4)):
        scaling = scaling_for("auto", 4, 1.0)
        for _ in range(8):
            scaling, _ = scaling.next(4, CellBatch(0.01, 10, held, False))
        assert scaling.cells == cells


@given(st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(1, 30)), max_size=12), st.floats(0.0, 60.0))
def test_a_change_has_been_paid_for_before_the_next(phases: list[tuple[float, int]], rebuild: float) -> None:
    scaling, last, cores = scaling_for("auto", 8, 1.0), None, 8
    rebuilding, worked = 0.0, 0.0
    for seconds in (seconds for seconds, times in phases for _ in range(times)):
        before = scaling.cells
        scaling, decided = scaling.next(cores, last)
        assert 1 <= scaling.cells <= cores
        assert (decided is None) == (scaling.cells == before)
        if decided is not None:
            assert worked >= 4 * rebuilding - 1e-6
            worked = 0.0
        took = seconds / scaling.cells + rebuild * (decided is not None)
        rebuilding, worked = (took, worked) if decided is not None else (rebuilding, worked + took)
        last = CellBatch(took, 10, 0, decided is not None)


@pytest.mark.parametrize("partitions", [0, -1, True, 1.5, "many"])
def test_what_is_no_number_of_cells_is_refused(partitions: Any) -> None:
    with pytest.raises(SpecError, match="a whole number from 1 on, 'auto', or None for all cores"):
        scaling_for(partitions, 2, 1.0)
