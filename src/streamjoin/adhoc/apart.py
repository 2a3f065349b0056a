"""Queries that share nothing: a core each, with its own buckets, indexes and joins. What sharing is compared with.

The invariant: every query gives the rows that the shared core gives. Late tuples are set aside once, before all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from streamjoin.adhoc.arrivals import Clocks, arrive
from streamjoin.adhoc.changes import Change, Create, Drop, Registered, Registry
from streamjoin.adhoc.core import BatchReport, Shared
from streamjoin.adhoc.plan import Stream
from streamjoin.adhoc.settings import Settings
from streamjoin.model.errors import InputError, StateError


class Apart:
    """See the module; `apply` and `process` are those of `Shared`."""

    def __init__(self, catalog: Iterable[Stream], settings: Settings) -> None:
        self.settings = settings
        self._streams = {stream.name: stream for stream in catalog}
        self._clocks = Clocks.start({n: settings.lateness_of(stream) for n, stream in self._streams.items()})
        self._cores: dict[str, Shared] = {}
        self._registry = Registry()
        self._batch = -1
        self.report = BatchReport(-1)

    def apply(self, changes: Sequence[Change]) -> None:
        """Creates, drops and pauses, in this order, in force from the next batch on."""
        registry = self._registry.changed(changes, self._streams, self._batch + 1)
        for change in changes:
            if isinstance(change, Create):
                self._cores[change.name] = Shared(self._streams.values(), replace(self.settings, sharing="everything"))
            if isinstance(change, Drop):
                del self._cores[change.name]
            else:
                self._cores[change.name].apply([change])
        self._registry = registry

    @property
    def queries(self) -> Mapping[str, Registered]:
        """The queries that are there, by name."""
        return self._registry.queries

    def process(self, batch_id: int, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """The rows that each query gains by a batch."""
        if batch_id <= self._batch:
            raise StateError(f"batch {batch_id} comes after batch {self._batch}: batches ascend")
        arrived = arrive(batch_id, tables, self._streams, self._clocks)
        outputs: dict[str, pa.Table] = {}
        failures: dict[str, InputError] = {}
        for name, core in self._cores.items():
            read = {source.stream.name for source in core.queries[name].query.sources}
            kept = {stream: bucket.table for stream, bucket in arrived.buckets.items() if stream in read}
            outputs.update(core.process(batch_id, kept))
            failures.update(core.report.failures)
        self._batch, self._clocks = batch_id, arrived.clocks
        self._registry = self._registry.paused(failures)
        self.report = BatchReport(batch_id, arrived.late, arrived.untimed, failures)
        return outputs

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes held by all cores together."""
        found: dict[str, int] = {}
        for core in self._cores.values():
            for what, size in core.nbytes.items():
                found[what] = found.get(what, 0) + size
        return found


def open_core(catalog: Iterable[Stream], settings: Settings | None = None) -> Shared | Apart:
    """The core that the settings ask for."""
    settings = settings or Settings()
    return Apart(catalog, settings) if settings.sharing == "nothing" else Shared(catalog, settings)
