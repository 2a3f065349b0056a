"""Exactly once under kill -9: joins killed at random moments and restarted write what an undisturbed run writes.

Drivers, executors and Python workers are killed, with merges and other numbers of partitions under way. The output is
compared byte by byte: sorted, and for the ordered join in the order in which it was written.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.every_kind import BATCHES, check_output, check_undisturbed, write_input
from tests.spark.torture import Kills, Victim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = int(os.environ.get("STREAMJOIN_KILLS", "2"))
"""Altogether; `make torture` asks for two hundred. The suite kills one driver, and `test_cluster.py` one executor."""
_MANY = KILLS > 20
_BATCHES = BATCHES if _MANY else 5
# Kills of a Spark Connect server.
_CONNECTED = max(1, KILLS // 10)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("master", "kills", "share_of_drivers"),
    [
        ("local[2,1000]", KILLS - KILLS // 3 - _CONNECTED, 0.8 if _MANY else 1.0),
        pytest.param("local-cluster[2,1,512]", max(1, KILLS // 3), 0.1, marks=pytest.mark.thorough),
        pytest.param("connect local[2,1000]", _CONNECTED, 1.0, marks=pytest.mark.thorough),
    ],
    ids=["drivers", "executors", "connect"],
)
def test_the_output_is_that_of_an_undisturbed_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], master: str, kills: int,
    share_of_drivers: float,
) -> None:  # fmt: skip
    rng = random.Random(KILLS)
    state = Kills(kills, _teller(capsys))
    laps = 0
    while laps == 0 or state.left:
        directory = tmp_path / str(laps)
        write_input(directory, laps, _BATCHES)
        Victim(directory, master, _BATCHES, rng, state).run_to_the_end(share_of_drivers)
        check_output(directory, laps)
        check_undisturbed(spark, directory)
        laps += 1
    assert state.done == kills
    assert state.of_drivers > 0 or share_of_drivers < 0.5
    # One kill may come at the last batch, after which there is nothing to rescale.
    assert not _MANY or "merge" in state.seen
    assert not _MANY or len(state.seen) > 2, "the joins were never rescaled"


def _teller(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Where a long run shows what it has done so far."""

    def tell(line: str) -> None:
        if _MANY:
            with capsys.disabled():
                print(line, flush=True)

    return tell
