"""`join.toml` as a `Pipeline`: checks every key; an error names the line and the fix.

Paths are relative to the directory of the file, so a pipeline does not depend on the working directory.

The `[join]` table becomes a `JoinSpec`. A condition is a text, a table such as `{ equi = "sym" }`, or a list of
these. Texts are read as those of `JoinSpec`, conditions and windows alike.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from streamjoin.config.pipeline import (
    DECODINGS,
    KAFKA_COLUMNS,
    REGISTERED,
    SINK_FORMATS,
    SOURCE_FORMATS,
    JoinSettings,
    Pipeline,
    PipelineSink,
    PipelineSource,
    Trigger,
)
from streamjoin.config.table import ConfigTable, read_parts, read_storage, read_toml, read_whole
from streamjoin.model import durations
from streamjoin.model.asof import AsOf
from streamjoin.model.errors import SpecError
from streamjoin.model.predicates import Band, Equi, JoinPredicate, Theta, as_predicate
from streamjoin.model.spec import JoinSpec, as_suffixes, check_how
from streamjoin.model.summary import Summary
from streamjoin.model.window import CountWindow, TimeWindow, Window, as_window
from streamjoin.storage.ranges import MOST_PARTITIONS

_ON = 'on = "l.sym = r.sym AND abs(l.px - r.bid) <= 0.25"'
_TERM = '{ equi = "sym" }, { band = ["px", "bid"], distance = 0.25 } or { theta = "l.qty < r.size" }'
_KEYS = (
    "on", "window", "time", "lateness", "ordered", "idle", "positions", "punctuate", "columns", "late", "order", "how",
    "match", "summary", "between", "prevailing", "itself", "self_join", "suffixes", "both_keys", "result_time",
    "end_of_input", "most_waiting",
)  # fmt: skip
_MATCH = 'match = { direction = "backward", tolerance = "5 seconds" }'
_SUMMARY = 'summary = { n = "count(*)", mid = "avg(r.bid)" }'
_BETWEEN = 'between = ["-5 seconds", "1 second"]'
_WINDOW = 'window = "5 seconds", or "1000 rows", or a list of a left and a right one'


def read_join(table: ConfigTable, late: str | None) -> tuple[JoinSpec, JoinSettings]:
    """The whole table: the spec and the options of the join; `late` is the directory for late rows."""
    table.only(*_KEYS)
    ordered, positions, punctuate, end_of_input = (
        bool(table.get(key, (bool,), example=f"{key} = true"))
        for key in ("ordered", "positions", "punctuate", "end_of_input")
    )
    if punctuate and not ordered:
        table.fail("punctuate = true needs ordered = true", "punctuate")
    idle = table.text("idle", 'idle = "10 seconds"')
    if idle is not None:
        table.build(lambda: durations.nanoseconds(idle), "idle")
    most_waiting = table.get("most_waiting", (int,), example="most_waiting = 10_000_000")
    if most_waiting is not None and most_waiting < 1:
        table.wrong(f"most_waiting = {most_waiting}: it is a whole number from 1", "most_waiting")
    columns = table.texts("columns", 'columns = ["sym", "px", "bid"]')
    settings = JoinSettings(
        ordered=ordered, positions=positions, punctuate=punctuate, idle=idle, columns=columns or None, late=late,
        end_of_input=end_of_input, most_waiting=most_waiting,
    )  # fmt: skip
    return _spec(table), settings


def term_lines(table: ConfigTable) -> dict[str, int]:
    """The line of each term of the condition, as `on.0`, `on.1`, ...; the table was read before."""
    value = table.values.get("on")
    if value is None:
        return {}
    if not isinstance(value, list):
        return {"on.0": table.line("on")}
    return {f"on.{number}": table.line("on", number) for number in range(len(value))}


def _spec(table: ConfigTable) -> JoinSpec:
    match = _summary(table) or _match(table)
    on = None if match is not None and "on" not in table.values else table.build(lambda: _condition(table), "on")
    window = _windows(table) if match is None else None
    if match is not None and "window" in table.values:
        if isinstance(match, Summary):
            table.fail(f"{_BETWEEN} is the window of summaries: leave out window", "window")
        table.fail(f"an as-of join has no window: {_MATCH} says how far apart the two times may be", "window")
    time = table.pair("time", 'time = "ts", or ["left_ts", "right_ts"]')
    table.one_of("order", ("event_time",), "event_time")
    how = table.text("how", 'how = "left"') or "inner"
    lateness = table.get("lateness", (str, int), example='lateness = "2 seconds"')
    self_join = bool(table.get("self_join", (bool,), example="self_join = true"))
    names = _names(table)
    table.finish()
    if lateness is not None:
        table.build(lambda: TimeWindow(lateness), "lateness")
    table.build(lambda: check_how(how), *(("how",) if "how" in table.values else ()))
    kinds: dict[str, Any] = {"how": how, "match": match, "self_join": self_join}
    part = "summary" if isinstance(match, Summary) else "match"
    return table.build(
        lambda: JoinSpec(on=on, window=window, time=time, order="event_time", lateness=lateness, **kinds, **names),
        *(("how",) if how != "inner" else (part,) if match is not None else ()),
        alone=False,
    )


def _summary(table: ConfigTable) -> Summary | None:
    summaries = table.get("summary", (dict,), example=_SUMMARY)
    between = table.get("between", (list,), example=_BETWEEN)
    flags = {key: bool(table.get(key, (bool,), example=f"{key} = true")) for key in ("prevailing", "itself")}
    if summaries is None:
        for key in ("between", "prevailing", "itself"):
            if key in table.values:
                table.fail(f"{key} belongs to summaries: add {_SUMMARY}", key)
        return None
    if "match" in table.values:
        table.fail("a join has either summary or match, not both", "match")
    if between is None:
        table.missing("between", _BETWEEN)
    return table.build(lambda: Summary(summaries, between, **flags), "summary")


def _match(table: ConfigTable) -> AsOf | None:
    value = table.get("match", (dict,), example=_MATCH)
    if value is None:
        return None
    inner = table.below(value, "match")
    direction = inner.one_of("direction", ("backward", "forward", "nearest"), "backward")
    tolerance = inner.get("tolerance", (str, int), example='tolerance = "5 seconds"')
    exact = inner.get("exact", (bool,), example="exact = false")
    inner.finish()
    return table.build(lambda: AsOf(direction, tolerance, exact is not False), "match")  # type: ignore[arg-type]


def _names(table: ConfigTable) -> dict[str, Any]:
    """How the result's columns are named."""
    suffixes = table.get("suffixes", (list,), example='suffixes = ["_left", "_right"]')
    both_keys = bool(table.get("both_keys", (bool,), example="both_keys = true"))
    result_time = table.text("result_time", 'result_time = "matched_at"')
    names = {"both_keys": both_keys, "result_time": result_time}
    return names if suffixes is None else names | {"suffixes": table.build(lambda: as_suffixes(suffixes), "suffixes")}


def _condition(table: ConfigTable) -> JoinPredicate:
    value = table.get("on", (str, dict, list), example=_ON)
    if value is None or value == []:
        table.missing("on", _ON)
    if isinstance(value, str):
        return as_predicate(value)
    if isinstance(value, dict):
        return _item(table, value, "on")
    return reduce(lambda one, other: one & other, (_item(table, item, "on", n) for n, item in enumerate(value)))


def _item(table: ConfigTable, item: object, *place: str | int) -> JoinPredicate:
    """One item of a list of conditions."""
    if isinstance(item, str):
        return table.build(lambda: as_predicate(item), *place)
    if not isinstance(item, dict):
        table.wrong(f"a condition is {_TERM}, not {item!r}", *place)
    return _term(table.below(item, *place))


def _term(table: ConfigTable) -> JoinPredicate:
    equi = table.pair("equi", 'equi = "sym", or ["left", "right"]')
    theta = table.text("theta", 'theta = "l.qty < r.size"')
    band = table.pair("band", 'band = ["px", "bid"]')
    kinds = [name for name in ("equi", "band", "theta") if name in table.values]
    bounds = {key: _distance(table, key) for key in ("distance", "below", "above")}
    strict = bool(table.get("strict", (bool,), example="strict = true"))
    table.finish()
    if len(kinds) != 1:
        table.fail(f"a condition is one of {_TERM}; this has {' and '.join(kinds) or 'none'}")
    if band is None and (strict or any(bound is not None for bound in bounds.values())):
        table.fail("distance, below, above and strict belong to a band: write { band = [...], distance = ... }")
    if equi is not None:
        return table.build(lambda: Equi(*_two(equi)), "equi")
    if theta is not None:
        return table.build(lambda: Theta(theta), "theta")
    left, right = _two(band or "")
    return table.build(
        lambda: Band(left, right, bounds["distance"], below=bounds["below"], above=bounds["above"], strict=strict),
        "band",
    )


def _distance(table: ConfigTable, key: str) -> int | float | str | None:
    distance: int | float | str | None = table.get(
        key, (int, float, str), example=f'{key} = 0.25, or "2 seconds" for times'
    )
    return distance


def _two(names: str | tuple[str, str]) -> tuple[str, str]:
    return (names, names) if isinstance(names, str) else names


def _windows(table: ConfigTable) -> Window | tuple[Window, Window]:
    value = table.get("window", (str, int, dict, list), example=_WINDOW)
    if value is None:
        table.missing("window", 'window = "5 seconds"')
    if not isinstance(value, list):
        return _window(table, value, "window")
    if len(value) != 2:
        table.wrong(f"a list of windows holds two, a left and a right one, not {len(value)}: {_WINDOW}", "window")
    return _window(table, value[0], "window", 0), _window(table, value[1], "window", 1)


def _window(table: ConfigTable, value: Any, *place: str | int) -> Window:
    if isinstance(value, (str, int)):
        return table.build(lambda: as_window(value) if isinstance(value, str) else TimeWindow(value), *place)
    if not isinstance(value, dict):
        table.wrong(f"a window is {_WINDOW}, not {value!r}", *place)
    inner = table.below(value, *place)
    count = inner.get("count", (int,), example="{ count = 1000 }")
    length = inner.get("time", (str, int), example='{ time = "5 seconds" }')
    inner.finish()
    if (count is None) == (length is None):
        table.wrong('a window is either { count = 1000 } or { time = "5 seconds" }', *place)
    return table.build(lambda: TimeWindow(length) if count is None else CountWindow(count), *place)


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


_SAME = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb", "viewfs": "hdfs"}
"""Schemes that are aliases for one store."""


def is_inside(place: str, directory: str) -> bool:
    """Whether `place` is `directory` or is inside it.

    >>> is_inside("out/checkpoint/rows", "out/checkpoint/"), is_inside("out/checkpoints", "out/checkpoint")
    (True, False)
    >>> is_inside("s3a://bucket/a/./b", "s3://bucket/a"), is_inside("s3://other/a/b", "s3://bucket/a")
    (True, False)
    """
    inner, outer = _parts(place), _parts(directory)
    return inner[: len(outer)] == outer


def _parts(place: str) -> tuple[str, ...]:
    address = urlsplit(place)
    scheme = address.scheme.lower()
    if scheme in ("", "file"):
        local = unquote(address.path) if scheme else place
        return ("file", "", *os.path.realpath(local).strip("/").split("/"))
    path = posixpath.normpath(f"/{address.path}").strip("/")
    return (_SAME.get(scheme, scheme), address.netloc.lower(), *(path.split("/") if path else ()))


def read_pipeline(file: Path) -> Pipeline:
    """The pipeline that `file` describes.

    Raises:
        PipelineFileError: it can't be read, or something in it is wrong; the message names the lines.
    """
    return read_whole(read_toml(file), partial(_pipeline, file))


def _pipeline(file: Path, top: ConfigTable) -> Pipeline:
    top.only(*_TOP)
    here = file.resolve().parent
    (join, spec, settings), (tables, sources), (table, sink), outermost, started, storage = read_parts(
        partial(_join, top, here),
        partial(_sources, top, here),
        partial(_sink_of, top, here),
        partial(_outermost, top, here),
        lambda: read_spark(top.table("spark") or top.below({}, "spark")),
        partial(read_storage, top),
    )
    checkpoint = _checkpoint(top, sink, here)
    if checkpoint is not None:
        refuse_inside(table, "path", sink.path, checkpoint)
        refuse_inside(join, "late", settings.late, checkpoint)
        for name_, source in sources.items():
            refuse_inside(tables[name_], "malformed", source.malformed, checkpoint)
    trigger, name, progress, numbers = outermost
    settings = replace(settings, **numbers)
    if settings.end_of_input and not trigger.available_now:
        join.fail('end_of_input = true ends the input with a backlog: add trigger = "available now"', "end_of_input")
    if settings.end_of_input and sink.format == "memory":
        join.fail("end_of_input = true needs a sink that continues from a checkpoint, not memory", "end_of_input")
    top.finish()
    lines = {"join": join.line(), "sink": table.line(), "checkpoint": top.line("checkpoint")}
    parts = ("time", "columns", "window", "match", "summary", "lateness", "late")
    lines |= {f"join.{key}": join.line(key) for key in parts}
    lines |= term_lines(join)
    lines |= {f"sink.{key}": table.line(key) for key in ("select", "key", "path")}
    for name_, source_table in tables.items():
        lines[name_] = source_table.line()
        keys = ("path", "schema", "select", "where", "by", "position")
        lines |= {f"{name_}.{key}": source_table.line(key) for key in keys}
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


def _join(top: ConfigTable, here: Path) -> tuple[ConfigTable, JoinSpec, JoinSettings]:
    join = _part(top, "join", "[join] with on and window")
    return join, *read_join(join, place_in(join, "late", 'late = "out/late"', here))


def _sources(top: ConfigTable, here: Path) -> tuple[dict[str, ConfigTable], dict[str, PipelineSource]]:
    self_join = isinstance(join := top.values.get("join"), dict) and join.get("self_join") is True
    tables = _source_tables(_part(top, "source", "[source.left] and [source.right]"), self_join)
    read = read_parts(*(partial(read_source, table, here) for table in tables.values()))
    return tables, dict(zip(tables, read, strict=True))


def _outermost(top: ConfigTable, here: Path) -> tuple[Trigger, str, str | None, dict[str, Any]]:
    progress = place_in(top, "progress", 'progress = "out/progress.jsonl"', here)
    if progress is not None and _SCHEME.match(progress):
        top.wrong(f"progress = {progress!r}: metrics must go to a local file", "progress")
    name = top.text("name", 'name = "trades near quotes"') or "streamjoin"
    numbers = {"partitions": read_partitions(top), "most_partitions": _most_partitions(top)}
    return read_trigger(top), name, progress, numbers


def _sink_of(top: ConfigTable, here: Path) -> tuple[ConfigTable, PipelineSink]:
    table = _part(top, "sink", '[sink] with format = "parquet"')
    return table, _sink(table, here)


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
    if not topics and pattern is None:
        table.missing("topic", 'topic = "trades", or pattern = "trades-.*"')
    if topics and pattern is not None:
        table.fail('a Kafka source reads either topic = "..." or pattern = "..."', "topic")
    settings |= {"subscribe": ",".join(topics)} if topics else {"subscribePattern": str(pattern)}
    # Spark's default is "latest", which skips everything sent before the first start.
    settings["startingOffsets"] = table.text("from", 'from = "earliest"') or "earliest"
    for key in settings.keys() & options.keys():
        table.fail(f"{key} has a key of its own here (servers, topic, pattern, from): use that one", "options", key)
    metadata = table.options("metadata")
    for column in metadata:
        if column not in KAFKA_COLUMNS:
            table.wrong(f"a Kafka record has no {column!r}; it has: {', '.join(KAFKA_COLUMNS)}", "metadata", column)
    decode = table.one_of("decode", DECODINGS, "json")
    decode_options = table.options("decode_options")
    if decode_options and decode in ("text", "binary"):
        table.fail(f"decode = {decode!r} has no options: remove the line", "decode_options")
    registry = table.text("registry", _REGISTRY, required=decode in REGISTERED)
    if registry is not None and decode not in REGISTERED:
        table.fail(f"decode = {decode!r} has no schemas in a registry: remove the line", "registry")
    if registry is not None and not registry.startswith(("http://", "https://")):
        table.wrong(f"registry = {registry!r} is no URL: write {_REGISTRY}", "registry")
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
        table.wrong(f"table = {name!r}: a table has a namespace: {_TABLE}", "table")
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
        top.wrong(f'partitions = {value!r}: it is a whole number such as 4, or "auto"', "partitions")
    if not 1 <= value <= MOST_PARTITIONS:
        top.wrong(f"partitions = {value}: it is a whole number from 1 to {MOST_PARTITIONS:,}", "partitions")
    return value


def _most_partitions(top: ConfigTable) -> int | None:
    value = top.get("most_partitions", (int,), example="most_partitions = 16")
    if value is not None and not 1 <= value <= MOST_PARTITIONS:
        top.wrong(f"most_partitions = {value}: it is a whole number from 1 to {MOST_PARTITIONS:,}", "most_partitions")
    return None if value is None else int(value)


def place_in(table: ConfigTable, key: str, example: str, here: Path, *, required: bool = False) -> str | None:
    """A path or URL; a path is relative to `here`."""
    value = table.text(key, example, required=required)
    return value if value is None or _SCHEME.match(value) else str(here / Path(value).expanduser())


def read_trigger(top: ConfigTable, wanted: str = _TRIGGER) -> Trigger:
    """When batches begin; `wanted` says what to write."""
    value = top.text("trigger", wanted)
    if value is None:
        return Trigger()
    if re.fullmatch(r"available[ _-]?now", value, re.IGNORECASE):
        return Trigger(available_now=True)
    try:
        nanoseconds = durations.nanoseconds(value)
    except SpecError as error:
        hint = '"once" is "available now" here' if value.lower() == "once" else str(error)
        top.wrong(f"trigger = {value!r}: {hint}. Write {wanted}", "trigger")
    if nanoseconds < 1_000_000:
        top.wrong(f"trigger = {value!r} is under a millisecond: {wanted}", "trigger")
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
