"""Times that misbehave: tuples from the year 3000, streams that stand still, and files read in any order."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import Stream
from streamjoin.model.errors import SchemaError, SpecError
from streamjoin.queries.core.changes import Create
from streamjoin.queries.core.settings import Settings
from streamjoin.queries.core.shared import Shared
from streamjoin.queries.core.unshared import Unshared, open_core
from tests.queries.core_cases import rows_of

SCHEMA = pa.schema({"k": pa.int64(), "t": pa.timestamp("us")})
STREAMS = [Stream(name, SCHEMA, "t") for name in ("l", "r")]
PAIRS = "SELECT x.k, x.t AS a, y.t AS b FROM l x JOIN r y WITHIN 5 SECONDS ON x.k = y.k"
NUMBERS = pa.schema({"k": pa.int64(), "t": pa.int64()})
START = datetime(2025, 1, 1)
SHARINGS = pytest.mark.parametrize("sharing", ["cost", "nothing"])


class Machine:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return int((self.now - datetime(1970, 1, 1)) / timedelta(microseconds=1)) * 1000


def rows(*seconds: float, key: int = 1, at: datetime = START) -> pa.Table:
    times = [at + timedelta(seconds=second) for second in seconds]
    return pa.table({"k": [key] * len(times), "t": times}, SCHEMA)


def open_at(machine: Machine, **options: Any) -> Shared | Unshared:
    core = open_core(STREAMS, Settings(**options), machine)
    core.apply([Create("q", PAIRS)])
    return core


def held(core: Shared | Unshared, stream: str) -> int:
    return sum(bucket.n for bucket in core.snapshot().buckets[stream])


@SHARINGS
def test_a_tuple_from_the_year_3000_is_set_aside_and_its_stream_goes_on(sharing: Any) -> None:
    core = open_at(Machine(), sharing=sharing)
    far = pa.concat_tables([rows(0), rows(0, at=datetime(2262, 1, 1)), rows(1)])
    core.process(0, {"l": far, "r": rows(0)})
    assert core.report.untimed["l"]["t"].to_pylist() == [datetime(2262, 1, 1)]
    assert core.process(1, {"l": rows(2), "r": rows(2)})["q"].num_rows == 1 + 2 + 1
    assert not core.report.late and not core.report.untimed
    year_3000 = pa.Table.from_pylist([{"k": 1, "t": datetime(3000, 1, 1)}], SCHEMA)
    core.process(2, {"l": year_3000})
    assert core.report.untimed["l"].num_rows == 1


def test_how_far_ahead_is_a_setting() -> None:
    machine = Machine()
    core = open_at(machine, future={"l": "10 seconds", "r": None})
    core.process(0, {"l": rows(10, 11), "r": rows(86400 * 400)})
    assert core.report.untimed["l"]["t"].to_pylist() == [START + timedelta(seconds=11)]
    assert list(core.report.untimed) == ["l"]
    machine.now += timedelta(seconds=1)
    core.process(1, {"l": rows(11)})
    assert not core.report.untimed


def test_integer_times_are_compared_with_what_the_streams_have_reached() -> None:
    streams = [Stream(name, NUMBERS, "t") for name in ("l", "r")]
    core = open_core(streams, Settings(future={"l": 100}))
    core.apply([Create("q", "SELECT x.k FROM l x JOIN r y WITHIN 5 UNITS ON x.k = y.k")])
    core.process(0, {"r": pa.table({"k": [1], "t": [1000]}, NUMBERS)})
    core.process(1, {"l": pa.table({"k": [1, 1, 1], "t": [5, 1100, 1 << 62]}, NUMBERS)})
    assert core.report.untimed["l"]["t"].to_pylist() == [1 << 62]


def test_a_bound_that_does_not_fit_is_refused() -> None:
    machine = Machine()
    with pytest.raises(SchemaError, match="future bound of 'l' must be a duration"):
        open_at(machine, future={"l": 5}).process(0, {"l": rows(0)})
    with pytest.raises(SpecError, match="can't be negative"):
        open_core([Stream("n", NUMBERS, "t")], Settings(future=-1)).process(0, {})
    for idle in (5, "0 seconds", True):
        with pytest.raises(SpecError, match="idle is a duration"):
            Settings(idle=idle)  # type: ignore[arg-type]


@SHARINGS
@pytest.mark.parametrize("sends", [False, True], ids=["silent", "the same time again"])
def test_a_stream_that_stands_still_does_not_make_the_others_grow(sharing: Any, sends: bool) -> None:
    machine = Machine()
    core = open_at(machine, sharing=sharing, idle="1 minute")
    core.process(0, {"r": rows(0)})
    for second in range(1, 300):
        machine.now += timedelta(seconds=1)
        core.process(second, {"l": rows(second), **({"r": rows(0)} if sends else {})})
        assert second >= 60 or held(core, "l") == second
    # The window, the minute that it may stand still, and the steps in which that is remembered.
    assert held(core, "l") <= 8 + 60 + 4
    # What it was waited for until then did join.
    late = core.report.late["r"].num_rows if sends else 0
    assert late == sends
    # It may come back: what is a minute behind the others is late, what is not joins with all that it belongs to.
    assert core.process(300, {"r": rows(200, 234, 240, 299)})["q"].num_rows == 11 + 6
    assert core.report.late["r"]["t"].to_pylist() == [START + timedelta(seconds=second) for second in (200, 234)]
    # From then on it has a clock of its own again.
    machine.now += timedelta(seconds=30)
    core.process(301, {"l": rows(330)})
    core.process(302, {"r": rows(305)})
    assert not core.report.late


def test_without_an_idle_bound_a_stream_is_waited_for() -> None:
    machine = Machine()
    core = open_at(machine, idle=None)
    for second in range(200):
        machine.now += timedelta(hours=1)
        core.process(second, {"l": rows(second)})
    assert held(core, "l") == 200
    assert core.process(200, {"r": rows(0)})["q"].num_rows == 6


def test_streams_that_no_query_joins_do_not_move_each_other() -> None:
    machine = Machine()
    core = open_at(machine, idle="1 minute")
    core.add_stream(Stream("other", SCHEMA, "t"))
    core.process(0, {"other": rows(0)})
    for second in range(1, 100):
        machine.now += timedelta(minutes=1)
        core.process(second, {"l": rows(second)})
    core.process(100, {"other": rows(0)})
    assert not core.report.late


@SHARINGS
def test_files_of_rising_time_that_are_read_in_any_order_are_not_late(sharing: Any) -> None:
    """Spark packs a batch's files into partitions by size: the newest may come first."""
    core, plain = (open_at(Machine(), sharing=sharing) for _ in range(2))
    shuffled, in_order = Counter[Any](), Counter[Any]()
    for number in range(5):
        seconds = list(range(number * 10, number * 10 + 10))
        shuffled += rows_of(
            core.process(number, {"l": rows(*seconds[5:], *seconds[:5]), "r": rows(*seconds[::-1])})["q"]
        )
        assert not core.report.late
        in_order += rows_of(plain.process(number, {"l": rows(*seconds), "r": rows(*seconds)})["q"])
    assert shuffled == in_order and len(in_order) > 500


LEAST, MOST = -(2**63), 2**63 - 1


def at(*times: int, key: int = 1) -> pa.Table:
    return pa.table({"k": [key] * len(times), "t": list(times)}, NUMBERS)


ENDS = {(LEAST, LEAST), (MOST, MOST)}
ANY = ENDS | {(LEAST, MOST), (MOST, LEAST)}


@SHARINGS
@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("JOIN r y WITHIN 9 ROWS ON x.k = y.k", ANY),
        ("JOIN r y WITHIN 9 ROWS ON x.k BETWEEN y.k - 1 AND y.k", ANY),
        ("JOIN r y WITHIN 5 UNITS ON x.k = y.k", ENDS),
        ("LEFT JOIN r y WITHIN 5 UNITS ON x.k = y.k", ENDS),
        ("ASOF LEFT JOIN r y MATCH_CONDITION (x.t >= y.t) ON x.k = y.k TOLERANCE 5 UNITS", ENDS),
        ("ASOF LEFT JOIN r y MATCH_CONDITION (x.t >= y.t) ON x.k = y.k", ENDS),
    ],
)
@pytest.mark.parametrize("lateness", [0, MOST, 2**64 - 1, 10**30])
def test_times_at_the_ends_of_int64(sharing: Any, text: str, pairs: set[tuple[int, int]], lateness: int) -> None:
    """Windows of rows once took tuples of both ends for too far apart."""
    streams = [Stream(name, NUMBERS, "t") for name in ("l", "r")]
    core = open_core(streams, Settings(sharing=sharing, lateness=lateness, future=None))
    core.apply([Create("q", f"SELECT x.t AS a, y.t AS b FROM l x {text}")])
    found: Counter[tuple[Any, ...]] = Counter()
    for batch, tables in enumerate(
        ({"l": at(LEAST), "r": at(LEAST)}, {"l": at(MOST), "r": at(MOST)}, {"l": at(MOST, key=2)})
    ):
        rows = core.process(batch, tables).get("q")
        found += Counter() if rows is None else Counter(rows_of(rows))
        assert not core.report.late
    # What is still open at the latest of all times is never decided: nothing later can come.
    wanted = Counter(pairs)
    assert found <= wanted
    if "LEFT" not in text:
        assert found == wanted
    elif lateness == 0:
        assert (LEAST, LEAST) in found
