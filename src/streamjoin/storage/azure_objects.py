"""Azure's blobs: a file system of Arrow with any kind of credentials, and a client for writes with a condition.

Arrow's own reading of a location always takes the default credentials, so the file system is built here. Conditional
writes (`If-None-Match: *`) need `pip install 'streamjoin[azure]'`.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from pyarrow import fs

from streamjoin.storage.object_clients import ObjectClient, split_path
from streamjoin.storage.settings import AzureSettings


def azure_file_system(uri: str, azure: AzureSettings) -> tuple[fs.FileSystem, str]:
    """The file system and path of a location such as `abfss://container@account.dfs.core.windows.net/path`."""
    parts = urlsplit(uri)
    account = azure.account or (parts.hostname or "").partition(".")[0]
    options: dict[str, Any] = {
        name: value
        for name in ("account_key", "sas_token", "tenant_id", "client_id", "client_secret")
        if (value := getattr(azure, name)) is not None
    }
    if azure.sas_token is not None:
        # Arrow appends it to URLs as it is.
        options["sas_token"] = f"?{azure.sas_token.removeprefix('?')}"
    if azure.endpoint is not None:
        target = urlsplit(azure.endpoint)
        for kind in ("blob", "dfs"):
            options |= {f"{kind}_storage_authority": target.netloc, f"{kind}_storage_scheme": target.scheme}
    return fs.AzureFileSystem(account, **options), f"{parts.username or ''}{parts.path}".strip("/")


class AzureBlobs(ObjectClient):
    """The blobs of one account."""

    def __init__(self, service: Any, errors: Any) -> None:
        self._service = service
        self._errors = errors

    def create(self, path: str, source: BinaryIO) -> bool:
        """Create a blob unless it exists."""
        try:
            self._service.get_blob_client(*split_path(path)).upload_blob(source, overwrite=False)
        except self._errors.ResourceExistsError:
            return False
        except self._errors.AzureError as error:
            raise OSError(str(error)) from error
        return True

    def put(self, path: str, source: BinaryIO) -> None:
        """Create or replace a blob."""
        try:
            self._service.get_blob_client(*split_path(path)).upload_blob(source, overwrite=True)
        except self._errors.AzureError as error:
            raise OSError(str(error)) from error

    def read(self, path: str) -> bytes | None:
        """The content of a blob; None if it does not exist."""
        try:
            return bytes(self._service.get_blob_client(*split_path(path)).download_blob().readall())
        except self._errors.ResourceNotFoundError:
            return None
        except self._errors.AzureError as error:
            raise OSError(str(error)) from error

    def delete(self, path: str) -> None:
        """Remove a blob, if it exists."""
        try:
            self._service.get_blob_client(*split_path(path)).delete_blob()
        except self._errors.ResourceNotFoundError:
            return
        except self._errors.AzureError as error:
            raise OSError(str(error)) from error


def azure_blobs(account: str, azure: AzureSettings, timeout: float) -> AzureBlobs | None:
    """The blobs of an account; None if the library is not installed."""
    return _blobs(os.getpid(), account, azure, timeout)


@functools.lru_cache(maxsize=16)
def _blobs(process: int, account: str, azure: AzureSettings, timeout: float) -> AzureBlobs | None:
    """Each `process` has its own: connections must not be shared with a forked process."""
    del process
    try:
        blob = importlib.import_module("azure.storage.blob")
        errors = importlib.import_module("azure.core.exceptions")
        credentials = importlib.import_module("azure.core.credentials")
    except ImportError:
        return None
    if azure.account_key is not None:
        credential: Any = credentials.AzureNamedKeyCredential(account, azure.account_key)
    elif azure.sas_token is not None:
        credential = credentials.AzureSasCredential(azure.sas_token)
    else:
        identity = importlib.import_module("azure.identity")
        credential = (
            identity.ClientSecretCredential(azure.tenant_id, azure.client_id, azure.client_secret)
            if azure.client_secret is not None
            else identity.DefaultAzureCredential()
        )
    url = f"{azure.endpoint.rstrip('/')}/{account}" if azure.endpoint else f"https://{account}.blob.core.windows.net"
    service = blob.BlobServiceClient(
        url, credential=credential, retry_total=2, initial_backoff=0, increment_base=1, connection_timeout=timeout * 0.3
    )
    return AzureBlobs(service, errors)
