"""The workload is the same rows for any cut, and matches as often as it was told to."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.workload import BandWorkload

WORKLOAD = BandWorkload(window=200, match_rate=6, seed=5, domain=1 << 20)


def test_workload_rows_do_not_depend_on_the_cut() -> None:
    whole = WORKLOAD.table("left", 65_000, 2_000)
    parts = [WORKLOAD.table("left", 65_000 + start, 500) for start in range(0, 2_000, 500)]
    assert whole.equals(pa.concat_tables(parts).combine_chunks())
    assert not whole["key"].equals(WORKLOAD.table("right", 65_000, 2_000)["key"])
    assert whole.schema.field("key").type == whole.schema.field("payload").type == pa.int64()


def test_workload_band_gives_the_match_rate() -> None:
    workload = BandWorkload(window=1 << 12, match_rate=2, seed=1)
    keys = workload.table("right", 0, workload.window)["key"]
    probes = workload.keys("left", 0, 400)
    met = [pc.sum(pc.less_equal(pc.abs(pc.subtract(keys, int(key))), workload.band)).as_py() or 0 for key in probes]
    assert 1.7 < sum(met) / len(met) < 2.3


@pytest.mark.parametrize("wrong", [{"window": 0}, {"window": 4, "match_rate": 5}, {"window": 4, "match_rate": -1}])
def test_workload_refuses_what_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        BandWorkload(**wrong)
