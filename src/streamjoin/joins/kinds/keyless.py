"""Tuples with a NULL or NaN key: they match nothing, whatever follows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.model.binding import BoundSpec


class Keyless:
    """Finds one side's tuples without a key."""

    def __init__(self, bound: BoundSpec, side: int) -> None:
        # Comparisons have words, and are no keys.
        self._encoded = all(term in bound.keys for term in bound.terms)
        encoded = {*bound.terms, *bound.index} if self._encoded else set()
        self._columns = [(key.right if side else key.left).name for key in bound.keys if key not in encoded]

    def __call__(self, table: pa.Table, valid: Array | None) -> Array | None:
        """A mask of the tuples without a key, or None if all have one; `valid` is that of the encoded keys."""
        mask = None if valid is None or not self._encoded else ~valid
        for name in self._columns:
            column = table.column(name)
            floating = pa.types.is_floating(column.type)
            if column.null_count or floating:
                null = column.is_null(nan_is_null=floating).to_numpy()
                mask = null if mask is None else mask | null
        return mask if mask is not None and np.any(mask) else None
