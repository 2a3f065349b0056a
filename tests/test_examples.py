"""Every example runs as it stands, says what it should and nothing on the error stream."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.spark.kafka_broker import Broker

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def output(name: str, cwd: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(cwd.iterdir()) == [], "an example cleans up after itself"
    return ran.stdout


def test_embedded_band_join(tmp_path: Path) -> None:
    said = output("embedded_band_join.py", tmp_path)
    assert said.count("'celsius_left'") == 3
    assert "50,000 left and 50,000 right tuples" in said


def test_near_misses(tmp_path: Path) -> None:
    assert output("near_misses.py", tmp_path).splitlines() == [
        "80,922 positions, 60 close encounters, 2 pairs",
        "12:10:35 3949ea and 506d8e",
        "14:28:36 3946e2 and 4cac5e",
    ]


def test_event_time_sources(tmp_path: Path) -> None:
    assert output("event_time_sources.py", tmp_path).splitlines() == [
        "camera, 0-40 s: nothing yet",
        "north, 0-30 s: nothing yet",
        "south, 0-35 s: AB123 at the north gate, CD456 at the south gate",
        "north, late: nothing yet",
        "south is done: nothing yet",
        "north, 41 s: nothing yet",
        "set apart as late: a car at the north gate at 00:22",
        "the end: EF789 at the north gate",
    ]


def test_live_sensors(tmp_path: Path) -> None:
    assert output("live_sensors.py", tmp_path).splitlines() == [
        f"00:0{second} fire in the kitchen: {smoke} smoke, {heat} °C"
        for second, heat in ((3, 64.0), (4, 70.0))
        for smoke in (0.5, 0.7)
    ]


def test_live_websocket(tmp_path: Path) -> None:
    said = output("live_websocket.py", tmp_path).splitlines()
    assert said[:3] == [
        "trades: {'taken': 2}",
        "quotes: {'taken': 2}",
        "a match: [{'sym': 'A', 'px': 10.0, 'bid': 10.1}]",
    ]
    assert "refused" in said[3]
    assert "missing sym, bid; unexpected symbol (did you mean sym?)" in said[3]


def test_live_kafka(tmp_path: Path, broker: Broker) -> None:
    broker.create("trades", "quotes", "matches")
    rows = [(second, sym) for second in range(40) for sym in ("A", "B", "C")]
    trades = [{"ts": 1_000 * second, "sym": sym, "px": 10 + second / 100} for second, sym in rows]
    quotes = [{"ts": 1_000 * second + 500, "sym": sym, "bid": 10 + second / 100} for second, sym in rows]
    broker.send("trades", [json.dumps(trade) for trade in trades])
    broker.send("quotes", [json.dumps(quote) for quote in quotes])
    near = [
        (trade["ts"], quote["ts"], trade["sym"])
        for trade in trades
        for quote in quotes
        if trade["sym"] == quote["sym"] and abs(int(str(trade["ts"])) - int(str(quote["ts"]))) <= 5_000
    ]
    assert output("live_kafka.py", tmp_path, broker.address, "--until-end", "--idle", "1 minute").splitlines() == [
        f"{len(near):,} matches, 0 late records"
    ]
    received = [(row["ts_left"], row["ts_right"], row["sym"]) for row in broker.received("matches")]
    epoch = datetime(1970, 1, 1)
    told = [(str(epoch + timedelta(milliseconds=a)), str(epoch + timedelta(milliseconds=b)), sym) for a, b, sym in near]
    assert sorted(received) == sorted(told)


def test_left_join(tmp_path: Path) -> None:
    assert output("left_join.py", tmp_path).splitlines() == [
        "8 flights in heavy rain, 26,996 without",
    ]


def test_right_join(tmp_path: Path) -> None:
    assert output("right_join.py", tmp_path).splitlines() == [
        "2 cancelled flights in fog",
        "11 foggy observations without one, the first at LGA, 2013-01-13 10:00:00+00:00",
    ]


def test_full_join(tmp_path: Path) -> None:
    assert output("full_join.py", tmp_path).splitlines() == [
        "2 pairs, 519 cancelled flights without fog, 11 foggy hours without one",
    ]


def test_semi_join(tmp_path: Path) -> None:
    assert output("semi_join.py", tmp_path).splitlines() == [
        "472 flights near a storm, 16 minutes late on average",
        "all flights: 10 minutes",
    ]


def test_anti_join(tmp_path: Path) -> None:
    assert output("anti_join.py", tmp_path).splitlines() == [
        "4,435 of 26,483 flights were the last of their aircraft for five days",
        "1,670 more at the end of the data",
        "the first: N14228 to IAH, 01 January 10:15",
    ]


def test_asof_backward(tmp_path: Path) -> None:
    assert output("asof_backward.py", tmp_path).splitlines() == [
        "27,004 flights, 0 without an observation",
        "visibility 0 to 1 miles: 15 minutes late",
        "visibility 1 to 5 miles: 16 minutes late",
        "visibility 5 to 11 miles: 9 minutes late",
    ]


def test_asof_forward(tmp_path: Path) -> None:
    assert output("asof_forward.py", tmp_path).splitlines() == [
        "LGA 31 Jan 08:00, 62 mph: UA left 144 min later",
        "EWR 31 Jan 09:00, 59 mph: US left 53 min later",
        "JFK 31 Jan 09:00, 53 mph: B6 left 97 min later",
        "LGA 31 Jan 09:00, 55 mph: UA left 84 min later",
        "EWR 31 Jan 11:00, 55 mph: EV left 4 min later",
        "JFK 31 Jan 12:00, 59 mph: AA left 2 min later",
        "EWR 31 Jan 14:00, 52 mph: UA left 1 min later",
    ]


def test_asof_nearest(tmp_path: Path) -> None:
    assert output("asof_nearest.py", tmp_path).splitlines() == [
        "521 cancelled flights; the nearest observation: 336 times before, 185 times after",
        "wind 13.3 mph; in the whole month 11.2",
    ]


def test_within_interval(tmp_path: Path) -> None:
    assert output("within_interval.py", tmp_path).splitlines() == [
        "12 times of fog, 737 flights in them",
        "the longest: JFK from 13 Jan 00:00 to 13 Jan 17:00",
    ]


def test_overlapping_intervals(tmp_path: Path) -> None:
    assert output("overlapping_intervals.py", tmp_path).splitlines() == [
        "1,852 flights waited, 9,925 pairs at the same time",
        "EWR 6,602, JFK 1,928, LGA 1,395",
    ]


@pytest.mark.spark
def test_trades_near_quotes(tmp_path: Path) -> None:
    import duckdb

    from streamjoin.spark.demo.feeds import Market

    said = output("trades_near_quotes.py", tmp_path)
    feeds = [Market(seed=1).slice(feed, timedelta(0), timedelta(seconds=4)) for feed in ("trades", "quotes")]
    with duckdb.connect() as db:
        db.register("l", feeds[0])
        db.register("r", feeds[1])
        count = db.sql(
            "SELECT count(*) FROM l JOIN r ON l.sym = r.sym AND abs(l.px - r.bid) <= 0.015::DOUBLE "
            "AND l.ts BETWEEN r.ts - INTERVAL 2 SECOND AND r.ts + INTERVAL 2 SECOND"
        ).fetchall()[0][0]
    assert f"{count:,} matches, 0 late rows" in said


def test_every_example_is_run_here() -> None:
    written = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f'output("{path.name}"' not in written] == []
