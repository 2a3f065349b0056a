"""Kafka for real: a broker, two topics joined by `streamjoin run`, and everything killed in the middle."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from streamjoin.adhoc import Engine, MemorySink
from streamjoin.config.columns import parse_columns
from streamjoin.queries.sources.kafka import KafkaSource
from tests.conftest import QUICK_START
from tests.formats.registry_server import RegistryServer
from tests.spark.adhoc_streams import FileStream
from tests.spark.joining import read_parquet
from tests.spark.kafka_broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE = 240.0
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
Row = dict[str, Any]
Pairs = Counter[tuple[int, int]]

PIPELINE = """\
checkpoint = "out/checkpoint"
partitions = 2
{top}
[source.left]
format = "kafka"
servers = "{servers}"
topic = "{left}"
{left_decode}
schema = "ts TIMESTAMP, sym STRING, px DOUBLE, id LONG"
malformed = "out/malformed"
metadata = {{ partition = "part", offset = "place" }}
options.maxOffsetsPerTrigger = 60
[source.right]
format = "kafka"
servers = "{servers}"
topic = "{right}"
{right_decode}
schema = "ts TIMESTAMP, sym STRING, bid DOUBLE, id LONG"
options.maxOffsetsPerTrigger = 60
[join]
on = "l.sym = r.sym AND abs(l.px - r.bid) <= 0.5"
window = "5 seconds"
time = "ts"
# The partitions of a topic are read side by side: none of their rows may count as late.
lateness = "1 day"
[sink]
{sink}
[spark]
# A task that waited too long for a broker to come back is run again.
master = "local[2,4]"
memory = "512m"
"""
PARQUET = 'format = "parquet"\npath = "out/matches"'
NOW = 'trigger = "available now"'


def rows(seed: int, n: int, first: int) -> list[Row]:
    rng = random.Random(seed)
    return [
        {
            "ts": START + dt.timedelta(milliseconds=40 * (first + i)),
            "sym": rng.choice("ABC"),
            "price": round(rng.uniform(10, 14), 2),
            "id": first + i,
        }
        for i in range(n)
    ]


def as_json(row: Row) -> str:
    return json.dumps({"ts": row["ts"].isoformat(), "sym": row["sym"], "px": row["price"], "id": row["id"]})


def as_csv(row: Row) -> str:
    return f"{row['ts'].isoformat()},{row['sym']},{row['price']},{row['id']}"


def expected(left: list[Row], right: list[Row]) -> Pairs:
    return Counter(
        (one["id"], other["id"])
        for one in left
        for other in right
        if one["sym"] == other["sym"]
        and abs(one["price"] - other["price"]) <= 0.5
        and abs(one["ts"] - other["ts"]) <= dt.timedelta(seconds=5)
    )


class Job:
    """`streamjoin run` in a directory, as often as a test starts it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, top: str = "", **parts: str) -> None:
        quick = "".join(f"conf.{json.dumps(key)} = {json.dumps(value)}\n" for key, value in QUICK_START.items())
        file = self.directory / "join.toml"
        decodes = {"left_decode": "", "right_decode": 'decode = "csv"'}
        file.write_text(PIPELINE.format(top=top, **decodes | parts) + quick)
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "streamjoin", "run", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def until(self, happened: Callable[[], bool], every: float = 0.02) -> None:
        """Let it run until something has happened; what is dear to look at is looked at less often."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE
        while not happened():
            try:
                self.process.wait(timeout=every)
                raise AssertionError(f"it ended: {self.log[-4000:]}")
            except subprocess.TimeoutExpired:
                assert time.monotonic() < deadline, self.log[-4000:]

    def in_batch(self, number: int) -> Callable[[], bool]:
        """Whether a batch of at least this number runs: its offsets are written and it is not committed."""

        def happened() -> bool:
            begun, ended = (
                max((int(p.name) for p in (self.directory / "out/checkpoint" / part).glob("[0-9]*")), default=-1)
                for part in ("offsets", "commits")
            )
            return begun >= number and begun > ended

        return happened

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(timeout=PATIENCE)

    def kill(self) -> None:
        """End it and its JVM with SIGKILL."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.ended()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    try:
        yield made
    finally:
        made.kill()


def committed(directory: Path) -> Pairs:
    """The pairs in the Parquet output, as its own log has them."""
    table = read_parquet(directory / "out/matches")
    return Counter(zip(table.column("id_left").to_pylist(), table.column("id_right").to_pylist(), strict=True))


def count_committed(directory: Path) -> int:
    return committed(directory).total() if any((directory / "out/matches/_spark_metadata").glob("[0-9]*")) else 0


def test_two_topics_to_a_topic_at_least_once(broker: Broker, job: Job) -> None:
    broker.create("least-left", "least-right", "least-out")
    left, right = rows(1, 180, 0), rows(2, 180, 0)
    bad: list[bytes | str | None] = ["{broken", b"\xff\xfe", "", None, '{"ts": "2026-01-01T00:00:00Z", "px": "dear"}']
    broker.send("least-left", [*map(as_json, left[:50]), *bad, *map(as_json, left[50:])])
    broker.send("least-right", [*map(as_csv, right), "only,three,fields"])
    sink = f'format = "kafka"\nservers = "{broker.address}"\ntopic = "least-out"\nkey = "sym"'
    parts = {"servers": broker.address, "left": "least-left", "right": "least-right", "sink": sink}
    job.start(**parts)
    job.until(job.in_batch(1))
    job.kill()
    job.start(NOW, **parts)
    assert job.ended() == 0, job.log
    found = broker.received("least-out")
    pairs = Counter((row["id_left"], row["id_right"]) for row in found)
    # The batch that was killed may have sent some of its rows already, and sends them again.
    assert set(pairs) == set(expected(left, right))
    assert max(pairs.values()) <= 2
    assert {row["part"] for row in found} == {0, 1}
    kept = read_parquet(job.directory / "out/malformed").to_pylist()
    assert Counter(row["value"] for row in kept) == Counter(v.encode() if isinstance(v, str) else v for v in bad)
    assert {row["topic"] for row in kept} == {"least-left"}
    assert len({(row["partition"], row["offset"]) for row in kept}) == len(bad)


AVRO = {
    "type": "record",
    "name": "Trade",
    "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "sym", "type": "string"},
        {"name": "px", "type": "double"},
        {"name": "id", "type": "long"},
    ],
}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    server = RegistryServer(password="joiner:s3cret")
    yield server
    server.stop()


def test_exactly_once_in_parquet_whatever_is_killed(broker: Broker, job: Job, registry: RegistryServer) -> None:
    """Of Avro and Protobuf values, whose malformed ones are kept; and the embedded engine finds the same pairs."""
    broker.create("once-left", "once-right")
    login = {"basic.auth.user.info": "joiner:s3cret"}
    decode = 'decode = "{}"\nregistry = "{}"\ndecode_options."basic.auth.user.info" = "joiner:s3cret"'
    parts = {"servers": broker.address, "left": "once-left", "right": "once-right", "sink": PARQUET}
    parts |= {f"{side}_decode": decode.format(name, registry.url) for side, name in FORMATS.items()}
    left, right = rows(3, 480, 0), rows(4, 480, 0)
    client = SchemaRegistryClient({"url": registry.url, **login})
    avro = AvroSerializer(client, json.dumps(AVRO))
    quote = quote_class()
    protobuf = ProtobufSerializer(quote, client, {"use.deprecated.format": False})
    bad = [b"\0\0\0\0\0", b"{}", None, b"\0\0\0\0\1\2"]

    def as_avro(row: Row) -> bytes:
        value = {**row, "px": row["price"]}
        return bytes(avro(value, SerializationContext("once-left", MessageField.VALUE)) or b"")

    def as_protobuf(row: Row) -> bytes:
        value = quote(sym=row["sym"], bid=row["price"], id=row["id"])
        value.ts.FromDatetime(row["ts"])
        return bytes(protobuf(value, SerializationContext("once-right", MessageField.VALUE)) or b"")

    def send(first: int, last: int) -> None:
        broker.send("once-left", [*map(as_avro, left[first:last]), *(bad if first else ())])
        broker.send("once-right", map(as_protobuf, right[first:last]))

    send(0, 240)
    job.start(**parts)
    job.until(job.in_batch(1))
    job.kill()
    send(240, 360)
    job.start(**parts)
    before = count_committed(job.directory)
    job.until(lambda: count_committed(job.directory) > before, every=0.2)
    # The job is at work: it has to live through the broker's death.
    broker.kill()
    broker.start()
    send(360, 480)
    whole = expected(left, right)
    job.until(lambda: count_committed(job.directory) >= whole.total(), every=0.2)
    assert job.stop() == 0, job.log
    assert committed(job.directory) == whole
    assert max(whole.values()) == 1
    kept = read_parquet(job.directory / "out/malformed").to_pylist()
    assert Counter(row["value"] for row in kept) == Counter(2 * bad)
    assert "s3cret" not in job.log
    assert not [
        file for file in (job.directory / "out").rglob("*") if file.is_file() and b"s3cret" in file.read_bytes()
    ]
    source = {"kafka.bootstrap.servers": broker.address}
    # A query gets the rows from its creation on: it has to be there before the streams are read.
    engine = Engine()
    for side, price in (("left", "px"), ("right", "bid")):
        columns = parse_columns(f"ts TIMESTAMP, sym STRING, {price} DOUBLE, id LONG")
        topic = {**source, "subscribe": f"once-{side}"}
        described = KafkaSource(topic, columns, FORMATS[side], login, registry=registry.url)
        engine.register(side, source=described, time="ts", lateness="1 day")
    sql = 'SELECT x.id AS a, y.id AS b FROM "left" x JOIN "right" y WITHIN 5 SECONDS ON x.sym = y.sym'
    engine.create(f"{sql} AND ABS(x.px - y.bid) <= 0.5", name="pairs", sink=MemorySink(100_000))
    with engine:
        engine.process_all_available()
        found = engine.rows("pairs", 100_000)
        assert {stream.name: stream.malformed for stream in engine.streams()} == {"left": 2 * len(bad), "right": 0}
    assert Counter(zip(*(column.to_pylist() for column in found.columns), strict=True)) == whole


FORMATS = {"left": "avro", "right": "protobuf"}


def quote_class() -> Any:
    """The class of a message with a time, as protoc would make it."""
    proto = descriptor_pb2.FieldDescriptorProto
    kinds = {"ts": proto.TYPE_MESSAGE, "sym": proto.TYPE_STRING, "bid": proto.TYPE_DOUBLE, "id": proto.TYPE_INT64}
    fields = [proto(name=name, number=number, type=kind) for number, (name, kind) in enumerate(kinds.items(), 1)]
    fields[0].type_name = ".google.protobuf.Timestamp"
    file = descriptor_pb2.FileDescriptorProto(name="quote.proto", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Quote", field=fields)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Quote"))


def test_all_available_is_what_the_broker_has_and_not_what_was_fetched(broker: Broker) -> None:
    """Also behind transactions: their marks are no records, and what is open does not count."""
    broker.create("available")
    settings = {"bootstrap.servers": broker.address, "transactional.id": "available"}
    producer = Producer(settings)
    producer.init_transactions(60.0)

    def send(first: int, last: int) -> None:
        producer.begin_transaction()
        for k in range(first, last):
            producer.produce("available", json.dumps({"ts": "2026-01-01T00:00:00", "k": k}).encode())
        assert producer.flush(60.0) == 0

    def end_with(k: int) -> None:
        """A transaction that is not committed ends the topic."""
        send(k, k + 1)
        producer.abort_transaction(60.0)

    columns = parse_columns("ts TIMESTAMP, k LONG")
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": "available", "maxOffsetsPerTrigger": "7"}
    engine = Engine()
    engine.register("s", source=KafkaSource(options, columns), time="ts")
    with engine:
        for first in range(0, 200, 50):
            send(first, first + 50)
            producer.commit_transaction(60.0)
            if first % 100:
                end_with(-1)
            engine.process_all_available()
            assert [stream.rows for stream in engine.streams()] == [first + 50]
        send(200, 210)
        engine.process_all_available()
        assert [stream.rows for stream in engine.streams()] == [200]
        producer.commit_transaction(60.0)
        engine.process_all_available()
        assert [stream.rows for stream in engine.streams()] == [210]


def test_ad_hoc_queries_from_a_topic_to_topics(broker: Broker, tmp_path: Path) -> None:
    broker.create("adhoc-left", "adhoc-all", "adhoc-some", "adhoc-all-tasks", "adhoc-some-tasks")
    times = ["2025-06-15T15:06:40", "2025-06-15T15:06:41"]
    broker.send("adhoc-left", [json.dumps({"k": k, "p": 10 + k, "ts": times[k]}) for k in (0, 1)])
    right = FileStream(tmp_path / "r")
    right.rows((0, 20, 1.0), (1, 21, 1.0), (1, 22, 2.0), (7, 23, 2.0))
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("adhoc_kafka_driver.py")), str(tmp_path), broker.address],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    pairs = [{"a": 10, "b": 20}, {"a": 11, "b": 21}, {"a": 11, "b": 22}]
    assert sorted(broker.received("adhoc-all"), key=str) == pairs
    assert sorted(broker.received("adhoc-some"), key=str) == pairs[1:]
    for topic in ("adhoc-all-tasks", "adhoc-some-tasks"):
        assert sorted(broker.received(topic), key=str) == pairs
        identities = broker.headers(topic)
        assert {headers["streamjoin-query"] for headers in identities} == {topic.split("-")[1].encode()}
        assert len({tuple(sorted(headers.items())) for headers in identities}) == 3
    states = json.loads((tmp_path / "states.json").read_text())
    # Of each query the newest row is shown, if all rows are of one batch, and of each batch otherwise.
    delivered, shown = states.pop("tasks")
    assert (delivered, 2 <= shown < 6) == (3, True)
    assert {name: state[:2] for name, state in states.items()} == {
        "all": ["running", 3],
        "some": ["running", 2],
        "nowhere": ["degraded", 0],
    }
    assert "Kafka did not take the rows" in states["nowhere"][2]
    assert "hunter2" not in str(states)
