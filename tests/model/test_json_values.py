"""The JSON encoding: what each type of column becomes, in rows, in JSON lines and in Kafka records."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.model import json_values
from streamjoin.queries.sinks.spark import json_rows

_NOON = datetime.datetime(2024, 1, 31, 12, tzinfo=datetime.UTC)
_COLUMNS: dict[str, tuple[pa.Array, list[Any]]] = {
    "text": (pa.array(["é", None]), ["é", None]),
    "exact": (pa.array([(1 << 53) - 1, -5]), [(1 << 53) - 1, -5]),
    "beyond": (pa.array([1 << 53, None]), [str(1 << 53), None]),
    "float": (pa.array([0.5, float("-inf")]), [0.5, "-Infinity"]),
    "decimal": (pa.array([decimal.Decimal("1.50"), None]), ["1.50", None]),
    "binary": (pa.array([b"x", b""]), ["eA==", ""]),
    "view": (pa.array([b"x", None], pa.binary_view()), ["eA==", None]),
    "date": (pa.array([datetime.date(2024, 1, 31), None]), ["2024-01-31", None]),
    "time": (pa.array([1, None], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001", None]),
    "utc": (pa.array([_NOON, None], pa.timestamp("s", "UTC")), ["2024-01-31T12:00:00Z", None]),
    "zone": (pa.array([_NOON, None], pa.timestamp("s", "Europe/Berlin")), ["2024-01-31T12:00:00Z", None]),
    "duration": (pa.array([1500, None], pa.duration("ms")), [1.5, None]),
    "list": (pa.array([[b"x", None], []]), [["eA==", None], []]),
    "struct": (
        pa.array([{"at": _NOON, "n": 1 << 60}, None]),
        [{"at": "2024-01-31T12:00:00Z", "n": str(1 << 60)}, None],
    ),
}


@pytest.mark.parametrize("name", _COLUMNS)
def test_a_column_has_one_encoding(name: str) -> None:
    column, expected = _COLUMNS[name]
    table = pa.table({"v": column})
    assert [row[0] for row in json_values.rows(table)] == expected
    assert [json.loads(line)["v"] for line in json_values.row_texts(table)] == expected
    assert [json.loads(value)["v"] for _, value in json_rows(table, None)] == expected


def test_the_key_of_a_kafka_record_is_the_text_of_its_value() -> None:
    table = pa.table({"s": ["a", None], "b": [b"x", b"y"], "n": [7, None]})
    assert [key for key, _ in json_rows(table, "s")] == ["a", None]
    assert [key for key, _ in json_rows(table, "b")] == ["eA==", "eQ=="]
    assert [key for key, _ in json_rows(table, "n")] == ["7", None]
