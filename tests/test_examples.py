"""Every example runs as it stands, says what it should and nothing on the error stream."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.kafka_broker import Broker

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def output(name: str, cwd: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(cwd.iterdir()) == [], "an example cleans up after itself"
    return ran.stdout


def shown(name: str, cwd: Path) -> str:
    """What an example prints, run in this process: most need none of their own."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert errors.getvalue() == ""
    assert list(cwd.iterdir()) == [], "an example cleans up after itself"
    return printed.getvalue()


def test_embedded_band_join(tmp_path: Path) -> None:
    said = output("embedded_band_join.py", tmp_path)
    assert said.count("'celsius_left'") == 3
    assert "50,000 left and 50,000 right tuples" in said


def test_own_algorithm(tmp_path: Path) -> None:
    assert output("own_algorithm.py", tmp_path).splitlines() == [
        "every_pair: kitchen 64.5 °C, hall 19.0 °C, hall 20.5 °C",
        "sweep: kitchen 64.5 °C, hall 19.0 °C, hall 20.5 °C",
    ]


def test_merged_airports(tmp_path: Path) -> None:
    assert shown("merged_airports.py", tmp_path).splitlines() == [
        "26,483 departures in one order, the same for both readers: True",
        "after a departure from EWR the next one was from EWR 3,746 times",
        "after a departure from EWR the next one was from JFK 3,571 times",
        "after a departure from JFK the next one was from JFK 3,359 times",
    ]


def test_near_misses(tmp_path: Path) -> None:
    assert shown("near_misses.py", tmp_path).splitlines() == [
        "80,922 positions, 60 close encounters, 2 pairs",
        "12:10:35 3949ea and 506d8e",
        "14:28:36 3946e2 and 4cac5e",
    ]


def test_event_time_sources(tmp_path: Path) -> None:
    assert shown("event_time_sources.py", tmp_path).splitlines() == [
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
    assert shown("live_sensors.py", tmp_path).splitlines() == [
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
    broker.create("heat", "vibration", "alarms")
    rows = [(second, machine) for second in range(40) for machine in ("A", "B", "C")]
    heat = [(1_000 * second, machine, 70.0 + second) for second, machine in rows]
    vibration = [(1_000 * second + 500, machine, second / 4) for second, machine in rows]
    for topic, name, readings in (("heat", "celsius", heat), ("vibration", "speed", vibration)):
        broker.send(topic, [json.dumps({"ts": ts, "machine": machine, name: value}) for ts, machine, value in readings])
    alarms = [
        (ts, later, machine)
        for ts, machine, celsius in heat
        for later, other, speed in vibration
        if machine == other and abs(ts - later) <= 5_000 and celsius > 80 and speed > 4
    ]
    assert output("live_kafka.py", tmp_path, broker.address, "--until-end", "--idle", "1 minute").splitlines() == [
        f"{len(alarms):,} alarms, 0 late records"
    ]
    received = [(row["ts_left"], row["ts_right"], row["machine"]) for row in broker.received("alarms")]
    epoch = datetime(1970, 1, 1)
    expected = [
        (str(epoch + timedelta(milliseconds=a)), str(epoch + timedelta(milliseconds=b)), m) for a, b, m in alarms
    ]
    assert sorted(received) == sorted(expected) != []


def test_left_join(tmp_path: Path) -> None:
    assert shown("left_join.py", tmp_path).splitlines() == [
        "8 flights in heavy rain, 26,996 without",
    ]


def test_right_join(tmp_path: Path) -> None:
    assert shown("right_join.py", tmp_path).splitlines() == [
        "2 cancelled flights in fog",
        "11 foggy observations without one, the first at LGA, 2013-01-13 10:00:00+00:00",
    ]


def test_full_join(tmp_path: Path) -> None:
    assert shown("full_join.py", tmp_path).splitlines() == [
        "2 pairs, 519 cancelled flights without fog, 11 foggy hours without one",
    ]


def test_semi_join(tmp_path: Path) -> None:
    assert shown("semi_join.py", tmp_path).splitlines() == [
        "472 flights near a storm, 16 minutes late on average",
        "all flights: 10 minutes",
    ]


def test_anti_join(tmp_path: Path) -> None:
    assert shown("anti_join.py", tmp_path).splitlines() == [
        "4,435 of 26,483 flights were the last of their aircraft for five days",
        "1,670 more at the end of the data",
        "the first: N14228 to IAH, 01 January 10:15",
    ]


def test_weather_around(tmp_path: Path) -> None:
    assert shown("weather_around.py", tmp_path).splitlines() == [
        "27,004 flights, 0 without an observation",
        "wind up to 0-15 mph: 9 minutes late, 15,410 flights",
        "wind up to 15-25 mph: 8 minutes late, 9,365 flights",
        "wind up to 25-100 mph: 23 minutes late, 2,229 flights",
    ]


def test_markouts(tmp_path: Path) -> None:
    assert shown("markouts.py", tmp_path).splitlines() == [
        "7,200 trades, 7,136 of them with all markouts so far",
        " 1 s after: +1.41 cents on average, ahead 69% of the time",
        " 5 s after: +1.41 cents on average, ahead 57% of the time",
        "30 s after: +1.38 cents on average, ahead 54% of the time",
    ]


def test_asof_backward(tmp_path: Path) -> None:
    assert shown("asof_backward.py", tmp_path).splitlines() == [
        "27,004 flights, 0 without an observation",
        "visibility 0 to 1 miles: 15 minutes late",
        "visibility 1 to 5 miles: 16 minutes late",
        "visibility 5 to 11 miles: 9 minutes late",
    ]


def test_asof_forward(tmp_path: Path) -> None:
    assert shown("asof_forward.py", tmp_path).splitlines() == [
        "LGA 31 Jan 08:00, 62 mph: UA left 144 min later",
        "EWR 31 Jan 09:00, 59 mph: US left 53 min later",
        "JFK 31 Jan 09:00, 53 mph: B6 left 97 min later",
        "LGA 31 Jan 09:00, 55 mph: UA left 84 min later",
        "EWR 31 Jan 11:00, 55 mph: EV left 4 min later",
        "JFK 31 Jan 12:00, 59 mph: AA left 2 min later",
        "EWR 31 Jan 14:00, 52 mph: UA left 1 min later",
    ]


def test_asof_nearest(tmp_path: Path) -> None:
    assert shown("asof_nearest.py", tmp_path).splitlines() == [
        "521 cancelled flights; the nearest observation: 336 times before, 185 times after",
        "wind 13.3 mph; in the whole month 11.2",
    ]


def test_within_interval(tmp_path: Path) -> None:
    assert shown("within_interval.py", tmp_path).splitlines() == [
        "12 times of fog, 737 flights in them",
        "the longest: JFK from 13 Jan 00:00 to 13 Jan 17:00",
    ]


def test_overlapping_intervals(tmp_path: Path) -> None:
    assert shown("overlapping_intervals.py", tmp_path).splitlines() == [
        "1,852 flights waited, 9,925 pairs at the same time",
        "EWR 6,602, JFK 1,928, LGA 1,395",
    ]


def test_flights_and_weather(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    # In the session that is there, which other tests go on to use; the demo and a notebook start and stop their own.
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    assert shown("flights_and_weather.py", tmp_path).splitlines() == [
        "59,147 matches, 0 late rows",
        "EWR, wind above 25 mph: 25 minutes late on average",
        "JFK, wind above 25 mph: 18 minutes late on average",
        "LGA, wind above 25 mph: 15 minutes late on average",
    ]


def test_trades_near_quotes(tmp_path: Path) -> None:
    import duckdb

    said = shown("trades_near_quotes.py", tmp_path)
    feeds: dict[str, Any] = runpy.run_path(str(EXAMPLES / "trades_near_quotes.py"))
    with duckdb.connect() as db:
        for name in ("trades", "quotes"):
            db.register(name, feeds[name])
        count = db.sql(
            "SELECT count(*) FROM trades l JOIN quotes r ON l.sym = r.sym AND abs(l.px - r.bid) <= 2 "
            "AND l.ts BETWEEN r.ts - INTERVAL 1 SECOND AND r.ts + INTERVAL 1 SECOND"
        ).fetchall()[0][0]
    assert said.startswith(f"{count:,} matches, the first: [{{'sym': ") and count > 1_000


def test_clicks_and_impressions(tmp_path: Path) -> None:
    assert shown("clicks_and_impressions.py", tmp_path).splitlines() == [
        "clicked, never shown: 40",
        "shown and clicked: 378",
        "shown, not clicked: 2,633",
    ]


def test_dashboard_queries(tmp_path: Path) -> None:
    assert shown("dashboard_queries.py", tmp_path).splitlines() == [
        "31 panels are open and share 2 steps",
        "EWR-2-60: 55 rows",
        "JFK-2-60: 85 rows",
        "LGA-2-60: 20 rows",
        "JFK-2-120: 22 rows",
    ]


def measured(name: str, cwd: Path) -> list[str]:
    """What the program of a paper says it measured, behind the paper's claim."""
    claim, *lines = shown(f"papers/{name}", cwd).splitlines()
    assert claim.startswith("the paper: ")
    return lines


def test_the_pim_trees_paper(tmp_path: Path) -> None:
    lines = measured("pim_tree.py", tmp_path)
    assert [line.split(":")[0] for line in lines] == [
        "B+-tree, one thread", "IM-Tree, one thread", "PIM-Tree, one thread", "PIM-Tree, two threads",
    ]  # fmt: skip
    assert {line.split("; ")[1] for line in lines} == {"721,153 rows, 2.0 a tuple"}


def test_scalejoins_paper(tmp_path: Path) -> None:
    lines = measured("scalejoin.py", tmp_path)
    assert len(lines) == 3
    assert {line.split("; ")[1] for line in lines} == {"360 rows, digest 352e9b78"}


def test_the_handshake_joins_paper(tmp_path: Path) -> None:
    window, *lines = measured("handshake.py", tmp_path)
    assert window == "a window takes 500 ms"
    assert [line.split(":")[0] for line in lines] == ["handshake", "low_latency_handshake"]
    assert {line.split("; ")[1] for line in lines} == {"8,203 rows"}


def test_ajoins_paper(tmp_path: Path) -> None:
    shared, alone, gain = measured("ajoin.py", tmp_path)
    assert shared.startswith("40 queries shared: ") and alone.startswith("40 queries each on its own: ")
    assert shared.split("/s, ")[-1] == alone.split("/s, ")[-1] == "1,111,821 rows"
    assert gain.startswith("sharing: ")


def test_every_example_is_run() -> None:
    written = Path(__file__).read_text()
    assert "kafka_once.py" in (Path(__file__).parent / "service" / "test_serve_kafka.py").read_text()
    names = {path.name for path in EXAMPLES.rglob("*.py")} - {"kafka_once.py"}
    assert [name for name in names if not re.search(rf'(output|shown|measured)\("{name}"', written)] == []
