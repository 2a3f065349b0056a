"""Records as rows, and the records that are none: what all decoders share.

The invariant: every record is a row or is malformed, and one malformed record costs itself alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array

Decoded = tuple[pa.Table, Array]
"""The rows of the good records in order, and which records are good."""
Decode = Callable[[Sequence[bytes | None]], Decoded]


class MalformedError(Exception):
    """A record is no row."""


REFUSED = (MalformedError, ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException)
"""What says that a record is malformed."""


def decode_one_by_one(
    records: Sequence[bytes | None], schema: pa.Schema, row: Callable[[bytes], dict[str, Any]]
) -> Decoded:
    """The rows of records, each decoded on its own; what Arrow refuses (such as a number that is too large) is none."""
    good = np.zeros(len(records), np.bool_)
    rows = []
    for number, record in enumerate(records):
        try:
            rows.append(row(record or b""))
            good[number] = True
        except REFUSED:
            continue
    try:
        return pa.Table.from_pylist(rows, schema), good
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        fitting = [_fits(one, schema) for one in rows]
        good[good] = fitting
        return pa.Table.from_pylist([one for one, fits in zip(rows, fitting, strict=True) if fits], schema), good


def _fits(row: dict[str, Any], schema: pa.Schema) -> bool:
    try:
        pa.RecordBatch.from_pylist([row], schema)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True


def moment_of(moment: dt.datetime, type_: pa.DataType) -> dt.datetime:
    """A moment of a column with or without a time zone; one without a zone is UTC."""
    if type_.tz is None:
        return moment.astimezone(dt.UTC).replace(tzinfo=None) if moment.tzinfo is not None else moment
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
