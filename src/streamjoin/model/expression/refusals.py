"""Error messages for SQL that a condition may not use.

The parser's nodes are identified by their class names and those of their bases, most specific first, so that
this table does not import the parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamjoin.model.expression.nodes import FUNCTIONS

CONDITION: Final = "a condition"

REGEX: Final = (
    "regular expressions are not allowed in {where}: write LIKE or ILIKE, with % for any text and _ for a character, "
    "or make the result a column before the join"
)
JSON: Final = (
    "a field inside of JSON, a list or a map can't be read in {where}: make it a column before the join, as `select` "
    "of a source does, and name that"
)
PARAMETER: Final = "a parameter is not allowed: write the value itself"


def subquery(where: str) -> str:
    """Why there is no subquery, and what to write instead."""
    kinds = ('how="semi"', 'how="anti"') if where == CONDITION else ("SEMI JOIN b WITHIN 3 SECONDS ON ...", "ANTI JOIN")
    return (
        f"a subquery is not allowed in {where}: join what it reads, with {kinds[0]} for EXISTS and IN, and with "
        f"{kinds[1]} for NOT EXISTS and NOT IN"
    )


# Class name of the node, the message, and the tokens to point at if the node itself has no place.
_REFUSALS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("Query", "{subquery}", ("SELECT", "WITH", "VALUES")),
    ("Subquery", "{subquery}", ("SELECT", "WITH", "VALUES")),
    ("Exists", "{subquery}", ("EXISTS",)),
    ("All", "{subquery}", ("ALL",)),
    ("Any", "a subquery or list after ANY is not allowed in {where}", ("ANY", "SOME")),
    ("Window", "a window function is not allowed in {where}, which sees one row of each side", ("OVER",)),
    ("AggFunc", "the aggregate {name} is not allowed in {where}, which sees one row of each side", ()),
    ("Placeholder", "a placeholder is not allowed: write the value itself", ("PLACEHOLDER", "COLON")),
    ("Parameter", PARAMETER, ("PARAMETER",)),
    ("Star", "* is not a column: name one", ("STAR",)),
    ("Tuple", "a list of values is only allowed after IN", ()),
    ("Distinct", "DISTINCT is only allowed in IS [NOT] DISTINCT FROM", ("DISTINCT",)),
    ("Cast", "a cast is only allowed as DATE '...' or TIMESTAMP '...'; cast the column before the join", ()),
    ("DPipe", "|| is not allowed; allowed operators: + - * / %", ("DPIPE",)),
    ("Dot", "a column is written qualifier.name, and functions have no qualifier", ()),
    ("Concat", "strings can't be concatenated in {where}", ()),
    ("Struct", "braces are not allowed in {where}", ("L_BRACE",)),
    *((kind, REGEX, ()) for kind in ("RegexpLike", "RegexpILike", "RegexpFullMatch", "SimilarTo", "Glob")),
    ("BitwiseNot", "~ is not allowed; allowed operators: + - * / %", ("TILDE",)),
    ("Bracket", JSON, ()),
    ("Binary", "this operator is not allowed; allowed: + - * / %, comparisons, AND, OR", ()),
    ("Command", "a statement is not allowed in {where}", ()),
    ("Func", "unknown function {name}; known: {functions}", ()),
)


def refusal(kinds: Sequence[str], name: str, where: str = CONDITION) -> tuple[str, tuple[str, ...]]:
    """The message for a node of these classes, and the kinds of tokens to point at."""
    if kinds[0].startswith("JSON") or ("Func" in kinds and "JSON" in name.upper()):
        return JSON.format(where=where), ()
    for kind, message, words in _REFUSALS:
        if kind in kinds:
            functions = ", ".join(FUNCTIONS)
            return message.format(name=name.upper(), functions=functions, where=where, subquery=subquery(where)), words
    return f"{kinds[0].upper()} is not allowed in {where}", ()
