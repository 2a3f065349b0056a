"""Rows of a streaming query to a Delta or Iceberg table, exactly once, from `foreachBatch`.

Tasks write the rows of a batch as data files of the table, and the driver commits them, named by the query's id (which
Spark keeps in the checkpoint) and the batch. A batch that Spark runs again is run, because the state of joins depends
on that, but it is neither written nor committed again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from streamjoin.formats.delta import DeltaSink
from streamjoin.formats.iceberg import IcebergSink
from streamjoin.formats.tables import DataFile, FileLayout, LakeWriter, RowsInFiles
from streamjoin.model.errors import InputError, SpecError
from streamjoin.spark.columns import by_place
from streamjoin.spark.runtime.internals import map_in_arrow
from streamjoin.storage.places import place, read_if_there

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TableBatches:
    """Adds each batch of a query to a table, once: `writeStream.foreachBatch(TableBatches(...))`."""

    def __init__(self, sink: DeltaSink | IcebergSink, checkpoint: str | None = None) -> None:
        if not isinstance(sink, DeltaSink | IcebergSink):
            raise SpecError(f"a table is given as a DeltaSink or an IcebergSink, not {sink!r}")
        self._sink = sink
        self._checkpoint = None if checkpoint is None else str(checkpoint)
        self._writer: tuple[str, LakeWriter] | None = None

    def check(self, frame: DataFrame) -> None:
        """Refuse rows that do not fit the table, before a query starts."""
        self._sink.connect(_schema(frame))

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Add the rows of a batch."""
        schema = _schema(frame)
        writer = self._opened(frame, schema)
        layout = None if writer.has(batch) else writer.layout
        rows = partial(_write_rows, layout, batch, schema.names)
        written = map_in_arrow(by_place(frame), rows, "file STRING", "streamjoin_write").collect()
        files = tuple(DataFile(**json.loads(row.file)) for row in written)
        if files:
            writer.write(batch, RowsInFiles(schema, files))

    def _opened(self, frame: DataFrame, schema: pa.Schema) -> LakeWriter:
        query = self._query(frame)
        if self._writer is None or self._writer[0] != query:
            self._writer = query, LakeWriter(self._sink, query, schema)
        return self._writer[1]

    def _query(self, frame: DataFrame) -> str:
        """The id of the query, which is that of its checkpoint."""
        if self._checkpoint is not None:
            metadata = read_if_there(place(self._checkpoint) / "metadata")
            if metadata is None:
                raise SpecError(f"{self._checkpoint} is no checkpoint of a query: give the query's checkpointLocation")
            return str(json.loads(metadata)["id"])
        context = getattr(frame.sparkSession, "sparkContext", None)
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise SpecError(
                "the query's id is not known here (over Spark Connect, or outside of foreachBatch): give its "
                "checkpointLocation as checkpoint="
            )
        return str(query)


def table_writer(sink: DeltaSink | IcebergSink, checkpoint: str | None = None) -> TableBatches:
    """A function for `writeStream.foreachBatch` that adds each batch to a table, exactly once.

    Args:
        sink: the table; it is created with the columns of the first batch if it does not exist.
        checkpoint: the query's `checkpointLocation`. Spark Connect needs it.

    Raises:
        SpecError: `sink` is no table.
    """
    return TableBatches(sink, checkpoint)


def _write_rows(
    layout: FileLayout | None, batch: int, names: list[str], parts: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task; without a layout only compute them."""
    if layout is None:
        for _ in parts:
            pass
        return
    file = layout.write(batch, (part.rename_columns(names) for part in parts))
    if file is not None:
        yield pa.RecordBatch.from_pydict({"file": [json.dumps(file.packed())]})


def _schema(frame: DataFrame) -> pa.Schema:
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")
    except PySparkTypeError as error:
        raise InputError(f"the rows have a column that Arrow doesn't support: {error.getMessage()}") from error
