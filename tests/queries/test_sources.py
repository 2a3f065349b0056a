"""Sources that are read without Spark: columns, decoding, selections, files, generated rows."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.adhoc import Engine
from streamjoin.config.columns import parse_columns
from streamjoin.model.errors import CheckpointError, ExpressionError, SchemaError, SetupError, SpecError, StateError
from streamjoin.queries.engine import executor
from streamjoin.queries.executors import embedded
from streamjoin.queries.sources import decoding, files
from streamjoin.queries.sources.described import RowSelection
from streamjoin.queries.sources.files import FileReader, FileSource
from streamjoin.queries.sources.kafka import KafkaSource
from streamjoin.queries.sources.rate import RateSource
from tests.seeds import examples

DDL = (
    "ts TIMESTAMP, at TIMESTAMP_NTZ, day DATE, s STRING NOT NULL, `a b` BIGINT, i INT, f FLOAT, x DOUBLE, "
    "flag BOOLEAN, d DECIMAL(10, 2), raw BINARY COMMENT 'bytes', parts ARRAY<STRING>, "
    "who STRUCT<name: STRING, age INT>, m MAP<STRING, DOUBLE>"
)
SCHEMA = parse_columns("ts TIMESTAMP, s STRING, n BIGINT, x DOUBLE")


@pytest.mark.spark
def test_columns_are_what_spark_makes_of_them(spark: Any) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    types = to_arrow_schema(StructType.fromDDL(DDL), timezone="UTC")
    ours = parse_columns(DDL)
    assert ours.names == types.names
    for field in ours:
        # Names inside of lists and maps are nobody's business.
        assert pa.nulls(1, field.type).cast(types.field(field.name).type).type == types.field(field.name).type
        if not pa.types.is_nested(field.type):
            assert field.type == types.field(field.name).type


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a column's name is missing"),
        ("a", "the type of column 'a' is missing"),
        ("a DUOBLE", "DUOBLE, which is not one of"),
        ("a INT b INT", "'b' is not expected"),
        ("a INT, a STRING", "more than one column 'a'"),
        ("a DECIMAL(50, 2)", "at most 38 digits"),
        ("a ARRAY<INT", "'>' is missing"),
        ("a INT; drop", "';' is not expected"),
    ],
)
def test_columns_that_are_none(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_columns(text)


VALUES = {
    "ts": st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1)).map(lambda at: at.isoformat() + "Z"),
    "s": st.text(st.characters(codec="utf-8"), max_size=5),
    "n": st.integers(-(1 << 63), (1 << 63) - 1),
    "x": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(1 << 53), 1 << 53),
}
RECORDS = st.lists(st.fixed_dictionaries({}, optional={**VALUES, "more": st.just([1])}), max_size=6)


@settings(max_examples=examples(60), deadline=None)
@given(RECORDS)
def test_a_block_and_its_records_are_decoded_to_the_same_rows(records: list[dict[str, Any]]) -> None:
    data = [json.dumps(record).encode() for record in records]
    at_once, good = decoding.json_decoder(SCHEMA)(data)
    assert good.all()
    one_by_one, _ = decoding._one_by_one(data, SCHEMA, lambda text: decoding._json_row(text, SCHEMA))
    assert at_once.to_pylist() == one_by_one.to_pylist()


GOOD = ['{"ts": "2026-01-01T00:00:00Z", "s": "a", "n": 1, "x": 1.5}', '{"s": 5, "n": null}', '{"ts": 1.5}', "{}"]
BAD = [
    "",
    "null",
    "[]",
    "not json",
    '{"n": 1}{"n": 2}',
    '{"n": 1.5}',
    '{"n": "1"}',
    '{"n": 99999999999999999999}',
    '{"x": NaN}',
    '{"ts": "soon"}',
    '{"n": true}',
    "[" * 100_000,
    '{"s": "\udcff"}',
]


def test_each_record_is_a_row_or_malformed() -> None:
    records = [text.encode(errors="surrogateescape") for text in (*GOOD, *BAD)]
    rows, good = decoding.json_decoder(SCHEMA)([*records, None])
    assert good.tolist() == [True] * len(GOOD) + [False] * (len(BAD) + 1)
    assert rows["s"].to_pylist() == ["a", "5", None, None]
    at = dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC)
    assert rows["ts"].to_pylist() == [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None, at, None]


def test_nested_values_and_decimals() -> None:
    record = {
        "d": 12.345, "parts": ["x", None], "who": {"name": "a", "age": 3}, "m": {"k": 1}, "raw": "AAE=",
        "day": "2026-01-01",
    }  # fmt: skip
    rows, good = decoding.json_decoder(parse_columns(DDL))([json.dumps({**record, "d": 12.34}).encode()])
    assert good.all()
    row = rows.to_pylist()[0]
    assert (row["raw"], row["who"], row["m"]) == (b"\0\1", {"name": "a", "age": 3}, [("k", 1.0)])
    assert (str(row["d"]), row["parts"], row["day"]) == ("12.34", ["x", None], dt.date(2026, 1, 1))
    assert not decoding.json_decoder(parse_columns(DDL))([json.dumps(record).encode()])[1].any()


def test_csv() -> None:
    decode = decoding.csv_decoder(SCHEMA, {"sep": ";", "nullValue": "-"})
    lines = [
        "2026-01-01;'a';1;2",
        '2026-01-01T01:00:00+01:00;"a;b";-;',
        "2026-01-01;a;1",
        "2026-01-01;a;x;1",
        ";;1_0;1",
    ]
    rows, good = decode([line.encode() for line in lines])
    assert good.tolist() == [True, True, False, False, False]
    assert rows.drop_columns(["ts"]).to_pylist() == [{"s": "'a'", "n": 1, "x": 2.0}, {"s": "a;b", "n": None, "x": None}]
    assert set(rows["ts"].to_pylist()) == {dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}
    with pytest.raises(SpecError, match="no option 'multiLine'"):
        decoding.csv_decoder(SCHEMA, {"multiLine": "true"})


def test_selections() -> None:
    table = pa.table({"k": ["a", "b", None], "n": [1, 2, 3]})
    chosen = RowSelection(table.schema, ["upper(k) AS `the key`", "n", "n / 2e0 AS half"], "n > 1 AND k IS NOT NULL")
    assert chosen.schema.names == ["the key", "n", "half"]
    assert chosen.apply(table).to_pylist() == [{"the key": "B", "n": 2, "half": 1.0}]
    assert RowSelection(table.schema, ["*", "n + 1 AS m"]).apply(table)["m"].to_pylist() == [2, 3, 4]
    assert RowSelection(table.schema).apply(table) is table
    for select, where, message in (
        (["n + 1"], None, "name it with AS"),
        (["m"], None, "no column 'm'"),
        (["t.n"], None, "write n instead of t.n"),
        (["n", "k AS n"], None, "more than one column 'n'"),
        (["explode(n) AS x"], None, "EXPLODE"),
        ((), "n +", "the text ends too early|parse|expected|missing"),
        ((), "n", "boolean"),
    ):
        with pytest.raises((ExpressionError, SchemaError), match=message):
            RowSelection(table.schema, select, where)


FILES = parse_columns("k BIGINT, ts TIMESTAMP")


def line(k: int, second: int) -> str:
    return f'{{"k": {k}, "ts": "2026-01-01T00:00:{second:02}Z"}}\n'


def put(directory: Path, name: str, content: str | bytes, at: int) -> None:
    """A file that came at this time."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(file, ns=(at, at))


def test_files_are_read_once_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    data, notes = tmp_path / "data", tmp_path / "notes"
    put(data, "b.json", line(1, 1) + "bad\n\n", 1)
    put(data, "a.json.gz", gzip.compress(line(2, 2).encode()), 2)
    put(data, ".hidden", "bad", 0)
    put(data / "_tmp", "x.json", "bad", 0)
    source = FileSource(str(data), "json", FILES, {"maxFilesPerTrigger": "2"})
    first = source.open(notes).read(None)
    assert first is not None and first.malformed is not None
    assert first.rows["k"].to_pylist() == [1, 2]
    assert first.malformed.to_pylist() == [{"file": str(data / "b.json"), "value": "bad"}]
    put(data / "deep" / "er", "c.json", line(3, 3), 4)
    # Older than what was read before, and new all the same.
    put(data, "old.json", line(4, 4), 0)
    reader = source.open(notes)
    second = reader.read(first.position)
    assert second is not None and second.rows["k"].to_pylist() == [4, 3]
    assert reader.read(second.position) is None
    # Another start reads the same from the same position, also without the file's place in the directory.
    put(data, "old.json", line(4, 4), 9)
    again = source.open(notes).read(first.position)
    assert again is not None and again.rows.equals(second.rows) and again.position == second.position
    with pytest.raises(CheckpointError, match="names 4 files, but 9 were read"):
        source.open(notes).read({"files": 9})


def test_parquet_files_are_cast_where_nothing_is_lost(tmp_path: Path) -> None:
    def rows_of(table: pa.Table) -> list[Any]:
        pq.write_table(table, tmp_path / "1.parquet")
        given = FileReader(FileSource(str(tmp_path), "parquet", FILES), None).read(None)
        assert given is not None
        return list(given.rows.to_pylist())

    at = dt.datetime(2026, 1, 1)
    told = [{"k": 1, "ts": at.replace(tzinfo=dt.UTC)}]
    assert (
        rows_of(pa.table({"k": pa.array([1], pa.int8()), "ts": pa.array([at], pa.timestamp("ms")), "z": [1]})) == told
    )
    assert rows_of(pa.table({"k": [1]})) == [{"k": 1, "ts": None}]
    assert rows_of(pa.table({"k": [1.5]})) == []


def spoiled(kind: str) -> tuple[str, str, bytes]:
    """A format, a file's name, and content that is none of it."""
    lines = "".join(line(n, n) for n in range(200)).encode()
    parquet = io.BytesIO()
    pq.write_table(pa.table({"k": list(range(1000))}), parquet)
    whole = bytearray(parquet.getvalue())
    whole[20:200] = bytes(180)
    wrong = io.BytesIO()
    pq.write_table(pa.table({"k": [1.5]}), wrong)
    return {
        "cut gz": ("json", "2.json.gz", gzip.compress(lines)[:-20]),
        "empty gz": ("json", "2.json.gz", b""),
        "text as gz": ("json", "2.json.gz", lines),
        "cut bz2": ("csv", "2.csv.bz2", bz2.compress(b"1,\n" * 500)[:-7]),
        "cut zst": ("json", "2.json.zst", pa.compress(lines, "zstd", asbytes=True)[:-3]),
        "no parquet": ("parquet", "2.parquet", b"none"),
        "cut parquet": ("parquet", "2.parquet", parquet.getvalue()[:-9]),
        "damaged parquet": ("parquet", "2.parquet", bytes(whole)),
        "other types": ("parquet", "2.parquet", wrong.getvalue()),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "cut gz",
        "empty gz",
        "text as gz",
        "cut bz2",
        "cut zst",
        "no parquet",
        "cut parquet",
        "damaged parquet",
        "other types",
    ],
)
def test_a_bad_file_is_set_aside_and_the_stream_goes_on(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    format_, name, content = spoiled(kind)
    data = tmp_path / "data"

    def good(number: int, key: int) -> None:
        if format_ == "parquet":
            data.mkdir(exist_ok=True)
            pq.write_table(pa.table({"k": [key], "ts": pa.array([key], pa.timestamp("s"))}), data / f"{number}.parquet")
            os.utime(data / f"{number}.parquet", (number, number))
        else:
            text = line(key, key) if format_ == "json" else f"{key},1970-01-01T00:00:0{key}Z\n"
            put(data, f"{number}.{format_}", text, number)

    good(1, 1)
    (data / name).write_bytes(content)
    os.utime(data / name, (2, 2))
    good(3, 3)
    # Two files to a read, and all in one: what is beside it comes in.
    for most in ("2", "1000"):
        options = {"maxFilesPerTrigger": most}
        engine = Engine(checkpoint=tmp_path / f"checkpoint-{most}")
        engine.register("s", source=FileSource(str(data), format_, FILES, options), time="ts", lateness="1 minute")
        engine.create("SELECT x.k FROM s x JOIN s y WITHIN 1 MINUTE ON x.k = y.k", name="q")
        with engine:
            engine.process_all_available()
            (info,) = engine.streams()
            assert (info.rows, info.malformed, info.error, info.failures) == (2, 1, None, 0)
            (bad,) = engine.malformed("s").to_pylist()
            assert bad["file"] == str(data / name)
            assert bad["value"].startswith("the whole file is set aside: ")
            assert engine.query("q").state == "running"
        assert f"the file {data / name} is set aside" in caplog.text


def test_a_file_that_is_removed_before_it_is_read_is_set_aside(tmp_path: Path) -> None:
    data, notes = tmp_path / "data", tmp_path / "notes"
    for number in (1, 2, 3):
        put(data, f"{number}.json", line(number, number), number)
    source = FileSource(str(data), "json", FILES, {"maxFilesPerTrigger": "1"})
    first = source.open(notes).read(None)
    assert first is not None
    (data / "2.json").unlink()
    reader = source.open(notes)
    second = reader.read(first.position)
    assert second is not None and second.rows.num_rows == 0 and second.malformed is not None
    assert second.malformed["value"].to_pylist() == ["the whole file is set aside: it was removed before it was read"]
    third = reader.read(second.position)
    assert third is not None and third.rows["k"].to_pylist() == [3]


def test_what_is_no_file_holds_up_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open a pipe waits for who writes to it; a file that is moved away while names are listed is none."""
    os.mkfifo(tmp_path / "1.json")
    put(tmp_path, "3.json", line(3, 3), 3)
    found = files._files
    monkeypatch.setattr(files, "_files", lambda root: [*found(root), ("2.json", tmp_path / "2.json")])
    reader = FileSource(str(tmp_path), "json", FILES).open(None)
    first = reader.read(None)
    assert first is not None and first.rows["k"].to_pylist() == [3] and first.malformed is None
    assert reader.read(first.position) is None
    with pytest.raises(SetupError, match="neither a directory nor a file"):
        FileSource(str(tmp_path / "1.json"), "json", FILES).open(None)


def test_a_link_to_a_directory_around_it_leads_to_no_other_files(tmp_path: Path) -> None:
    put(tmp_path / "a" / "b", "1.json", line(1, 1), 1)
    put(tmp_path / "c", "2.json", line(2, 2), 2)
    for link, target in (("itself", tmp_path), ("a/b/above", tmp_path / "a"), ("a/beside", tmp_path / "c")):
        (tmp_path / link).symlink_to(target)
    given = FileSource(str(tmp_path), "json", FILES).open(None).read(None)
    # A link to a directory elsewhere is one more directory.
    assert given is not None and sorted(given.rows["k"].to_pylist()) == [1, 2, 2]


def test_two_readers_that_list_the_same_directory_agree_on_its_order(tmp_path: Path) -> None:
    """The listing of an earlier start may hang until a later one has gone on."""
    data, notes = tmp_path / "data", tmp_path / "notes"
    put(data, "1.json", line(1, 1), 1)
    source = FileSource(str(data), "json", FILES)
    late, early = source.open(notes), source.open(notes)
    first = early.read(None)
    assert first is not None
    # It sorts before the file that has been read.
    put(data, "0.json", line(2, 2), 0)
    found = late.read(None)
    assert found is not None and found.rows.equals(first.rows)
    for reader in (late, early, source.open(notes)):
        following = reader.read(first.position)
        assert following is not None and following.rows["k"].to_pylist() == [2]


def test_an_engine_stops_while_a_source_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a file system whose server is gone; the answer, when it comes, leaves no trace."""
    monkeypatch.setattr(embedded, "STOP_PATIENCE", 0.05)
    asked, answer = threading.Semaphore(0), threading.Event()
    readers: list[threading.Thread] = []
    found = files._files

    def hanging(root: Path) -> Any:
        if not answer.is_set():
            readers.append(threading.current_thread())
            asked.release()
            assert answer.wait(60)
        return found(root)

    monkeypatch.setattr(files, "_files", hanging)

    def opened() -> Engine:
        engine = Engine(checkpoint=tmp_path / "checkpoint")
        for name in "lr":
            engine.register(name, source=FileSource(str(tmp_path / name), "json", FILES), time="ts")
        return engine

    for name in "lr":
        put(tmp_path / name, "1.json", line(1, 1), 1)
    engine = opened()
    engine.create("SELECT x.k FROM l x JOIN r y WITHIN 1 SECOND ON x.k = y.k", name="q")
    with engine:
        assert asked.acquire(timeout=60) and asked.acquire(timeout=60)
    for name in "lr":
        assert f"stream '{name}' is not read to its end: its source has not answered" in caplog.text
    answer.set()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    assert [engine.position(name) for name in "lr"] == [None, None]
    with opened() as again:
        again.process_all_available()
        assert again.query("q").rows == 1


def test_a_file_that_takes_too_much_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "1.json", line(1, 1), 1)

    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(files, "_lines", refuse)
    with pytest.raises(MemoryError, match=r"1\.json takes more memory than there is"):
        FileSource(str(tmp_path), "json", FILES).open(None).read(None)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(MemoryError, match=r"1\.json takes more memory than there is"):
        FileSource(str(tmp_path), "json", FILES).open(None).read(None)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no fault of its content, and may pass."""
    put(tmp_path, "1.json", line(1, 1), 1)

    def refuse(_: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(OSError, match=r"1\.json can't be read: Input/output error"):
        FileSource(str(tmp_path), "json", FILES).open(None).read(None)


def test_sources_that_are_described_wrongly(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="reads json, csv, parquet, not 'avro'"):
        FileSource(str(tmp_path), "avro", FILES)
    with pytest.raises(SpecError, match="maxFilesPerTrigger is a number"):
        FileSource(str(tmp_path), "json", FILES, {"maxFilesPerTrigger": "0"})
    with pytest.raises(SpecError, match="no option 'latestFirst'"):
        FileSource(str(tmp_path), "json", FILES, {"latestFirst": "true"})
    with pytest.raises(SetupError, match="there is no directory"):
        FileSource(str(tmp_path / "nowhere"), "json", FILES).open(None)
    with pytest.raises(SpecError, match="rows per second"):
        RateSource(0)
    base = {"kafka.bootstrap.servers": "x:1", "subscribe": "t"}
    for options, message in (
        ({"startingOffsets": "soon"}, "offsets to start from"),
        ({"minPartitions": "3"}, "no option 'minPartitions'"),
        ({"kafka.sasl.jaas.config": "secret"}, r"kafka\.sasl\.username"),
    ):
        with pytest.raises(SpecError, match=message):
            KafkaSource({**base, **options}, FILES)


def test_generated_rows_are_the_same_in_every_run() -> None:
    now = [1_000_000_000_000_000_000]
    source = RateSource(3, clock=lambda: now[0])
    begun = source.read(None)
    assert begun is not None and begun.rows.num_rows == 0 and source.read(begun.position) is None
    now[0] += 1_000_000_000
    first = source.read(begun.position)
    assert first is not None and first.rows["value"].to_pylist() == [0, 1, 2]
    assert [at.microsecond for at in first.rows["timestamp"].to_pylist()] == [0, 333333, 666666]
    now[0] += 2_000_000_000
    whole, rest = source.read(begun.position), source.read(first.position)
    assert whole is not None and rest is not None
    assert pa.concat_tables([first.rows, rest.rows]).equals(whole.rows)


def test_a_source_through_the_engine_fails_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(executor, "LONGEST_PAUSE", 0.02)
    data = tmp_path / "data"
    # Of falling times: a file is no order.
    put(data, "1.json", line(1, 9) + line(1, 3) + line(1, 6), 1)

    def opened() -> Engine:
        engine = Engine(checkpoint=tmp_path / "checkpoint")
        for name in "lr":
            engine.register(name, source=FileSource(str(data), "json", FILES), time="ts")
        return engine

    engine = opened()
    engine.create("SELECT x.k FROM l x JOIN r y WITHIN 1 SECOND ON x.ts = y.ts", name="q")
    with engine:
        engine.process_all_available()
        assert {info.late for info in engine.streams()} == {0}
        assert engine.query("q").rows == 3
        (data / "2.json").symlink_to(data / "nowhere")
        with pytest.raises(StateError, match=r"stream '[lr]' failed: FileNotFoundError"):
            engine.process_all_available()
    with opened() as engine:
        assert engine.query("q").rows == 3
        arrived = threading.Event()
        engine.on_batch(lambda _: arrived.set() if engine.query("q").rows == 4 else None)
        (data / "2.json").unlink()
        put(data, "3.json", line(2, 20), 3)
        assert arrived.wait(60)
        assert engine.position("l") == {"files": 2}
        assert [info.error for info in engine.streams()] == [None, None]
