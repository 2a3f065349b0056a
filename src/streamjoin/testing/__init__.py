"""Tools for tests of joins: tables written as text, a clock to turn, and the checks of an algorithm or index of yours.

`table` and `assert_rows` read and compare tables as text, `ManualClock` is a clock to turn. `cases` and `conformance`
need hypothesis.
"""

from typing import TYPE_CHECKING

from streamjoin._lazy import lazy

if TYPE_CHECKING:
    from streamjoin.testing import cases as cases
    from streamjoin.testing import conformance as conformance
    from streamjoin.testing import oracle as oracle
    from streamjoin.testing.clock import ManualClock
    from streamjoin.testing.tables import assert_rows, table

__all__ = ["ManualClock", "assert_rows", "table"]

__getattr__, __dir__ = lazy(
    __name__,
    {"ManualClock": "testing.clock", "assert_rows": "testing.tables", "table": "testing.tables"},
    submodules=("cases", "conformance", "oracle"),
)
