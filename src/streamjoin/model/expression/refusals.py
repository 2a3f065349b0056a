"""Error messages for SQL that a condition may not use.

The parser's nodes are identified by their class names and those of their bases, most specific first, so that
this table does not import the parser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamjoin.model.expression.nodes import FUNCTIONS

CONDITION: Final = "a condition"

# Class name of the node, the message, and the tokens to point at if the node itself has no place.
_REFUSALS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("Query", "a subquery is not allowed in {where}", ("SELECT", "WITH", "VALUES")),
    ("Subquery", "a subquery is not allowed in {where}", ("SELECT", "WITH", "VALUES")),
    ("Exists", "a subquery is not allowed in {where}", ("EXISTS",)),
    ("All", "a subquery is not allowed in {where}", ("ALL",)),
    ("Any", "a subquery or list after ANY is not allowed in {where}", ("ANY", "SOME")),
    ("Window", "a window function is not allowed in {where}, which sees one row of each side", ("OVER",)),
    ("AggFunc", "the aggregate {name} is not allowed in {where}, which sees one row of each side", ()),
    ("Placeholder", "a placeholder is not allowed: write the value itself", ("PLACEHOLDER", "COLON")),
    ("Parameter", "a parameter is not allowed: write the value itself", ("PARAMETER",)),
    ("Star", "* is not a column: name one", ("STAR",)),
    ("Tuple", "a list of values is only allowed after IN", ()),
    ("Distinct", "DISTINCT is only allowed in IS [NOT] DISTINCT FROM", ("DISTINCT",)),
    ("Cast", "a cast is only allowed as DATE '...' or TIMESTAMP '...'; cast the column before the join", ()),
    ("DPipe", "|| is not allowed; allowed operators: + - * / %", ("DPIPE",)),
    ("Dot", "a column is written qualifier.name, and functions have no qualifier", ()),
    ("Concat", "strings can't be concatenated in {where}", ()),
    ("Struct", "braces are not allowed in {where}", ("L_BRACE",)),
    ("Binary", "this operator is not allowed; allowed: + - * / %, comparisons, AND, OR", ()),
    ("Command", "a statement is not allowed in {where}", ()),
    ("Func", "unknown function {name}; known: {functions}", ()),
)


def refusal(kinds: Sequence[str], name: str, where: str = CONDITION) -> tuple[str, tuple[str, ...]]:
    """The message for a node of these classes, and the kinds of tokens to point at."""
    for kind, message, words in _REFUSALS:
        if kind in kinds:
            return message.format(name=name.upper(), functions=", ".join(FUNCTIONS), where=where), words
    return f"{kinds[0].upper()} is not allowed in {where}", ()
