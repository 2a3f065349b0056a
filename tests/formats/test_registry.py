"""Avro and Protobuf values with a schema registry, written by Confluent's own serializers; and what is none."""

from __future__ import annotations

import datetime as dt
import functools
import json
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.config.pipeline_file import read_pipeline
from streamjoin.formats.registry_values import RegistryFormat
from streamjoin.model.errors import PipelineFileError, SpecError, StateError
from streamjoin.queries.sources.kafka import KafkaSource
from streamjoin.spark.pipeline.sources import _decode_values
from tests.formats.registry_server import RegistryServer
from tests.seeds import examples

CONTEXT = SerializationContext("trades", MessageField.VALUE)
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901, dt.UTC)


@pytest.fixture(scope="module")
def server() -> Iterator[RegistryServer]:
    started = RegistryServer()
    yield started
    started.stop()


def decoded(server: RegistryServer, name: str, schema: pa.Schema, records: list[bytes | None]) -> Any:
    rows, good = RegistryFormat(name, server.url).decoder(schema)(records)
    return rows.to_pylist(), good.tolist()


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Trade",
    "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "sym", "type": ["null", "string"], "default": None},
        {"name": "n", "type": "int"},
        {"name": "px", "type": "double"},
        {"name": "fee", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "ok", "type": "boolean"},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "long"}},
        {"name": "at", "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "float"}]}},
        {"name": "ignored", "type": "string"},
    ],
}
TRADE = {
    "ts": AT,
    "local": dt.datetime(2026, 1, 2, 3, 4, 5, 678_000),
    "day": dt.date(2026, 1, 2),
    "sym": "A",
    "n": -5,
    "px": 10.25,
    "fee": Decimal("1.50"),
    "raw": b"\0\xff",
    "ok": True,
    "id": uuid.UUID(int=7),
    "side": "SELL",
    "tags": ["a", "ü"],
    "more": {"k": 2**40},
    "at": {"x": 0.5},
}
COLUMNS = pa.schema(
    {
        "ts": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "day": pa.date32(),
        "sym": pa.string(),
        "n": pa.int64(),
        "px": pa.float64(),
        "fee": pa.decimal128(12, 2),
        "raw": pa.binary(),
        "ok": pa.bool_(),
        "id": pa.string(),
        "side": pa.string(),
        "tags": pa.list_(pa.string()),
        "more": pa.map_(pa.string(), pa.int64()),
        "at": pa.struct({"x": pa.float64(), "y": pa.float64()}),
        "absent": pa.int64(),
    }
)
ROW = {**TRADE, "id": str(uuid.UUID(int=7)), "more": [("k", 2**40)], "at": {"x": 0.5, "y": None}, "absent": None}


def avro(server: RegistryServer, record: dict[str, Any], schema: dict[str, Any] = AVRO) -> bytes:
    client = SchemaRegistryClient({"url": server.url})
    value: bytes = AvroSerializer(client, json.dumps(schema))(record, CONTEXT)
    return value


def test_avro_values_of_all_types(server: RegistryServer) -> None:
    value = avro(server, {**TRADE, "ignored": "x"})
    null = avro(server, {**TRADE, "sym": None, "ignored": "x"})
    before = len(server.asked)
    assert decoded(server, "avro", COLUMNS, [value, null, value]) == ([ROW, {**ROW, "sym": None}, ROW], [True] * 3)
    assert len(server.asked) == before + 1, "a schema is asked for once"


def test_each_value_is_read_with_the_schema_that_it_was_written_with(server: RegistryServer) -> None:
    """A writer that adds a field and another that lacks one, side by side."""
    schemas = [
        {"type": "record", "name": "V", "fields": [{"name": name, "type": kind} for name, kind in fields]}
        for fields in ([("a", "int")], [("b", "string"), ("a", "long")], [("b", "string")])
    ]
    values = [avro(server, record, schema) for record, schema in
              zip([{"a": 1}, {"a": 2, "b": "x"}, {"b": "y"}], schemas, strict=True)]  # fmt: skip
    wanted = [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": None, "b": "y"}]
    assert decoded(server, "avro", pa.schema({"a": pa.int64(), "b": pa.string()}), values) == (wanted, [True] * 3)


def test_avro_schemas_that_refer_to_others(server: RegistryServer) -> None:
    server.register("place", json.dumps(AVRO["fields"][13]["type"]))
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "p", "type": "Place"}]}
    number = server.register(
        "outer", json.dumps(outer), references=[{"name": "Place", "subject": "place", "version": 1}]
    )
    value = b"\0" + number.to_bytes(4, "big") + b"\0\0\x80\x3f"
    wanted = [{"p": {"x": 1.0}}]
    assert decoded(server, "avro", pa.schema({"p": pa.struct({"x": pa.float32()})}), [value]) == (wanted, [True])


def field(name: str, number: int, kind: str, repeated: bool = False, type_name: str = "", **more: Any) -> Any:
    proto = descriptor_pb2.FieldDescriptorProto
    label = proto.LABEL_REPEATED if repeated else proto.LABEL_OPTIONAL
    more |= {"type_name": type_name} if type_name else {}
    return proto(name=name, number=number, type=getattr(proto, f"TYPE_{kind}"), label=label, **more)


def proto_file() -> Any:
    """What protoc makes of two messages with nested ones, an enum, a map, an optional field and Google's own types."""
    message = descriptor_pb2.DescriptorProto
    entry = message(name="MoreEntry", field=[field("key", 1, "STRING"), field("value", 2, "INT64")])
    entry.options.map_entry = True
    trade = message(
        name="Trade",
        field=[
            field("ts", 1, "MESSAGE", type_name=".google.protobuf.Timestamp"),
            field("sym", 2, "STRING"),
            field("n", 3, "SINT64"),
            field("px", 4, "DOUBLE"),
            field("raw", 5, "BYTES"),
            field("side", 6, "ENUM", type_name=".test.Trade.Side"),
            field("tags", 7, "STRING", repeated=True),
            field("more", 8, "MESSAGE", repeated=True, type_name=".test.Trade.MoreEntry"),
            field("at", 9, "MESSAGE", type_name=".test.Trade.Place"),
            field("fee", 10, "INT32", oneof_index=0, proto3_optional=True),
            field("note", 11, "MESSAGE", type_name=".google.protobuf.StringValue"),
        ],
        nested_type=[entry, message(name="Place", field=[field("x", 1, "FLOAT")])],
        enum_type=[
            descriptor_pb2.EnumDescriptorProto(
                name="Side",
                value=[
                    descriptor_pb2.EnumValueDescriptorProto(name=n, number=i) for i, n in enumerate(["BUY", "SELL"])
                ],
            )
        ],
        oneof_decl=[descriptor_pb2.OneofDescriptorProto(name="_fee")],
    )
    return descriptor_pb2.FileDescriptorProto(
        name="trade.proto",
        package="test",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
        message_type=[message(name="First", field=[field("only", 1, "INT32")]), trade],
    )


def proto_classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(proto_file())
    names = ("test.First", "test.Trade", "test.Trade.Place")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}


MESSAGES = proto_classes()
PROTO_COLUMNS = pa.schema(
    {
        "ts": pa.timestamp("us", "UTC"),
        "sym": pa.string(),
        "n": pa.int64(),
        "px": pa.float64(),
        "raw": pa.binary(),
        "side": pa.string(),
        "tags": pa.list_(pa.string()),
        "more": pa.map_(pa.string(), pa.int64()),
        "at": pa.struct({"x": pa.float32()}),
        "fee": pa.int32(),
        "note": pa.string(),
    }
)


def proto(server: RegistryServer, message: Any) -> bytes:
    client = SchemaRegistryClient({"url": server.url})
    serializer = ProtobufSerializer(type(message), client, {"use.deprecated.format": False})
    value: bytes = serializer(message, CONTEXT)
    return value


def full_trade() -> Any:
    message = MESSAGES["test.Trade"](sym="A", n=-5, px=10.25, raw=b"\0\xff", side=1, tags=["a", "ü"], more={"k": 2**40})
    message.ts.FromDatetime(AT)
    message.at.x = 0.5
    message.fee = 0
    message.note.value = ""
    return message


def test_protobuf_values_of_all_types(server: RegistryServer) -> None:
    """Fields that tell whether they are there are NULL if they are not; the others have their defaults."""
    values = [proto(server, full_trade()), proto(server, MESSAGES["test.Trade"]())]
    full = {
        "ts": AT, "sym": "A", "n": -5, "px": 10.25, "raw": b"\0\xff", "side": "SELL", "tags": ["a", "ü"],
        "more": [("k", 2**40)], "at": {"x": 0.5}, "fee": 0, "note": "",
    }  # fmt: skip
    empty: dict[str, Any] = {
        "ts": None, "sym": "", "n": 0, "px": 0.0, "raw": b"", "side": "BUY", "tags": [],
        "more": [], "at": None, "fee": None, "note": None,
    }  # fmt: skip
    assert decoded(server, "protobuf", PROTO_COLUMNS, values) == ([full, empty], [True, True])


def test_message_indexes_name_the_message(server: RegistryServer) -> None:
    values = [proto(server, MESSAGES["test.First"](only=3)), proto(server, MESSAGES["test.Trade.Place"](x=1.5))]
    assert values[0][5:6] == b"\0"
    columns = pa.schema({"only": pa.int32(), "x": pa.float64()})
    wanted = [{"only": 3, "x": None}, {"only": None, "x": 1.5}]
    assert decoded(server, "protobuf", columns, values) == (wanted, [True, True])


@functools.cache
def written(server: RegistryServer, name: str) -> bytes:
    return avro(server, {**TRADE, "ignored": "x"}) if name == "avro" else proto(server, full_trade())


def malformed_values(server: RegistryServer, name: str, good: bytes) -> list[bytes | None]:
    """A value with each kind of damage."""
    other = server.register(f"other-{name}", '"string"', "JSON")
    nonsense = server.register(f"nonsense-{name}", "{", "AVRO" if name == "avro" else "PROTOBUF")
    return [
        None,
        b"",
        b"\0\0\0",
        b"\1" + good[1:],
        b"\0" + (9_999).to_bytes(4, "big") + good[5:],
        b"\0" + other.to_bytes(4, "big") + good[5:],
        b"\0" + nonsense.to_bytes(4, "big") + good[5:],
        good[:-1],
        good + b"\xff",
        b'{"sym": "A"}',
    ]


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_what_can_not_be_decoded_costs_itself_alone(server: RegistryServer, name: str) -> None:
    good = written(server, name)
    columns = pa.schema({"sym": pa.string(), "n": pa.int64()})
    bad = malformed_values(server, name, good)
    records = [record for one in bad for record in (one, good)]
    rows, marks = decoded(server, name, columns, records)
    assert marks == [False, True] * len(bad)
    assert rows == [{"sym": "A", "n": -5}] * len(bad)
    # A registry is not asked for an id again and again that it does not know.
    asked = len(server.asked)
    format_ = RegistryFormat(name, server.url).decoder(columns)
    format_(bad)
    once = len(server.asked) - asked
    format_(bad)
    assert len(server.asked) - asked == once


@pytest.mark.parametrize(
    ("column", "type_"), [("sym", pa.int64()), ("px", pa.int64()), ("n", pa.string()), ("n", pa.timestamp("us")),
                          ("raw", pa.string()), ("tags", pa.string()), ("at", pa.list_(pa.float32()))]
)  # fmt: skip
def test_a_value_of_another_type_is_malformed(server: RegistryServer, column: str, type_: pa.DataType) -> None:
    value, message = avro(server, {**TRADE, "ignored": "x"}), proto(server, full_trade())
    for name, record in (("avro", value), ("protobuf", message)):
        assert decoded(server, name, pa.schema({column: type_}), [record]) == ([], [False])
    small = pa.schema({"n": pa.uint8()})
    assert decoded(server, "avro", small, [value]) == ([], [False]), "-5 is no uint8"


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(["avro", "protobuf"]))
def test_random_damage_raises_nothing(server: RegistryServer, seed: int, name: str) -> None:
    rng = random.Random(seed)
    good = written(server, name)
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(5, len(data))
        data[at : at + rng.choice([0, 1, 1, 3])] = rng.randbytes(rng.choice([0, 1, 1, 2]))
    columns = COLUMNS if name == "avro" else PROTO_COLUMNS
    rows, marks = decoded(server, name, columns, [good, bytes(data), good])
    assert marks[0] and marks[2] and len(rows) == 2 + marks[1]


def test_a_registry_that_does_not_answer_is_no_malformed_record() -> None:
    server = RegistryServer(password="joiner:s3cret")
    try:
        number = server.register(
            "t", json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
        )
        value = b"\0" + number.to_bytes(4, "big") + b"\x02"
        columns = pa.schema({"a": pa.int32()})
        with pytest.raises(StateError, match=f"the schema registry {server.url}: 401: Unauthorized"):
            RegistryFormat("avro", server.url).decoder(columns)([value])
        login = {"basic.auth.user.info": "joiner:s3cret", "max.retries": "0"}
        server.broken = True
        decode = RegistryFormat("avro", server.url, login).decoder(columns)
        with pytest.raises(StateError, match="500: out of order"):
            decode([value])
        server.broken = False
        assert decode([value])[0].to_pylist() == [{"a": 1}], "it is asked again"
        assert "s3cret" not in repr(RegistryFormat("avro", server.url, login))
        with pytest.raises(SpecError, match=r"refuses its options.*Unrecognized properties: no\.such"):
            RegistryFormat("avro", server.url, {"no.such": "x"}).decoder(columns)
    finally:
        server.stop()
    with pytest.raises(StateError, match=f"the schema registry {server.url}"):
        RegistryFormat("avro", server.url, {"max.retries": "0"}).decoder(columns)([value])


def test_tasks_of_spark_decode_alike(server: RegistryServer) -> None:
    """The function that tasks run gives every record once: with its row, or with NULL."""
    good = avro(server, {**TRADE, "ignored": "x"})
    values = [good, b"no", good, None]
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": pa.array(range(4))})
    columns = pa.schema({"sym": pa.string(), "more": COLUMNS.field("more").type})
    (result,) = _decode_values(RegistryFormat("avro", server.url), columns, [batch])
    row = {"sym": "A", "more": [("k", 2**40)]}
    assert result.column("__row").to_pylist() == [row, None, row, None]
    assert result.column("value").to_pylist() == values
    (nothing,) = _decode_values(RegistryFormat("avro", server.url), columns, [batch.slice(0, 0)])
    assert nothing.num_rows == 0


def test_a_source_needs_its_registry() -> None:
    options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t"}
    with pytest.raises(SpecError, match="need the URL of a schema registry"):
        KafkaSource(options, COLUMNS, "avro")
    with pytest.raises(SpecError, match="need the URL of a schema registry"):
        KafkaSource(options, COLUMNS, "json", registry="http://r")


FILE = """\
[source.left]
format = "kafka"
servers = "b:9092"
topic = "t"
schema = "a INT"
DECODE
[join]
on = "l.a = r.a"
window = 5
time = "a"
self_join = true
[sink]
format = "console"
"""


@pytest.mark.parametrize(
    ("decode", "told"),
    [
        ('decode = "avro"', "registry"),
        ('decode = "json"\nregistry = "http://r"', "line 7: decode = 'json' has no schemas in a registry"),
        ('decode = "protobuf"\nregistry = "schemas:8081"', "line 7: registry = 'schemas:8081' is no URL"),
        ('decode = "avor"', "avro"),
    ],
)
def test_a_file_that_names_no_registry(tmp_path: Path, decode: str, told: str) -> None:
    file = tmp_path / "join.toml"
    file.write_text(FILE.replace("DECODE", decode))
    with pytest.raises(PipelineFileError, match=told):
        read_pipeline(file)
    file.write_text(FILE.replace("DECODE", 'decode = "avro"\nregistry = "http://r"\nmalformed = "bad"'))
    assert read_pipeline(file).left.registry == "http://r"


WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import pyarrow as pa
from streamjoin.formats.registry_values import RegistryFormat
from streamjoin.model.errors import SetupError
try:
    RegistryFormat("avro", "http://r").decoder(pa.schema({"a": pa.int64()}))
except SetupError as error:
    assert "streamjoin[registry]" in str(error), error
else:
    raise AssertionError
"""


@pytest.mark.parametrize("missing", ["fastavro", "confluent_kafka"])
def test_a_missing_library_is_named(missing: str) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT, missing], check=True, timeout=120)
