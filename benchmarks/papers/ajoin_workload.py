"""The workload of the AJoin paper (section 7): streams of six integers, queries of a given similarity, scenarios.

Every stream has attributes `a0` to `a5`, uniform over 0..499, and a time `ts`. A query follows the template of figure
14: a chain of equality joins on random attributes, one selection for each source, and a window of 1, 2 or 3
seconds. Similarity to a pattern query is equation 3. Everything follows from a seed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

import numpy as np
import pyarrow as pa

ATTRIBUTES: Final = 6
ATTRIBUTE_MAX: Final = 500
TIME: Final = "ts"
SCHEMA: Final = pa.schema([*((f"a{n}", pa.int64()) for n in range(ATTRIBUTES)), (TIME, pa.timestamp("us"))])
START: Final = dt.datetime(2024, 1, 1)
_OPERATORS: Final = ("=", ">", "<", ">=", "<=")


def stream_name(number: int) -> str:
    """The name of a stream, counted from 1 as in the paper."""
    return f"S{number}"


def tuples(
    stream: int, count: int, seed: int = 0, *, rate: float = 1000.0, first: int = 0, keys: int = ATTRIBUTE_MAX
) -> pa.Table:
    """`count` tuples of a stream from its tuple number `first` on, at `rate` per second.

    `keys` is the number of distinct values of each attribute. Cutting a stream into calls changes no tuple.
    """
    arrays = []
    for attribute in range(ATTRIBUTES):
        generator = np.random.PCG64([seed, stream, attribute])
        # Each draw takes one step of the generator, so that tuple n does not depend on how calls are cut.
        generator.advance(first)
        draws = np.random.Generator(generator).random(count)
        arrays.append(pa.array((draws * keys).astype(np.int64)))
    microseconds = ((np.arange(first, first + count) * 1e6) / rate).astype(np.int64)
    start = np.datetime64(START, "us")
    return pa.table([*arrays, pa.array(start + microseconds.astype("timedelta64[us]"))], schema=SCHEMA)


@dataclass(frozen=True)
class Selection:
    """`attribute operator value` on one source."""

    attribute: int
    operator: str
    value: int


@dataclass(frozen=True)
class AJoinQuery:
    """A chain of joins: link i is (attribute of source i, attribute of source i + 1)."""

    streams: tuple[str, ...]
    links: tuple[tuple[int, int], ...]
    selections: tuple[Selection, ...]
    window_seconds: int

    @property
    def join_attributes(self) -> dict[str, tuple[int, ...]]:
        """The join attributes of each source: one at the ends of the chain, two in between."""
        attributes: dict[str, tuple[int, ...]] = dict.fromkeys(self.streams, ())
        for number, link in enumerate(self.links):
            for stream, attribute in zip(self.streams[number:], link, strict=False):
                attributes[stream] += (attribute,)
        return attributes

    @property
    def text(self) -> str:
        """The query in our dialect."""
        lines = ["SELECT *", f"FROM {self.streams[0]}"]
        for number, (left, right) in enumerate(self.links):
            one, two = self.streams[number : number + 2]
            lines.append(f"JOIN {two} WITHIN {self.window_seconds} SECONDS ON {one}.a{left} = {two}.a{right}")
        tests = [
            f"{s}.a{x.attribute} {x.operator} {x.value}" for s, x in zip(self.streams, self.selections, strict=True)
        ]
        return "\n".join([*lines, "WHERE " + " AND ".join(tests)])


def similarity(query: AJoinQuery, pattern: AJoinQuery) -> Fraction:
    """Equation 3: common sources times those with common join attributes, over the square of the pattern's sources.

    A source counts as having common join attributes if it has all of the pattern's, so that equal joins are 1.
    """
    common = [stream for stream in query.streams if stream in pattern.streams]
    attributes, pattern_attributes = query.join_attributes, pattern.join_attributes
    same = [stream for stream in common if attributes[stream] == pattern_attributes[stream]]
    return Fraction(len(common) * len(same), len(pattern.streams) ** 2)


class QueryGenerator:
    """Queries like the paper's: `ways` sources each, at a similarity to one pattern query.

    `selectivity` sets the share of tuples that each selection keeps; without it operators and values are uniform.
    """

    def __init__(self, ways: int = 2, percent: int = 50, seed: int = 0, *, selectivity: float | None = None) -> None:
        """Choose the pattern query."""
        self._random = np.random.default_rng([seed, ways, percent])
        self._percent = percent
        self._ways = ways
        self._selectivity = selectivity
        # Sources that are not shared with the pattern use streams that the pattern does not use.
        self.streams = tuple(stream_name(n + 1) for n in range(2 * ways - 1))
        self.pattern = self._query(self.streams[:ways], tuple(self._link() for _ in range(ways - 1)))

    def queries(self, count: int) -> list[AJoinQuery]:
        """The next `count` queries."""
        return [self.query() for _ in range(count)]

    def query(self) -> AJoinQuery:
        """The next query (steps 1 to 3 of the paper)."""
        sources, common = self._common()
        streams = list(self.pattern.streams)
        spare = list(self._random.permutation(self.streams[self._ways :]))
        for place in set(range(self._ways)) - set(sources):
            streams[place] = str(spare.pop())
        kept = {sources[n] for n in self._random.permutation(len(sources))[:common]}
        links = tuple(
            (
                left if number in kept else self._other(left),
                right if number + 1 in kept else self._other(right),
            )
            for number, (left, right) in enumerate(self.pattern.links)
        )
        return self._query(tuple(streams), links)

    def _common(self) -> tuple[list[int], int]:
        """Neighbouring places with the pattern's source, and the number of them with its join attributes."""
        wanted = Fraction(self._percent * self._ways**2, 100)
        count = int(self._random.integers(1, self._ways + 1))
        while round(wanted / count) > count:
            count += 1
        first = int(self._random.integers(0, self._ways - count + 1))
        return list(range(first, first + count)), round(wanted / count)

    def _link(self) -> tuple[int, int]:
        left, right = self._random.integers(0, ATTRIBUTES, 2)
        return int(left), int(right)

    def _other(self, attribute: int) -> int:
        return int((attribute + self._random.integers(1, ATTRIBUTES)) % ATTRIBUTES)

    def _query(self, streams: tuple[str, ...], links: tuple[tuple[int, int], ...]) -> AJoinQuery:
        window = int(self._random.integers(1, 4))
        return AJoinQuery(streams, links, tuple(self._selection() for _ in streams), window)

    def _selection(self) -> Selection:
        attribute = int(self._random.integers(0, ATTRIBUTES))
        if self._selectivity is None:
            operator = _OPERATORS[int(self._random.integers(0, len(_OPERATORS)))]
            return Selection(attribute, operator, int(self._random.integers(0, ATTRIBUTE_MAX)))
        below = bool(self._random.integers(0, 2))
        share = round(ATTRIBUTE_MAX * self._selectivity)
        return Selection(attribute, "<" if below else ">=", share if below else ATTRIBUTE_MAX - share)


@dataclass(frozen=True)
class TimedChange:
    """A create or drop of a query, `at` seconds after the start."""

    at: float
    action: Literal["create", "drop"]
    name: str
    query: AJoinQuery


def scenario_1(queries: Sequence[AJoinQuery], rate: float) -> Iterator[TimedChange]:
    """SC1, "rate q/s, n qp": queries are created at `rate` per second and stay."""
    for number, query in enumerate(queries):
        yield TimedChange(number / rate, "create", f"q{number}", query)


def scenario_2(queries: Sequence[AJoinQuery], count: int, every: float) -> Iterator[TimedChange]:
    """SC2, a fluctuating load: every `every` seconds `count` queries are created and the previous ones dropped."""
    running: list[tuple[str, AJoinQuery]] = []
    for turn, first in enumerate(range(0, len(queries), count)):
        yield from (TimedChange(turn * every, "drop", name, query) for name, query in running)
        running = [(f"q{first + n}", query) for n, query in enumerate(queries[first : first + count])]
        yield from (TimedChange(turn * every, "create", name, query) for name, query in running)
