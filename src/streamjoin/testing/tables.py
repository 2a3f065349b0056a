"""Tables written as text, for tests that people read: rows to push, and rows to expect.

The first line names the columns; spaces or `|` separate values. NULL is NULL, and text with spaces stands in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.csv as pacsv

from streamjoin.model.errors import InputError, SchemaError

_WORD = re.compile(r'"[^"]*"|[^\s|"]+|(")')
_SEPARATOR = "\x1f"


def table(text: str, types: Mapping[str, pa.DataType] | None = None) -> pa.Table:
    '''The table that `text` shows; `types` are those of columns whose values do not show them.

    >>> table("""
    ...     ts                   sym      px
    ...     2026-01-02T09:30:00  AAPL     10.5
    ...     2026-01-02T09:30:01  "BRK A"  NULL
    ... """).schema.types
    [TimestampType(timestamp[s]), DataType(string), DataType(double)]

    Raises:
        InputError: a line has more or fewer values than there are columns, or a value is not of its column's type.
        SchemaError: two columns have one name, or a type is of a column that is not there.
    '''
    lines = [_words(line) for line in text.splitlines() if line.strip(" \t|")]
    if not lines:
        raise InputError("a table as text begins with a line of column names")
    names = [word.strip('"') for word in lines[0]]
    if len(set(names)) < len(names):
        raise SchemaError(f"two columns have one name: {', '.join(names)}")
    unknown = sorted({*(types or ())} - {*names})
    if unknown:
        raise SchemaError(f"types= names {', '.join(unknown)}, and the table has {', '.join(names)}")
    for words in lines[1:]:
        if len(words) != len(names):
            raise InputError(f"{len(words)} values for {len(names)} columns ({', '.join(names)}): {' '.join(words)}")
    try:
        return pacsv.read_csv(
            pa.py_buffer("".join(f"{_SEPARATOR.join(words)}\n" for words in lines).encode()),
            parse_options=pacsv.ParseOptions(delimiter=_SEPARATOR),
            convert_options=pacsv.ConvertOptions(
                column_types=dict(types or {}),
                null_values=["NULL"],
                true_values=["true"],
                false_values=["false"],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"the table's text does not fit its columns: {error}") from error


def assert_rows(result: pa.Table, expected: str, *, ordered: bool = True) -> None:
    '''Fail unless the columns that `expected` names have exactly its rows in `result`, which may have others as well.

    >>> assert_rows(pa.table({"l": [1, 2], "r": ["a", None], "more": [0, 0]}), """
    ...     l  r
    ...     1  a
    ...     2  NULL
    ... """)

    Raises:
        AssertionError: rows differ; the message shows both.
        SchemaError: a column of `expected` is not in `result`.
    '''
    names = table(expected).column_names
    missing = [name for name in names if name not in result.column_names]
    if missing:
        raise SchemaError(f"the result has no column {', '.join(missing)}; it has {', '.join(result.column_names)}")
    wanted = table(expected, {name: result.schema.field(name).type for name in names})
    # As texts: NaN is NaN here.
    found, rows = ([repr(tuple(row.values())) for row in side.select(names).to_pylist()] for side in (result, wanted))
    if found != rows if ordered else sorted(found) != sorted(rows):
        raise AssertionError("\n".join([", ".join(names), "found:", *found, "expected:", *rows]))


def _words(line: str) -> list[str]:
    found = list(_WORD.finditer(line))
    if any(word[1] for word in found):
        raise InputError(f"a quote is not closed: {line.strip()}")
    return [word[0] for word in found]
