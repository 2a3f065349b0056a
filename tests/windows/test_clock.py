"""Tuples in order pass the horizon without a test, and leave it as a test would."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.windows import clock
from streamjoin.windows.clock import Horizon, to_ticks
from tests.seeds import examples

BATCHES = st.lists(st.lists(st.integers(0, 60), max_size=6), max_size=12)


@settings(deadline=None, max_examples=examples(200))
@given(batches=BATCHES, lateness=st.none() | st.integers(0, 9), ordered=st.booleans())
def test_a_pass_is_a_test_that_finds_nothing(batches: list[list[int]], lateness: int | None, ordered: bool) -> None:
    numbers = sorted(tick for batch in batches for tick in batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "GRACE", 4)
        one, other = Horizon(lateness, 10), Horizon(lateness, 10)
        for batch in batches:
            ticks = np.array([numbers.pop(0) for _ in batch] if ordered else batch, np.int64)
            late = np.zeros(ticks.size, np.bool_) if one.passes(ticks) else one.late(ticks)
            assert late.tolist() == other.late(ticks).tolist()
            assert (one.bound, one.clock) == (other.bound, other.clock)


@pytest.mark.parametrize("type_", [pa.int64(), pa.int32(), pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.date32()])
def test_ticks_do_not_depend_on_the_layout(type_: pa.DataType) -> None:
    numbers = [5, None, 7, 9, 9]
    whole = pa.array(numbers, pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)
    for column in (
        whole.slice(2),
        pa.chunked_array([whole.slice(2)]),
        pa.chunked_array([whole.slice(2, 1), whole[3:]]),
    ):
        ticks, bad = to_ticks(column, 1)
        assert ticks.tolist() == [7, 9, 9]
        assert bad is None or not bad.any()
        assert ticks.flags.writeable
    assert to_ticks(whole, 1)[1].tolist() == [False, True, False, False, False]  # type: ignore[union-attr]
    assert to_ticks(whole.slice(0, 0), 1)[0].size == 0
