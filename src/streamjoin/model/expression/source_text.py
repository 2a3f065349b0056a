"""The text of a condition, its words and their places, for error messages.

Offsets count characters from 0 and spans are half-open; the line and column in a message count from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Self, TypeAlias

from streamjoin.model.errors import ExpressionError

Span: TypeAlias = tuple[int, int]

_CONTEXT: Final = 60
MAX_NESTING: Final = 40
"""Parentheses, brackets and CASE in each other; the parser's stack has room for a few more."""
_OPENING: Final = frozenset({"L_PAREN", "L_BRACKET", "L_BRACE", "CASE"})
_ENDING: Final = frozenset({"R_PAREN", "R_BRACKET", "R_BRACE", "END"})
# fmt: off
_OPERATORS: Final = frozenset({
    "EQ", "NEQ", "LT", "LTE", "GT", "GTE", "NULLSAFE_EQ",
    "IS", "ISNULL", "NOTNULL", "LIKE", "ILIKE", "IN", "BETWEEN",
})
# fmt: on


@dataclass(frozen=True)
class Word:
    """A token: its kind, as the tokenizer names it, and its span."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class SourceText:
    """A condition's text with its words."""

    text: str
    words: Sequence[Word] = ()

    def cut(self, words: Sequence[Word]) -> Self:
        """The same text with a subset of its words."""
        return replace(self, words=words)

    @property
    def span(self) -> Span:
        """From the first word to the last; the whole text if there are none."""
        return (self.words[0].start, self.words[-1].end) if self.words else (0, len(self.text))

    def position(self, start: int) -> tuple[int, int]:
        """The line and column of an offset, counted from 1."""
        return self.text.count("\n", 0, start) + 1, start - self.text.rfind("\n", 0, start)

    def error(self, message: str, start: int, end: int) -> ExpressionError:
        """An error with the line of ``start`` and carets under the span."""
        return ExpressionError(self.shown(message, start, end))

    def shown(self, message: str, start: int, end: int) -> str:
        """The message with the line of ``start`` and carets under the span."""
        start = min(start, len(self.text))
        line_start = self.text.rfind("\n", 0, start) + 1
        line_end = self.text.find("\n", start)
        line_end = len(self.text) if line_end < 0 else line_end
        left = max(line_start, start - _CONTEXT)
        right = min(line_end, start + 2 * _CONTEXT)
        before = "..." if left > line_start else ""
        after = "..." if right < line_end else ""
        excerpt = "".join(c if c.isprintable() else " " for c in self.text[left:right])
        carets = "^" * max(1, min(end, right) - start)
        line, column = self.position(start)
        return (
            f"{message}\n  line {line}, column {column}:\n"
            f"    {before}{excerpt}{after}\n    {' ' * (len(before) + start - left)}{carets}"
        )

    def of(self, word: Word) -> str:
        """The word as written."""
        return self.text[word.start : word.end]

    def first(self, *kinds: str) -> Word | None:
        """The first word of one of these kinds."""
        return next((word for word in self.words if word.kind in kinds), None)

    def pair(self, kind: str, part: str) -> tuple[int, int] | None:
        """The span of the first word of a kind and the next word, if the next word contains ``part``."""
        for word, after in pairwise(self.words):
            if word.kind == kind and part in self.of(after):
                return word.start, after.end
        return None

    def unclosed(self) -> int:
        """The offset of the quote or comment that never ends; the text's end if there is none."""
        position = 0
        while position < len(self.text):
            opening = next((mark for mark in _CLOSING if self.text.startswith(mark, position)), None)
            if opening is None:
                position += 1
                continue
            end = self.text.find(_CLOSING[opening], position + len(opening))
            if end < 0:
                return len(self.text) if opening == "--" else position
            position = end + len(_CLOSING[opening])
        return position

    def reject_nesting(self) -> None:
        """Reject deep nesting before parsing: a parser takes many steps per level before it fails.

        Raises:
            ExpressionError: parentheses, brackets or CASE are nested more than `MAX_NESTING` deep.
        """
        depth = 0
        for word in self.words:
            if word.kind in _OPENING:
                depth += 1
                if depth > MAX_NESTING:
                    message = f"the text nests more than {MAX_NESTING} levels deep; use fewer parentheses"
                    raise self.error(message, word.start, word.end)
            elif word.kind in _ENDING:
                depth = max(0, depth - 1)

    def reject_chains(self) -> None:
        """Reject ``a < b < c`` and ``a = b IS NULL``: SQL dialects read these in different ways.

        Raises:
            ExpressionError: two comparisons are adjacent without AND, OR or parentheses between them.
        """
        open_comparisons, open_betweens = [0], [0]
        for before, word, after in zip([None, *self.words], self.words, [*self.words[1:], None], strict=False):
            is_name = any(neighbour and neighbour.kind == "DOT" for neighbour in (before, after))
            kind = "" if is_name else word.kind
            if kind in ("L_PAREN", "CASE"):
                open_comparisons.append(0)
                open_betweens.append(0)
            elif kind in ("R_PAREN", "END") and len(open_comparisons) > 1:
                open_comparisons.pop()
                open_betweens.pop()
            elif kind == "AND" and open_betweens[-1]:
                open_betweens[-1] -= 1
            elif kind in ("AND", "OR", "WHEN", "THEN", "ELSE", "COMMA"):
                open_comparisons[-1] = 0
            elif kind in _OPERATORS:
                open_comparisons[-1] += 1
                open_betweens[-1] += kind == "BETWEEN"
                if open_comparisons[-1] > 1:
                    raise self.error(
                        f"{self.of(word)!r} follows a comparison; join them with AND, or add parentheses",
                        word.start,
                        word.end,
                    )


_CLOSING: Final = {"'": "'", '"': '"', "--": "\n", "/*": "*/"}
