"""Every example runs as it stands, says what it should and nothing on the error stream."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def output(name: str, cwd: Path) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(cwd.iterdir()) == [], "an example cleans up after itself"
    return ran.stdout


def test_embedded_band_join(tmp_path: Path) -> None:
    said = output("embedded_band_join.py", tmp_path)
    assert said.count("'celsius_left'") == 3
    assert "50,000 left and 50,000 right tuples" in said


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


@pytest.mark.spark
def test_trades_near_quotes(tmp_path: Path) -> None:
    from datetime import timedelta

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
