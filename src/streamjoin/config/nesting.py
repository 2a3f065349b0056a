"""Whether one location is inside another; for local paths and URLs."""

from __future__ import annotations

import os
import posixpath
from urllib.parse import unquote, urlsplit

_SAME = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb", "viewfs": "hdfs"}
"""Schemes that are aliases for one store."""


def is_inside(place: str, directory: str) -> bool:
    """Whether `place` is `directory` or is inside it.

    >>> is_inside("out/checkpoint/rows", "out/checkpoint/"), is_inside("out/checkpoints", "out/checkpoint")
    (True, False)
    >>> is_inside("s3a://bucket/a/./b", "s3://bucket/a"), is_inside("s3://other/a/b", "s3://bucket/a")
    (True, False)
    """
    inner, outer = _parts(place), _parts(directory)
    return inner[: len(outer)] == outer


def _parts(place: str) -> tuple[str, ...]:
    address = urlsplit(place)
    scheme = address.scheme.lower()
    if scheme in ("", "file"):
        local = unquote(address.path) if scheme else place
        return ("file", "", *os.path.realpath(local).strip("/").split("/"))
    path = posixpath.normpath(f"/{address.path}").strip("/")
    return (_SAME.get(scheme, scheme), address.netloc.lower(), *(path.split("/") if path else ()))
