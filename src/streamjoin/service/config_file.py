"""`streamjoin.toml` as a `ServiceConfig`: checks every key; an error names the line and the fix.

Paths are relative to the directory of the file. Environment variables override keys (`STREAMJOIN_` and the parts of the
key, separated by two underscores); an error in one names the variable.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from streamjoin.config.pipeline import PipelineSink
from streamjoin.config.pipeline_file import (
    SOURCE_KEYS,
    place_in,
    read_iceberg,
    read_partitions,
    read_source,
    read_spark,
    read_trigger,
    refuse_inside,
)
from streamjoin.config.table import ConfigTable, read_parts, read_storage, read_toml, read_whole
from streamjoin.model import durations
from streamjoin.service.config import DEFAULT_PORT, Limits, ServiceConfig, StreamConfig, check_token
from streamjoin.service.routes.models import NAME

_SINKS: Final = ("parquet", "kafka", "delta", "iceberg")
_DURATIONS: Final = {
    "window_seconds": ("window", "1 hour"),
    "request_seconds": ("request_time", "20 seconds"),
    "batch_seconds": ("batch_time", "1 minute"),
}
"""Limits that the file has as durations: their names there, and examples."""
_LIMITS: Final = tuple(limit.name for limit in dataclasses.fields(Limits) if limit.name not in _DURATIONS)
_STREAM: Final = '[streams.trades] with format = "rate" and time = "ts"'
_OWN: Final = ("time", "lateness")
"""Keys of a stream besides those of its source."""
_PATH: Final = 'path = "out/{query}"'


def read_config(file: Path, environment: Mapping[str, str] | None = None) -> ServiceConfig:
    """The service that `file` and `environment` describe; default: the environment of this process.

    Raises:
        PipelineFileError: it can't be read, or something in it is wrong; the message names the lines or variables.
    """
    top = read_toml(file, os.environ if environment is None else environment)
    return read_whole(top, partial(_config, file))


def _config(file: Path, top: ConfigTable) -> ServiceConfig:
    top.only("service", "engine", "limits", "streams", "sinks", "spark", "storage")
    here = file.resolve().parent
    service = _table(top, "service")
    fields, engine, limits, (streams, lines), sinks, spark, storage = read_parts(
        partial(_service, service, here),
        partial(_engine, _table(top, "engine"), here, service.values.get("engine")),
        partial(_limits, _table(top, "limits")),
        partial(_streams, top, here),
        partial(_sinks, _table(top, "sinks"), here),
        partial(read_spark, _table(top, "spark")),
        partial(read_storage, top),
    )
    for name, sink in sinks.items():
        refuse_inside(top.below(top.values["sinks"][name], "sinks", name), "path", sink.path, engine["checkpoint"])
    top.finish()
    parts = {"streams": streams, "lines": lines, "sinks": sinks, "limits": limits, "storage": storage}
    return ServiceConfig(file=str(file), **fields, **engine, **spark, **parts)


def _table(top: ConfigTable, key: str) -> ConfigTable:
    """The table under `key`; empty if there is none."""
    return top.table(key) or top.below({}, key)


def _service(table: ConfigTable, here: Path) -> dict[str, Any]:
    table.only("host", "port", "token", "tokens", "certificate", "key", "log", "allowed_hosts", "engine")
    port = table.get("port", (int,), example=f"port = {DEFAULT_PORT}")
    if port is not None and not 0 <= port <= 65_535:
        table.wrong(f"port = {port}: a port is a number from 1 to 65535, or 0 for a free one", "port")
    token = table.text("token", 'token = "${MY_TOKEN}"')
    reason = None if token is None else check_token(token)
    if reason is not None:
        table.wrong(reason, "token")
    fields: dict[str, Any] = {
        "host": table.text("host", 'host = "127.0.0.1"') or "127.0.0.1",
        "port": DEFAULT_PORT if port is None else port,
        "token": token,
        "tokens": place_in(table, "tokens", 'tokens = "tokens.toml"', here),
        "certificate": place_in(table, "certificate", 'certificate = "service.crt"', here),
        "key": place_in(table, "key", 'key = "service.key"', here),
        "log": table.one_of("log", ("text", "json"), "text"),
        # Files of earlier versions have no such key and were run by Spark.
        "engine": table.one_of("engine", ("embedded", "spark"), "spark"),
        "engine_from": table.place("engine") if "engine" in table.values else None,
        "allowed_hosts": table.texts("allowed_hosts", 'allowed_hosts = ["joins.example.org"]'),
    }
    table.finish()
    table.build(lambda: ServiceConfig(**fields), "host" if token is None else "token", alone=False)
    return fields


def _engine(table: ConfigTable, here: Path, engine: object) -> dict[str, Any]:
    table.only("checkpoint", "trigger", "partitions", "executor", "sharing")
    wanted = 'trigger = "1 second", or leave it out'
    trigger = read_trigger(table, wanted)
    if trigger.available_now:
        table.wrong(f"a service does not end: write {wanted}", "trigger")
    sharing = table.one_of("sharing", ("cost", "everything", "nothing"), "cost")
    apart = sharing == "nothing"
    if apart and "partitions" in table.values:
        table.fail('sharing = "nothing" runs on the driver only: remove partitions', "partitions")
    if engine == "embedded" and "partitions" in table.values:
        table.fail(
            'partitions are cells on Spark: remove the line, or write engine = "spark" in [service]', "partitions"
        )
    executor = table.one_of("executor", ("driver", "distributed")) if "executor" in table.values else None
    if executor is not None and engine == "embedded":
        table.fail('executors are of Spark: remove the line, or write engine = "spark" in [service]', "executor")
    if executor == "driver" and "partitions" in table.values:
        table.fail('the driver joins in its own process: remove partitions, or executor = "driver"', "partitions")
    if apart and executor == "distributed":
        table.fail('sharing = "nothing" runs on the driver only: remove executor', "executor")
    fields = {
        "checkpoint": place_in(table, "checkpoint", 'checkpoint = "streamjoin-data"', here, required=True),
        "trigger": trigger.every,
        "partitions": read_partitions(table) if "partitions" in table.values else None,
        "executor": executor,
        "sharing": sharing,
    }
    table.finish()
    return fields


def _limits(table: ConfigTable) -> Limits:
    fields: dict[str, Any] = {
        key: table.get(key, (int,), example=f"{key} = {getattr(Limits, key) or 1 << 30}") for key in _LIMITS
    }
    for limit, (key, example) in _DURATIONS.items():
        text = table.text(key, f'{key} = "{example}"')
        if text is not None:
            fields[limit] = table.build(partial(durations.nanoseconds, text), key) / 1e9
    table.finish()
    for limit, value in fields.items():
        if value is not None:
            table.build(partial(Limits, **{limit: value}), limit if limit in _LIMITS else _DURATIONS[limit][0])
    return Limits(**{key: value for key, value in fields.items() if value is not None})


def _streams(top: ConfigTable, here: Path) -> tuple[dict[str, StreamConfig], dict[str, int]]:
    table = top.table("streams")
    if table is None or not table.values:
        top.missing("streams", _STREAM)
    read = read_parts(*(partial(_stream, table, name, here) for name in table.values))
    streams = dict(zip(table.values, read, strict=True))
    lines: dict[str, int] = {}
    for name in streams:
        lines |= {name: table.line(name)} | {f"{name}.{k}": table.line(name, k) for k in ("schema", "select", "where")}
    return streams, lines


def _stream(streams: ConfigTable, name: str, here: Path) -> StreamConfig:
    if not re.fullmatch(r"[A-Za-z_]\w{0,63}", name, re.ASCII):
        streams.wrong(f"{name!r} can't be a stream's name: letters, digits and underscores, a letter first", name)
    table = streams.table(name)
    if table is None:
        streams.missing(name, _STREAM)
    table.only(*SOURCE_KEYS, *_OWN)
    time = table.required("time", 'time = "ts"')
    lateness = table.get("lateness", (str, int), example='lateness = "5 seconds"')
    if isinstance(lateness, str):
        table.build(lambda: durations.nanoseconds(lateness), "lateness")
    for key in ("by", "position"):
        if key in table.values:
            table.fail(f"a service's stream takes no {key!r}: remove the line", key)
    if "malformed" in table.values:
        table.fail(
            "a service keeps malformed records in its checkpoint, under malformed/: remove the line", "malformed"
        )
    return StreamConfig(read_source(table, here, _OWN), time, 0 if lateness is None else lateness)


def _sinks(table: ConfigTable, here: Path) -> dict[str, PipelineSink]:
    read = read_parts(*(partial(_sink, table, name, here) for name in table.values))
    return dict(zip(table.values, read, strict=True))


def _sink(sinks: ConfigTable, name: str, here: Path) -> PipelineSink:
    if not re.fullmatch(NAME, name):
        sinks.wrong(f"{name!r} can't be a sink's name: letters, digits and underscores, a letter first", name)
    table = sinks.table(name)
    if table is None:
        sinks.missing(name, f'[sinks.{name}] with format = "parquet" and {_PATH}')
    table.only("format", "path", "servers", "topic", "key", "table", "catalog", "options")
    format_ = table.one_of("format", _SINKS)
    if format_ in ("parquet", "delta"):
        path = place_in(table, "path", _PATH, here, required=True) or ""
        if format_ == "parquet" and "{query}" not in path:
            table.wrong(f"every query needs a directory of its own: write {_PATH}", "path")
        options = table.options("options") if format_ == "delta" else {}
        table.finish()
        return PipelineSink(format_, path=path, options=options)
    if format_ == "iceberg":
        sink = PipelineSink(format_, **read_iceberg(table), options=table.options("options"))
        table.finish()
        return sink
    servers = table.required("servers", 'servers = "broker-1:9092"')
    topic = table.required("topic", 'topic = "joined-{query}"')
    options = {**table.options("options"), "kafka.bootstrap.servers": servers, "topic": topic}
    key = table.text("key", 'key = "sym"')
    table.finish()
    return PipelineSink("kafka", options=options, key=key)
