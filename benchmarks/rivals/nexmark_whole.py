"""NEXMark's q5, q7, q8, q9 and q20 as they are meant, beside the published text: `docs/guides/nexmark.md` shows both.

The published text is Flink's, with the columns of our streams: `date_time_at` is the event time in Flink's tables,
`date_time` the same moment as a number.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class WholeQuery:
    """One query in both dialects, which give the same columns in the same order."""

    published: str
    ours: str
    replaces: str | None = None
    """In Flink a row takes the place of the row before with the same value of this column."""


def _text(text: str) -> str:
    return textwrap.dedent(text).strip()


WHOLE: Final[Mapping[str, WholeQuery]] = MappingProxyType(
    {
        "q5": WholeQuery(
            _text("""
                SELECT AuctionBids.auction, AuctionBids.num
                FROM (
                    SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
                    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time_at), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
                    GROUP BY auction, window_start, window_end
                ) AS AuctionBids
                JOIN (
                    SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
                    FROM (
                        SELECT count(*) AS num, window_start AS starttime, window_end AS endtime
                        FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time_at), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
                        GROUP BY auction, window_start, window_end
                    ) AS CountBids
                    GROUP BY CountBids.starttime, CountBids.endtime
                ) AS MaxBids
                ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
                    AND AuctionBids.num >= MaxBids.maxn
            """),
            _text("""
                SELECT b.auction, count(*) AS num
                FROM bid b
                GROUP BY b.auction, HOP(b.date_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND)
                QUALIFY rank() OVER (PARTITION BY window_end ORDER BY num DESC) = 1
            """),
        ),
        "q7": WholeQuery(
            _text("""
                SELECT B.auction, B.price, B.bidder, B.date_time_at
                FROM bid B
                JOIN (
                    SELECT MAX(price) AS maxprice, window_end AS endtime
                    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time_at), INTERVAL '10' SECOND))
                    GROUP BY window_start, window_end
                ) B1
                ON B.price = B1.maxprice
                WHERE B.date_time_at BETWEEN B1.endtime - INTERVAL '10' SECOND AND B1.endtime
            """),
            _text("""
                SELECT b.auction, b.price, b.bidder, b.date_time
                FROM bid b
                GROUP BY b.auction, b.price, b.bidder, b.date_time, TUMBLE(b.date_time, INTERVAL '10' SECOND)
                QUALIFY rank() OVER (PARTITION BY window_end ORDER BY b.price DESC) = 1
            """),
        ),
        "q8": WholeQuery(
            _text("""
                SELECT P.id, P.name, P.starttime
                FROM (
                    SELECT id, name, window_start AS starttime, window_end AS endtime
                    FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(date_time_at), INTERVAL '10' SECOND))
                    GROUP BY id, name, window_start, window_end
                ) P
                JOIN (
                    SELECT seller, window_start AS starttime, window_end AS endtime
                    FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(date_time_at), INTERVAL '10' SECOND))
                    GROUP BY seller, window_start, window_end
                ) A
                ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
            """),
            _text("""
                SELECT p.id, p.name, window_start AS starttime
                FROM person p
                JOIN auction a WITHIN 10 SECONDS
                ON p.id = a.seller AND FLOOR(EPOCH_MS(p.date_time) / 10000) = FLOOR(EPOCH_MS(a.date_time) / 10000)
                GROUP BY p.id, p.name, TUMBLE(p.date_time, INTERVAL '10' SECOND)
            """),
        ),
        "q9": WholeQuery(
            _text("""
                SELECT id, item, initial_bid, reserve, seller, category, bidder, price, bid_time
                FROM (
                    SELECT A.*, B.bidder, B.price, B.date_time_at AS bid_time,
                        ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.date_time ASC) AS rownum
                    FROM auction A, bid B
                    WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires
                )
                WHERE rownum <= 1
            """),
            _text("""
                SELECT a.id, a.item, a.initial_bid, a.reserve, a.seller, a.category,
                    arg_max(b.bidder, b.price) AS bidder, max(b.price) AS price,
                    arg_max(b.date_time, b.price) AS bid_time
                FROM auction a
                INNER WINDOW JOIN bid b ON a.id = b.auction AND b.date_time <= a.expires
                RANGE BETWEEN CURRENT ROW AND 20 SECONDS FOLLOWING EXCLUDE PREVAILING
            """),
            replaces="id",
        ),
        "q20": WholeQuery(
            _text("""
                SELECT auction, bidder, price, channel, B.date_time_at, item, initial_bid, reserve,
                    A.date_time_at AS opened, seller, category
                FROM bid AS B
                INNER JOIN auction AS A ON B.auction = A.id
                WHERE A.category = 10
            """),
            _text("""
                SELECT b.auction, b.bidder, b.price, b.channel, b.date_time, a.item, a.initial_bid, a.reserve,
                    a.date_time AS opened, a.seller, a.category
                FROM bid b
                ASOF JOIN auction a MATCH_CONDITION (b.date_time >= a.date_time) ON b.auction = a.id
                WHERE a.category = 10
            """),
        ),
    }
)
"""By name."""
