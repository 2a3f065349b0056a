"""What a query would give: the newest tuples joined on their own, apart from all that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from streamjoin.model.errors import InputError
from streamjoin.queries.core.budgets import Budget
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.row_lists import read
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.language.plan import Query

PREVIEWED: Final = 300
"""Tuples of each stream that a preview joins."""
_BUDGET: Final = Budget(candidates=2_000_000, rows=100_000)
_NAME: Final = "preview"


def sample(query: Query, newest: Mapping[str, pa.Table]) -> tuple[pa.Table, InputError | None]:
    """The rows of one batch of these tuples, and why a row can't be computed."""
    streams = query.streams
    core = Shared(streams.values(), Settings(threads=1, future=None))
    core.apply([Create(_NAME, query, budget=_BUDGET)])
    arrived = core.arrive(0, {name: newest[name] for name in streams})
    rows, failures = core.results(arrived)
    return read(rows.get(_NAME, query.schema.empty_table())), failures.get(_NAME)
