"""Computing an unfinished batch again after a crash, so that a query which ends the process does so twice at most.

The first restart computes the batch as it was. If that ends the process too, the second one computes query by query and
notes each before it begins; where it ends, the third one knows the query and leaves it out.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from streamjoin.adhoc.core.arrivals import Arrived
from streamjoin.adhoc.core.changes import QueryRegistry
from streamjoin.adhoc.core.contract import Core
from streamjoin.adhoc.core.kind_states import KindState
from streamjoin.adhoc.core.settings import Settings
from streamjoin.adhoc.core.shared import Shared
from streamjoin.adhoc.engine.executor import Outputs
from streamjoin.adhoc.engine.journal import Journal
from streamjoin.adhoc.optimizer.optimizer import Optimizer
from streamjoin.model.errors import InputError


class Attempt:
    """One more attempt at a batch, noted in the journal."""

    def __init__(self, journal: Journal, batch: int) -> None:
        self._journal, self._batch = journal, batch
        before = journal.read("attempts", batch) if batch in journal.numbers("attempts") else {}
        self._count = int(before.get("count", 0)) + 1
        self.culprit: str | None = before.get("query")
        """The query at which the attempt before ended."""
        self.note(None)

    def note(self, query: str | None) -> None:
        """Say which query is computed next; None between two."""
        self._journal.write_attempt(self._batch, {"count": self._count, "query": query})

    @property
    def careful(self) -> bool:
        """Whether to compute query by query."""
        return self._count > 1

    def results(self, core: Core, arrived: Arrived, settings: Settings) -> Outputs:
        """The rows of a batch, by one query after the other."""
        state = core.snapshot()
        streams = [entry.query for entry in state.registry.queries.values()]
        known = {source.stream.name: source.stream for query in streams for source in query.sources}
        outputs: dict[str, pa.Table] = {}
        failures: dict[str, InputError] = {}
        waiting: dict[str, KindState] = {}
        for name, entry in state.registry.queries.items():
            if entry.paused:
                continue
            self.note(name)
            alone = replace(settings, sharing="everything", lateness=0)
            registry = QueryRegistry({name: entry}, state.registry.next_serial)
            optimizer = Optimizer(alone).after_changes(registry.paths, arrived.batch)
            single = Shared(known.values(), alone)
            read = {source.stream.name for source in entry.query.sources}
            held = {stream: buckets for stream, buckets in state.buckets.items() if stream in read}
            kinds = {one: kind for one, kind in state.kinds.items() if one == name}
            single.restore(replace(state, registry=registry, optimizer=optimizer, buckets=held, kinds=kinds))
            fresh = {stream: bucket for stream, bucket in arrived.buckets.items() if stream in read}
            rows, failed = single.results(replace(arrived, buckets=fresh))
            outputs |= rows
            failures |= failed
            waiting |= single.waiting
        core.take_waiting(arrived.batch, waiting)
        self.note(None)
        return outputs, failures

    def end(self) -> None:
        """The batch is done."""
        self._journal.write_attempt(self._batch, None)
