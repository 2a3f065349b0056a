"""What two queries share when they join the same streams by the same conditions: equal `JoinKey`s.

A key forgets aliases, the order of writing, windows and selections. The streams of a join take *roles*, numbered
from 0 in the order of their names; where a stream is there more than once (a self-join), its roles stay apart, and of
all ways to deal them out the one whose conditions come first as text is taken. So two sets of aliases have equal
keys iff one can be renamed into the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, permutations, product

from streamjoin.model.expression.canonical import renamed
from streamjoin.model.expression.nodes import Column, Expression
from streamjoin.model.terms import BandTerm, Equality, Term


def role(number: int) -> str:
    """The qualifier that a key's columns carry for a role."""
    return f"s{number}"


@dataclass(frozen=True)
class JoinKey:
    """Streams by role, and the conditions over columns `s0.x`, `s1.y`, ...; in terms the lower role is on the left."""

    streams: tuple[str, ...]
    equalities: tuple[Equality, ...]
    bands: tuple[BandTerm, ...]
    others: tuple[Expression, ...]

    @property
    def conditions(self) -> tuple[Expression, ...]:
        """All conditions as expressions."""
        terms: tuple[Term, ...] = (*self.equalities, *self.bands)
        return (*(term.condition for term in terms), *self.others)

    def __str__(self) -> str:
        streams = ", ".join(f"{stream} {role(number)}" for number, stream in enumerate(self.streams))
        return f"[{streams}: {' AND '.join(map(str, (*self.equalities, *self.bands, *self.others)))}]"


@dataclass(frozen=True)
class KeyedJoin:
    """A key, and which alias of a query plays each of its roles."""

    key: JoinKey
    aliases: tuple[str, ...]

    @property
    def roles(self) -> dict[str, str]:
        """The role of each alias, as the qualifier the key's columns carry."""
        return {alias: role(number) for number, alias in enumerate(self.aliases)}


def keyed(
    streams: Mapping[str, str], terms: Sequence[Term], others: Sequence[Expression], aliases: Sequence[str]
) -> KeyedJoin:
    """The key of a join of `aliases`, in the order of the query; `streams` names the stream of each."""
    candidates = [_label(streams, terms, others, dealt) for dealt in _dealings(streams, aliases)]
    return min(candidates, key=lambda candidate: str(candidate.key))


def _dealings(streams: Mapping[str, str], aliases: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every way to give the roles to aliases; aliases of one stream may exchange theirs."""
    ordered = sorted(aliases, key=lambda alias: streams[alias])
    groups = [list(permutations(group)) for _, group in groupby(ordered, key=lambda alias: streams[alias])]
    for dealt in product(*groups):
        yield tuple(alias for group in dealt for alias in group)


def _label(
    streams: Mapping[str, str], terms: Sequence[Term], others: Sequence[Expression], dealt: tuple[str, ...]
) -> KeyedJoin:
    roles = {alias: role(number) for number, alias in enumerate(dealt)}
    placed = [_place_term(term, roles) for term in terms]
    key = JoinKey(
        tuple(streams[alias] for alias in dealt),
        tuple(sorted((t for t in placed if isinstance(t, Equality)), key=str)),
        tuple(sorted((t for t in placed if isinstance(t, BandTerm)), key=str)),
        tuple(sorted((renamed(other, roles) for other in others), key=str)),
    )
    return KeyedJoin(key, dealt)


def _place_term(term: Term, roles: Mapping[str, str]) -> Term:
    left, right = (Column(roles[column.qualifier], column.name) for column in (term.left, term.right))
    if isinstance(term, Equality):
        placed: Term = Equality(left, right)
    else:
        placed = BandTerm(left, right, term.below, term.above, term.strict, term.is_duration)
    return placed if left.qualifier < right.qualifier else placed.flipped()
