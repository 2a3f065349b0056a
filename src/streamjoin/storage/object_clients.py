"""What the log needs of object stores and Arrow lacks: a write that fails if the object exists, and plain removal.

- S3: Arrow overwrites existing objects, and when it removes one it uses up to three more requests to keep the
  "directory" as an empty object. With boto3 (the extra `s3`) files are written with `If-None-Match: *`
  and removed with one request.
- Azure: Arrow's own reading of a location always takes the default credentials, so the file system is built here.
  Conditional writes need the extra `azure`.
- Google's store has a condition of its own, a generation of 0, with the extra `gcs`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, BinaryIO
from urllib.parse import urlencode, urlsplit

from pyarrow import fs

from streamjoin.storage.settings import AzureSettings, GcsSettings, S3Settings

PART = 32 << 20
"""Files of at least this size are uploaded in parts of this size."""

_TAKEN = ("PreconditionFailed", "412")
_UNABLE = ("NotImplemented", "501")
_MISSING = ("NoSuchKey", "404")


class NoConditionalWritesError(OSError):
    """The store can't refuse to replace an object, or the library that can ask it to is not installed."""


class ObjectClient(ABC):
    """A client of one store. Paths begin with the bucket or container; every failure is an OSError."""

    @abstractmethod
    def create(self, path: str, source: BinaryIO) -> bool:
        """Create an object unless it exists; returns whether this call created it.

        Raises:
            NoConditionalWritesError: the store has no such request. Nothing was written.
        """

    @abstractmethod
    def put(self, path: str, source: BinaryIO) -> None:
        """Create or replace an object."""

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """The content of a small object; None if it does not exist."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove an object, if it exists."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove objects, as far as they exist; by default one by one."""
        for path in paths:
            self.delete(path)


def split_path(path: str) -> tuple[str, str]:
    """The bucket and the key of a path."""
    bucket, _, key = path.partition("/")
    return bucket, key


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


class S3Objects(ObjectClient):
    """The objects of an Arrow file system's store, through boto3. Paths begin with the bucket."""

    def __init__(self, client: Any, errors: tuple[type[Exception], type[Exception]]) -> None:
        self._client = client
        self._refused, self._failed = errors
        self._conditional = True

    def create(self, path: str, source: BinaryIO) -> bool:
        """Create an object unless it exists."""
        if not self._conditional:
            raise NoConditionalWritesError
        try:
            self._upload(path, source, {"IfNoneMatch": "*"})
        except self._refused as error:
            code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
            if code in _UNABLE:
                self._conditional = False
                raise NoConditionalWritesError from error
            if code not in _TAKEN:
                raise OSError(str(error)) from error
            return False
        except self._failed as error:
            raise OSError(str(error)) from error
        return True

    def put(self, path: str, source: BinaryIO) -> None:
        """Create or replace an object."""
        try:
            self._upload(path, source, {})
        except (self._refused, self._failed) as error:
            raise OSError(str(error)) from error

    def _upload(self, path: str, source: BinaryIO, condition: dict[str, str]) -> None:
        bucket, key = split_path(path)
        place = {"Bucket": bucket, "Key": key}
        part = source.read(PART)
        if len(part) < PART:
            self._client.put_object(**place, Body=part, **condition)
            return
        upload = {**place, "UploadId": self._client.create_multipart_upload(**place)["UploadId"]}
        try:
            parts: list[dict[str, Any]] = []
            while part:
                number = len(parts) + 1
                tag = self._client.upload_part(**upload, PartNumber=number, Body=part)["ETag"]
                parts.append({"PartNumber": number, "ETag": tag})
                part = source.read(PART)
            self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **condition)
        except BaseException:
            # The parts of an incomplete upload would stay in the store and cost money.
            with contextlib.suppress(self._refused, self._failed):
                self._client.abort_multipart_upload(**upload)
            raise

    def read(self, path: str) -> bytes | None:
        """The content of an object; None if it does not exist."""
        bucket, key = split_path(path)
        try:
            return bytes(self._client.get_object(Bucket=bucket, Key=key)["Body"].read())
        except self._refused as error:
            if str(getattr(error, "response", {}).get("Error", {}).get("Code", "")) in _MISSING:
                return None
            raise OSError(str(error)) from error
        except self._failed as error:
            raise OSError(str(error)) from error

    def delete(self, path: str) -> None:
        """Remove an object, if it exists."""
        bucket, key = split_path(path)
        try:
            self._client.delete_object(Bucket=bucket, Key=key)
        except (self._refused, self._failed) as error:
            raise OSError(str(error)) from error

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove objects of one bucket, a thousand by one request."""
        keys = [split_path(path) for path in paths]
        for begin in range(0, len(keys), 1000):
            objects = {"Objects": [{"Key": key} for _, key in keys[begin : begin + 1000]], "Quiet": True}
            try:
                answer = self._client.delete_objects(Bucket=keys[0][0], Delete=objects)
            except (self._refused, self._failed) as error:
                raise OSError(str(error)) from error
            for failure in answer.get("Errors", ()):
                raise OSError(f"{failure.get('Key')} can't be removed: {failure.get('Message')}")


def s3_file_system(uri: str, s3: S3Settings, timeout: float) -> tuple[fs.FileSystem, str]:
    """The file system and path of a location such as `s3://bucket/path`, which may have options of Arrow's."""
    options = {}
    if s3.endpoint is not None:
        target = urlsplit(s3.endpoint)
        options = {"endpoint_override": target.netloc, "scheme": target.scheme}
    if s3.endpoint is not None or s3.region is not None:
        # Without a region Arrow would ask AWS for that of the bucket.
        options["region"] = s3.region or "us-east-1"
    filesystem, path = fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}{urlencode(options)}")
    changed = dict(filesystem.__reduce__()[1][0])
    # A delayed open writes a small file with one request instead of three.
    changed |= {"connect_timeout": timeout * 0.3, "allow_delayed_open": True}
    if s3.access_key is not None:
        changed |= {"access_key": s3.access_key, "secret_key": s3.secret_key, "session_token": s3.session_token}
    if s3.path_style is not None:
        changed["force_virtual_addressing"] = not s3.path_style
    return fs.S3FileSystem(**{name: value for name, value in changed.items() if value not in (None, "")}), path


def s3_objects(filesystem: fs.FileSystem, timeout: float) -> S3Objects | None:
    """The objects of an Arrow file system; None if boto3 is not installed."""
    settings = filesystem.__reduce__()[1][0]
    names = (
        "access_key", "secret_key", "session_token", "region", "scheme", "endpoint_override", "anonymous", "role_arn",
        "force_virtual_addressing", "tls_ca_file_path",
    )  # fmt: skip
    return _client(os.getpid(), timeout, *(settings.get(name) or None for name in names))


@functools.lru_cache(maxsize=16)
def _client(
    process: int,
    timeout: float,
    access_key: str | None,
    secret_key: str | None,
    token: str | None,
    region: str | None,
    scheme: str | None,
    endpoint: str | None,
    anonymous: bool | None,
    role: str | None,
    virtual: bool | None,
    certificates: str | None,
) -> S3Objects | None:
    """A client with Arrow's settings; boto3 looks for other credentials in the same places as Arrow.

    Each `process` has its own: connections must not be shared with a forked process.
    """
    del process
    if role or anonymous:
        # A location can't contain these; they are set in code only.
        return None
    try:
        boto3 = importlib.import_module("boto3")
        config = importlib.import_module("botocore.config")
        errors = importlib.import_module("botocore.exceptions")
    except ImportError:
        return None
    if endpoint and "://" not in endpoint:
        endpoint = f"{scheme or 'https'}://{endpoint}"
    style = "path" if endpoint and not virtual else "auto"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        aws_session_token=token,
        verify=certificates,
        config=config.Config(
            s3={"addressing_style": style},
            connect_timeout=timeout * 0.3,
            retries={"total_max_attempts": 3, "mode": "standard"},
            # Other stores often reject boto3's checksums; the log's files contain their own.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    return S3Objects(client, (errors.ClientError, errors.BotoCoreError))


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
    return _gcs_client(os.getpid(), gcs, timeout)


@functools.lru_cache(maxsize=16)
def _gcs_client(process: int, gcs: GcsSettings, timeout: float) -> GcsObjects | None:
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
