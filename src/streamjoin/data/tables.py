"""The tables: flights and weather as Parquet files of the package, aircraft from another package's sample."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from streamjoin.model.errors import SetupError

_SAMPLE = Path("data", "samples", "collections", "quickstart.json.gz")


def flights() -> pa.Table:
    """The 27,004 flights that were due to leave New York's airports in January 2013, by scheduled time.

    Columns: `scheduled` and `departure` (UTC; NULL if cancelled), `airport` (EWR, JFK, LGA), `destination`, `carrier`,
    `flight` (number), `tail` (of the aircraft), `delay` (minutes), `distance` (miles).

    >>> flights().num_rows
    27004
    """
    return _read("flights")


def weather() -> pa.Table:
    """The hourly weather at the same airports in the same month, by time: 2,226 observations.

    Columns: `observed` (UTC), `airport`, `temperature` (Fahrenheit), `wind` and `gust` (miles per hour), `rain`
    (inches), `pressure` (millibars), `visibility` (miles).

    >>> weather().num_rows
    2226
    """
    return _read("weather")


def aircraft() -> pa.Table:
    """Positions of 236 aircraft near Paris on the afternoon of 7 October 2021, one per aircraft and second, by time.

    Columns: `time` (UTC), `icao24` (the transponder's address), `callsign`, `latitude` and `longitude` (degrees),
    `altitude` (feet), `groundspeed` (knots), `track` (degrees), `vertical_rate` (feet per minute). Positions on the
    ground are left out.

    The sample belongs to the package `traffic`; its data come from the OpenSky Network. Install it with
    `pip install --no-deps traffic`: nothing of it is imported.

    Raises:
        SetupError: `traffic` is not installed, or its sample has moved.
    """
    spec = importlib.util.find_spec("traffic")
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise SetupError(
            "the positions of aircraft are in the package `traffic`: run `pip install --no-deps traffic`, "
            "nothing else of it is needed"
        )
    path = Path(next(iter(places))) / _SAMPLE
    if not path.is_file():
        raise SetupError(f"the installed package `traffic` has no {_SAMPLE}: install version 2.13")
    return _positions(path)


def _read(name: str) -> pa.Table:
    return pq.read_table(Path(__file__).with_name(f"{name}.parquet"))


def _positions(path: Path) -> pa.Table:
    text = gzip.decompress(path.read_bytes())
    # The sample is one JSON array of flat objects; Arrow reads one object per line.
    lines = text.strip().removeprefix(b"[").removesuffix(b"]").replace(b"},{", b"}\n{")
    rows = pj.read_json(pa.BufferReader(lines))
    rows = rows.filter(pc.invert(rows["onground"]))
    time = rows["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    names = ["icao24", "callsign", "latitude", "longitude", "altitude", "groundspeed", "track", "vertical_rate"]
    table = pa.table({"time": time, **{name: rows[name] for name in names}})
    complete = pc.and_(pc.is_valid(table["latitude"]), pc.is_valid(table["altitude"]))
    return table.filter(complete).sort_by([("time", "ascending"), ("icao24", "ascending")])
