"""The base class of a condition's nodes: operands, columns, depth and SQL text.

Nodes are frozen and hashable and reject an illegal shape in their constructor. Invariant of the text:
parsing ``str(node)`` returns an equal node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from streamjoin.model.errors import ExpressionError

MAX_DEPTH: Final = 100
"""Nodes may nest this deep; walking them recursively then stays far from Python's own limit."""

OR, AND, PREDICATE, SUM, PRODUCT, SIGN, ATOM = range(1, 8)
"""How tightly a printed node holds together: what binds less than its place asks for gets parentheses."""

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Words that the parser rejects as a bare qualifier or name, and some that other SQL dialects reject.
# fmt: off
_RESERVED: Final = frozenset(
    {
        "all", "alter", "and", "any", "as", "between", "call", "case", "cast", "connect_by_root",
        "create", "cross", "current_catalog", "current_date", "current_time", "current_timestamp",
        "current_user", "distinct", "drop", "else", "end", "except", "execute", "exists", "explain",
        "false", "fetch", "for", "from", "glob", "grant", "having", "if", "ilike", "in", "inner",
        "insert", "intersect", "interval", "into", "is", "join", "lateral", "like", "localtime",
        "localtimestamp", "not", "notnull", "null", "on", "optimize", "or", "outer",
        "partitioned_by", "prepare", "qualify", "regexp", "rename", "returning", "revoke", "rlike",
        "rollback", "select", "session_user", "show", "straight_join", "table", "tablesample",
        "then", "true", "uncache", "union", "using", "vacuum", "values", "when", "where", "with",
        "xor",
    }
)
# fmt: on


@dataclass(frozen=True)
class Expression:
    """A node of a condition: frozen, hashable, and printed as SQL text that parses to an equal node."""

    depth: int = field(init=False, repr=False, compare=False, default=1)

    _operands: ClassVar[tuple[str, ...]] = ()
    _binding: ClassVar[int] = ATOM
    _boolean: ClassVar[bool | None] = False

    def __post_init__(self) -> None:
        for child in self.children:
            if not isinstance(child, Expression):
                raise ExpressionError(f"{type(self).__name__} takes expressions, not {child!r}")
        depth = 1 + max((child.depth for child in self.children), default=0)
        if depth > MAX_DEPTH:
            raise ExpressionError(
                f"the expression nests more than {MAX_DEPTH} levels deep (a chain of AND or OR counts as one)"
            )
        object.__setattr__(self, "depth", depth)

    @property
    def children(self) -> tuple[Expression, ...]:
        """The operands, in the order of the text."""
        operands: list[Expression] = []
        for name in self._operands:
            operand = getattr(self, name)
            operands.extend(operand) if isinstance(operand, tuple) else operands.append(operand)
        return tuple(operands)

    @property
    def boolean(self) -> bool | None:
        """Whether this is a truth value; None where the types of columns decide that."""
        return self._boolean

    @property
    def binding(self) -> int:
        """The operator precedence of the printed node."""
        return self._binding

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every column read, once each, in the order of the text."""
        return tuple(dict.fromkeys(node for node in self.walk() if isinstance(node, Column)))

    def walk(self) -> Iterator[Expression]:
        """Yield the node and all nodes below it, parents first, in the order of the text."""
        pending: list[Expression] = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node.children))

    def rebuilt(self, change: Callable[[Expression], Expression]) -> Expression:
        """The same node over changed operands."""
        changed: dict[str, Any] = {}
        for name in self._operands:
            operand = getattr(self, name)
            changed[name] = tuple(map(change, operand)) if isinstance(operand, tuple) else change(operand)
        return replace(self, **changed)

    def within(self, binding: int) -> str:
        """The text as an operand of this precedence, in parentheses if needed."""
        return str(self) if self.binding >= binding else f"({self})"


@dataclass(frozen=True)
class Column(Expression):
    """The column ``name`` of the side or stream ``qualifier``; both are case-sensitive."""

    qualifier: str
    name: str

    _boolean: ClassVar[bool | None] = None

    def __post_init__(self) -> None:
        for part, text in (("qualifier", self.qualifier), ("name", self.name)):
            if not isinstance(text, str) or not text:
                raise ExpressionError(f"a column's {part} is a non-empty string, not {text!r}")
        super().__post_init__()

    def __str__(self) -> str:
        return f"{_identifier(self.qualifier)}.{_identifier(self.name)}"


def _identifier(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name) and name.lower() not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def require_boolean(operand: Expression, where: str) -> None:
    """Reject an operand that by its shape can't be a truth value.

    Raises:
        ExpressionError: ``operand`` is a number, a string, an arithmetic result, ...
    """
    if isinstance(operand, Expression) and operand.boolean is False:
        raise ExpressionError(f"{where} takes booleans; {shorten(operand)} is not one")


def require_value(operand: Expression, where: str) -> None:
    """Reject an operand that by its shape can only be a truth value.

    Raises:
        ExpressionError: ``operand`` is a comparison, AND, OR, NOT, TRUE, ...
    """
    if isinstance(operand, Expression) and operand.boolean:
        raise ExpressionError(f"{where} takes no booleans; {shorten(operand)} is one")


def shorten(node: Expression, width: int = 80) -> str:
    """The node's text, cut to ``width`` characters for a message."""
    text = str(node)
    return text if len(text) <= width else text[: width - 3] + "..."
