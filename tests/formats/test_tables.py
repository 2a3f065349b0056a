"""Delta and Iceberg tables as sinks: every row once, whoever dies when; and what can't be written is refused."""

from __future__ import annotations

import datetime as dt
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamjoin.adhoc import DeltaSink, Engine, IcebergSink, Settings
from streamjoin.formats.tables import LakeWriter, OpenTable, RowsInFiles, TableConflictError
from streamjoin.model.errors import (
    InputError,
    NotSupportedError,
    SchemaError,
    SpecError,
    StateError,
    StreamJoinError,
)
from streamjoin.queries.sinks.base import Target
from streamjoin.queries.sinks.specs import sink_of
from streamjoin.storage import settings
from tests.formats.lakes import KINDS, Lake
from tests.queries.journal_cases import LEFT, PAIRS, RIGHT, SCHEMA, Killed, killed_at, table
from tests.queries.looped import Looped
from tests.stores.servers import Moto

ONE = pa.schema({"a": pa.int64()})


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path / "lake")


def writer(lake: Lake, name: str, schema: pa.Schema = ONE, query: str = "q") -> LakeWriter:
    return lake.sink(name).open(Target(query, schema, "engine"))


def ones(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def run_of_three(directory: Path, lake: Lake) -> None:
    """Whatever of a small run is not done yet: three batches, and a query for each that writes to the same table."""
    run = Looped(directory / "checkpoint", Settings(replan_every=2))
    try:
        run.begin(LEFT, RIGHT)
        for number in range(3):
            acted = {(record.action, record.name) for record in run.catalog.changelog}
            if ("create", f"q{number}") not in acted:
                run.create(f"q{number}", PAIRS, lake.sink("one"))
            tables = {"l": table((1, number, number)), "r": table((1, 10 + number, number))}
            run.go_on(number, tables)
        run.catalog.deliveries.drain()
    finally:
        run.abandon()


@pytest.mark.slow
def test_each_row_once_however_the_process_dies(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between the data file and the commit, and between the commit and the end of the batch."""
    killed = 0
    for write in range(0, 60, 5):
        place = Lake(lake.kind, tmp_path / f"lake{write}")
        directory = tmp_path / str(write)
        with killed_at(write, bool(write % 2), monkeypatch):
            try:
                run_of_three(directory, place)
                break
            except (Killed, StreamJoinError):
                killed += 1
        run_of_three(directory, place)
        wanted = [(n, 10 + m) for seen in (range(3), range(1, 3), range(2, 3)) for n in seen for m in seen]
        assert place.rows("one") == sorted(wanted), write
    assert killed > 3


KILLER = """
import os, signal, sys
from pathlib import Path
from streamjoin.formats import delta, iceberg
from tests.formats.lakes import Lake
from tests.formats.test_tables import run_of_three
left = [int(sys.argv[3])]
for kind in (delta.OpenDelta, iceberg.OpenIceberg):
    def commit(self, *arguments, commit=kind.commit):
        left[0] -= 1
        if left[0] <= 0 and sys.argv[4] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        # One that loses against another query raises.
        commit(self, *arguments)
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
    kind.commit = commit
run_of_three(Path(sys.argv[1]), Lake(sys.argv[2], Path(sys.argv[1]) / "lake"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "when"), [("delta", "before"), ("delta", "after"), ("iceberg", "after")])
def test_a_kill_beside_a_commit(tmp_path: Path, kind: str, when: str) -> None:
    lake = Lake(kind, tmp_path / "lake")
    command = [sys.executable, "-c", KILLER, str(tmp_path), lake.kind]
    assert subprocess.run([*command, "2", when], timeout=120, check=False).returncode == -9
    run_of_three(tmp_path, lake)
    wanted = [(n, 10 + m) for seen in (range(3), range(1, 3), range(2, 3)) for n in seen for m in seen]
    assert lake.rows("one") == sorted(wanted)


def test_a_batch_that_comes_again_is_not_added_again(lake: Lake) -> None:
    first = writer(lake, "t")
    for _ in range(2):
        first.write(3, ones(1, 2))
    again = writer(lake, "t")
    again.write(3, ones(1, 2))
    again.write(4, ones(3))
    # Of another query of the engine.
    writer(lake, "t", query="other").write(3, ones(9))
    assert lake.rows("t") == [(1,), (2,), (3,), (9,)]


class _Paused:
    """A table whose first commit begins when another process has done what it has to do."""

    def __init__(self, table: OpenTable, meanwhile: Callable[[], None]) -> None:
        self._table, self._meanwhile = table, [meanwhile]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, *arguments: Any) -> None:
        while self._meanwhile:
            self._meanwhile.pop()()
        self._table.commit(*arguments)


def test_a_paused_process_does_not_add_what_its_successor_added(lake: Lake) -> None:
    """It has asked which batch is the newest, sleeps, and wakes up after another has written the same batch."""
    paused = writer(lake, "t")
    paused.write(0, ones(0))
    paused._table = _Paused(paused._table, lambda: writer(lake, "t").write(1, ones(1)))
    paused.write(1, ones(1))
    assert lake.rows("t") == [(0,), (1,)]
    # What others add meanwhile is no reason to fail.
    paused._table = _Paused(paused._table, lambda: writer(lake, "t", query="other").write(7, ones(9)))
    paused.write(2, ones(2))
    assert lake.rows("t") == [(0,), (1,), (2,), (9,)]


def test_the_table_itself_refuses_a_second_commit_of_the_same_moment(lake: Lake) -> None:
    writers = [writer(lake, "t") for _ in range(2)]
    files = [one.layout.write(0, ones(number).to_batches()) for number, one in enumerate(writers)]
    tables: list[Any] = [one._table for one in writers]
    assert [one.newest("w") for one in tables] == [-1, -1]
    tables[0].commit("w", 0, [files[0]])
    with pytest.raises(TableConflictError):
        tables[1].commit("w", 0, [files[1]])
    assert lake.rows("t") == [(0,)]


def test_queries_that_write_to_one_table_at_once(lake: Lake) -> None:
    def write(number: int) -> None:
        one = writer(lake, "t", query=f"q{number}")
        for batch in range(3):
            one.write(batch, ones(10 * number + batch))

    writer(lake, "t")
    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert lake.rows("t") == [(10 * number + batch,) for number in range(3) for batch in range(3)]


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "truth": (pa.bool_(), [True, None]),
    "tiny": (pa.int8(), [-128, 127]),
    "whole": (pa.int64(), [-(2**63), 2**63 - 1]),
    "byte": (pa.uint8(), [255, None]),
    "natural": (pa.uint64(), [2**64 - 1, 0]),
    "half": (pa.float16(), [1.5, None]),
    "real": (pa.float64(), [math.nan, -0.0]),
    "text": (pa.large_string(), ["ä" * 100, ""]),
    "view": (pa.string_view(), ["v", None]),
    "code": (pa.dictionary(pa.int8(), pa.string()), ["c", "c"]),
    "bytes": (pa.binary(3), [b"\0\1\2", None]),
    "day": (pa.date64(), [dt.date(1969, 12, 31), None]),
    "naive": (pa.timestamp("ms"), [dt.datetime(1900, 1, 1), dt.datetime(2999, 12, 31, 23, 59, 59, 999_000)]),
    "exact": (pa.timestamp("ns", "Asia/Tokyo"), [dt.datetime(2024, 2, 29, 1, 2, 3, 456_789, dt.UTC), None]),
    "money": (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), None]),
    "list": (pa.large_list(pa.uint16()), [[1, None, 65535], []]),
    "pair": (pa.struct({"x": pa.int16(), "y": pa.list_(pa.string())}), [{"x": 1, "y": ["a"]}, None]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("k", 1), ("l", None)], []]),
}


def test_values_of_all_types_come_back(lake: Lake) -> None:
    given = pa.table({name: pa.array(values, type_) for name, (type_, values) in VALUES.items()})
    writer(lake, "t", given.schema).write(0, given)
    stored = lake.table("t")
    for name, (type_, values) in VALUES.items():
        expected = [str(value) for value in given.column(name).to_pylist()]
        if type_ == pa.float16():
            expected = [str(value) for value in values]
        if pa.types.is_timestamp(type_) and type_.tz:
            expected = [str(value) for value in values]
        if type_ == pa.uint64():
            expected = [str(Decimal(value)) for value in values]
        assert [str(value) for value in stored.column(name).to_pylist()] == expected, name


def test_rows_from_files_are_those_that_were_written(lake: Lake) -> None:
    """What a commit can't add is spooled: the rows of tasks' files as the query has them."""
    types = {name: kind for name, (kind, _) in VALUES.items() if name not in ("half", "view", "code")}
    given = pa.table({name: pa.array(VALUES[name][1], kind) for name, kind in types.items()})
    file = writer(lake, "t", given.schema).layout.write(0, given.to_batches())
    assert file is not None
    # NaN differs from itself.
    back = RowsInFiles(given.schema, (file,)).table().drop(["real"])
    assert back.schema.equals(given.drop(["real"]).schema)
    assert back.to_pylist() == given.drop(["real"]).to_pylist()


def test_readers_skip_no_file_that_has_a_row_they_want(lake: Lake) -> None:
    """Bounds in the commit are true: also for NaN, which no bound contains, and for long texts."""
    schema = pa.schema({"n": pa.int64(), "f": pa.float64(), "s": pa.string(), "t": pa.timestamp("us", "UTC")})
    schema = schema.append(pa.field("d", pa.decimal128(30, 2)))
    moments = [dt.datetime(2024, 1, 1, 0, 0, 0, micro, dt.UTC) for micro in (1, 999_999)]
    one = writer(lake, "t", schema)
    one.write(0, pa.Table.from_pylist([{"n": 5, "f": math.nan, "s": "z" * 50, "t": moments[1]}], schema))
    one.write(1, pa.Table.from_pylist([{"n": None, "f": 1.0, "t": moments[0], "d": Decimal("0.3")}, {"n": 7}], schema))
    opened = lake.open("t")
    if lake.kind == "delta":
        data = opened.to_pyarrow_dataset()
        assert data.to_table(filter=pc.field("n") == 7).num_rows == 1
        assert data.to_table(filter=pc.field("s") > "y").num_rows == 1
        assert data.to_table(filter=pc.is_nan(pc.field("f"))).num_rows == 1
        assert data.to_table(filter=pc.field("t") == moments[1]).num_rows == 1
        assert data.to_table(filter=pc.field("n").is_null()).num_rows == 1
        assert data.to_table(filter=pc.field("d") == Decimal("0.3")).num_rows == 1
        assert opened.count() == 3
    else:
        for condition in ("n == 7", "s > 'y'", "f is nan", "t == '2024-01-01T00:00:00.999999+00:00'", "n is null"):
            assert opened.scan(row_filter=condition).to_arrow().num_rows == 1, condition


@pytest.mark.parametrize(
    ("type_", "told"),
    [
        (pa.duration("s"), "no type for the column 'a'"),
        (pa.null(), "no type for the column 'a'"),
        (pa.decimal256(50, 2), "no type for the column 'a'"),
        (pa.list_(pa.duration("s")), "no type for the column 'a'"),
    ],
)
def test_types_that_tables_do_not_have_are_refused(lake: Lake, type_: pa.DataType, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        writer(lake, "t", pa.schema({"a": type_}))


def test_a_time_of_day_is_in_iceberg_alone(tmp_path: Path) -> None:
    schema = pa.schema({"a": pa.time32("s")})
    with pytest.raises(SchemaError, match="Delta tables have no type"):
        writer(Lake("delta", tmp_path / "d"), "t", schema)
    place = Lake("iceberg", tmp_path / "i")
    writer(place, "t", schema).write(0, pa.table({"a": pa.array([dt.time(1, 2, 3)], pa.time32("s"))}))
    assert place.rows("t") == [(dt.time(1, 2, 3),)]


def test_a_value_is_never_rounded(lake: Lake) -> None:
    schema = pa.schema({"a": pa.timestamp("ns")})
    one = writer(lake, "t", schema)
    with pytest.raises(InputError, match="'a' can't be stored as timestamp"):
        one.write(0, pa.table({"a": pa.array([1_001], pa.timestamp("ns"))}))
    one.write(0, pa.table({"a": pa.array([1_000], pa.timestamp("ns"))}))
    assert lake.table("t").num_rows == 1


def test_a_table_that_exists_gets_wider_values_and_nulls_for_columns_of_its_own(lake: Lake) -> None:
    lake.create("t", pa.schema({"more": pa.string(), "a": pa.int64(), "b": pa.float64()}))
    given = pa.table({"b": pa.array([1.5], pa.float32()), "a": pa.array([7], pa.int32())})
    writer(lake, "t", given.schema).write(0, given)
    assert lake.table("t").to_pylist() == [{"more": None, "a": 7, "b": 1.5}]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"a": pa.int64(), "x": pa.int64()}, "has no column 'x'"),
        ({"a": pa.string()}, "has the column 'a' as"),
        ({"b": pa.int64()}, "has no column 'b'"),
    ],
)
def test_columns_that_do_not_fit_a_table_are_refused(lake: Lake, columns: Any, told: str) -> None:
    lake.create("t", pa.schema({"a": pa.int64()}))
    with pytest.raises(SchemaError, match=told):
        writer(lake, "t", pa.schema(columns))


def test_a_column_that_takes_no_null(lake: Lake) -> None:
    needed = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())])
    lake.create("t", needed)
    with pytest.raises(SchemaError, match="needs a value for each row in 'a'"):
        writer(lake, "t", pa.schema({"b": pa.int64()}))
    one = writer(lake, "t")
    with pytest.raises(InputError, match="takes no NULL in 'a'"):
        one.write(0, pa.table({"a": pa.array([1, None], pa.int64())}))
    one.write(0, ones(1))
    assert lake.table("t").num_rows == 1


def test_partitioned_tables_are_refused(tmp_path: Path) -> None:
    delta, iceberg = Lake("delta", tmp_path / "d"), Lake("iceberg", tmp_path / "i")
    delta.create("t", ONE, partition_by=["a"])
    iceberg.create("t", ONE)
    with iceberg.open("t").update_spec() as change:
        change.add_identity("a")
    for lake in (delta, iceberg):
        with pytest.raises(NotSupportedError, match="partitioned by a"):
            writer(lake, "t")


def test_delta_tables_with_rules_for_values_are_refused(tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    lake.create("t", ONE)
    early = writer(lake, "t")
    lake.open("t").alter.add_constraint({"positive": "a > 0"})
    with pytest.raises(NotSupportedError, match=r"delta\.constraints\.positive"):
        writer(lake, "t")
    with pytest.raises(NotSupportedError, match=r"delta\.constraints\.positive"):
        early.write(0, ones(-1))
    assert lake.rows("t") == []


@pytest.mark.parametrize(("names", "told"), [(["a b"], "can't be a column of a Delta"), (["x", "X"], "more than case")])
def test_names_that_delta_does_not_take(tmp_path: Path, names: list[str], told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        writer(Lake("delta", tmp_path), "t", pa.schema([(name, pa.int64()) for name in names]))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: DeltaSink(""), "needs the path"),
        (lambda: DeltaSink("x", options=["a"]), "a mapping of texts"),
        (lambda: DeltaSink("x", compression="rar"), "can't be compressed"),
        (lambda: IcebergSink("matches"), "with its namespace"),
        (lambda: IcebergSink("a..b"), "with its namespace"),
        (lambda: IcebergSink("a.b", catalog=""), "name of a catalog"),
        (lambda: IcebergSink("a.b", options={"uri": "${NOT_THERE}"}).connect(ONE), "no variable 'NOT_THERE'"),
    ],
)
def test_sinks_that_make_no_sense(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        make()


def test_a_catalog_that_does_not_answer_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"the Iceberg table a\.b: "):
        IcebergSink("a.b", options={"type": "sql", "uri": f"sqlite:///{tmp_path}/none/x.db"}).connect(ONE)
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    (tmp_path / "t" / "_delta_log" / f"{0:020}.json").write_text("no json")
    with pytest.raises(StateError, match="the Delta table"):
        DeltaSink(str(tmp_path / "t")).connect(ONE)


def test_secrets_are_in_no_checkpoint() -> None:
    kept = IcebergSink("a.b", options={"uri": "http://x", "token": "${TOKEN}"})
    assert sink_of(kept.spec(), "q") == kept
    assert IcebergSink("a.b", options={"token": "hunter2"}).spec() is None
    delta = DeltaSink("s3://b/t", {"AWS_SECRET_ACCESS_KEY": "${KEY}"}, "snappy")
    assert sink_of(delta.spec(), "q") == delta
    assert DeltaSink("s3://b/t", {"AWS_SECRET_ACCESS_KEY": "hunter2"}).spec() is None


WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("deltalake", "pyiceberg"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import pyarrow as pa
from streamjoin.adhoc import DeltaSink, IcebergSink
from streamjoin.model.errors import SetupError
for sink, extra in ((DeltaSink("x"), "delta"), (IcebergSink("a.b"), "iceberg")):
    try:
        sink.connect(pa.schema({"a": pa.int64()}))
    except SetupError as error:
        assert f"streamjoin[{extra}]" in str(error), error
    else:
        raise AssertionError(sink)
"""


def test_a_missing_library_is_named() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, timeout=120)


def test_an_engine_goes_on_after_the_table_could_not_be_reached(lake: Lake, tmp_path: Path) -> None:
    """What waits in the spool is added in order, once the catalog or the log is there again."""
    engine = Engine(checkpoint=tmp_path / "c", settings=Settings(sink_patience=0.1))
    for name in "lr":
        engine.register(name, schema=SCHEMA, time="t")
    parts = [lake.directory / "catalog.db"] if lake.kind == "iceberg" else [lake.directory / "t" / "_delta_log"]
    with engine:
        engine.create(PAIRS, name="q", sink=lake.sink("t"))
        engine.push("l", table((1, 0, 0)))
        for part in parts:
            part.rename(part.with_name("away"))
        engine.push("r", table((1, 1, 0), (1, 2, 0)))
        engine.push("r", table((1, 3, 0)))
        assert engine.query("q").rows_undelivered == 3
        for part in parts:
            if part.exists():
                # A database that was not there is a new one.
                part.unlink()
            part.with_name("away").rename(part)
    with Engine(checkpoint=tmp_path / "c") as engine:
        engine.process_all_available()
        assert engine.query("q").rows == 3
    assert lake.rows("t") == [(0, 1), (0, 2), (0, 3)]


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    store = Moto()
    yield store
    store.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_on_s3(kind: str, moto: Moto, tmp_path: Path) -> None:
    """With the storage settings of the process alone, and two writers that begin in the same moment."""
    lake = Lake(kind, tmp_path, moto.location(kind))
    moto.use()
    try:
        both = [writer(lake, "t") for _ in range(2)]
        files = [one.layout.write(0, ones(1).to_batches()) for one in both]
        tables: list[Any] = [one._table for one in both]
        assert [one.newest("w") for one in tables] == [-1, -1]
        tables[0].commit("w", 0, [files[0]])
        with pytest.raises(TableConflictError):
            tables[1].commit("w", 0, [files[1]])
        options = tables[0]._options
        assert lake.table("t", options).to_pylist() == [{"a": 1}]
    finally:
        settings.use(None)
