"""The service's file: the one that `init` writes, every mistake with its line, and variables that override."""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from streamjoin.adhoc import DeltaSink, IcebergSink, Stream
from streamjoin.model.errors import PipelineFileError
from streamjoin.queries.language.sql import parse
from streamjoin.service.config import DEFAULT_PORT, Limits, ServiceConfig
from streamjoin.service.config_file import read_config
from streamjoin.service.launch import named_sink
from streamjoin.service.launch_spark import executor_words

TEMPLATE = (importlib.resources.files("streamjoin") / "service" / "template.toml").read_text()
TOKEN = "correct-horse-battery-staple"


def read(tmp_path: Path, text: str, **variables: str) -> ServiceConfig:
    file = tmp_path / "service.toml"
    file.write_text(text)
    return read_config(file, variables)


def test_the_template_says_the_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, TEMPLATE)
    assert config.limits == Limits()
    assert (config.host, config.port, config.token) == ("127.0.0.1", DEFAULT_PORT, None)
    assert list(config.streams) == ["trades", "quotes", "aircraft"]
    assert config.streams["trades"].lateness == "2 seconds"
    assert config.checkpoint == str(tmp_path / "streamjoin-data")
    assert config.sinks["files"].path == str(tmp_path / "streamjoin-out" / "{query}")
    assert not config.needs_kafka


def test_there_are_as_many_cells_as_cores_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    """The engine would refuse any number where the driver joins."""
    assert read(tmp_path, TEMPLATE).partitions is None
    on_spark = {"STREAMJOIN_SERVICE__ENGINE": "spark"}
    assert read(tmp_path, TEMPLATE, **on_spark).partitions is None
    for given in ("auto", 3):
        assert read(tmp_path, TEMPLATE, **on_spark, STREAMJOIN_ENGINE__PARTITIONS=str(given)).partitions == given
    with pytest.raises(PipelineFileError, match='remove partitions, or executor = "driver"'):
        read(tmp_path, TEMPLATE.replace("[engine]", '[engine]\nexecutor = "driver"\npartitions = 2'), **on_spark)


def test_files_of_earlier_versions_are_run_by_spark(tmp_path: Path) -> None:
    assert read(tmp_path, TEMPLATE).engine == "embedded"
    assert read(tmp_path, TEMPLATE.replace('engine = "embedded"', "")).engine == "spark"


def test_the_engine_and_where_it_was_chosen_are_told(tmp_path: Path) -> None:
    line = TEMPLATE.splitlines().index(next(line for line in TEMPLATE.splitlines() if line.startswith("engine ="))) + 1
    file = tmp_path / "service.toml"
    embedded = read(tmp_path, TEMPLATE).engine_words
    assert embedded == f"engine: embedded, in this process ({file}, line {line})"
    told = read(tmp_path, TEMPLATE, STREAMJOIN_SERVICE__ENGINE="spark").engine_words
    assert told == "engine: spark, on Spark (the environment variable STREAMJOIN_SERVICE__ENGINE)"
    plain = read(tmp_path, TEMPLATE.replace('engine = "embedded"', "")).engine_words
    assert plain.startswith(f"engine: spark, on Spark, as {file} has no engine in [service]; engine = ")


def test_where_spark_joins_is_told_with_the_reason(tmp_path: Path) -> None:
    def told(master: str, **changes: Any) -> str:
        config = ServiceConfig(checkpoint=str(tmp_path / "none"), **changes)
        return executor_words(config, SimpleNamespace(sparkContext=SimpleNamespace(master=master)))

    assert told("local[2]") == "queries are joined in the driver's process: Spark's master is local[2]"
    assert told("yarn") == "queries are joined in cells on Spark's executors: Spark's master is yarn"
    assert told("yarn", sharing="nothing").endswith('in the driver\'s process: sharing = "nothing"')
    assert told("yarn", executor="driver").endswith("process: executor = 'driver' in streamjoin.toml")


def test_what_the_template_has_in_comments_is_right_too(tmp_path: Path) -> None:
    lines = TEMPLATE.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("# From Kafka"))
    shown = [line.removeprefix("# ").removeprefix("#") for line in lines[first + 1 :] if line.startswith("#")]
    parts = "\n".join(line for line in shown if "=" in line or line.startswith("["))
    # The last lines in comments belong to [spark].
    parts = parts.replace('master = "local[4]"', "# ")
    config = read(tmp_path, TEMPLATE + "\n" + parts)
    assert {"orders", "shipments"} <= set(config.streams)
    assert config.needs_kafka
    assert config.sinks["kafka"].options["topic"] == "joined-{query}"


def test_the_queries_in_the_comments_of_the_template_can_be_created() -> None:
    times = {
        name: pa.schema({"ts": pa.timestamp("us", "UTC"), "sym": pa.string(), "px": pa.float64(), "bid": pa.float64()})
        for name in ("trades", "quotes")
    }
    streams = [Stream(name, schema, "ts") for name, schema in times.items()]
    shown = re.findall(r"^#   (SELECT .*(?:\n#     .*)*)", TEMPLATE, re.MULTILINE)
    queries = [parse(text.replace("\n#", "\n"), streams, "q") for text in shown]
    assert len(queries) == 5
    assert sum(query.grouping is not None for query in queries) == 1
    assert sum(any(step.summary for step in query.kind_steps) for query in queries) == 1


def test_tables_are_sinks(tmp_path: Path) -> None:
    """Their options may have secrets, which the environment has."""
    lake = '[sinks.lake]\nformat = "delta"\npath = "lake/{query}"\noptions.AWS_REGION = "here"\n'
    house = '[sinks.house]\nformat = "iceberg"\ntable = "joined.{query}"\ncatalog = "main"\noptions.uri = "http://c"\n'
    config = read(tmp_path, TEMPLATE + lake + house)
    assert named_sink(config, "lake", "q1") == DeltaSink(f"{tmp_path}/lake/q1", {"AWS_REGION": "here"})
    assert named_sink(config, "house", "q1") == IcebergSink("joined.q1", "main", {"uri": "http://c"})


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("port = 8765", "port = 70000", "a port is a number from 1 to 65535"),
        ("port = 8765", 'port = "x"', "port is a whole number, not text"),
        ("port = 8765", "prot = 8765", "did you mean 'port'?"),
        ('host = "127.0.0.1" ', 'host = "0.0.0.0" ', "a token is needed"),
        ('# token = "${MY_TOKEN}"  ', 'token = "short"  ', "at least 16 characters"),
        ('# token = "${MY_TOKEN}"  ', 'token = "${NOT_THERE}"  ', "the environment has no variable 'NOT_THERE'"),
        ('trigger = "1 second" ', 'trigger = "available now" ', "a service does not end"),
        ('trigger = "1 second" ', 'trigger = "soon" ', 'w). Write trigger = "1 second", or leave it out'),
        ('checkpoint = "streamjoin-data" ', "", "add a line such as: checkpoint"),
        ('checkpoint = "streamjoin-data" ', 'chekpoint = "x" ', "takes no 'chekpoint'; did you mean 'checkpoint'?"),
        ('time = "ts"', 'tiem = "ts"', "[streams.trades] takes no 'tiem'; did you mean 'time'?"),
        ('path = "streamjoin-out/{query}"', 'path = "streamjoin-data/{query}"', "lies in the checkpoint"),
        ('request_time = "20 seconds"', 'request_time = "10 milliseconds"', "request_seconds is at least 1"),
        ("[engine]", '[engine]\nsharing = "nothing"\npartitions = 2', "on the driver only: remove partitions"),
        ("[engine]", '[engine]\nexecutor = "driver"', "executors are of Spark: remove the line"),
        ("[engine]", '[engine]\nexecutor = "tasks"', "it is one of driver, distributed"),
        ("queries = 500", "queries = 0", "at least 1"),
        ("streams_in_query = 5", "streams_in_query = 1", "at least 2"),
        ('window = "1 hour"', 'window = "1 foo"', "is not a duration"),
        ("[streams.quotes]", '[streams."two words"]', "can't be a stream's name"),
        ('lateness = "2 seconds"', 'lateness = "soon"', "is not a duration"),
        ('format = "rate"', 'format = "rte"', "did you mean 'rate'?"),
        ('time = "ts"', 'by = "ts"\ntime = "ts"', "takes no 'by'"),
        ('{query}"\n\n# [sinks', 'all"\n\n# [sinks', "a directory of its own"),
        ('format = "parquet"\n', 'format = "csv"\n', "is one of parquet, kafka"),
        ("[spark]", "[sparc]", "did you mean 'spark'?"),
    ],
)
def test_a_mistake_names_its_line_and_the_fix(tmp_path: Path, before: str, after: str, told: str) -> None:
    assert before in TEMPLATE
    at = TEMPLATE.index(before)
    text = TEMPLATE[:at] + after + TEMPLATE[at + len(before) :]
    with pytest.raises(PipelineFileError) as raised:
        read(tmp_path, text)
    message = str(raised.value)
    assert told in message
    place, _, _ = message.removeprefix(str(tmp_path / "service.toml")).partition(":")
    number = int(place.removeprefix(", line "))
    assert number == pytest.approx(text[: at + 1].count("\n") + 1, abs=6)


def test_a_token_that_is_too_short_hides_no_other_mistake(tmp_path: Path) -> None:
    text = TEMPLATE.replace('# token = "${MY_TOKEN}"  ', 'token = "short"  ').replace(
        'path = "streamjoin-out', 'paht = "out'
    )
    with pytest.raises(PipelineFileError, match=r"^2 mistakes:\n.*at least 16 characters.*\n.*did you mean 'path'"):
        read(tmp_path, text)


def test_variables_override_and_add(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        TEMPLATE,
        STREAMJOIN_SERVICE__PORT="9000",
        STREAMJOIN_SERVICE__HOST="0.0.0.0",
        STREAMJOIN_SERVICE__TOKEN=TOKEN,
        STREAMJOIN_SERVICE__ALLOWED_HOSTS='["a.example", "b.example"]',
        STREAMJOIN_LIMITS__WINDOW="5 minutes",
        STREAMJOIN_STREAMS__TRADES__OPTIONS__ROWSPERSECOND="7",
        STREAMJOIN_SERVICE__ENGINE="spark",
        STREAMJOIN_ENGINE__PARTITIONS="3",
        STREAMJOIN_ENGINE__EXECUTOR="distributed",
        STREAMJOIN_SPARK__MASTER="local[1]",
        STREAMJOIN_URL="http://elsewhere",
        OTHER__THING="x",
    )
    assert (config.port, config.host, config.token) == (9000, "0.0.0.0", TOKEN)
    assert config.allowed_hosts == ("a.example", "b.example")
    assert config.limits.window_seconds == 300
    assert config.streams["trades"].source.options["rowsPerSecond"] == "7"
    assert (config.partitions, config.executor, config.master) == (3, "distributed", "local[1]")
    assert TOKEN not in repr(config)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("STREAMJOIN_SERVICE__PORT", "soon", "port is a whole number, not text"),
        ("STREAMJOIN_SERVICE__PROT", "1", "did you mean 'port'?"),
        ("STREAMJOIN_SERVICE__HOST", "0.0.0.0", "a token is needed"),
        ("STREAMJOIN_SERVICE__TOKEN", "short", "at least 16 characters"),
        ("STREAMJOIN_LIMITS__QUERIES", "0", "at least 1"),
        ("STREAMJOIN_NOWHERE__X", "1", "takes no 'nowhere'"),
        ("STREAMJOIN_STREAMS__NEW__FORMAT", "rate", "has no 'time'"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, name: str, value: str, told: str) -> None:
    with pytest.raises(PipelineFileError) as raised:
        read(tmp_path, TEMPLATE, **{name: value})
    assert told in str(raised.value)
    assert name in str(raised.value)
    if name.endswith("TOKEN"):
        assert value not in str(raised.value).replace(name, "")


def test_a_secret_of_the_file_is_in_no_message(tmp_path: Path) -> None:
    text = TEMPLATE.replace("port = 8765", f'port = 8765\ntoken = "{TOKEN}"\nwrong = 1')
    with pytest.raises(PipelineFileError) as raised:
        read(tmp_path, text)
    assert TOKEN not in str(raised.value)


def test_a_service_without_streams_is_told_how(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError, match=r"add a line such as: \[streams.trades\]"):
        read(tmp_path, '[engine]\ncheckpoint = "x"\n')


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1"), ("::1", "http://[::1]:1")]
)
def test_where_a_client_reaches_it(host: str, url: str) -> None:
    assert ServiceConfig(host=host, port=1, token=TOKEN).url == url
