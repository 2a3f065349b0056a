"""One table of time units: every door reads the same unit as the same length."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.model.durations import UNITS, describe, nanoseconds, unit_ns
from streamjoin.model.expression.literals import format_interval, parse_interval
from streamjoin.model.keys import tick_ns

_SPELLINGS = (
    "ns nanoseconds us microsecond ms milliseconds s sec secs second m min mins minutes h hr hrs hours d day w weeks"
)


@pytest.mark.parametrize("unit", _SPELLINGS.split())
def test_a_duration_and_an_interval_know_the_same_units(unit: str) -> None:
    assert nanoseconds(f"3 {unit}") == parse_interval(f"3 {unit.upper()}") == 3 * (unit_ns(unit) or 0) > 0


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_arrow_and_numpy_count_in_the_same_units(unit: str) -> None:
    assert tick_ns(pa.duration(unit)) == nanoseconds(np.timedelta64(1, unit)) == unit_ns(unit)  # type: ignore[call-overload]


@pytest.mark.parametrize("unit", UNITS)
def test_a_length_reads_back_as_it_was_written(unit: str) -> None:
    length = 5 * UNITS[unit]
    assert nanoseconds(describe(length)) == length
    assert parse_interval(format_interval(length).replace("'", "")) == length
