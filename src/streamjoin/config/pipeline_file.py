"""`join.toml` as a `Pipeline`: checks every key; an error names the line and the fix.

Paths are relative to the directory of the file, so a pipeline does not depend on the working directory.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamjoin.config.join_table import read_join, term_lines
from streamjoin.config.nesting import is_inside
from streamjoin.config.pipeline import (
    DECODINGS,
    KAFKA_COLUMNS,
    REGISTERED,
    SINK_FORMATS,
    SOURCE_FORMATS,
    Pipeline,
    PipelineSink,
    PipelineSource,
    Trigger,
)
from streamjoin.config.storage_table import read_storage
from streamjoin.config.table import ConfigTable, read_toml
from streamjoin.model import durations
from streamjoin.storage.ranges import MOST_PARTITIONS

_SERVERS = 'servers = "broker-1:9092,broker-2:9092"'
_REGISTRY = 'registry = "http://schemas:8081"'
_SCHEMA = 'schema = "ts TIMESTAMP, sym STRING, px DOUBLE"'
_TABLE = 'table = "trades.matches"'
_TRIGGER = 'trigger = "available now", or "10 seconds", or leave it out'
_TOP = (
    "name", "checkpoint", "trigger", "partitions", "most_partitions", "progress", "source", "join", "sink", "spark",
    "storage",
)  # fmt: skip
SOURCE_KEYS = (
    "format", "path", "schema", "select", "where", "malformed", "name", "by", "position", "values", "options",
    "servers", "topic", "pattern", "from", "decode", "decode_options", "registry",
    "metadata",
)  # fmt: skip
"""The keys of sources of any format."""
_SINK = ("format", "path", "servers", "topic", "key", "name", "table", "catalog", "select", "options")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def read_pipeline(file: Path) -> Pipeline:
    """The pipeline that `file` describes.

    Raises:
        PipelineFileError: it can't be read, or something in it is wrong; the message names the line.
    """
    top = read_toml(file)
    top.only(*_TOP)
    here = file.resolve().parent
    join = _part(top, "join", "[join] with on and window")
    spec, settings = read_join(join, place_in(join, "late", 'late = "out/late"', here))
    tables = _source_tables(_part(top, "source", "[source.left] and [source.right]"), spec.self_join)
    sources = {name: read_source(source_table, here) for name, source_table in tables.items()}
    table = _part(top, "sink", '[sink] with format = "parquet"')
    sink = _sink(table, here)
    checkpoint = _checkpoint(top, sink, here)
    if checkpoint is not None:
        refuse_inside(table, "path", sink.path, checkpoint)
        refuse_inside(join, "late", settings.late, checkpoint)
        for name_, source in sources.items():
            refuse_inside(tables[name_], "malformed", source.malformed, checkpoint)
    settings = replace(settings, partitions=read_partitions(top), most_partitions=_most_partitions(top))
    progress = place_in(top, "progress", 'progress = "out/progress.jsonl"', here)
    if progress is not None and _SCHEME.match(progress):
        top.fail(f"progress = {progress!r}: metrics must go to a local file", "progress")
    trigger = read_trigger(top)
    name = top.text("name", 'name = "trades near quotes"') or "streamjoin"
    spark = top.table("spark")
    started = read_spark(spark) if spark else {}
    storage = read_storage(top)
    top.finish()
    lines = {"join": join.line(), "sink": table.line(), "checkpoint": top.line("checkpoint")}
    lines |= {f"join.{key}": join.line(key) for key in ("time", "columns")} | term_lines(join)
    lines |= {f"sink.{key}": table.line(key) for key in ("select", "key")}
    for name_, source_table in tables.items():
        lines[name_] = source_table.line()
        lines |= {f"{name_}.{key}": source_table.line(key) for key in ("schema", "select", "where", "by", "position")}
    return Pipeline(
        file=str(file),
        left=sources.pop("left"),
        right=sources.pop("right", None),
        further=sources,
        spec=spec,
        sink=sink,
        checkpoint=checkpoint,
        trigger=trigger,
        join=settings,
        progress=progress,
        name=name,
        lines=lines,
        storage=storage,
        **started,
    )


def refuse_inside(table: ConfigTable, key: str, place: str | None, checkpoint: str) -> None:
    """Reject output into the checkpoint, where it would mix with the checkpoint's files.

    Raises:
        PipelineFileError: `place`, which `key` names, is the checkpoint or lies in it.
    """
    if place is not None and is_inside(place, checkpoint):
        table.fail(f"{key} = {place!r} lies in the checkpoint {checkpoint!r}: name a directory outside of it", key)


def _part(top: ConfigTable, key: str, example: str) -> ConfigTable:
    table = top.table(key)
    if table is None:
        top.missing(key, example)
    return table


def _source_tables(sources: ConfigTable, self_join: bool) -> dict[str, ConfigTable]:
    """The tables of all sources; further sources of a side are left-2, left-3 and so on."""
    sources.only("left", "right")
    by_name: dict[str, ConfigTable] = {}
    for side in ("left", "right"):
        tables = sources.tables(side)
        by_name |= {f"{side}-{i + 1}" if i else side: table for i, table in enumerate(tables)}
    if "left" not in by_name:
        sources.missing("left", '[source.left] with format = "kafka"')
    if "right" not in by_name and not self_join:
        sources.missing("right", '[source.right] with format = "kafka", or self_join = true in [join]')
    if "right" in by_name and self_join:
        sources.fail("a self-join has one stream: remove [source.right], or self_join from [join]", "right")
    return by_name


def read_source(table: ConfigTable, here: Path, further: tuple[str, ...] = ()) -> PipelineSource:
    """A stream's source; paths are relative to `here`; `further` are keys that are read elsewhere."""
    table.only(*SOURCE_KEYS, *further)
    format_ = table.one_of("format", SOURCE_FORMATS)
    fields: dict[str, Any] = {"options": table.options("options")}
    if format_ == "kafka":
        fields |= _kafka_source(table, fields["options"])
    elif format_ != "rate":
        fields["path"] = place_in(table, "path", f'path = "data/{format_}"', here, required=True)
    if format_ != "rate" and fields.get("decode") not in ("text", "binary"):
        fields["schema"] = _schema(table)
    fields["select"] = table.texts("select", 'select = ["timestamp AS ts", "value % 10 AS k"]')
    fields["where"] = table.text("where", 'where = "px > 0"')
    fields["by"] = table.text("by", 'by = "part", a column that identifies physical sources')
    fields["position"] = table.text("position", 'position = "place", a column that rises along each source')
    fields["values"] = table.texts("values", 'values = ["0", "1"], the values of `by` to wait for from the beginning')
    if fields["values"] and fields["by"] is None:
        table.fail('values are those of a column: name it with by = "..."', "values")
    fields["name"] = table.text("name", 'name = "eu", which distinguishes this source from others of its side')
    source = PipelineSource(format=format_, **fields)
    if source.can_be_malformed:
        source = PipelineSource(
            format=format_, **fields, malformed=place_in(table, "malformed", 'malformed = "out/bad"', here)
        )
    elif "malformed" in table.values:
        table.fail("this source is not decoded, so no record can be malformed: remove the line", "malformed")
    table.finish()
    return source


def _kafka_source(table: ConfigTable, options: dict[str, str]) -> dict[str, Any]:
    settings = {"kafka.bootstrap.servers": table.required("servers", _SERVERS)}
    topics = table.texts("topic", 'topic = "trades", or ["trades-eu", "trades-us"]')
    pattern = table.text("pattern", 'pattern = "trades-.*"')
    if bool(topics) == (pattern is not None):
        table.fail('a Kafka source reads either topic = "..." or pattern = "..."', "topic" if topics else "pattern")
    settings |= {"subscribe": ",".join(topics)} if topics else {"subscribePattern": str(pattern)}
    # Spark's default is "latest", which skips everything sent before the first start.
    settings["startingOffsets"] = table.text("from", 'from = "earliest"') or "earliest"
    for key in settings.keys() & options.keys():
        table.fail(f"{key} has a key of its own here (servers, topic, pattern, from): use that one", "options", key)
    metadata = table.options("metadata")
    for column in metadata:
        if column not in KAFKA_COLUMNS:
            table.fail(f"a Kafka record has no {column!r}; it has: {', '.join(KAFKA_COLUMNS)}", "metadata", column)
    decode = table.one_of("decode", DECODINGS, "json")
    decode_options = table.options("decode_options")
    if decode_options and decode in ("text", "binary"):
        table.fail(f"decode = {decode!r} has no options: remove the line", "decode_options")
    registry = table.text("registry", _REGISTRY, required=decode in REGISTERED)
    if registry is not None and decode not in REGISTERED:
        table.fail(f"decode = {decode!r} has no schemas in a registry: remove the line", "registry")
    if registry is not None and not registry.startswith(("http://", "https://")):
        table.fail(f"registry = {registry!r} is no URL: write {_REGISTRY}", "registry")
    return {
        "options": {**settings, **options},
        "decode": decode,
        "decode_options": decode_options,
        "registry": registry,
        "metadata": metadata,
    }


def _schema(table: ConfigTable) -> str:
    value = table.get("schema", (str, dict), example=_SCHEMA)
    if value is None or not value:
        table.missing("schema", _SCHEMA)
    if isinstance(value, str):
        return value
    columns = table.below(value, "schema").flat()
    return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in columns.items())


def _sink(table: ConfigTable, here: Path) -> PipelineSink:
    table.only(*_SINK)
    format_ = table.one_of("format", SINK_FORMATS)
    options = table.options("options")
    fields: dict[str, Any] = {"select": table.texts("select", 'select = ["sym", "px", "bid"]')}
    if format_ == "kafka":
        own = {
            "kafka.bootstrap.servers": table.required("servers", _SERVERS),
            "topic": table.required("topic", 'topic = "matches"'),
        }
        for key in own.keys() & options.keys():
            table.fail(f"{key} has a key of its own here (servers, topic): use that one", "options", key)
        options = {**own, **options}
        fields["key"] = table.text("key", 'key = "sym"')
    elif format_ == "memory":
        fields["name"] = table.required("name", 'name = "matches"')
    elif format_ == "iceberg":
        fields |= read_iceberg(table)
    elif format_ != "console":
        fields["path"] = place_in(table, "path", 'path = "out/matches"', here, required=True)
    table.finish()
    return PipelineSink(format=format_, options=options, **fields)


def read_iceberg(table: ConfigTable) -> dict[str, Any]:
    """The name of an Iceberg table and of its catalog."""
    name = table.required("table", _TABLE)
    if "." not in name or not all(name.split(".")):
        table.fail(f"table = {name!r}: a table has a namespace: {_TABLE}", "table")
    return {
        "name": name,
        "catalog": table.text("catalog", 'catalog = "default"') or "default",
    }


def _checkpoint(top: ConfigTable, sink: PipelineSink, here: Path) -> str | None:
    passing = sink.format in ("console", "memory")
    return place_in(top, "checkpoint", 'checkpoint = "out/checkpoint"', here, required=not passing)


def read_partitions(top: ConfigTable) -> Any:
    """How many tasks join."""
    value = top.get("partitions", (int, str), example='partitions = 4, or "auto"')
    if value is None or value == "auto":
        return "auto"
    if isinstance(value, str):
        top.fail(f'partitions = {value!r}: it is a whole number such as 4, or "auto"', "partitions")
    if not 1 <= value <= MOST_PARTITIONS:
        top.fail(f"partitions = {value}: it is a whole number from 1 to {MOST_PARTITIONS:,}", "partitions")
    return value


def _most_partitions(top: ConfigTable) -> int | None:
    value = top.get("most_partitions", (int,), example="most_partitions = 16")
    if value is not None and not 1 <= value <= MOST_PARTITIONS:
        top.fail(f"most_partitions = {value}: it is a whole number from 1 to {MOST_PARTITIONS:,}", "most_partitions")
    return None if value is None else int(value)


def place_in(table: ConfigTable, key: str, example: str, here: Path, *, required: bool = False) -> str | None:
    """A path or URL; a path is relative to `here`."""
    value = table.text(key, example, required=required)
    return value if value is None or _SCHEME.match(value) else str(here / Path(value).expanduser())


def read_trigger(top: ConfigTable) -> Trigger:
    """When batches begin."""
    value = top.text("trigger", _TRIGGER)
    if value is None:
        return Trigger()
    if re.fullmatch(r"available[ _-]?now", value, re.IGNORECASE):
        return Trigger(available_now=True)
    nanoseconds = top.build(lambda: durations.nanoseconds(value), "trigger")
    if nanoseconds < 1_000_000:
        top.fail(f"trigger = {value!r} is under a millisecond: {_TRIGGER}", "trigger")
    return Trigger(every=f"{nanoseconds // 1_000_000} milliseconds")


def read_spark(table: ConfigTable) -> dict[str, Any]:
    """The session's settings."""
    settings = {
        "master": table.text("master", 'master = "local[4]", or "spark://host:7077"'),
        "memory": table.text("memory", 'memory = "4g"'),
        "conf": table.options("conf"),
    }
    table.finish()
    return settings
