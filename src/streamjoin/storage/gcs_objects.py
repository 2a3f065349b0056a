"""Google's objects: a file system of Arrow, and a client for writes with a condition.

Conditional writes (`ifGenerationMatch=0`) need `pip install 'streamjoin[gcs]'`.
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib
import os
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from pyarrow import fs

from streamjoin.storage.object_clients import ObjectClient, split_path
from streamjoin.storage.settings import GcsSettings

_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"


def gcs_file_system(uri: str, gcs: GcsSettings, timeout: float) -> tuple[fs.FileSystem, str]:
    """The file system and path of a location such as `gs://bucket/path`."""
    parts = urlsplit(uri)
    if gcs.credentials is not None:
        # The only way to give Arrow a key file.
        os.environ[_KEY_FILE] = gcs.credentials
    options: dict[str, Any] = {"retry_time_limit": dt.timedelta(seconds=timeout)}
    if gcs.anonymous or parts.username == "anonymous":
        options["anonymous"] = True
    if gcs.project is not None:
        options["project_id"] = gcs.project
    if gcs.endpoint is not None:
        target = urlsplit(gcs.endpoint)
        options |= {"endpoint_override": target.netloc, "scheme": target.scheme}
    return fs.GcsFileSystem(**options), f"{parts.hostname}{parts.path}".rstrip("/")


class GcsObjects(ObjectClient):
    """The objects that one client reaches."""

    def __init__(self, client: Any, errors: Any, timeout: float) -> None:
        self._client = client
        self._errors = errors
        retrying = importlib.import_module("google.cloud.storage.retry")
        self._options = {"timeout": (timeout * 0.3, 60.0), "retry": retrying.DEFAULT_RETRY.with_timeout(timeout)}

    def create(self, path: str, source: BinaryIO) -> bool:
        """Create an object unless it exists."""
        try:
            self._upload(path, source, if_generation_match=0)
        except self._errors.PreconditionFailed:
            return False
        except (self._errors.GoogleAPIError, OSError, ValueError) as error:
            raise OSError(str(error)) from error
        return True

    def put(self, path: str, source: BinaryIO) -> None:
        """Create or replace an object."""
        try:
            self._upload(path, source)
        except (self._errors.GoogleAPIError, OSError, ValueError) as error:
            raise OSError(str(error)) from error

    def _upload(self, path: str, source: BinaryIO, **condition: int) -> None:
        bucket, key = split_path(path)
        # With a size, a small object is one request.
        size = source.seek(0, os.SEEK_END)
        source.seek(0)
        self._client.bucket(bucket).blob(key).upload_from_file(source, size=size, **condition, **self._options)

    def read(self, path: str) -> bytes | None:
        """The content of an object; None if it does not exist."""
        bucket, key = split_path(path)
        try:
            return bytes(self._client.bucket(bucket).blob(key).download_as_bytes(**self._options))
        except self._errors.NotFound:
            return None
        except (self._errors.GoogleAPIError, OSError) as error:
            raise OSError(str(error)) from error

    def delete(self, path: str) -> None:
        """Remove an object, if it exists."""
        bucket, key = split_path(path)
        try:
            self._client.bucket(bucket).blob(key).delete(**self._options)
        except self._errors.NotFound:
            return
        except (self._errors.GoogleAPIError, OSError) as error:
            raise OSError(str(error)) from error


def gcs_objects(gcs: GcsSettings, timeout: float) -> GcsObjects | None:
    """The objects of a project; None if the library is not installed."""
    return _client(os.getpid(), gcs, timeout)


@functools.lru_cache(maxsize=16)
def _client(process: int, gcs: GcsSettings, timeout: float) -> GcsObjects | None:
    """Each `process` has its own: connections must not be shared with a forked process."""
    del process
    try:
        storage = importlib.import_module("google.cloud.storage")
        errors = importlib.import_module("google.api_core.exceptions")
        credentials = importlib.import_module("google.auth.credentials")
    except ImportError:
        return None
    options: dict[str, Any] = {"project": gcs.project}
    if gcs.endpoint is not None:
        options["client_options"] = {"api_endpoint": gcs.endpoint}
    if gcs.anonymous:
        options |= {"credentials": credentials.AnonymousCredentials(), "project": gcs.project or "none"}
    elif gcs.credentials is not None:
        return GcsObjects(storage.Client.from_service_account_json(gcs.credentials, **options), errors, timeout)
    return GcsObjects(storage.Client(**options), errors, timeout)
