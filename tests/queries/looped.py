"""The ad-hoc engine's loop and log without Spark: tests hand in tables, again from where the log ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamjoin.adhoc import Stream
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.unshared import open_core
from streamjoin.queries.engine.catalog import Catalog
from streamjoin.queries.engine.inbox import Inbox, SourceBatch
from streamjoin.queries.engine.info import BatchEvent
from streamjoin.queries.engine.journal import FileJournal
from streamjoin.queries.engine.loop import BatchLoop, TableRowsOut
from streamjoin.queries.engine.stored import EngineChange, StreamDefinition, recover
from streamjoin.queries.language.sql import parse
from streamjoin.queries.sinks.base import Sink


class Looped:
    """One run of the loop over a checkpoint."""

    def __init__(
        self, checkpoint: Path, settings: Settings | None = None, named: Callable[[str, str], Sink] | None = None
    ) -> None:
        settings = settings or Settings()
        self.events: list[BatchEvent] = []
        self.inbox = Inbox()
        self.journal = FileJournal(str(checkpoint))
        self.failure: BaseException | None = None
        try:
            found = recover(self.journal, settings)
            core = open_core([], settings)
            self.catalog = Catalog(core, self.journal, settings, None, named)
            rows_out = TableRowsOut(core, self.catalog, self.journal)
            self.loop = BatchLoop(self.catalog, self.journal, self.inbox, self.events.append, rows_out)
            self.loop.restore(found)
        except BaseException:
            self.journal.close()
            raise
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except BaseException as error:
            self.failure = error
            self.inbox.close(error)

    def register(self, stream: Stream, lateness: int = 0) -> None:
        self.wait(EngineChange("register", stream.name, stream=StreamDefinition(stream, lateness)))

    def create(self, name: str, sql: str, sink: Sink | None = None) -> None:
        catalog = {name: figures.stream for name, figures in self.catalog.streams.items()}
        self.wait(EngineChange("create", name, parse(sql, catalog, name), sink))

    def ask_for(self, action: Any, name: str) -> None:
        self.wait(EngineChange(action, name))

    def wait(self, *requests: EngineChange) -> None:
        for request in requests:
            self.inbox.submit(request)
        for request in requests:
            request.done.result(20)

    def hand(
        self, batches: Mapping[str, tuple[int, pa.Table]], malformed: Mapping[str, pa.Table] | None = None
    ) -> None:
        """Hand in Spark batches by stream, in one boundary or more, and wait until their rows are out."""
        bad = malformed or {}
        given = [SourceBatch(stream, number, table, bad.get(stream)) for stream, (number, table) in batches.items()]
        for batch in given:
            self.inbox.put(batch)
        for batch in given:
            batch.safe.result(20)
        self.settle()

    def newest(self, stream: str) -> int:
        """The last of a stream's Spark batches that the journal has."""
        position = self.loop.positions.get(stream, -1)
        assert isinstance(position, int)
        return position

    def begin(self, *streams: Stream) -> None:
        """Settle, and register the streams that the checkpoint does not have."""
        self.settle()
        for stream in streams:
            if stream.name not in self.catalog.streams:
                self.register(stream)

    def go_on(self, number: int, tables: Mapping[str, pa.Table]) -> None:
        """Hand in those tables of a batch that the journal does not have."""
        due = {name: (number, rows) for name, rows in tables.items() if self.newest(name) < number}
        if due:
            self.hand(due)

    def settle(self) -> None:
        self.inbox.ask(lambda: None).result(20)

    def stop(self) -> None:
        self.inbox.close()
        self._thread.join(120)
        self.catalog.close()
        self.journal.close()

    def abandon(self) -> None:
        """What a kill leaves: nothing more is done, and the checkpoint is free."""
        self.inbox.close(RuntimeError("abandoned"))
        self._thread.join(120)
        deliveries = self.catalog.deliveries
        with deliveries._changed:
            deliveries._stopping = True
            deliveries._changed.notify_all()
        self.journal.close()

    def __enter__(self) -> Looped:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def read_back(directory: Path, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """All rows of a directory of Parquet files, as any reader finds them."""
    import pyarrow.parquet as pq

    rows: list[tuple[Any, ...]] = []
    for file in sorted(directory.glob("*.parquet")):
        table = pq.read_table(file)
        assert table.column_names == list(names)
        rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return rows
