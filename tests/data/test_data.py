"""The data that ships with the package, and its replay as streams."""

from __future__ import annotations

import gzip
import importlib.util
import json
import time
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import streamjoin as sj
from streamjoin.data import aircraft, flights, replay, weather


def test_flights_and_weather_are_in_order_and_join_as_pandas_joins_them() -> None:
    left, right = flights(), weather()
    assert left["scheduled"].null_count == right["observed"].null_count == 0
    for column in (left["scheduled"], right["observed"]):
        assert np.all(np.diff(column.cast(pa.int64()).to_numpy()) >= 0)
    spec = sj.JoinSpec(
        on=sj.Equi("airport"),
        match=sj.AsOf(tolerance="1 hour"),
        time=("scheduled", "observed"),
        order="event_time",
        how="left",
    )
    with sj.open(spec) as join:
        rows = pa.concat_tables([join.push(left, right), join.close()])
    assert rows.num_rows == left.num_rows
    wanted = pd.merge_asof(
        left.to_pandas(),
        right.to_pandas(),
        left_on="scheduled",
        right_on="observed",
        by="airport",
        tolerance=pd.Timedelta("1 hour"),
    )
    assert pc.count(rows["wind"]).as_py() == wanted["wind"].count() > 20_000
    assert pc.sum(rows["wind"]).as_py() == pytest.approx(wanted["wind"].sum())


@pytest.mark.parametrize("convert", [lambda table: table, lambda table: table.to_pandas(), pl.from_arrow])
def test_a_replay_gives_every_row_once_in_spans_of_time(convert: object) -> None:
    tables = {"flights": flights(), "weather": weather()}
    given = {name: convert(table) for name, table in tables.items()}  # type: ignore[operator]
    times = {"flights": "scheduled", "weather": "observed"}
    batches = list(replay(given, times, every="6 hours"))
    for name, table in tables.items():
        parts = [batch[name] for batch in batches if name in batch]
        assert sum(part.num_rows for part in parts) == table.num_rows
        assert pa.concat_tables(parts)[times[name]].cast(pa.int64()) == table[times[name]].cast(pa.int64())
        spans = [part[times[name]].cast(pa.int64()).to_numpy() // (6 * 3600 * 1_000_000) for part in parts]
        assert all(np.unique(span).size == 1 for span in spans)


def test_disorder_delays_rows_by_at_most_what_it_says() -> None:
    day = pd.DataFrame({"t": pd.date_range("2024-01-01", periods=5_000, freq="s"), "n": range(5_000)})
    (together,) = replay({"a": day}, "t", every="1 day", disorder="30 seconds", seed=3)
    order = together["a"]["n"].to_numpy()
    assert sorted(order) == list(range(5_000)) and list(order) != list(range(5_000))
    assert np.all(np.maximum.accumulate(order) - order <= 30)
    again = next(replay({"a": day}, "t", every="1 day", disorder="30 seconds", seed=3))
    assert again["a"] == together["a"]
    spec = sj.JoinSpec(
        on=sj.Equi("n"), window=sj.TimeWindow("1 h"), time="t", order="event_time", lateness="30 seconds"
    )
    with sj.open(spec, on_close=lambda _: None) as join:
        join.push(left=together["a"], right=together["a"])
        assert join.metrics()["late"] == 0


def test_a_replay_keeps_to_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    table = pa.table({"t": pa.array([0, 61, 600], pa.timestamp("s"))})
    assert len(list(replay({"a": table}, "t", speed=60))) == 3
    assert slept == [1.0, 2.0, 11.0]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"time": "when"}, sj.InputError, "no time column 'when'"),
        ({"time": {"b": "t"}}, sj.InputError, "no time column None"),
        ({"time": "n"}, sj.InputError, "needs a timestamp"),
        ({"time": "gaps"}, sj.InputError, "NULL in 1 rows"),
        ({"time": "t", "every": "0 seconds"}, sj.SpecError, "positive"),
        ({"time": "t", "every": "soon"}, sj.SpecError, "not a duration"),
        ({"time": "t", "speed": 0.0}, sj.SpecError, "positive"),
    ],
)
def test_what_cannot_be_replayed_is_refused(arguments: dict[str, object], error: type[Exception], words: str) -> None:
    table = pa.table({"t": pa.array([0], pa.timestamp("s")), "n": [1], "gaps": pa.array([None], pa.timestamp("s"))})
    with pytest.raises(error, match=words):
        replay({"a": table}, **arguments)


def test_nothing_and_dates_can_be_replayed() -> None:
    assert list(replay({"a": pa.table({"t": pa.array([], pa.timestamp("s"))})}, "t")) == []
    days = pa.table({"t": pa.array([1, 0], pa.date32())})
    assert [batch["a"]["t"].to_pylist()[0].day for batch in replay({"a": days}, "t", every="1 day")] == [1, 2]


def test_aircraft_are_read_from_the_installed_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(sj.SetupError, match="pip install --no-deps traffic"):
        aircraft()
    spec = ModuleSpec("traffic", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(sj.SetupError, match=r"version 2\.13"):
        aircraft()
    sample = tmp_path / "data" / "samples" / "collections" / "quickstart.json.gz"
    sample.parent.mkdir(parents=True)
    numbers = {"latitude": 48.5, "longitude": 2.0, "groundspeed": 300.0, "track": 10.0, "vertical_rate": 0.0}
    rows = [
        {"icao24": name, "callsign": None, "altitude": feet, "onground": ground, "timestamp": ms, **numbers}
        for name, feet, ground, ms in [("b", 900.0, False, 2000), ("a", 0.0, True, 1000), ("c", None, False, 500)]
    ]
    rows.append({**rows[0], "icao24": "a", "timestamp": 1000})
    sample.write_bytes(gzip.compress(json.dumps(rows, separators=(",", ":")).encode()))
    assert [(row["icao24"], row["time"].timestamp()) for row in aircraft().to_pylist()] == [("a", 1.0), ("b", 2.0)]
