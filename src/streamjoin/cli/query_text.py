"""A query's text on the command line: reading it, and showing where an error is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer


def read_sql(sql: str | None, file: Path | None) -> str:
    """The text of an argument, of a file, or of the standard input where the argument is `-`.

    Raises:
        typer.BadParameter: there is neither or both, or the file can't be read.
    """
    if (sql is None) == (file is None):
        raise typer.BadParameter("give the query as an argument, or a file with --file, or - for standard input")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"can't read {file}: {error}") from error
    return sys.stdin.read() if sql == "-" else str(sql)


def pointed(problem: Mapping[str, Any]) -> list[str]:
    r"""The lines of the query that a problem refers to, with carets under the position.

    >>> place = {"line": 1, "column": 8, "end_line": 1, "end_column": 11, "message": "?"}
    >>> print("\n".join(pointed({"places": [place], "sql": "SELECT foo FROM a"})))
      line 1, column 8:
        SELECT foo FROM a
               ^^^
    """
    lines = str(problem.get("sql") or "").split("\n")
    shown: list[str] = []
    for place in problem.get("places") or ():
        number, column = int(place["line"]), int(place["column"])
        if number > len(lines):
            continue
        line = lines[number - 1]
        end = int(place["end_column"]) if place["end_line"] == number else len(line) + 1
        shown += [
            f"  line {number}, column {column}:",
            f"    {line}",
            f"    {' ' * (column - 1)}{'^' * max(1, end - column)}",
        ]
    return shown
