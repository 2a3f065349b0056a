"""S3 requests that Arrow lacks: a write that fails if the object exists, and a removal without leftovers.

Arrow overwrites existing objects. When it removes an object it uses up to three more requests to keep the "directory"
as an empty object. With boto3 (`pip install 'streamjoin[s3]'`) files are written with `If-None-Match: *` and removed
with one request.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any, BinaryIO
from urllib.parse import urlencode, urlsplit

from pyarrow import fs

from streamjoin.storage.object_clients import NoConditionalWritesError, ObjectClient, split_path
from streamjoin.storage.settings import S3Settings

PART = 32 << 20
"""Files of at least this size are uploaded in parts of this size."""

_TAKEN = ("PreconditionFailed", "412")
_UNABLE = ("NotImplemented", "501")
_MISSING = ("NoSuchKey", "404")


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
