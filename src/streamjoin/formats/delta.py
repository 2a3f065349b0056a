"""Delta tables through `deltalake`, the extra `delta`: no Spark build is needed.

The newest batch of a writer is an application transaction of the table: app id and version, which Delta keeps in its
log and compares at a commit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from streamjoin.config.pipeline import without_secrets
from streamjoin.formats.table_types import file_schema, stored_schema
from streamjoin.formats.tables import (
    DataFile,
    LakeSink,
    TableConflictError,
    first_line,
    resolved,
)
from streamjoin.model.errors import NotSupportedError, SchemaError, SetupError, SpecError, StateError
from streamjoin.storage.places import place
from streamjoin.storage.settings import current

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FORBIDDEN: Final = " ,;{}()\n\t="
_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""What a table may have for files to be added to it; constraints and generated columns must not be in use."""
_COMPUTED: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


@dataclass(frozen=True)
class DeltaSink(LakeSink):
    """A Delta table, exactly once.

    Args:
        path: the table's directory or URL; the table is created if there is none.
        options: of `deltalake` for the store (`storage_options`), besides the storage settings of streamjoin. ${NAME}
            in one is taken from the environment, so that the checkpoint has only the name.
        compression: how data files are compressed.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    compression: str = "zstd"
    kind: ClassVar[str] = "delta"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        if not self.path:
            raise SpecError("a DeltaSink needs the path of a table")
        super().__post_init__()

    def connect(self, schema: pa.Schema) -> OpenDelta:
        """The table, which is created with these columns if there is none."""
        return OpenDelta(self, schema)

    def __str__(self) -> str:
        return f"delta {self.path}"


class OpenDelta:
    """A Delta table that files are added to."""

    needs_bounds = True

    def __init__(self, sink: DeltaSink, schema: pa.Schema) -> None:
        self._sink, self._rows = sink, schema
        self.directory = delta_location(sink.path)
        self._options = delta_options(sink.options)
        with delta_errors(sink.path, self._options):
            self._table = self._loaded(schema)
            self.schema = self._checked()

    def _loaded(self, schema: pa.Schema) -> DeltaTable:
        """The table. `DeltaTable.is_deltatable` would hold Python's lock until the store answers."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.directory, storage_options=self._options)
        except TableNotFoundError:
            self._create(schema)
            return DeltaTable(self.directory, storage_options=self._options)

    def _create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        columns = stored_schema(schema, "Delta")
        for name in columns.names:
            if not name or any(character in _FORBIDDEN for character in name):
                raise SchemaError(
                    f"{name!r} can't be a column of a Delta table, which takes none of {_FORBIDDEN!r}: "
                    "name it with AS in the query"
                )
        if len({name.lower() for name in columns.names}) < len(columns):
            raise SchemaError(f"columns of a Delta table differ in more than case: {', '.join(columns.names)}")
        DeltaTable.create(self.directory, columns, mode="ignore", storage_options=self._options)

    def _checked(self) -> pa.Schema:
        """The columns of a data file, if the rows fit the table as it is now."""
        _check_features(self._table, self._sink.path)
        columns = pa.schema(self._table.schema().to_arrow())
        return file_schema(self._rows, columns, "Delta", self._sink.path)

    def newest(self, writer: str) -> int:
        """The newest batch that the table has of a writer."""
        with delta_errors(self._sink.path, self._options):
            self._table.update_incremental()
            if not self._checked().equals(self.schema):
                raise StateError(f"the columns of the Delta table {self._sink.path} were changed: restart the query")
            version = self._table.transaction_version(writer)
        return -1 if version is None else version

    def commit(self, writer: str, batch: int, files: Sequence[DataFile]) -> None:
        """Add files, with an application transaction."""
        with delta_errors(self._sink.path, self._options):
            from deltalake import CommitProperties, Transaction
            from deltalake.transaction import AddAction

            now = int(time.time() * 1000)
            actions: list[Any] = [
                AddAction(
                    path=file.location.rpartition("/")[2],
                    size=file.size,
                    partition_values={},
                    modification_time=now,
                    data_change=True,
                    stats=_statistics(file),
                )
                for file in files
            ]
            properties = CommitProperties(
                custom_metadata={"streamjoin.query": writer, "streamjoin.batch": str(batch)},
                app_transactions=[Transaction(writer, batch, now)],
            )
            self._table.create_write_transaction(actions, "append", self._table.schema(), commit_properties=properties)


def delta_location(path: str) -> str:
    """Where a table is, for other processes, too."""
    where = place(path)
    return str(where.absolute()) if isinstance(where, Path) else path.rstrip("/")


def delta_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of deltalake for a store: the settings of this process, and those given, from the environment.

    Raises:
        SpecError: the environment has no such variable.
    """
    return {**_store_options(), **resolved(options, "a Delta table")}


def open_delta(path: str, options: Mapping[str, str], version: int | None = None) -> DeltaTable:
    """A table that there is, or a version of it.

    Raises:
        SetupError: deltalake is not installed.
        StateError: there is none, or it can't be read.
    """
    with delta_errors(path, options):
        from deltalake import DeltaTable

        return DeltaTable(delta_location(path), version, dict(options))


def _statistics(file: DataFile) -> str:
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": {name: least for name, (least, _) in file.bounds.items()},
            "maxValues": {name: greatest for name, (_, greatest) in file.bounds.items()},
            "nullCount": dict(file.nulls),
        }
    )


def _check_features(table: DeltaTable, path: str) -> None:
    """Refuse a table to which a file can't be added as it is."""
    metadata = table.metadata()
    if metadata.partition_columns:
        columns = ", ".join(metadata.partition_columns)
        raise NotSupportedError(f"the table {path} is partitioned by {columns}: name one without partitions")
    settings = metadata.configuration
    mapping = settings.get("delta.columnMapping.mode", "none") != "none"
    constraints = [key for key in settings if key.startswith("delta.constraints.")]
    computed = [key for key in _COMPUTED if key in table.schema().to_json()]
    features = sorted(set(table.protocol().writer_features or ()) - _FEATURES)
    reasons = [*(["column mapping"] if mapping else []), *constraints, *computed, *features]
    if reasons:
        raise NotSupportedError(
            f"the table {path} has {', '.join(reasons)}, which streamjoin does not write: name another table"
        )


@contextmanager
def delta_errors(path: str, options: Mapping[str, str]) -> Iterator[None]:
    """Turn errors of deltalake into ours, without secrets.

    Raises:
        SetupError: deltalake is not installed.
        TableConflictError: another writer changed the table during a commit.
        StateError: the table can't be read or written.
    """
    try:
        from deltalake.exceptions import CommitFailedError, DeltaError
    except ImportError as error:
        raise SetupError("Delta tables need deltalake: pip install 'streamjoin[delta]'") from error
    try:
        yield
    except CommitFailedError as error:
        raise TableConflictError(f"the Delta table {path}: {without_secrets(first_line(error), options)}") from error
    except (DeltaError, OSError) as error:
        raise StateError(f"the Delta table {path}: {without_secrets(first_line(error), options)}") from error


def _store_options() -> dict[str, str]:
    """The storage settings of this process as deltalake has them."""
    settings = current()
    s3, azure, gcs = settings.s3, settings.azure, settings.gcs
    styled = s3.endpoint is not None if s3.path_style is None else s3.path_style
    seconds = f"{settings.timeout:g}s"
    options: dict[str, str | None] = {
        "timeout": seconds,
        "connect_timeout": seconds,
        "max_retries": "2",
        "retry_timeout": seconds,
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_REGION": s3.region or ("us-east-1" if s3.endpoint else None),
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
        "AWS_SESSION_TOKEN": s3.session_token,
        "AWS_ALLOW_HTTP": "true" if (s3.endpoint or "").startswith("http:") else None,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if styled else None,
        "AZURE_STORAGE_ACCOUNT_NAME": azure.account,
        "AZURE_STORAGE_ACCOUNT_KEY": azure.account_key,
        "AZURE_STORAGE_SAS_TOKEN": azure.sas_token,
        "AZURE_STORAGE_TENANT_ID": azure.tenant_id,
        "AZURE_STORAGE_CLIENT_ID": azure.client_id,
        "AZURE_STORAGE_CLIENT_SECRET": azure.client_secret,
        "AZURE_STORAGE_ENDPOINT": azure.endpoint,
        "GOOGLE_SERVICE_ACCOUNT": gcs.credentials,
    }
    return {key: text for key, text in options.items() if text is not None}
