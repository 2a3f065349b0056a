"""Running a whole ad-hoc workload through the core, batch by batch, as the oracle's counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from streamjoin.adhoc import Stream
from streamjoin.adhoc.core.changes import Create, Drop
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.core.shared import Shared
from streamjoin.adhoc.core.unshared import open_core
from streamjoin.testing import adhoc_cases
from streamjoin.testing.adhoc_oracle import rows_by_batch

Rows = Counter[tuple[Any, ...]]


def streams_of(case: adhoc_cases.AdhocCase) -> list[Stream]:
    return [Stream(name, schema, adhoc_cases.TIME) for name, schema in case.schemas.items()]


def lateness_of(case: adhoc_cases.AdhocCase) -> int | str:
    return case.disorder if case.integer_times else f"{case.disorder * 250} ms"


def rows_of(table: pa.Table) -> Rows:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def run_core(
    case: adhoc_cases.AdhocCase, settings: Settings, before: Callable[[Shared, int], None] | None = None
) -> dict[str, dict[int, Rows]]:
    """Every query's rows by batch."""
    core = open_core(streams_of(case), settings)
    found: dict[str, dict[int, Rows]] = {query.name: {} for query in case.queries}
    for batch in range(len(case.batches)):
        changes = [Drop(q.name) for q in case.queries if q.life.dropped == batch]
        changes += [Create(q.name, q.text) for q in case.queries if q.life.created == batch]
        core.apply(changes)
        if before is not None and isinstance(core, Shared):
            before(core, batch)
        for name, table in core.process(batch, case.tables(batch)).items():
            if table.num_rows:
                found[name][batch] = rows_of(table)
        assert not core.report.late and not core.report.untimed and not core.report.failures
    return found


def wanted_of(case: adhoc_cases.AdhocCase) -> dict[str, dict[int, Rows]]:
    """What the oracle says."""
    arrivals = case.arrivals
    return {query.name: rows_by_batch(arrivals, query.meaning, query.life) for query in case.queries}
