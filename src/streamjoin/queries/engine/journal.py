"""The engine's own log: what it needs to go on after a crash, in files under its checkpoint.

    engine.json            which engine this is
    changes/<serial>       a group of changelog records and the batch from which they are in force
    batches/<batch>        what came into a batch: the positions of the streams, the clocks after it, the buckets held
    buckets/<stream>-<b>   the tuples of a batch, written once and mapped
    kinds/<batch>          what waits after the batch of queries with outer, semi, anti or as-of joins, and open groups
    done/<batch>           that the batch's rows are in the sinks, and what was counted so far
    state/<serial>         all queries and the plan after the changes up to this serial
    late/<stream>/<batch>  tuples that were late or had no time, as Parquet, or as Arrow where Parquet can't hold them
    malformed/<stream>/<b> records that could not be decoded, likewise
    attempts/<batch>       how often a restart computed the batch again, and which query it was at
    undelivered/<query>    the spool: rows that wait for a sink
    streams/<stream>       Spark's own checkpoint of a stream
    sources/<stream>       notes of a source that this process reads
    origins/<stream>       where the positions of a stream are from, such as a directory or a topic
    epochs/<n>             the claim of one start, where the checkpoint can't be locked
    epochs/<n>.base        what that start found: the newest batch and the newest change of the starts before

The invariants: a change is acknowledged when its group is on disk. A batch's tuples are on disk before their source may
forget them and before any row is delivered, so that a batch without `done` is computed again from the very same tuples.
Nothing that a restart needs is ever removed: of the changes those stay that came after the older of two states, and the
newest besides, for who asks what happened.

One engine writes. A local checkpoint is locked. Elsewhere a start claims the checkpoint and then reads it. The names of
batches and changes end with the number of the claim (`<batch>.<n>`), and what an earlier start writes after a later one
has read is void. An engine looks for newer claims after it wrote a batch or a change and before anything follows from
it, and stops if there is one. Its files can't be in the way of the newer engine's, whose batches have higher numbers.

Without a checkpoint nothing survives the process, so nothing is written (`MemoryJournal`): what the engine reads back
while it runs stays in memory, and only the notes of sources are in files, of a temporary directory.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import logging
import re
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin._version import __version__
from streamjoin.model.errors import CheckpointError, StateError, reason_of
from streamjoin.queries.core.arrivals import Arrived, Clocks
from streamjoin.queries.core.buckets import Bucket
from streamjoin.queries.sinks.base import NewestRows, PackedRows
from streamjoin.storage.claims import DIRECTORY, claim, claims, refuse_superseded
from streamjoin.storage.pieces import Block, BlockRows, MappedPiece, atomic, read_footer, write_piece
from streamjoin.storage.places import Place, entries, in_order, reached, remove_oldest

FORMAT: Final = 1
_MAGIC: Final = "streamjoin-adhoc"
_HEADER = re.compile(rf"{_MAGIC} (\d+) ([0-9a-f]{{8}})\n".encode())


def write_record(path: Place, body: dict[str, Any], *, once: bool = False) -> None:
    """Write a record under its name; it is on disk when this returns. With `once`, an existing one stays.

    Raises:
        CheckpointError: it can't be written.
    """
    text = json.dumps(body, separators=(",", ":"), sort_keys=True).encode()
    with atomic(path, once=once) as file:
        file.write(f"{_MAGIC} {FORMAT} {zlib.crc32(text):08x}\n".encode())
        file.write(text)


def read_record(path: Place) -> dict[str, Any]:
    """What `write_record` wrote.

    Raises:
        CheckpointError: it is missing, damaged, no record, or of another format.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"the file {path} of the ad-hoc engine's checkpoint can't be read ({error}); restore it from a copy"
        ) from error
    header = _HEADER.match(data)
    if header is None:
        raise CheckpointError(
            f"{path} is no file of an ad-hoc engine, or is damaged; restore the checkpoint from a copy"
        )
    if int(header[1]) != FORMAT:
        raise CheckpointError(
            f"{path} has format {int(header[1])}, and streamjoin {__version__} reads format {FORMAT}. Nothing was "
            "changed: run the version that wrote it, or start with a new checkpoint"
        )
    text = data[header.end() :]
    if zlib.crc32(text) != int(header[2], 16):
        raise CheckpointError(f"{path} is damaged: its checksum differs; restore the checkpoint from a copy")
    body: dict[str, Any] = json.loads(text)
    return body


def write_table(path: Place, table: pa.Table) -> None:
    """Write a table so that it can be mapped; what has this name already is replaced."""
    path.unlink(missing_ok=True)
    batches = table.combine_chunks().to_batches()
    schema = base64.b64encode(table.schema.serialize()).decode()
    write_piece(path, ([BlockRows(batch, 0, 0) for batch in batches], []), {"schema": schema})


def read_table(path: Place) -> pa.Table:
    """What `write_table` wrote, mapped into memory.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    footer = read_footer(path)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(footer["schema"])))
        blocks = [Block(*packed) for packed in footer["blocks"][0]]
    except (KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise CheckpointError(
            f"{path} is no table of an ad-hoc engine ({reason_of(error)}); restore the checkpoint from a copy"
        ) from error
    mapped = MappedPiece(path)
    return pa.Table.from_batches([mapped.batch(block, schema) for block in blocks], schema)


def read_bucket(path: Place) -> Bucket:
    """A stored bucket, mapped into memory."""
    return Bucket.from_table(read_table(path))


def safe_name(name: str) -> str:
    """A name as a part of a path: letters, digits, - and _ stay, everything else becomes its number.

    >>> safe_name("orders"), safe_name("a b/ü")
    ('orders', 'a~20b~2f~fc')
    """
    return re.sub(r"[^A-Za-z0-9_-]", lambda match: f"~{ord(match[0]):x}", name)


Body = dict[str, Any]
Position = int | str | Mapping[str, Any] | Sequence[Any]
"""Where a stream goes on, as its source counts it: Spark's batch, offsets of a topic, a number of tuples. JSON."""


_logger = logging.getLogger("streamjoin.adhoc")
_CLAIMED = ("batches", "changes")
"""The kinds of records that belong to one start."""
_SKIPPED = 1_000_000
_CLAIMED_NAME = re.compile(r"(\d+)(?:\.(\d+))?")
ASIDE_KEPT: Final = 10_000
"""Rows that were set aside, by stream and kind, that can still be read without a checkpoint."""
CHANGES_KEPT: Final = 10_000
"""Records of the changelog that are kept at least."""
_ARROW = ".arrow"
_ASIDE = {".parquet": pq.read_table, _ARROW: lambda file: pa.ipc.open_file(file.read()).read_all()}
"""What reads the files of rows that were set aside, by suffix."""


def _aside_file(rows: pa.Table) -> tuple[str, pa.Buffer]:
    """Rows as a file, and its suffix: Parquet, or Arrow's own format for what Parquet can't hold.

    That is any value that has no place there, such as an empty struct, and so must not end the engine.
    """
    sink = pa.BufferOutputStream()
    try:
        if any(">[0]" in str(type_) for type_ in rows.schema.types):
            raise pa.ArrowNotImplementedError("lists of the fixed size 0 can be written, and not be read back")
        pq.write_table(rows, sink)
        return ".parquet", sink.getvalue()
    except (pa.ArrowException, OSError):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        return _ARROW, sink.getvalue()


def stored_executor(checkpoint: str) -> str | None:
    """The kind of engine that began a checkpoint; None if there is none yet."""
    about = reached(checkpoint) / "engine.json"
    return str(read_record(about).get("executor", "spark")) if about.exists() else None


class Journal(Protocol):
    """What a running engine writes down, and reads back while it runs; a restart reads a `FileJournal` (`recover`)."""

    engine: str
    """Which engine this is."""
    batches_skipped: int
    """How far the numbers of batches jump at a start, past any number that a start before can still use."""
    changes_kept: int
    """Records of the changelog that are kept at least."""

    def close(self) -> None:
        """Finish what is being removed and let go of the checkpoint."""

    def write_changes(self, serial: int, batch: int, records: list[Body]) -> None:
        """Acknowledge changes, of which the first has this serial."""

    def write_input(
        self, arrived: Arrived, positions: Mapping[str, Position], held: Mapping[str, Iterable[int]], serial: int
    ) -> None:
        """Make a batch's tuples safe; `held` are the batches whose buckets are kept, `serial` ends the changelog."""

    def write_kinds(self, batch: int, states: pa.Table) -> None:
        """Keep what waits after a batch."""

    def write_done(self, batch: int, counts: Body) -> None:
        """Say that a batch's rows are in the sinks. If this is lost with the machine, they are written again."""

    def write_state(self, serial: int, batch: int, state: Body) -> None:
        """Keep the queries and the plan after the changes up to `serial`, once `batch` is done."""

    def write_attempt(self, batch: int, attempt: Body | None) -> None:
        """Note how computing a batch again goes; None when it is done."""

    def write_undelivered(self, query: str, batch: int, rows: pa.Table) -> None:
        """Spool rows that wait for a sink."""

    def undelivered(self, query: str) -> list[tuple[int, pa.Table]]:
        """The rows that wait for a query's sink, by batch."""

    def read_undelivered(self, query: str, batch: int) -> pa.Table:
        """The rows of a batch that wait for a query's sink."""

    def forget_undelivered(self, query: str, batch: int | None = None) -> None:
        """Remove the rows of a batch that a sink has taken now, or all of a query that is dropped."""

    def aside(self, kind: Literal["late", "malformed"], stream: str, limit: int | None = None) -> pa.Table | None:
        """What was set aside of a stream, oldest first, or the newest `limit` rows of it; None if there is nothing."""

    def write_origin(self, stream: str, origin: str) -> None:
        """Note where a stream is read from, before its first tuple."""

    def origin(self, stream: str) -> str | None:
        """Where a stream is read from; None where nothing has noted it."""

    def source_notes(self, stream: str) -> Place | None:
        """Where a source of this process may keep notes; None where nothing is kept."""

    def staged(self, stream: str) -> Place | None:
        """Where tuples lie that are handed to several batches; None where nothing is kept."""


class FileJournal:
    """Reads and writes the log; an open journal locks the checkpoint if it is a local directory, or claims it."""

    kept = 2
    """Records of batches that are kept."""
    changes_kept = CHANGES_KEPT

    def __init__(self, checkpoint: str, executor: str = "spark", aside_bytes: int = 4 << 30) -> None:
        """On a checkpoint that `executor` reads streams into; late and malformed rows have `aside_bytes` a stream."""
        self.root = reached(checkpoint)
        self.batches_skipped = 0
        self._aside_bytes = aside_bytes
        self._lock: Any = None
        self._claim: int | None = None
        self._bounds: list[tuple[int, dict[str, int]]] = []
        """The claims of all starts, and by kind the newest record that each of them found."""
        self._names: dict[str, dict[int, str]] = {}
        """The names of claimed records, by kind and number."""
        self._files = ThreadPoolExecutor(1, "adhoc files")
        about = self.root / "engine.json"
        if not about.exists():
            self._refuse_foreign()
        self._hold()
        try:
            if not about.exists():
                new = {"engine": uuid.uuid4().hex, "created": time.time(), "executor": executor}
                write_record(about, new, once=True)
            body = read_record(about)
            self.engine = str(body["engine"])
            self._refuse_other_executor(body.get("executor", "spark"), executor)
        except BaseException:
            self.close()
            raise

    def _refuse_foreign(self) -> None:
        names = {entry.name for entry in entries(self.root) if not entry.name.startswith(".engine.json.")}
        # Another engine may have begun meanwhile; its first file is that one.
        if names - {"lock", DIRECTORY} and not (self.root / "engine.json").exists():
            raise CheckpointError(
                f"{self.root} is not empty and no checkpoint of an ad-hoc engine (it has no engine.json): name an "
                "empty directory, or restore the checkpoint from a copy"
            )

    def _refuse_other_executor(self, before: str, now: str) -> None:
        if before != now:
            raise CheckpointError(
                f"the streams of the checkpoint {self.root} were read by the engine {before!r}, and this one is "
                f"{now!r}, which can't continue where the other stopped: name another checkpoint"
            )

    def _hold(self) -> None:
        if isinstance(self.root, Path):
            # It holds the tuples of all streams, so only its owner may read it. A directory that exists stays as it is.
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (self.root / "lock").open("wb")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._lock.close()
                raise StateError(f"another engine runs on the checkpoint {self.root}: stop it first") from error
        else:
            self._take_over()

    def _take_over(self) -> None:
        """Claim a checkpoint that can't be locked; what earlier starts write from now on is void."""
        try:
            self._claim = claim(self.root)
            bases = [entry for entry in entries(self.root / DIRECTORY) if entry.suffix == ".base"]
            self._bounds = [(int(path.name.removesuffix(".base")), read_record(path)) for path in bases]
            base = {kind: max(self.numbers(kind), default=-1) for kind in _CLAIMED}
            write_record(self.root / DIRECTORY / f"{self._claim:08}.base", base)
            self._bounds.append((self._claim, base))
            self._remove_void()
            self.batches_skipped = _SKIPPED if len(claims(self.root)) > 1 else 0
        except OSError as error:
            raise CheckpointError(f"the checkpoint {self.root} can't be written: {error}") from error

    def _remove_void(self) -> None:
        """Remove records that no start will read: one that is void stays so, whatever others write meanwhile."""
        for kind in _CLAIMED:
            for number, claimed, name in self._claimed(kind):
                if not self._is_valid(kind, number, claimed):
                    (self.root / kind / name).unlink(missing_ok=True)

    def _claimed(self, kind: str) -> list[tuple[int, int, str]]:
        """The number, claim and name of each record, ascending; 0 for records of a version without claims."""
        matches = [match for entry in entries(self.root / kind) if (match := _CLAIMED_NAME.fullmatch(entry.name))]
        return sorted((int(match[1]), int(match[2] or 0), match[0]) for match in matches)

    def _stay(self) -> None:
        """Stop if another engine has claimed the checkpoint."""
        if self._claim is not None:
            refuse_superseded(self.root, self._claim)

    def close(self) -> None:
        """Finish what is being removed and let go of the checkpoint."""
        self._files.shutdown(wait=True)
        if self._lock is not None:
            self._lock.close()

    def in_background(self, work: Callable[..., object], *arguments: object) -> None:
        """Have something done after what was asked for before; `close` waits for it."""
        self._files.submit(work, *arguments)

    # Writing ------------------------------------------------------------------------------------------------------

    def write_changes(self, serial: int, batch: int, records: list[Body]) -> None:
        """Acknowledge changes, of which the first has this serial."""
        write_record(self._new("changes", serial), {"batch": batch, "records": records})
        self._stay()

    def write_input(
        self, arrived: Arrived, positions: Mapping[str, Position], held: Mapping[str, Iterable[int]], serial: int
    ) -> None:
        """Make a batch's tuples safe; `held` are the batches whose buckets are kept, `serial` ends the changelog."""
        for bucket in arrived.buckets.values():
            write_table(self.bucket(bucket.stream, bucket.batch), bucket.to_table())
        for folder, kind, tables in (
            ("late", "late", arrived.late),
            ("late", "untimed", arrived.untimed),
            ("malformed", "malformed", arrived.malformed),
        ):
            for stream, rows in tables.items():
                suffix, data = _aside_file(rows)
                with atomic(self.root / folder / safe_name(stream) / f"{arrived.batch:012}-{kind}{suffix}") as file:
                    file.write(data)
        kept = {stream: sorted(batches) for stream, batches in held.items()}
        clocks = packed_clocks(arrived.clocks)
        aside = {name: list(counted) for name, counted in arrived.aside().items()}
        body = {"consumed": dict(positions), "clocks": clocks, "held": kept, "serial": serial, "aside": aside}
        body["before"] = dict(arrived.before)
        write_record(self._new("batches", arrived.batch), body)
        self._stay()
        self.in_background(self._prune, arrived.batch, kept)
        for stream in aside:
            self.in_background(self._bound_aside, stream)

    def write_kinds(self, batch: int, states: pa.Table) -> None:
        """Keep what waits after a batch."""
        write_table(self.path("kinds", batch), states)

    def write_done(self, batch: int, counts: Body) -> None:
        """Say that a batch's rows are in the sinks. If this is lost with the machine, they are written again."""
        write_record(self.path("done", batch), counts)

    def write_state(self, serial: int, batch: int, state: Body) -> None:
        """Keep the queries and the plan after the changes up to `serial`, once `batch` is done."""
        write_record(self.path("state", serial), {"batch": batch, **state})
        self.in_background(self._prune_states, serial)

    def write_attempt(self, batch: int, attempt: Body | None) -> None:
        """Note how computing a batch again goes; None when it is done."""
        if attempt is None:
            self.path("attempts", batch).unlink(missing_ok=True)
        else:
            write_record(self.path("attempts", batch), attempt)

    def write_undelivered(self, query: str, batch: int, rows: pa.Table) -> None:
        """Spool rows that wait for a sink."""
        write_table(self._undelivered(query) / f"{batch:012}", rows)

    def write_origin(self, stream: str, origin: str) -> None:
        """Note where a stream is read from, before its first tuple."""
        write_record(self.root / "origins" / safe_name(stream), {"origin": origin})

    # Reading ------------------------------------------------------------------------------------------------------

    def numbers(self, kind: str) -> list[int]:
        """The numbers of the files of a kind, ascending; of those that count."""
        if self._claim is None or kind not in _CLAIMED:
            return sorted(int(entry.name) for entry in entries(self.root / kind) if entry.name.isdigit())
        records = self._claimed(kind)
        valid = {number: name for number, claimed, name in records if self._is_valid(kind, number, claimed)}
        self._names[kind] = valid
        return list(valid)

    def _is_valid(self, kind: str, number: int, claimed: int) -> bool:
        """Whether a record was there before any later start had read the checkpoint."""
        return all(number <= base[kind] for start, base in self._bounds if start > claimed)

    def read(self, kind: str, number: int) -> Body:
        """A record."""
        return read_record(self.path(kind, number))

    def bucket(self, stream: str, batch: int) -> Place:
        """Where a bucket lies."""
        return self.root / "buckets" / f"{safe_name(stream)}-{batch:012}"

    def read_bucket(self, stream: str, batch: int) -> Bucket:
        """A stored bucket, mapped into memory."""
        return read_bucket(self.bucket(stream, batch))

    def read_kinds(self, newest: int) -> tuple[int, pa.Table] | None:
        """What waited after a batch, the newest up to `newest` that there is, and that batch."""
        numbers = [number for number in self.numbers("kinds") if number <= newest]
        return (numbers[-1], read_table(self.path("kinds", numbers[-1]))) if numbers else None

    def undelivered(self, query: str) -> list[tuple[int, pa.Table]]:
        """The rows that wait for a query's sink, by batch."""
        return [(batch, self.read_undelivered(query, batch)) for batch in self._spooled(query)]

    def read_undelivered(self, query: str, batch: int) -> pa.Table:
        """The rows of a batch that wait for a query's sink."""
        return read_table(self._undelivered(query) / f"{batch:012}")

    def aside(self, kind: Literal["late", "malformed"], stream: str, limit: int | None = None) -> pa.Table | None:
        """What was set aside of a stream, oldest first, or the newest `limit` rows of it; None if there is nothing."""
        files = [entry for entry in entries(self.root / kind / safe_name(stream)) if entry.suffix in _ASIDE]
        tables: list[pa.Table] = []
        schema: pa.Schema | None = None
        rows = 0
        for file in reversed(files):
            if limit is not None and rows >= limit:
                break
            with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
                # Whoever has read them may remove them.
                tables.append(_ASIDE[file.suffix](opened))
                rows += tables[-1].num_rows
                schema = tables[-1].schema if file.suffix == _ARROW else schema
        if not tables:
            return None
        if schema is not None:
            # Parquet has fewer types: what it has of the same columns is cast to those that were given.
            tables = [table.cast(schema) for table in tables]
        newest = pa.concat_tables(reversed(tables), promote_options="default")
        return newest if limit is None else newest.slice(max(0, rows - limit))

    def spark_checkpoint(self, stream: str) -> str:
        """Where Spark keeps a stream's own checkpoint."""
        return str(self.root / "streams" / safe_name(stream))

    def origin(self, stream: str) -> str | None:
        """Where a stream is read from; None where nothing has noted it."""
        path = self.root / "origins" / safe_name(stream)
        return str(read_record(path)["origin"]) if path.exists() else None

    def source_notes(self, stream: str) -> Place | None:
        """Where a source of this process may keep notes; None where nothing is kept."""
        return self.root / "sources" / safe_name(stream)

    def staged(self, stream: str) -> Place | None:
        """Where tuples lie that are handed to several batches; None where nothing is kept."""
        return self.root / "staged" / safe_name(stream)

    def check_spark(self, stream: str, consumed: int) -> None:
        """Refuse a checkpoint of which a part is gone: batches would get their numbers a second time, or be missing."""
        offsets, commits = (self.numbers(f"streams/{safe_name(stream)}/{kind}") for kind in ("offsets", "commits"))
        newest, committed = (max(numbers, default=-1) for numbers in (offsets, commits))
        if newest < consumed or consumed < committed:
            raise CheckpointError(
                f"the checkpoint {self.root} is incomplete: the engine's log ends at batch {consumed} of stream "
                f"{stream!r}, Spark's offsets at {newest} and its commits at {committed}. Restore it from a copy, or "
                "begin anew"
            )

    # Removing -----------------------------------------------------------------------------------------------------

    def forget_undelivered(self, query: str, batch: int | None = None) -> None:
        """Remove the rows of a batch that a sink has taken now, or all of a query that is dropped."""
        for number in self._spooled(query) if batch is None else [batch]:
            (self._undelivered(query) / f"{number:012}").unlink(missing_ok=True)

    def remove_unfinished(self, newest: int) -> None:
        """Remove what a crash left of a batch after the `newest` that is in the log."""
        for directory in ("buckets", "late/*", "malformed/*"):
            for entry in in_order(self.root.glob(f"{directory}/*")):
                number = _batch_of(entry.name)
                if number is None or number > newest:
                    entry.unlink(missing_ok=True)

    def _bound_aside(self, stream: str) -> None:
        with contextlib.suppress(OSError):
            for folder in ("late", "malformed"):
                removed = remove_oldest(self.root / folder / safe_name(stream), self._aside_bytes)
                if removed:
                    _logger.warning(
                        "the %s rows of stream %r are more than %d bytes: the oldest %d files were removed",
                        folder, stream, self._aside_bytes, removed,
                    )  # fmt: skip

    def _prune(self, batch: int, held: Mapping[str, list[int]]) -> None:
        kept = {self.bucket(stream, number).name for stream, batches in held.items() for number in batches}
        with contextlib.suppress(OSError):
            for entry in entries(self.root / "buckets"):
                number = _batch_of(entry.name)
                if number is not None and number < batch and entry.name not in kept:
                    entry.unlink(missing_ok=True)
            for kind in ("batches", "done", "kinds"):
                # By rank: numbers have gaps, and what a batch waits for may be from long before.
                for number in [number for number in self.numbers(kind) if number <= batch][: -self.kept]:
                    self.path(kind, number).unlink(missing_ok=True)

    def _prune_states(self, newest: int) -> None:
        with contextlib.suppress(OSError):
            *older, before, _ = [0, *self.numbers("state")]
            for number in older[1:]:
                self.path("state", number).unlink(missing_ok=True)
            groups = self.numbers("changes")
            for first, following in pairwise(groups):
                # The oldest first: what a crash leaves has no gap.
                if following - 1 > min(before, newest - self.changes_kept):
                    break
                self.path("changes", first).unlink(missing_ok=True)

    def path(self, kind: str, number: int) -> Place:
        """Where a record lies."""
        return self.root / kind / self._names.get(kind, {}).get(number, f"{number:012}")

    def _new(self, kind: str, number: int) -> Place:
        """Where this start writes a record of a batch or a change."""
        if self._claim is not None:
            self._names.setdefault(kind, {})[number] = f"{number:012}.{self._claim}"
        return self.path(kind, number)

    def _undelivered(self, query: str) -> Place:
        return self.root / "undelivered" / safe_name(query)

    def _spooled(self, query: str) -> list[int]:
        return self.numbers(f"undelivered/{safe_name(query)}")


class MemoryJournal:
    """Keeps in memory what a `FileJournal` writes, as far as a running engine needs it."""

    batches_skipped = 0
    changes_kept = CHANGES_KEPT

    def __init__(self) -> None:
        self.engine = uuid.uuid4().hex
        self._aside: dict[tuple[str, str], NewestRows] = {}
        self._waiting: dict[str, dict[int, PackedRows]] = {}
        self._origins: dict[str, str] = {}
        self._notes: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """Remove the notes of sources."""
        if self._notes is not None:
            self._notes.cleanup()

    def write_changes(self, serial: int, batch: int, records: list[Body]) -> None:
        """Nothing is kept."""

    def write_input(
        self,
        arrived: Arrived,
        positions: Mapping[str, Position],  # noqa: ARG002
        held: Mapping[str, Iterable[int]],  # noqa: ARG002
        serial: int,  # noqa: ARG002
    ) -> None:
        """Keep the newest of what was set aside."""
        for kind, tables in (("late", arrived.late), ("late", arrived.untimed), ("malformed", arrived.malformed)):
            for stream, rows in tables.items():
                newest = self._aside.setdefault((kind, stream), NewestRows(rows.schema, ASIDE_KEPT))
                newest.write(arrived.batch, rows)

    def write_kinds(self, batch: int, states: pa.Table) -> None:
        """Nothing is kept."""

    def write_done(self, batch: int, counts: Body) -> None:
        """Nothing is kept."""

    def write_state(self, serial: int, batch: int, state: Body) -> None:
        """Nothing is kept."""

    def write_attempt(self, batch: int, attempt: Body | None) -> None:
        """Nothing is kept."""

    def write_undelivered(self, query: str, batch: int, rows: pa.Table) -> None:
        """Keep rows that wait for a sink."""
        self._waiting.setdefault(query, {})[batch] = PackedRows(rows)

    def undelivered(self, query: str) -> list[tuple[int, pa.Table]]:
        """The rows that wait for a query's sink, by batch."""
        return sorted((batch, rows.table()) for batch, rows in self._waiting.get(query, {}).items())

    def read_undelivered(self, query: str, batch: int) -> pa.Table:
        """The rows of a batch that wait for a query's sink."""
        return self._waiting[query][batch].table()

    def aside(self, kind: Literal["late", "malformed"], stream: str, limit: int | None = None) -> pa.Table | None:
        """The newest rows set aside of a stream, oldest first; None if there are none."""
        newest = self._aside.get((kind, stream))
        return None if newest is None else newest.newest(ASIDE_KEPT if limit is None else limit)

    def write_origin(self, stream: str, origin: str) -> None:
        """Keep it for who registers a stream again."""
        self._origins[stream] = origin

    def origin(self, stream: str) -> str | None:
        """Where a stream is read from."""
        return self._origins.get(stream)

    def source_notes(self, stream: str) -> Place:
        """A directory that goes with the engine: a source that failed is opened again and goes on by its notes."""
        if self._notes is None:
            self._notes = tempfile.TemporaryDirectory(prefix="streamjoin-notes-", ignore_cleanup_errors=True)
        return Path(self._notes.name) / safe_name(stream)

    def staged(self, stream: str) -> Place | None:  # noqa: ARG002
        """None: nothing is kept."""
        return None

    def forget_undelivered(self, query: str, batch: int | None = None) -> None:
        """Forget the rows of a batch, or all of a query."""
        if batch is None:
            self._waiting.pop(query, None)
        else:
            self._waiting.get(query, {}).pop(batch, None)


def packed_clocks(clocks: Clocks) -> Body:
    """Clocks as JSON has them."""
    horizons, counts = clocks.horizons, clocks.counts
    streams = {name: [horizons[name].clock, counts[name], horizons[name].lateness] for name in counts}
    return {"streams": streams, "gate": clocks.gate}


def held_by(buckets: Mapping[str, Iterable[Bucket]], arrived: Arrived) -> dict[str, list[int]]:
    """The batches whose buckets are held by stream, those that just arrived included."""
    held = {stream: [bucket.batch for bucket in stored] for stream, stored in buckets.items()}
    for stream, bucket in arrived.buckets.items():
        held.setdefault(stream, []).append(bucket.batch)
    return held


def _batch_of(name: str) -> int | None:
    """The number in a bucket's or a late file's name; None for what is only half written."""
    if name.startswith("."):
        return None
    parts = name.removesuffix(".parquet").removesuffix(_ARROW).split("-")
    number = next((part for part in reversed(parts) if part.isdigit()), None)
    return int(number) if number is not None else None
