"""NEXMark's whole queries in our SQL: plain Python on the same events, what Flink replaces, and the page."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import streamjoin as sj
from benchmarks.rivals import nexmark
from benchmarks.rivals.nexmark_rivals import last_of_each
from benchmarks.rivals.nexmark_whole import WHOLE

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "nexmark.md"
START = dt.datetime(2024, 1, 1)
Events = dict[str, list[dict[str, Any]]]
Result = Counter[tuple[Any, ...]]


def window(row: dict[str, Any], seconds: int = 10) -> int:
    """Which window of so many seconds a row is in."""
    return int((row["date_time"] - START).total_seconds() // seconds)


def q5(events: Events) -> Result:
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for bid in events["bid"]:
        for begin in range(window(bid, 2) - 4, window(bid, 2) + 1):
            counts[begin][bid["auction"]] += 1
    return Counter(
        (auction, number)
        for found in counts.values()
        for auction, number in found.items()
        if number == max(found.values())
    )


def q7(events: Events) -> Result:
    peaks: dict[int, int] = defaultdict(int)
    for bid in events["bid"]:
        peaks[window(bid)] = max(peaks[window(bid)], bid["price"])
    return Counter(
        {
            tuple(bid[name] for name in ("auction", "price", "bidder", "date_time")): 1
            for bid in events["bid"]
            if bid["price"] == peaks[window(bid)]
        }
    )


def q8(events: Events) -> Result:
    sold = {(auction["seller"], window(auction)) for auction in events["auction"]}
    return Counter(
        (person["id"], person["name"], START + dt.timedelta(seconds=10 * window(person)))
        for person in events["person"]
        if (person["id"], window(person)) in sold
    )


def q9(events: Events) -> Result:
    found: Result = Counter()
    bids = defaultdict(list)
    for bid in events["bid"]:
        bids[bid["auction"]].append(bid)
    for auction in events["auction"]:
        inside = [bid for bid in bids[auction["id"]] if auction["date_time"] <= bid["date_time"] <= auction["expires"]]
        if inside:
            # The first of the greatest: they are in order of time.
            best = max(inside, key=lambda bid: bid["price"])
            fields = [auction[name] for name in ("id", "item", "initial_bid", "reserve", "seller", "category")]
            found[(*fields, best["bidder"], best["price"], best["date_time"])] += 1
    return found


def q20(events: Events) -> Result:
    auctions = {auction["id"]: auction for auction in events["auction"] if auction["category"] == 10}
    found: Result = Counter()
    for bid in events["bid"]:
        if auction := auctions.get(bid["auction"]):
            fields = [bid[name] for name in ("auction", "bidder", "price", "channel", "date_time")]
            fields += [auction[name] for name in ("item", "initial_bid", "reserve", "date_time", "seller", "category")]
            found[tuple(fields)] += 1
    return found


def test_whole_queries_give_what_plain_python_gives() -> None:
    engine = sj.adhoc.Engine()
    results: dict[str, Result] = {name: Counter() for name in WHOLE}
    for name, schema in nexmark.SCHEMAS.items():
        engine.register(name, schema=schema, time=nexmark.TIME)

    def counting(result: Result) -> Any:
        return lambda _, table: result.update(tuple(row.values()) for row in table.to_pylist())

    events: Events = defaultdict(list)
    with engine:
        for name, whole in WHOLE.items():
            engine.create(whole.ours, name=name, sink=sj.adhoc.CallbackSink(counting(results[name])))
        for first in range(0, 3_000, 700):
            pushed = nexmark.events(700, seed=3, first=first, rate=60)
            # Few prices: several bids are the highest.
            price = pc.add(pc.divide(pushed["bid"]["price"], 2_500), 1)
            pushed["bid"] = pushed["bid"].set_column(2, "price", price)
            engine.push_all(pushed)
            for name, table in pushed.items():
                events[name] += table.to_pylist()
        engine.advance(START + dt.timedelta(days=1))
    for name, plain in {"q5": q5, "q7": q7, "q8": q8, "q9": q9, "q20": q20}.items():
        assert results[name] == plain(events), name
        assert results[name].total() > 20, name
    # Ties: more rows than windows.
    assert len({row[3] for row in results["q7"]}) > 50
    assert results["q5"].total() > window(events["bid"][-1], 2) + 5


def test_the_last_row_of_each_key_counts_where_rows_are_replaced() -> None:
    table = pa.table({"id": [1, 2, 1, 3, 1], "v": [1, 2, 3, 4, 5]})
    assert last_of_each(table, "id").to_pydict() == {"id": [1, 2, 3], "v": [5, 2, 4]}
    assert last_of_each(table.slice(0, 0), "id") == table.slice(0, 0)


@pytest.mark.parametrize("name", WHOLE)
def test_the_page_shows_both_texts(name: str) -> None:
    page = PAGE.read_text()
    assert f"```sql\n{WHOLE[name].published}\n```" in page
    assert f"```sql\n{WHOLE[name].ours}\n```" in page
