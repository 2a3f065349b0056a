"""Iceberg tables through `pyiceberg`, the extra `iceberg`: no Spark build is needed.

A commit adds files and sets a property of the table, `streamjoin.batch.<writer>`, in one transaction. The properties
of the snapshot say the same, but maintenance expires snapshots. Two commits of the same moment can't both succeed,
because each requires that the branch is where it was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

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
from streamjoin.model.errors import NotSupportedError, SetupError, SpecError, StateError, StreamJoinError
from streamjoin.storage.settings import current

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_NEWEST: Final = "streamjoin.batch."
_RETRIES: Final = "commit.retry.num-retries"


@dataclass(frozen=True)
class IcebergSink(LakeSink):
    """An Iceberg table, exactly once.

    Args:
        table: the table with its namespace, such as "trades.matches"; both are created if they do not exist.
        catalog: the catalog's name, as in pyiceberg's own configuration file.
        options: the catalog's properties (`type`, `uri`, `warehouse`, ...), besides that configuration and the storage
            settings of streamjoin. ${NAME} in one is taken from the environment, so that the checkpoint has only the
            name.
        compression: how data files are compressed.
    """

    table: str
    catalog: str = "default"
    options: Mapping[str, str] = field(default_factory=dict)
    compression: str = "zstd"
    kind: ClassVar[str] = "iceberg"

    def __post_init__(self) -> None:
        if not isinstance(self.table, str) or not all(self.table.split(".")) or "." not in self.table:
            raise SpecError(f"an IcebergSink needs a table with its namespace, 'db.matches', not {self.table!r}")
        if not isinstance(self.catalog, str) or not self.catalog:
            raise SpecError(f"an IcebergSink needs the name of a catalog, not {self.catalog!r}")
        super().__post_init__()

    def check_catalog(self) -> None:
        """Refuse a catalog that is not described, without asking it.

        Raises:
            SetupError: pyiceberg is not installed.
            StateError: neither the options nor pyiceberg's own configuration say where the catalog is.
        """
        options = iceberg_options(self.options)
        with iceberg_errors(self.table, options):
            from pyiceberg.catalog import infer_catalog_type
            from pyiceberg.utils.config import Config

            known = {**(Config().get_catalog_config(self.catalog) or {}), **options}
            # These two say by themselves what to open.
            if not known.get("type") and not known.get("py-catalog-impl"):
                infer_catalog_type(self.catalog, known)

    def connect(self, schema: pa.Schema) -> OpenIceberg:
        """The table, which is created with these columns if there is none."""
        return OpenIceberg(self, schema)

    def __str__(self) -> str:
        return f"iceberg {self.table} in {self.catalog}"


class OpenIceberg:
    """An Iceberg table that files are added to."""

    # pyiceberg has them from the files.
    needs_bounds = False

    def __init__(self, sink: IcebergSink, schema: pa.Schema) -> None:
        self._sink = sink
        self._options = iceberg_options(sink.options)
        with iceberg_errors(sink.table, self._options):
            from pyiceberg.exceptions import NoSuchTableError

            self._catalog = open_catalog(sink.catalog, self._options)
            try:
                self._table: Table = self._catalog.load_table(sink.table)
            except NoSuchTableError:
                self._table = self._create(stored_schema(schema, "Iceberg"))
            if self._table.spec().fields:
                columns = ", ".join(one.name for one in self._table.spec().fields)
                raise NotSupportedError(
                    f"the table {sink.table} is partitioned by {columns}: name one without partitions"
                )
            columns_there = self._table.schema().as_arrow()
            root = self._table.properties.get("write.data.path") or f"{self._table.location()}/data"
        self.directory = root.rstrip("/")
        self.schema = file_schema(schema, columns_there, "Iceberg", sink.table)

    def _create(self, columns: pa.Schema) -> Table:
        self._catalog.create_namespace_if_not_exists(self._sink.table.rpartition(".")[0])
        return self._catalog.create_table_if_not_exists(self._sink.table, columns)

    def newest(self, writer: str) -> int:
        """The newest batch that the table has of a writer."""
        with iceberg_errors(self._sink.table, self._options):
            self._table = self._catalog.load_table(self._sink.table)
        return int(self._table.properties.get(_NEWEST + writer, -1))

    def commit(self, writer: str, batch: int, files: Sequence[DataFile]) -> None:
        """Add files, with the properties that name the batch."""
        with iceberg_errors(self._sink.table, self._options):
            table = self._table
            # A retry of pyiceberg's own would not ask again which batch is the newest. This changes no table, only how
            # this object sees it.
            properties = {**table.metadata.properties, _RETRIES: "0"}
            table.metadata = table.metadata.model_copy(update={"properties": properties})
            with table.transaction() as transaction:
                transaction.add_files(
                    [file.location for file in files],
                    {"streamjoin.query": writer, "streamjoin.batch": str(batch)},
                    # Their names are new, so that there is no need to read all manifests.
                    check_duplicate_files=False,
                )
                transaction.set_properties({_NEWEST + writer: str(batch)})


def iceberg_options(options: Mapping[str, str]) -> dict[str, str]:
    """The properties of a catalog: the settings of this process, and those given, from the environment.

    Raises:
        SpecError: the environment has no such variable.
    """
    return {**_store_options(), **resolved(options, "an Iceberg table")}


def open_catalog(name: str, options: Mapping[str, str]) -> Catalog:
    """A catalog; what goes wrong is for `iceberg_errors`."""
    from pyiceberg.catalog import load_catalog

    return load_catalog(name, **options)


@contextmanager
def iceberg_errors(table: str, options: Mapping[str, str]) -> Iterator[None]:
    """Turn errors of pyiceberg and of its catalogs' clients into ours, without secrets.

    Raises:
        SetupError: pyiceberg, or what it needs for the catalog, is not installed.
        TableConflictError: another writer changed the table during a commit.
        StateError: the table can't be read or written.
    """
    try:
        from pyiceberg.exceptions import CommitFailedException, NotInstalledError
    except ImportError as error:
        raise SetupError("Iceberg tables need pyiceberg: pip install 'streamjoin[iceberg]'") from error
    try:
        yield
    except StreamJoinError:
        raise
    except NotInstalledError as error:
        raise SetupError(f"the Iceberg table {table}: {first_line(error)}") from error
    except CommitFailedException as error:
        raise TableConflictError(f"the Iceberg table {table}: {first_line(error)}") from error
    except Exception as error:
        # Each catalog has errors of its own: of HTTP, of a database, of a cloud's client.
        raise StateError(f"the Iceberg table {table}: {without_secrets(first_line(error), options)}") from error


def _store_options() -> dict[str, str]:
    """The storage settings of this process as pyiceberg has them."""
    settings = current()
    s3, azure, gcs = settings.s3, settings.azure, settings.gcs
    options: dict[str, str | None] = {
        "s3.endpoint": s3.endpoint,
        "s3.region": s3.region or ("us-east-1" if s3.endpoint else None),
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
        "s3.session-token": s3.session_token,
        "adls.account-name": azure.account,
        "adls.account-key": azure.account_key,
        "adls.sas-token": azure.sas_token,
        "adls.tenant-id": azure.tenant_id,
        "adls.client-id": azure.client_id,
        "adls.client-secret": azure.client_secret,
        "gcs.project-id": gcs.project,
        "gcs.service.host": gcs.endpoint,
    }
    return {key: text for key, text in options.items() if text is not None}
