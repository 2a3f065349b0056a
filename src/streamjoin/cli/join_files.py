"""`streamjoin run --left ... --right ...`: joins two files in this process, batch by batch, without Spark.

The side whose time is behind is read next, so that few rows wait at the gate, however long the files are. Late rows are
counted and reported.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
from rich.console import Console

from streamjoin.joins.engine.driver import open as open_join
from streamjoin.model import json_values
from streamjoin.model.asof import AsOf
from streamjoin.model.errors import InputError, PipelineFileError, SpecError
from streamjoin.model.keys import tick_ns
from streamjoin.model.plain_types import plain_array
from streamjoin.model.spec import JoinSpec, as_suffixes
from streamjoin.model.window import TimeWindow, Window, as_window

_FORMATS: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".arrow": "arrow",
    ".feather": "feather",
}
_BATCH: Final = 65_536
Write = Callable[[pa.Table], None]


@dataclass(frozen=True)
class FileJoin:
    """The join that the flags describe."""

    left: Path | None = None
    right: Path | None = None
    on: str | None = None
    window: str | None = None
    time: str | None = None
    lateness: str | None = None
    columns: str | None = None
    suffixes: str | None = None
    both_keys: bool = False
    result_time: str | None = None
    how: str | None = None
    asof: str | None = None
    tolerance: str | None = None
    exact: bool = True

    def spec(self) -> JoinSpec:
        """The spec of the join.

        Raises:
            PipelineFileError: a flag is invalid.
        """
        try:
            times = _names(self.time) if self.time else []
            if len(times) > 2:
                raise SpecError("--time is one column, or a left and a right one: ts, or t,u")
            time: Any = None if not times else times[0] if len(times) == 1 else (times[0], times[1])
            if self.window is None and self.asof is None:
                raise SpecError("--window is missing: say how far apart joined rows may be, such as '5 seconds'")
            if self.asof is None and (self.tolerance is not None or not self.exact):
                raise SpecError("--tolerance and --no-exact belong to an as-of join: add --asof backward")
            kinds: Any = {"how": self.how or "inner"}
            if self.asof is not None:
                kinds["match"] = AsOf(self.asof, _number(self.tolerance), self.exact)  # type: ignore[arg-type]
            lateness: Any = _number(self.lateness)
            return JoinSpec(
                on=self.on,
                window=None if self.window is None else _window(self.window),
                time=time,
                lateness=lateness,
                suffixes=as_suffixes(_names(self.suffixes)) if self.suffixes else JoinSpec.suffixes,
                both_keys=self.both_keys,
                result_time=self.result_time,
                **kinds,
            ).in_order()
        except SpecError as error:
            raise PipelineFileError(str(error)) from error


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _number(text: str | None) -> Any:
    """A whole number for integer times, otherwise the text of a duration."""
    return int(text) if text is not None and text.strip().isdigit() else text


def _window(text: str) -> Window:
    number = _number(text)
    return TimeWindow(number) if isinstance(number, int) else as_window(text)


def join_files(file_join: FileJoin, out: Path | None, console: Console) -> None:
    """Join the files and write the rows.

    Raises:
        PipelineFileError: a flag is invalid, or a file can't be read.
        SchemaError: the join does not match the files' columns.
    """
    spec = file_join.spec()
    sides = {"left": _Side(file_join.left or Path()), "right": _Side(file_join.right or Path())}
    rows = late = 0
    with (
        open_join(
            spec,
            left_schema=sides["left"].schema,
            right_schema=sides["right"].schema,
            columns=_names(file_join.columns) if file_join.columns else None,
        ) as join,
        _writer(out) as write,
    ):
        times = dict(zip(("left", "right"), spec.time_columns or (None, None), strict=True))
        if join.schema is not None:
            write(join.schema.empty_table())
        for side, batch in _in_turn(sides, times):
            # Table by table: all matches of a frequent key may not fit into memory.
            for matches in join.push_iter(**{side: batch}):
                rows += matches.num_rows
                write(matches)
            late += join.late().num_rows
        for matches in join.close_iter():
            write(matches)
            rows += matches.num_rows
    console.print(f"{rows:,} rows{f' in {out}' if out else ''}", highlight=False)
    if late:
        console.print(f"{late:,} late rows were left out; --lateness admits them", highlight=False)


class _Side:
    """A file or directory, read in batches."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise PipelineFileError(f"no such file or directory: {path}")
        suffix = path.suffix if path.is_file() else next((p.suffix for p in sorted(path.iterdir()) if p.is_file()), "")
        if suffix.lower() not in _FORMATS:
            raise PipelineFileError(f"{path} is none of {', '.join(_FORMATS)}: convert it, or write a pipeline file")
        try:
            data = pyarrow.dataset.dataset(str(path), format=_FORMATS[suffix.lower()])
            self.schema = data.schema
            self._batches: Iterator[pa.RecordBatch] = data.to_batches(batch_size=_BATCH)
        except (OSError, pa.ArrowException) as error:
            raise PipelineFileError(f"can't read {path}: {error}") from error
        self._path = path
        self.reached: int | None = None

    def read(self, time: str | None) -> pa.Table | None:
        """The next rows, None at the end; `reached` is then the latest time so far."""
        try:
            batch = next((batch for batch in self._batches if batch.num_rows), None)
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"can't read {self._path}: {error}") from error
        if batch is None:
            return None
        if time is not None and time in batch.schema.names:
            self._advance(plain_array(batch.column(time)))
        return pa.Table.from_batches([batch])

    def _advance(self, times: pa.Array) -> None:
        """Advance `reached`; in nanoseconds if the column has a unit, so that sides with different units compare."""
        unit = 1
        if pa.types.is_temporal(times.type):
            unit = tick_ns(times.type)
            times = times.view(pa.int32() if times.type.bit_width == 32 else pa.int64())
        latest = pc.max(times).as_py()
        if latest is not None:
            self.reached = latest * unit if self.reached is None else max(self.reached, latest * unit)


def _in_turn(sides: dict[str, _Side], times: dict[str, str | None]) -> Iterator[tuple[str, pa.Table]]:
    """Batches of both sides; the side that is behind comes first."""
    unfinished = list(sides)
    while unfinished:
        unread = [side for side in unfinished if sides[side].reached is None]
        side = unread[0] if unread else min(unfinished, key=lambda name: sides[name].reached or 0)
        table = sides[side].read(times[side])
        if table is None:
            unfinished.remove(side)
            continue
        if times[side] is None:
            # Without times the sides take turns.
            unfinished.append(unfinished.pop(0))
        yield side, table


@contextlib.contextmanager
def _writer(out: Path | None) -> Iterator[Write]:
    if out is None:
        yield lambda rows: _json_lines(rows, sys.stdout)
        return
    kind = _FORMATS.get(out.suffix.lower())
    if kind is None:
        raise PipelineFileError(f"--out {out}: its name ends with one of {', '.join(_FORMATS)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if kind == "json":
        with out.open("w", encoding="utf-8") as file:
            yield lambda rows: _json_lines(rows, file)
        return
    with contextlib.ExitStack() as opened:
        writers: list[Any] = []

        def write(rows: pa.Table) -> None:
            if not writers:
                writers.append(opened.enter_context(_table_writer(kind, out, rows.schema)))
            writers[0].write_table(rows)

        yield write


def _table_writer(kind: str, out: Path, schema: pa.Schema) -> Any:
    if kind == "parquet":
        return pyarrow.parquet.ParquetWriter(out, schema)
    return pyarrow.csv.CSVWriter(out, schema) if kind == "csv" else pa.ipc.new_file(out, schema)


def _json_lines(rows: pa.Table, file: Any) -> None:
    file.writelines(text + "\n" for text in json_values.row_texts(rows))
