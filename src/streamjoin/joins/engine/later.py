"""The time of a result row: the later one of its two times."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def later(both: list[pa.Array], type_: pa.DataType) -> pa.Array:
    """The later one of two times, as `type_`."""
    # As integers: Arrow has no such function for timestamps with a time zone.
    number = pa.int32() if type_.bit_width == 32 else pa.int64()
    cast = [a if a.type == type_ else a.cast(type_, safe=False) for a in both]
    latest = pc.max_element_wise(*(a.view(number) for a in cast))
    for times, finer in zip(both, cast, strict=True):
        if finer is not times:
            # The year 9999 is out of range for nanoseconds: NULL rather than a wrong time.
            unchanged = pc.equal(finer.cast(times.type, safe=False), times).fill_null(True)
            latest = pc.if_else(unchanged, latest, pa.scalar(None, number))
    return latest.view(type_)
