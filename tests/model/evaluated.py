"""Values and rows in the form of the slow evaluator, for the tests of evaluation."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.model.expression import nodes as x
from streamjoin.model.expression.evaluation import Values, from_arrow
from streamjoin.model.expression.value_kinds import ValueKind
from tests.oracles.row_evaluator import Moment, TimeSpan, rows_of


def decode(values: Values, shape: tuple[int, ...]) -> list[Any]:
    """The values as the slow evaluator has them, in row-major order."""
    data = np.broadcast_to(values.data, shape).ravel().tolist()
    valid = np.broadcast_to(True if values.valid is None else values.valid, shape).ravel()
    wrap: Any = {
        ValueKind.DECIMAL: lambda v: Fraction(v, 10**values.scale),
        ValueKind.NUMERAL: lambda v: Decimal(v).scaleb(-values.scale),
        ValueKind.TIMESTAMP: lambda v: Moment(Fraction(v, 10**values.scale)),
        ValueKind.INTERVAL: lambda v: TimeSpan(Fraction(v, 10**values.scale)),
    }.get(values.kind, lambda v: v)
    return [wrap(value) if known else None for value, known in zip(data, valid, strict=True)]


def both_sides(left: pa.Table, right: pa.Table) -> dict[x.Column, Values]:
    """Columns of shape (P, 1) and (1, S)."""
    columns = {x.Column("l", name): from_arrow(left[name]).reshape(-1, 1) for name in left.column_names}
    return columns | {x.Column("r", name): from_arrow(right[name]).reshape(1, -1) for name in right.column_names}


def slow_rows(left: pa.Table, right: pa.Table) -> list[dict[x.Column, Any]]:
    sides = [
        [{x.Column(q, n): value for n, value in row.items()} for row in rows_of(t)]
        for q, t in (("l", left), ("r", right))
    ]
    return [one | two for one in sides[0] for two in sides[1]]
