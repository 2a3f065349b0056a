"""Rows as JSON, CSV or Parquet."""

from __future__ import annotations

import io
from typing import Annotated, Final, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from fastapi import Query
from starlette.responses import Response

from streamjoin.model import json_values

MEDIA_TYPES: Final = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
Format = Annotated[
    Literal["json", "csv", "parquet"] | None, Query(description="Instead of Accept: `json`, `csv` or `parquet`.")
]
DESCRIBED: Final = {
    "text/csv": {"schema": {"type": "string"}},
    MEDIA_TYPES["parquet"]: {"schema": {"type": "string", "format": "binary"}},
}


def format_of(accept: str) -> str:
    """The format that an Accept header asks for first.

    >>> format_of("text/csv"), format_of("application/vnd.apache.parquet"), format_of("*/*")
    ('csv', 'parquet', 'json')
    """
    first = accept.partition(",")[0].partition(";")[0].strip().lower()
    return next((name for name, media in MEDIA_TYPES.items() if media.partition(";")[0] == first), "json")


def export(table: pa.Table, name: str, wanted: str) -> Response:
    """A table as a file of the name."""
    stream = io.BytesIO()
    if wanted == "parquet":
        pyarrow.parquet.write_table(table, stream)
    else:
        pyarrow.csv.write_csv(_texts(table), stream)
    headers = {"Content-Disposition": f'attachment; filename="{name}.{wanted}"'}
    return Response(stream.getvalue(), 200, headers, MEDIA_TYPES[wanted])


def _texts(table: pa.Table) -> pa.Table:
    """A table whose columns CSV can hold: others are written as in JSON."""
    for index, field in enumerate(table.schema):
        plain = pa.types.is_string(field.type) or pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)
        if not plain and not pa.types.is_floating(field.type):
            values = json_values.column_values(table.column(index))
            texts = [value if value is None or isinstance(value, str) else json_values.text(value) for value in values]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
    return table
