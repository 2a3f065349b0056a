"""Every value of a TOML document has the line it stands on, however the document is written."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from streamjoin.config.lines import Path, line_of, lines_of

# Every scalar is the number of the line it stands on, so that the document says itself what is right.
DOCUMENT = '''\
# a comment with [brackets] and "quotes"
top = 2
"quoted key" = 3
'literal.key' = 4
dotted.inner.key = 5

[table] # [not] a table
a = 8
text = """
b = 3 [x]
\\"""
""" # the string above began on line 9
after = 13
list = [
    15,
    # a comment, with ] and ,
    17, [17,
         18],
]
inline = { p = 20, q = { r = 20 }, "s t" = [20] }
[table."sub.table"]
x = 22
[[items]]
n = 24
[items.sub]
m = 26
[[items]]
n = 28
[items.sub]
m = 30
[[items.more]]
k = 32
[[items.more]]
k = 34
odd = 'a # no comment \\'
"esc\\u0041ped" = 36
'''


def leaves(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    if isinstance(value, dict):
        return [leaf for key, below in value.items() for leaf in leaves(below, (*path, key))]
    if isinstance(value, list):
        return [leaf for number, below in enumerate(value) for leaf in leaves(below, (*path, number))]
    return [(path, value)]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_value_has_its_line(newline: str) -> None:
    text = DOCUMENT.replace("\n", newline)
    lines = lines_of(text)
    found = leaves(tomllib.loads(text))
    assert len(found) == 23
    for path, value in found:
        if isinstance(value, int):
            assert lines[path] == value, path
    assert lines[("table", "text")] == 9
    assert lines[("items", 1, "more", 1, "odd")] == 35


def test_every_table_has_the_line_of_its_header() -> None:
    lines = lines_of(DOCUMENT)
    assert lines[("table",)] == 7
    assert lines[("table", "sub.table")] == 21
    assert [lines[("items", n)] for n in (0, 1)] == [23, 27]
    assert [lines[("items", n, "sub")] for n in (0, 1)] == [25, 29]


def test_what_is_not_there_has_the_line_of_what_is_around_it() -> None:
    lines = lines_of(DOCUMENT)
    assert line_of(lines, ("table", "nothing", 3)) == 7
    assert line_of(lines, ("nothing",)) == 1
    assert line_of(lines_of(""), ("x",)) == 1
