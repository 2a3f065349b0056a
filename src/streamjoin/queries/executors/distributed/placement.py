"""Which tuples lie in which cell, so that every result of a query is found in exactly one cell.

A cell is what one task holds of the streams. Cells form a grid of one or two dimensions. In each dimension a stream has
a `CellRoute`: by the hash of a key, by the block of a band's word (`owner`) or every block that a band's interval
touches (`span`), by the tuple's position (`spread`), or to all coordinates. In each dimension at least one
stream of a query has one coordinate for each tuple, and the tuples that can join with it have this coordinate too. So a
result's tuples meet in exactly one cell, whatever the number of cells.

A query whose streams all have the same key needs no copies. In `a.k = b.k AND b.p = c.p` the grid has two dimensions:
`b` lies in one cell, `a` in one column, `c` in one row (the shares algorithm of Afrati and Ullman). Without a key or
band one stream is spread and the others are everywhere; so are the tuples of a heavy key, one that many tuples have.
Where tuples may come out unmatched, only they can be spread: each then meets all it can match in its one cell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import combinations
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from streamjoin._arrays import Array
from streamjoin.kernels.encode import float32_to_float64
from streamjoin.model.expression.nodes import Column
from streamjoin.model.keys import KeyTerm, WordKind, fit
from streamjoin.model.plain_types import plain_type, storage_type
from streamjoin.model.predicates import Band, Equi
from streamjoin.model.terms import Equality, Term
from streamjoin.queries.core.buckets import OneTerm
from streamjoin.queries.language.plan import Query, Stream
from streamjoin.windows.encoding import SideEncoder

_BLOCK: Final = 4
"""A block of a band is this many times as wide as the band: a quarter of the tuples of one side has a copy."""
_LARGEST: Final = float(1 << 62)


@dataclass(frozen=True)
class CellRoute:
    """How a stream's tuples get their coordinate in one dimension."""

    kind: Literal["key", "owner", "span", "spread", "all"]
    term: KeyTerm | None = None
    heavy: tuple[int, ...] = ()
    """Words of keys that are too many for one cell: one stream of a query has them `divided`, the others everywhere."""
    divided: bool = False
    keeps_null: bool = False
    """Whether a tuple without a key, which joins with nothing, lies in some cell: a query gives it out unmatched."""

    def targets(self, table: pa.Table, size: int) -> tuple[Array, Array] | None:
        """Rows and coordinates below `size`, where a row may have several or none; None if each row has all."""
        numbers = np.arange(table.num_rows)
        if self.kind == "all":
            return None
        if self.kind == "spread":
            return numbers, numbers % size
        if self.term is None:
            raise AssertionError("a route by words without a term")
        side: Literal["left", "right"] = "left" if self.kind == "span" else "right"
        encoded = SideEncoder(OneTerm((self.term,)), side).encode(table)
        words = encoded.terms[0]
        # A row without a key joins with nothing.
        rows = numbers if encoded.valid is None else np.flatnonzero(encoded.valid)
        if self.kind in ("key", "owner"):
            is_key = self.kind == "key"
            own = words.word[rows]
            placed = self._by_key(rows, own, size) if is_key else (rows, self._blocks(own) % size)
            return self._with_null(placed, encoded.valid, size)
        rows = rows[words.lo[rows] <= words.hi[rows]]
        low, high = self._blocks(words.lo[rows]), self._blocks(words.hi[rows])
        counts = np.minimum(high - low, size - 1) + 1
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(rows, counts), (np.repeat(low, counts) + within) % size

    def _by_key(self, rows: Array, words: Array, size: int) -> tuple[Array, Array]:
        coordinates = _hashed(words) % size
        if not self.heavy:
            return rows, coordinates
        is_heavy = np.isin(words, np.array(self.heavy, np.int64))
        if self.divided:
            return rows, np.where(is_heavy, rows % size, coordinates)
        counts = np.where(is_heavy, size, 1)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(rows, counts), np.where(np.repeat(is_heavy, counts), within, np.repeat(coordinates, counts))

    def _with_null(self, placed: tuple[Array, Array], valid: Array | None, size: int) -> tuple[Array, Array]:
        if valid is None or not self.keeps_null:
            return placed
        missing = np.flatnonzero(~valid)
        rows = np.concatenate([placed[0], missing])
        order = np.argsort(rows, kind="stable")
        return rows[order], np.concatenate([placed[1], missing % size])[order]

    def words(self, table: pa.Table) -> Array:
        """The words of the rows that have a key."""
        if self.term is None:
            raise AssertionError("a route by words without a term")
        encoded = SideEncoder(OneTerm((self.term,)), "right").encode(table)
        words = encoded.terms[0].word
        return np.asarray(words if encoded.valid is None else words[encoded.valid])

    @property
    def key_column(self) -> str | None:
        """The column by whose values tuples are placed; None if they are placed otherwise."""
        return self.term.right.name if self.kind == "key" and self.term is not None else None

    def _blocks(self, words: Array) -> Array:
        """A number that never falls while words ascend, and that changes once every few widths of the band."""
        term = self.term
        if term is None:
            raise AssertionError("blocks without a term")
        if term.kind is WordKind.INTEGER:
            width = _BLOCK * max(0, int(term.below) + int(term.above)) // max(1, term.right.multiplier)
            return np.asarray(words // np.int64(min(max(1, width), 1 << 62)))
        if term.kind is WordKind.FLOAT32:
            single, words = words, np.empty(words.size, np.int64)
            float32_to_float64(single, words)
        values = np.where(words < 0, words ^ np.int64((1 << 63) - 1), words).view(np.float64)
        distance = _BLOCK * (float(term.below) + float(term.above))
        with np.errstate(over="ignore", invalid="ignore"):
            blocks = np.floor(values / (distance if 0 < distance < np.inf else 1.0))
        return np.asarray(np.clip(np.nan_to_num(blocks), -_LARGEST, _LARGEST).astype(np.int64))


ALL: Final = CellRoute("all")
Routes = Mapping[str, tuple[CellRoute, ...]]
"""By stream, a route for each dimension."""


@dataclass(frozen=True)
class Placement:
    """The routes of some queries' streams. `number` names the placement; `dimensions` may be 0: one cell has all."""

    number: int
    dimensions: int
    routes: Routes
    counted: bool = False
    """Whether some query has a ROWS window, so that tuples carry their positions."""
    waits: bool = False
    """Whether it is for queries of whose tuples some wait, so that tuples carry their ids."""

    def sizes(self, cells: int) -> tuple[int, ...]:
        """The sizes of the dimensions; their product is the number of cells, unless one cell has all."""
        if self.dimensions < 2:
            return (cells,) * self.dimensions
        second = next(size for size in range(round(cells**0.5), 0, -1) if cells % size == 0)
        return cells // second, second

    def has(self, cell: int, cells: int) -> bool:
        """Whether a cell has anything of this placement."""
        return bool(self.dimensions) or cell == self.number % cells

    def share(self, stream: str, cells: int) -> float:
        """The share of a stream's tuples that a cell has."""
        share = 1.0
        for route, size in zip(self.routes[stream], self.sizes(cells), strict=True):
            if route.kind != "all":
                share *= min(1.0, (1 + 1 / _BLOCK if route.kind == "span" else 1) / size)
        return share

    def is_divided_by(self, stream: str, column: str) -> bool:
        """Whether tuples of a stream with the same value of a column are in the same cell, and only there."""
        routes = self.routes.get(stream, ())
        return len(routes) == 1 and routes[0].key_column == column

    def covers(self, other: Placement) -> bool:
        """Whether another's queries can be run with this one."""
        routes = all(self.routes.get(stream) == found for stream, found in other.routes.items())
        same = self.dimensions == other.dimensions and self.waits == other.waits
        return routes and same and self.counted >= other.counted

    def groups(self, stream: str, cells: int) -> CellGroups:
        """How a stream's tuples are grouped so that a cell needs one group."""
        return CellGroups(self.routes[stream], self.sizes(cells))

    def extended(self, other: Placement) -> Placement | None:
        """With another's streams, if both have one key; None if a stream would need two routes."""
        if self.waits != other.waits:
            return None
        if (self.dimensions, self.routes) == (other.dimensions, other.routes):
            return self if self.counted or not other.counted else replace(self, counted=True)
        if self.dimensions != 1 or other.dimensions != 1:
            return None
        types = {_word_type(routes) for placement in (self, other) for routes in placement.routes.values()}
        if None in types or len(types) > 1:
            return None
        both = {**self.routes, **other.routes}
        if any(both[stream] != routes for stream, routes in self.routes.items()):
            return None
        return replace(self, routes=both, counted=self.counted or other.counted)


@dataclass(frozen=True)
class CellGroups:
    """The tuples of a stream in groups: those of one coordinate in every dimension that does not copy to all."""

    routes: tuple[CellRoute, ...]
    sizes: tuple[int, ...]

    @cached_property
    def key(self) -> str:
        """A name that is the same in every process: files of one key have the same groups."""
        return blake2b(repr((self.routes, self.sizes)).encode(), digest_size=12).hexdigest()

    def group_of(self, cell: int) -> int:
        """The group that a cell needs."""
        group = 0
        for route, size, coordinate in zip(self.routes, self.sizes, self._coordinates(cell), strict=True):
            if route.kind != "all":
                group = group * size + coordinate
        return group

    def _coordinates(self, cell: int) -> list[int]:
        coordinates = []
        for size in reversed(self.sizes):
            cell, coordinate = divmod(cell, size)
            coordinates.append(coordinate)
        return coordinates[::-1]

    def split(self, table: pa.Table) -> tuple[Array, Array]:
        """Rows and groups, by group and then by row; a row may be in several groups or in none."""
        rows, groups = np.arange(table.num_rows), np.zeros(table.num_rows, np.int64)
        for route, size in zip(self.routes, self.sizes, strict=True):
            found = route.targets(table, size)
            if found is not None:
                rows, groups = _crossed((rows, groups), found, table.num_rows, size)
        order = np.argsort(groups, kind="stable")
        return rows[order], groups[order]

    def rows(self, table: pa.Table, cell: int) -> Array:
        """The rows of the group that a cell needs, ascending."""
        chosen = np.ones(table.num_rows, np.bool_)
        for route, size, coordinate in zip(self.routes, self.sizes, self._coordinates(cell), strict=True):
            found = route.targets(table, size)
            if found is not None:
                here = np.zeros(table.num_rows, np.bool_)
                here[found[0][found[1] == coordinate]] = True
                chosen &= here
        return np.flatnonzero(chosen)


def _crossed(one: tuple[Array, Array], two: tuple[Array, Array], count: int, size: int) -> tuple[Array, Array]:
    """Every pair of a row's groups so far and its coordinates in one more dimension; rows ascend in both."""
    starts = np.searchsorted(two[0], np.arange(count + 1))
    counts = np.diff(starts)[one[0]]
    places = np.repeat(np.arange(len(one[0])), counts)
    within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    return one[0][places], one[1][places] * size + two[1][starts[one[0][places]] + within]


def _word_type(routes: tuple[CellRoute, ...]) -> pa.DataType | None:
    """The type of a stream's key; None where a route is no key."""
    (route,) = routes
    return route.term.left.type if route.kind == "key" and route.term is not None else None


def least_share(cells: int) -> float:
    """The share of a stream's tuples from which on a key that was heavy stays so: a quarter of a cell's."""
    return 1 / (4 * cells)


def place(query: Query, number: int, counted: bool) -> Placement:
    """A placement for one query."""
    if query.kind_steps:
        return replace(_place_kinds(query, number, counted), waits=True)
    streams = list(dict.fromkeys(source.stream.name for source in query.sources))
    dimensions = _best([*_keys(query), *_bands(query)], streams)
    if not dimensions:
        alone = divisible_streams(query)
        return (
            spread_placement(query, alone[0], number, counted)
            if alone
            else Placement(number, 0, dict.fromkeys(streams, ()), counted)
        )
    routes = {name: tuple(found.get(name, ALL) for found in dimensions) for name in streams}
    return Placement(number, len(dimensions), routes, counted)


def divisible_streams(query: Query) -> list[str]:
    """The streams of which one can be divided by position, whatever a query joins by, if the others are in every cell.

    Such a stream has one alias in the query, and whoever may come out unmatched is, or contains, a tuple of it.
    """
    uses = [source.stream.name for source in query.sources]
    sides = _preserved(query)
    return [name for name in uses if uses.count(name) == 1 and all(name in side for side in sides)]


def _preserved(query: Query) -> list[set[str]]:
    """The streams of each side that may come out unmatched: of results of the core, or what a RIGHT JOIN adds."""
    if not query.kind_steps:
        return []
    names = {source.alias: source.stream.name for source in query.sources}
    last = query.kind_steps[-1]
    sides = [{names[last.right]}] if last.is_outer and last.kind in ("right", "full") else []
    return sides if last.is_outer and last.kind == "right" else [*sides, {names[alias] for alias in query.core}]


def spread_placement(query: Query, stream: str, number: int, counted: bool) -> Placement:
    """A placement in which one stream is divided by position, and the others are in every cell."""
    routes = {source.stream.name: (ALL,) for source in query.sources}
    return Placement(number, 1, {**routes, stream: (CellRoute("spread"),)}, counted)


_Dimension = dict[str, CellRoute]


def _place_kinds(query: Query, number: int, counted: bool) -> Placement:
    """A placement in which whoever may come out unmatched lies in one cell, together with all it can match.

    That is a result of the core, the tuple of the stream that a RIGHT JOIN adds, or either in a FULL JOIN.
    """
    streams = list(dict.fromkeys(source.stream.name for source in query.sources))
    preserved = _preserved(query)
    # In each dimension one of the streams of a preserved side has the coordinate.
    candidates = [found for found in _kind_keys(query) if all(found.keys() & side for side in preserved)]
    candidates += _kind_bands(query, preserved[0]) if len(preserved) == 1 else []
    dimensions = _best(candidates, streams)
    if dimensions:
        routes = {name: tuple(found.get(name, ALL) for found in dimensions) for name in streams}
        return Placement(number, len(dimensions), routes, counted)
    alone = divisible_streams(query)
    if alone:
        return spread_placement(query, alone[0], number, counted)
    return Placement(number, 0, dict.fromkeys(streams, ()), counted)


def _kind_keys(query: Query) -> Iterable[_Dimension]:
    """As `_keys`, where tuples must meet that no join after the inner ones holds equal.

    A set of columns is equal by the inner joins; the stream of a later join has those that this join compares with one
    of the set.
    """
    types = {s.alias: s.stream.schema for s in query.sources}
    core, sets = set(query.core), dict[Column, set[Column]]()
    columns: dict[Column, list[Column]] = {}
    for step in query.steps:
        for term in step.equalities:
            if not _plain(term.left, term.right):
                continue
            left, right = (_stored(types[c.qualifier].field(c.name).type) for c in (term.left, term.right))
            if left != right:
                continue
            if {term.left.qualifier, term.right.qualifier} <= core:
                merged = sets.get(term.left, {term.left}) | sets.get(term.right, {term.right})
                sets.update(dict.fromkeys(merged, merged))
            else:
                own, new = (term.left, term.right) if term.right.qualifier == step.right else (term.right, term.left)
                sets.setdefault(own, {own})
                columns.setdefault(own, []).append(new)
    for equal in {id(found): found for found in sets.values()}.values():
        compared = [*equal, *(new for own in equal for new in columns.get(own, ()))]
        yield _dimension(query, compared, keeps_null=True)


def _kind_bands(query: Query, preserved: Collection[str]) -> Iterable[_Dimension]:
    """For each term of a later join, the stream of the preserved side by its word and the other one by its interval."""
    types = {s.alias: s.stream for s in query.sources}
    uses = [source.stream.name for source in query.sources]
    for step in query.kind_steps:
        for written in step.terms:
            for term in (written, written.flipped()):
                left, right = (types[column.qualifier] for column in (term.left, term.right))
                if right.name in preserved and uses.count(left.name) == uses.count(right.name) == 1:
                    fitted = _fitted(term, left, right)
                    yield {
                        right.name: CellRoute("owner", fitted, keeps_null=True),
                        left.name: CellRoute("span", fitted),
                    }


def _dimension(query: Query, compared: Collection[Column], *, keeps_null: bool = False) -> _Dimension:
    """The streams all of whose aliases have one of some columns, by that column."""
    dimension: _Dimension = {}
    for name in dict.fromkeys(source.stream.name for source in query.sources):
        sources = [source for source in query.sources if source.stream.name == name]
        columns = [{c.name for c in compared if c.qualifier == source.alias} for source in sources]
        common = sorted(set.intersection(*columns))
        if common:
            type_ = sources[0].stream.schema.field(common[0]).type
            term = fit(Equi(common[0], common[0]), type_, type_)
            dimension[name] = CellRoute("key", term, keeps_null=keeps_null)
    return dimension


def _best(candidates: list[_Dimension], streams: list[str]) -> list[_Dimension]:
    """The dimension that places most streams, or the two that place more."""
    if not candidates:
        return []
    one = max(candidates, key=len)
    if len(one) == len(streams) or len(candidates) == 1:
        return [one]
    pair = max(combinations(candidates, 2), key=lambda pair: (len(pair[0].keys() | pair[1].keys()), len(pair[0])))
    return list(pair) if len(pair[0].keys() | pair[1].keys()) > len(one) else [one]


def _keys(query: Query) -> Iterable[_Dimension]:
    """For each set of columns that the query holds equal, the streams all of whose aliases have one of them."""
    types = {s.alias: s.stream.schema for s in query.sources}
    groups: dict[Column, set[Column]] = {}
    for step in query.steps:
        for term in step.terms:
            if not isinstance(term, Equality) or not _plain(term.left, term.right):
                continue
            left, right = (_stored(types[c.qualifier].field(c.name).type) for c in (term.left, term.right))
            if left == right:
                merged = groups.get(term.left, {term.left}) | groups.get(term.right, {term.right})
                groups.update(dict.fromkeys(merged, merged))
    for group in {id(found): found for found in groups.values()}.values():
        dimension = _dimension(query, group)
        if dimension:
            yield dimension


def _bands(query: Query) -> Iterable[_Dimension]:
    """For each term, the right stream by its word and the left one by its interval, where each has one alias."""
    types = {s.alias: s.stream for s in query.sources}
    uses = [source.stream.name for source in query.sources]
    for step in query.steps:
        for written in step.terms:
            if not _plain(written.left, written.right):
                continue
            # Always the same of two streams on the left, so that queries share what they can.
            for term in sorted((written, written.flipped()), key=lambda term: types[term.left.qualifier].name):
                left, right = (types[column.qualifier] for column in (term.left, term.right))
                if uses.count(right.name) > 1:
                    continue
                fitted = _fitted(term, left, right)
                dimension = {right.name: CellRoute("owner", fitted)}
                if uses.count(left.name) == 1:
                    dimension[left.name] = CellRoute("span", fitted)
                yield dimension
                break


def _fitted(term: Term, left: Stream, right: Stream) -> KeyTerm:
    """A term with the types of its columns, made a little wider."""
    types = left.schema.field(term.left.name).type, right.schema.field(term.right.name).type
    return _rounded(fit(term.term, *types))


def _rounded(term: KeyTerm) -> KeyTerm:
    """A band that contains this one, the same for many: with both distances rounded up to a power of two."""
    if isinstance(term.term, Equi):
        return term
    widest = max(term.below, term.above)
    band = Band(term.term.left, term.term.right, below=1, above=1)
    if term.kind is WordKind.INTEGER:
        distance: int | float = min(1 << max(0, int(widest)).bit_length(), 1 << 62)
    else:
        distance = float(np.ldexp(1.0, int(np.clip(np.frexp(widest)[1], -1000, 1000)))) if widest < np.inf else np.inf
    return KeyTerm(band, term.kind, term.left, term.right, distance, distance)


def _plain(*sides: object) -> bool:
    return all(isinstance(side, Column) for side in sides)


def _stored(type_: pa.DataType) -> pa.DataType:
    return storage_type(plain_type(type_))


def _hashed(words: Array) -> Array:
    """Numbers from 0 on with the words' bits mixed, as neighbouring keys should lie in different cells."""
    mixed = words.view(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).view(np.int64)
