"""How far the repeats of a row lie apart, for findings that a few slow repeats would turn."""

from __future__ import annotations

from benchmarks.harness import Row, human


def spread(row: Row) -> str:
    """The least and the most of a row's repeats.

    >>> spread({"least": 1_500_000.0, "most": 2_000_000.0})
    '1.50 M to 2 M'
    """
    return f"{human(row['least'])} to {human(row['most'])}"
