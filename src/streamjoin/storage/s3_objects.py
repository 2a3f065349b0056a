"""S3 requests that Arrow lacks: a write that fails if the object exists, and a removal without leftovers.

Arrow overwrites existing objects. When it removes an object it uses up to three more requests to keep the "directory"
as an empty object. With boto3 installed (`pip install 'streamjoin[s3]'`) the log writes its files with conditional
requests (`If-None-Match: *`) and removes each with one request.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
from typing import Any, BinaryIO

from pyarrow import fs

PART = 32 << 20
"""Files of at least this size are uploaded in parts of this size."""

_TAKEN = ("PreconditionFailed", "412")
_UNABLE = ("NotImplemented", "501")

_logger = logging.getLogger(__name__)


class S3Objects:
    """The objects of an Arrow file system's store, through boto3. Paths begin with the bucket."""

    def __init__(self, client: Any, errors: tuple[type[Exception], type[Exception]]) -> None:
        self._client = client
        self._refused, self._failed = errors
        self._conditional = True

    def put_new(self, path: str, source: BinaryIO) -> bool:
        """Create an object unless it exists; False if the store has no conditional writes."""
        if not self._conditional:
            return False
        begin = source.tell()
        try:
            self._put(*_split(path), source)
        except self._refused as error:
            code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
            if code in _UNABLE:
                _logger.warning("this S3 store has no conditional writes: files of the log may be overwritten")
                self._conditional = False
                source.seek(begin)
            elif code not in _TAKEN:
                raise OSError(str(error)) from error
        except self._failed as error:
            raise OSError(str(error)) from error
        return self._conditional

    def _put(self, bucket: str, key: str, source: BinaryIO) -> None:
        place = {"Bucket": bucket, "Key": key}
        part = source.read(PART)
        if len(part) < PART:
            self._client.put_object(**place, Body=part, IfNoneMatch="*")
            return
        upload = {**place, "UploadId": self._client.create_multipart_upload(**place)["UploadId"]}
        try:
            parts: list[dict[str, Any]] = []
            while part:
                number = len(parts) + 1
                tag = self._client.upload_part(**upload, PartNumber=number, Body=part)["ETag"]
                parts.append({"PartNumber": number, "ETag": tag})
                part = source.read(PART)
            self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
        except BaseException:
            # The parts of an incomplete upload would stay in the store and cost money.
            with contextlib.suppress(self._refused, self._failed):
                self._client.abort_multipart_upload(**upload)
            raise

    def delete(self, path: str) -> None:
        """Remove an object, if it exists."""
        bucket, key = _split(path)
        try:
            self._client.delete_object(Bucket=bucket, Key=key)
        except (self._refused, self._failed) as error:
            raise OSError(str(error)) from error


def s3_objects(filesystem: fs.FileSystem) -> S3Objects | None:
    """The objects of an Arrow file system; None if it is not S3 or boto3 is not installed."""
    if filesystem.type_name != "s3":
        return None
    settings = filesystem.__reduce__()[1][0]
    names = (
        "access_key", "secret_key", "session_token", "region", "scheme", "endpoint_override", "anonymous", "role_arn",
        "force_virtual_addressing", "tls_ca_file_path",
    )  # fmt: skip
    return _client(os.getpid(), *(settings.get(name) or None for name in names))


@functools.lru_cache(maxsize=16)
def _client(
    process: int,
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
        _logger.info("boto3 is not installed: files of the log on S3 are written without a condition")
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
            # Other stores often reject boto3's checksums; the log's files contain their own.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    return S3Objects(client, (errors.ClientError, errors.BotoCoreError))


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key
