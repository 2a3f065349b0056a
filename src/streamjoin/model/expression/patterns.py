"""LIKE patterns: ``%`` stands for any run of characters, ``_`` for one.

A pattern compiles to a regular expression that never backtracks over more than one ``%``: each middle piece
is matched where it first occurs, which loses no match because pieces have a fixed length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from streamjoin.model.errors import ExpressionError

ANY_RUN: Final = -1
ANY_ONE: Final = -2

Piece = str | int


def split_pattern(pattern: str, escape: str | None) -> list[Piece]:
    """The pattern's characters, with the wildcards as :data:`ANY_RUN` and :data:`ANY_ONE`.

    Raises:
        ExpressionError: the escape is not one character, or precedes a character that it cannot escape.
    """
    if escape is not None and (not isinstance(escape, str) or len(escape) != 1):
        raise ExpressionError(f"ESCAPE takes one character, not {escape!r}")
    pieces: list[Piece] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise ExpressionError(
                    f"in the pattern {pattern!r} the escape character {escape!r} stands before "
                    f"{'the end' if escaped is None else repr(escaped)}, but only %, _ or itself may follow"
                )
            pieces.append(escaped)
        else:
            pieces.append({"%": ANY_RUN, "_": ANY_ONE}.get(character, character))
    return pieces


def matcher(pattern: str, escape: str | None, *, ignore_case: bool) -> Callable[[str], bool]:
    """A function that tests whether a whole string matches; ``ignore_case`` compares lower-case forms."""
    pieces = split_pattern(pattern, escape)
    runs: list[list[Piece]] = [[]]
    for piece in pieces:
        if piece == ANY_RUN:
            runs.append([])
        else:
            runs[-1].append(piece.lower() if ignore_case and isinstance(piece, str) else piece)
    texts = [_regex(run) for run in runs]
    if len(texts) == 1:
        body = texts[0]
    else:
        middle = "".join(f"(?>.*?{text})" for text in texts[1:-1] if text)
        body = f"{texts[0]}{middle}.*{texts[-1]}"
    match = re.compile(body, re.DOTALL).fullmatch
    if ignore_case:
        return lambda text: match(text.lower()) is not None
    return lambda text: match(text) is not None


def _regex(run: list[Piece]) -> str:
    return "".join("." if piece == ANY_ONE else re.escape(str(piece)) for piece in run)
