"""The files of an engine's log: small JSON records with a checksum, and tables that can be mapped.

A file appears whole or not at all and says what it is; one that is damaged, foreign or of another format is an error
that names it.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any, Final

import pyarrow as pa

from streamjoin._version import __version__
from streamjoin.adhoc.core.buckets import Bucket
from streamjoin.model.errors import CheckpointError
from streamjoin.storage.pieces import Block, BlockRows, MappedPiece, atomic, read_footer, write_piece
from streamjoin.storage.places import Place

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
        raise CheckpointError(f"{path} is no table of an ad-hoc engine; restore the checkpoint from a copy") from error
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
