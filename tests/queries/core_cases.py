"""Running a whole ad-hoc workload through the core, batch by batch, as the oracle's counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from streamjoin.adhoc import Stream
from streamjoin.queries.core.changes import Create, Drop
from streamjoin.queries.core.row_lists import ListedRows, read
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import open_core
from tests.oracles import adhoc_cases, adhoc_kind_cases
from tests.oracles.adhoc_kinds_oracle import check_rows, outcomes
from tests.oracles.adhoc_oracle import rows_by_batch

Rows = Counter[tuple[Any, ...]]


def streams_of(case: adhoc_cases.AdhocCase) -> list[Stream]:
    return [Stream(name, schema, adhoc_cases.TIME) for name, schema in case.schemas.items()]


def lateness_of(case: adhoc_cases.AdhocCase) -> int | str:
    return case.disorder if case.integer_times else f"{case.disorder * 250} ms"


def rows_of(rows: ListedRows) -> Rows:
    table = read(rows)
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


def check_kinds(case: adhoc_kind_cases.KindCase, rows: dict[str, dict[int, Rows]]) -> None:
    """Fail unless every query has the rows, by batch, that the oracles allow."""
    arrivals, lateness = case.inner.arrivals, case.inner.disorder * (1 if case.inner.integer_times else 250_000_000)
    batches = len(case.inner.batches)
    for query in case.queries:
        check_rows(outcomes(arrivals, query.meaning, lateness, query.life), rows[query.name], batches)
    wanted = wanted_of(case.inner)
    assert {name: rows[name] for name in wanted} == wanted
