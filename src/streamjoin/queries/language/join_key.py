"""What two queries share when an index serves them alike: equal `JoinKey`s.

A key forgets aliases, the order of writing, windows, selections and conditions that no index serves. The streams of a
join take *roles*, numbered from 0 in the order of their names; where a stream is there more than once (a self-join),
its roles stay apart, and of all ways to deal them out the one whose terms come first as text is taken. So two sets of
aliases have equal keys iff one can be renamed into the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, permutations, product

from streamjoin.model.expression.nodes import Column
from streamjoin.model.terms import BandTerm, Equality, Term


def role(number: int) -> str:
    """The qualifier that a key's columns carry for a role."""
    return f"s{number}"


@dataclass(frozen=True)
class JoinKey:
    """Streams by role, and the terms over columns `s0.x`, `s1.y`, ..., with the lower role on the left."""

    streams: tuple[str, ...]
    equalities: tuple[Equality, ...]
    bands: tuple[BandTerm, ...]

    def __str__(self) -> str:
        streams = ", ".join(f"{stream} {role(number)}" for number, stream in enumerate(self.streams))
        return f"[{streams}: {' AND '.join(map(str, (*self.equalities, *self.bands)))}]"


@dataclass(frozen=True)
class KeyedJoin:
    """A key, and which alias of a query plays each of its roles."""

    key: JoinKey
    aliases: tuple[str, ...]


def keyed(streams: Mapping[str, str], terms: Sequence[Term]) -> KeyedJoin:
    """The key of a join of aliases in the order of the query; `streams` names the stream of each."""
    candidates = [_label(streams, terms, dealt) for dealt in _dealings(streams)]
    return min(candidates, key=lambda candidate: str(candidate.key))


def _dealings(streams: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Every way to give the roles to aliases; aliases of one stream may exchange theirs."""
    ordered = sorted(streams, key=lambda alias: streams[alias])
    groups = [list(permutations(group)) for _, group in groupby(ordered, key=lambda alias: streams[alias])]
    for dealt in product(*groups):
        yield tuple(alias for group in dealt for alias in group)


def _label(streams: Mapping[str, str], terms: Sequence[Term], dealt: tuple[str, ...]) -> KeyedJoin:
    roles = {alias: role(number) for number, alias in enumerate(dealt)}
    placed = [_place_term(term, roles) for term in terms]
    key = JoinKey(
        tuple(streams[alias] for alias in dealt),
        tuple(sorted((t for t in placed if isinstance(t, Equality)), key=str)),
        tuple(sorted((t for t in placed if isinstance(t, BandTerm)), key=str)),
    )
    return KeyedJoin(key, dealt)


def _place_term(term: Term, roles: Mapping[str, str]) -> Term:
    left, right = (Column(roles[column.qualifier], column.name) for column in (term.left, term.right))
    if isinstance(term, Equality):
        placed: Term = Equality(left, right)
    else:
        placed = BandTerm(left, right, term.below, term.above, term.strict, term.is_duration)
    return placed if left.qualifier < right.qualifier else placed.flipped()
