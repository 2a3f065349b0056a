"""Conditions of shared steps as people read them: streams by name, and in few letters."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ROLE = re.compile(r"\bs(\d+)\.")
_NEXT_TERM = re.compile(r" AND (?=s\d+\.)")
_BAND = re.compile(r"^(\S+) - (\S+) BETWEEN (\S+) AND (\S+)$")


def readable_terms(condition: str, path: Sequence[str]) -> list[str]:
    """The terms of a step's condition as `readable` tells each, in an order that no side decides.

    >>> readable_terms("s0.k = s1.k AND s0.x - s1.y BETWEEN -5 AND 0", ["b", "a"])
    ['a.k = b.k', 'a.y - b.x BETWEEN 0 AND 5']
    """
    return sorted(readable(term, path) for term in _NEXT_TERM.split(condition))


def readable(condition: str, path: Sequence[str]) -> str:
    """A step's condition with the streams' names in place of their roles, the same whichever side drives it.

    >>> readable("s0.k = s1.k", ["b", "a"]), readable("s0.x - s1.y BETWEEN -5 AND 0", ["b", "a"])
    ('a.k = b.k', 'a.y - b.x BETWEEN 0 AND 5')
    """

    def name(role: re.Match[str]) -> str:
        number = int(role[1])
        return f"{path[number]}." if number < len(path) else role[0]

    text = _ROLE.sub(name, condition)
    left, equals, right = text.partition(" = ")
    if equals and " " not in left + right:
        return " = ".join(sorted((left, right)))
    band = _BAND.match(text)
    if band is not None and band[1] > band[2]:
        return f"{band[2]} - {band[1]} BETWEEN {_negated(band[4])} AND {_negated(band[3])}"
    return text


def brief(condition: str) -> str:
    """A readable condition in few letters: what tells joins of the same streams apart.

    >>> brief("a.k = b.k"), brief("a.k = b.l"), brief("a.x - b.y BETWEEN -2 AND 2"), brief("a.x - b.x BETWEEN 0 AND 5")
    ('k', 'k = l', '|x − y| ≤ 2', '0 ≤ x − x ≤ 5')
    """
    band = _BAND.match(condition)
    if band is not None:
        left, right = (side.rpartition(".")[2] for side in band.groups()[:2])
        low, high = band[3], band[4]
        return f"|{left} − {right}| ≤ {high}" if _negated(high) == low else f"{low} ≤ {left} − {right} ≤ {high}"
    left, equals, right = condition.partition(" = ")
    if equals and " " not in left + right:
        left, right = left.rpartition(".")[2], right.rpartition(".")[2]
        return left if left == right else f"{left} = {right}"
    return condition


def _negated(number: str) -> str:
    if number in ("0", "0.0"):
        return number
    return number[1:] if number.startswith("-") else f"-{number}"
