"""NEXMark: an auction site's streams of persons, auctions and bids, and its join queries in our dialect.

Of every 50 events one is a person, three are auctions and 46 are bids; hot sellers and hot auctions get most of the
traffic. The queries are the benchmark's joins without their aggregations: q4 and q9 return every bid while an auction
is open, q7 pairs of bids at one price. Everything follows from a seed, and how a stream is cut changes no event.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TIME: Final = "date_time"
_MOMENT: Final = pa.timestamp("ms")
SCHEMAS: Final[Mapping[str, pa.Schema]] = MappingProxyType(
    {
        "person": pa.schema(
            {
                "id": pa.int64(),
                "name": pa.string(),
                "email": pa.string(),
                "credit_card": pa.string(),
                "city": pa.string(),
                "state": pa.string(),
                TIME: _MOMENT,
            }
        ),
        "auction": pa.schema(
            {
                "id": pa.int64(),
                "item": pa.string(),
                "initial_bid": pa.int64(),
                "reserve": pa.int64(),
                TIME: _MOMENT,
                "expires": _MOMENT,
                "seller": pa.int64(),
                "category": pa.int64(),
            }
        ),
        "bid": pa.schema(
            {
                "auction": pa.int64(),
                "bidder": pa.int64(),
                "price": pa.int64(),
                "channel": pa.string(),
                TIME: _MOMENT,
            }
        ),
    }
)

QUERIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "q3": """
            SELECT p.name, p.city, p.state, a.id AS auction
            FROM auction a JOIN person p WITHIN 20 SECONDS ON a.seller = p.id
            WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
        """,
        "q4": """
            SELECT a.id AS auction, a.category, b.price
            FROM auction a JOIN bid b WITHIN 20 SECONDS
            ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
        """,
        "q7": """
            SELECT b.auction, b.price, b.bidder, m.bidder AS rival, m.date_time AS until
            FROM bid b JOIN bid m WITHIN 10 SECONDS
            ON b.price = m.price AND b.date_time BETWEEN m.date_time - INTERVAL '10' SECOND AND m.date_time
        """,
        "q8": """
            SELECT p.id, p.name, a.id AS auction
            FROM person p JOIN auction a WITHIN 10 SECONDS ON p.id = a.seller
        """,
        "q9": """
            SELECT a.id AS auction, a.item, a.reserve, a.seller, b.bidder, b.price, b.date_time AS bid_time
            FROM auction a JOIN bid b WITHIN 20 SECONDS
            ON a.id = b.auction AND b.date_time >= a.date_time AND b.date_time <= a.expires
            WHERE b.price >= 10
        """,
        "q20": """
            SELECT b.auction, b.bidder, b.price, b.channel, a.item, a.initial_bid, a.expires, a.seller, a.category
            FROM bid b JOIN auction a WITHIN 20 SECONDS ON b.auction = a.id
            WHERE a.category = 10
        """,
    }
)
"""The join queries, by their names in the benchmark."""

_FIRST_ID: Final = 1000
_CYCLE: Final = 50
_AUCTIONS: Final = 3
_CATEGORIES: Final = (10, 11, 12, 13, 14)
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES: Final = ("Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne")
_FIRST_NAMES: Final = ("Ana", "Ben", "Cleo", "Dora", "Emil", "Finn", "Gwen", "Hugo")
_LAST_NAMES: Final = ("Abel", "Bauer", "Cole", "Diaz", "Eaton", "Frost")
_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")
_DRAWS: Final = 8

Numbers = npt.NDArray[np.int64]
Draws = npt.NDArray[np.float64]


def events(
    count: int, seed: int = 0, *, first: int = 0, rate: float = 100.0, start: dt.datetime = dt.datetime(2024, 1, 1)
) -> dict[str, pa.Table]:
    """Events number `first` to `first + count - 1` of all three streams, `rate` of them per second, in time order."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    generator = np.random.PCG64([seed])
    generator.advance(first * _DRAWS)
    draws = np.random.Generator(generator).random((count, _DRAWS))
    times = np.datetime64(start, "ms") + ((numbers * 1000) / rate).astype("timedelta64[ms]")
    place = numbers % _CYCLE
    kinds = {"person": place == 0, "auction": (place > 0) & (place <= _AUCTIONS), "bid": place > _AUCTIONS}
    makers = {"person": _persons, "auction": _auctions, "bid": _bids}
    return {
        stream: pa.table(makers[stream](numbers[chosen], draws[chosen], times[chosen]), schema=SCHEMAS[stream])
        for stream, chosen in kinds.items()
    }


def _newest_person(numbers: Numbers) -> Numbers:
    """The newest person's id when an event happens."""
    return _FIRST_ID + numbers // _CYCLE


def _newest_auction(numbers: Numbers) -> Numbers:
    """The newest auction's id when an event happens; before the first auction, the first id."""
    done = numbers // _CYCLE * _AUCTIONS + np.minimum(numbers % _CYCLE, _AUCTIONS)
    return _FIRST_ID + np.maximum(done - 1, 0)


def _pick(choices: tuple[str, ...], draw: Draws) -> list[str]:
    return [choices[int(d * len(choices))] for d in draw]


def _recent(newest: Numbers, draw: Draws, reach: int) -> Numbers:
    """One of the last `reach` ids."""
    span = np.minimum(newest - _FIRST_ID + 1, reach)
    return newest - (draw * span).astype(np.int64)


def _price(draw: Draws) -> Numbers:
    return np.rint(10 ** (draw * 4)).astype(np.int64)


def _persons(numbers: Numbers, draws: Draws, times: npt.NDArray[Any]) -> list[Any]:
    first, last = _pick(_FIRST_NAMES, draws[:, 0]), _pick(_LAST_NAMES, draws[:, 1])
    names = [f"{a} {b}" for a, b in zip(first, last, strict=True)]
    emails = [f"{a}.{b}@example.org".lower() for a, b in zip(first, last, strict=True)]
    cards = [f"{int(d * 10**16):016}" for d in draws[:, 2]]
    return [
        _newest_person(numbers),
        names,
        emails,
        cards,
        _pick(_CITIES, draws[:, 3]),
        _pick(_STATES, draws[:, 4]),
        times,
    ]


def _auctions(numbers: Numbers, draws: Draws, times: npt.NDArray[Any]) -> list[Any]:
    newest = _newest_person(numbers)
    # Three of four auctions belong to a hot seller, the first of every four persons.
    hot = newest - (newest - _FIRST_ID) % 4
    seller = np.where(draws[:, 0] < 0.75, hot, _recent(newest, draws[:, 1], 100))
    bid = _price(draws[:, 2])
    return [
        _newest_auction(numbers),
        [f"item {int(d * 1000)}" for d in draws[:, 3]],
        bid,
        bid + _price(draws[:, 4]),
        times,
        times + (1_000 + draws[:, 5] * 15_000).astype("timedelta64[ms]"),
        seller,
        np.array([_CATEGORIES[int(d * len(_CATEGORIES))] for d in draws[:, 6]], np.int64),
    ]


def _bids(numbers: Numbers, draws: Draws, times: npt.NDArray[Any]) -> list[Any]:
    auction, person = _newest_auction(numbers), _newest_person(numbers)
    hot_auction = auction - (auction - _FIRST_ID) % 10
    hot_person = person - (person - _FIRST_ID) % 10
    return [
        np.where(draws[:, 0] < 0.5, hot_auction, _recent(auction, draws[:, 1], 100)),
        np.where(draws[:, 2] < 0.75, hot_person, _recent(person, draws[:, 3], 100)),
        _price(draws[:, 4]),
        _pick(_CHANNELS, draws[:, 5]),
        times,
    ]
