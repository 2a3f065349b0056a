"""The constants of a join in a file that people read, change and pass on.

The file says of which join it is, and is refused for another. A window, the number of partitions and the places of
output may change: the constants do not depend on them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from streamjoin.config.pipeline import Pipeline
from streamjoin.config.table import ConfigTable, read_toml
from streamjoin.model.errors import PipelineFileError, SetupError
from streamjoin.spark.capacity.estimate import GATES, Assumed, Bytes, JoinShape, MachineConstants, Seconds

_NAMES = {JoinShape: "join", Seconds: "seconds", Bytes: "bytes", Assumed: "assumed"}
_Part = TypeVar("_Part", JoinShape, Seconds, Bytes, Assumed)


def join_digest(pipeline: Pipeline) -> str:
    """What a file's constants depend on: all of the join but its windows, and the columns of its sources."""
    spec = pipeline.spec
    match = None if spec.match is None else type(spec.match).__name__
    settings = replace(pipeline.join, partitions="auto", most_partitions=None, late=None, end_of_input=False)
    sides = {
        name: (side.schema, side.select, side.by, side.position, side.values, side.metadata)
        for name, side in pipeline.sides.items()
    }
    facts = [str(spec.predicate), spec.how, match, spec.self_join, spec.time_columns, str(settings), str(sides)]
    return hashlib.sha256(repr([*facts, [type(window).__name__ for window in spec.windows]]).encode()).hexdigest()[:16]


def write_constants(path: Path, pipeline: Pipeline, constants: MachineConstants) -> None:
    """Write the constants as TOML that people can read, change and pass on.

    Raises:
        SetupError: the file can't be written.
    """
    spec = pipeline.spec
    lines = [
        f"# What the join of {Path(pipeline.file).name} took, written by `streamjoin capacity --calibrate` on",
        f"# {datetime.now(UTC):%Y-%m-%d}. Seconds are of one core. What stands under [assumed] was not measured:",
        "# network_bytes is what an executor receives in a second, store_requests what a store answers in a second,",
        "# store_latency the seconds of one request.",
        f"# on: {' '.join(str(spec.predicate).split())}",
        f"# {GATES[constants.shape.gate]}",
        f'digest = "{join_digest(pipeline)}"',
        f"copies = {constants.copies!r}",
    ]
    for part in (constants.shape, constants.seconds, constants.bytes, constants.assumed):
        lines += ["", f"[{_NAMES[type(part)]}]"]
        lines += [f"{name} = {_toml(value)}" for name, value in dataclasses.asdict(part).items()]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise SetupError(f"can't write {path}: {error.strerror}; name another file with --constants") from error


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(float(value))  # type: ignore[arg-type]


def read_constants(path: Path, pipeline: Pipeline) -> MachineConstants:
    """The constants in a file.

    Raises:
        PipelineFileError: there is no such file, a constant is wrong, or they are those of another join.
    """
    if not path.exists():
        raise PipelineFileError(
            f"{path} does not exist: measure this machine's constants with "
            f"`streamjoin capacity {pipeline.file} --calibrate`, or name a file with --constants"
        )
    top = read_toml(path)
    top.only("digest", "copies", *_NAMES.values())
    if top.required("digest", 'digest = "..."') != join_digest(pipeline):
        top.fail(
            f"these are the constants of another join than that of {pipeline.file}, or of an earlier version of it: "
            "measure them again with --calibrate",
            "digest",
        )
    return MachineConstants(
        _read(top, JoinShape), _read(top, Seconds), _read(top, Bytes), _number(top, "copies"), _read(top, Assumed)
    )


def _read(top: ConfigTable, kind: type[_Part]) -> _Part:
    table = top.table(_NAMES[kind])
    if table is None:
        top.missing(_NAMES[kind], f"[{_NAMES[kind]}]")
    fields = dataclasses.fields(kind)
    table.only(*(field.name for field in fields))
    values: dict[str, Any] = {}
    for field in fields:
        if field.name == "gate":
            values[field.name] = table.one_of("gate", tuple(GATES))
        elif field.type == "bool":
            values[field.name] = table.get(field.name, (bool,), example=f"{field.name} = true")
            if values[field.name] is None:
                table.missing(field.name, f"{field.name} = true")
        else:
            values[field.name] = _number(table, field.name, positive=kind is Assumed and field.name != "store_latency")
    return kind(**values)


def _number(table: ConfigTable, name: str, *, positive: bool = False) -> float:
    value = table.get(name, (int, float), example=f"{name} = 1e-6")
    if value is None:
        table.missing(name, f"{name} = 1e-6")
    number = float(value)
    if not (number > 0 if positive else number >= 0) or number == float("inf"):
        table.wrong(f"{name} = {value}: it is a number {'above' if positive else 'from'} 0", name)
    return number
